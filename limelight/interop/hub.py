"""Models of the Hugging Face hub by their names, where there is a network."""

import fnmatch
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from limelight.errors import UserError

_TEXTS = {".json", ".txt", ".spm", ".model", ".jinja"}
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.gguf")  # the first that a repository has
_POOLING = "1_Pooling/config.json"


def download_from_hub(name: str) -> Path:
    """The folder of a model, downloaded by `huggingface_hub` or found in its cache."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?(?:@[\w.-]+)?", name):
        raise UserError(f"{name:.120} is no file or folder here, and no name of the hub")
    try:
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        need = "pip install 'limelight[interop]'"
        raise UserError(
            f"{name} is no file or folder here; to fetch it from the hub, {need}"
        ) from None
    repository, _, revision = name.partition("@")
    try:
        return Path(_download(repository, revision or None))
    except UserError:
        raise
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        where = f"https://huggingface.co/{repository}"
        raise UserError(
            f"{name} is no file or folder here, and cannot be fetched from the hub "
            f"({type(error).__name__}): download the files of {where}/tree/main into a folder, and "
            "import that"
        ) from error


def _download(repository: str, revision: str | None) -> str:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        files = HfApi().model_info(repository, revision=revision).siblings or []
    except HfHubHTTPError:  # there is none of this name, or it asks for a login
        raise
    except Exception:  # no network, in the words of a library that it chooses itself
        return snapshot_download(repository, revision=revision, local_files_only=True)
    wanted = files_to_download(repository, [file.rfilename for file in files])
    return snapshot_download(repository, revision=revision, allow_patterns=wanted)


def files_to_download(repository: str, names: Sequence[str]) -> list[str]:
    """Of a repository's files those that an import reads: texts, and weights in one format.

    Others lie beside them: code, pickles of other libraries, the same weights for other engines.
    """
    top = [name for name in names if "/" not in name]
    by_kind = [fnmatch.filter(top, kind) for kind in _WEIGHTS]
    weights = next(filter(None, by_kind), [])
    if len(weights) > 1 and weights[0].endswith(".gguf"):
        raise UserError(
            f"{repository} has {len(weights)} models, such as {weights[0]}: download one and "
            "import the file"
        )
    texts = [name for name in top if PurePosixPath(name).suffix in _TEXTS]
    return [*texts, *weights, *(name for name in names if name == _POOLING)]
