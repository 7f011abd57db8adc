"""Models of the Hugging Face hub by their names, where there is a network."""

import re
from pathlib import Path

from limelight.errors import UserError

_FILES = [  # data only: no Python, no pickle
    *("*.json", "*.safetensors", "*.txt", "*.spm", "*.model", "*.jinja", "1_Pooling/config.json"),
]


def download_from_hub(name: str) -> Path:
    """The folder of a model, downloaded by `huggingface_hub` or found in its cache."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?(?:@[\w.-]+)?", name):
        raise UserError(f"{name:.120} is no file or folder here, and no name of the hub")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        need = "pip install 'limelight[interop]'"
        raise UserError(
            f"{name} is no file or folder here; to fetch it from the hub, {need}"
        ) from None
    repository, _, revision = name.partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        where = f"https://huggingface.co/{repository}"
        raise UserError(
            f"{name} is no file or folder here, and cannot be fetched from the hub "
            f"({type(error).__name__}): download the files of {where}/tree/main into a folder, and "
            "import that"
        ) from error
