"""`limelight export`: a run becomes a model of another library, all of it or nothing.

What the other library cannot compute is refused by the setting's name before anything is written.
The other library then reads what was written, and its numbers must be ours.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from glob import escape
from pathlib import Path
from typing import Literal, get_args

from limelight.errors import FailedError, UserError, unknown_name
from limelight.files import sync, temp_sibling, with_filename
from limelight.interop.certificate import Certificate, certify
from limelight.interop.ctranslate2_export import (
    PRECISIONS,
    check_ctranslate2,
    compare_ctranslate2,
    write_ctranslate2,
)
from limelight.interop.gguf_export import check_gguf, compare_gguf, write_gguf
from limelight.interop.huggingface_export import (
    in_our_terms,
    options_for,
    tokenizer_files,
    write_huggingface,
    write_json,
)
from limelight.interop.model_card import model_card
from limelight.interop.onnx_export import check_onnx, compare_onnx, write_onnx
from limelight.loading import LoadedModel, load
from limelight.model import ModelConfig
from limelight.run.atomic import LOCK, check_disk_space, lock, make_folder
from limelight.run.bundled_models import find_run

_Format = Literal["huggingface", "ctranslate2", "gguf", "onnx"]
_WORKING = "exporting"
_UNCHECKED = "unchecked"  # folder of files that were not yet compared


# How a format is written: what refuses, by its name, a setting without equivalent; what writes; and
# what compares both.
_Exporter = tuple[
    Callable[[LoadedModel], object],
    Callable[[LoadedModel, Path], None],
    Callable[[LoadedModel, Path], Certificate],
]


def export_model(
    run: str | Path, folder: str | Path, to: _Format = "huggingface", precision: str = "float32"
) -> Certificate:
    """Write a run as a model of another library, and compare both."""
    target, (check, write, compare) = Path(folder), _exporter(to, precision)
    empty = target.is_dir() and not any(target.iterdir())
    if target.exists() and not empty:
        raise UserError(f"{target} is there already: choose another folder, or delete it")
    found = find_run(run)
    loaded = load(run, device="cpu", precision="float32")
    _refuse_others(loaded)
    check(loaded)
    make_folder(target.parent.resolve())
    _remove_unfinished(target)
    weights = sum(p.nbytes for p in loaded.model.parameters())
    check_disk_space(target.parent.resolve(), weights)
    if empty:
        target.rmdir()
    with _unchecked(target) as unfinished:
        write(loaded, unfinished)
        (unfinished / "README.md").write_text(model_card(loaded, found, to), "utf-8")
        certificate = compare(loaded, unfinished)
        write_json(unfinished / "certificate.json", asdict(certificate))
        for path in unfinished.rglob("*"):
            sync(path)
    return certificate


@contextmanager
def _unchecked(target: Path) -> Iterator[Path]:
    """A folder inside a temporary one, that becomes `target` at the end of the block.

    Its files must have their names to be compared, but it is no neighbour of `target` yet: if this
    process is killed, what it leaves beside `target` is nothing that a library loads. The lock says
    that the process lives.
    """
    temporary = temp_sibling(target)
    try:
        with lock(temporary, _WORKING), with_filename(target):
            unchecked = temporary / _UNCHECKED
            unchecked.mkdir()
            yield unchecked
            sync(unchecked)
            unchecked.rename(target)
            sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_unfinished(target: Path) -> None:
    """Delete what killed exports to the same folder left; those that still run hold a lock."""
    for left in target.parent.glob(f"{escape(target.name)}.tmp-" + "[0-9a-f]" * 8):
        with suppress(UserError, OSError):
            if {path.name for path in left.iterdir()} == {LOCK, _UNCHECKED}:
                with lock(left, _WORKING):
                    pass
                shutil.rmtree(left)


def _refuse_others(loaded: LoadedModel) -> None:
    config = loaded.model.config
    if not isinstance(config, ModelConfig):
        raise UserError(f"family={config.family!r} cannot be exported: only Transformers can be")
    if loaded.image_tokenizer is not None:
        raise UserError("data.kind='images' cannot be exported: no other library draws so")
    if config.decoder_cell != "attention":
        raise UserError(
            f"decoder_cell={config.decoder_cell!r} cannot be exported: train a model with "
            "decoder_cell='attention'"
        )


def _exporter(to: str, precision: str) -> _Exporter:
    if to not in get_args(_Format):
        raise unknown_name("format", to, get_args(_Format))
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    if to != "ctranslate2" and precision != "float32":
        raise UserError(f"precision={precision!r} is for --to ctranslate2: {to} is in float32")
    write = partial(write_ctranslate2, precision=precision)
    compare = partial(compare_ctranslate2, precision=precision)
    exporters: dict[str, _Exporter] = {
        "huggingface": (_check_huggingface, write_huggingface, _compare_huggingface),
        "ctranslate2": (check_ctranslate2, write, compare),
        "gguf": (check_gguf, write_gguf, compare_gguf),
        "onnx": (check_onnx, write_onnx, compare_onnx),
    }
    return exporters[to]


def _check_huggingface(loaded: LoadedModel) -> None:
    options_for(loaded.model.config)
    tokenizer_files(loaded)


def _compare_huggingface(loaded: LoadedModel, folder: Path) -> Certificate:
    """`transformers` reads the folder: its numbers and ids must be ours."""
    certificate = certify(in_our_terms(loaded, folder), folder)
    if certificate.compared != "nothing" and not certificate.texts:
        raise FailedError(
            "transformers cannot read the tokenizer (does it need sentencepiece?); nothing was "
            "written"
        )
    return certificate
