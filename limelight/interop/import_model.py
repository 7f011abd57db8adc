"""`limelight import`: a published model becomes a run folder, all of it or nothing."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from limelight.data.config import DataConfig
from limelight.data.tokenizer import SMALLEST, TokenizerConfig
from limelight.errors import UserError
from limelight.files import atomic_folder
from limelight.interop import fairseq, gguf_file, huggingface, llama2c, marian, nanogpt
from limelight.interop.certificate import Certificate, certify
from limelight.interop.chat_template import prompt_of
from limelight.interop.imported import ImportedModel
from limelight.loading import write_run
from limelight.recipe import Recipe
from limelight.run.atomic import check_disk_space, make_folder
from limelight.run.folder import RunFolder

# By what a source looks like: the first reader that recognises it reads it.
_Recognise = Callable[[Path], bool]
READERS: dict[str, tuple[_Recognise, Callable[[Path], ImportedModel]]] = {
    "huggingface": (lambda path: (path / "config.json").is_file(), huggingface.read),
    "gguf": (lambda path: path.suffix == ".gguf", gguf_file.read),
    "marian": (
        lambda path: any(path.glob("model.*.bin")) and any(path.glob("*vocab.*.spm")),
        marian.read,
    ),
    "nanogpt": (lambda path: nanogpt.checkpoint_at(path).is_file(), nanogpt.read),
    "fairseq": (fairseq.recognise, fairseq.read),
    "llama2.c": (lambda path: path.suffix == ".bin" and path.is_file(), llama2c.read),
}


def import_model(source: str | Path, folder: str | Path, name: str = "") -> Certificate:
    """Read a model, compare it with its origin, and write a run folder."""
    target = Path(folder)
    if target.exists():
        raise UserError(f"{target} is there already: choose another folder, or delete it")
    path = _local(source)
    imported = read(path)
    if imported.chat_template:  # refused now, and not at the first question
        prompt_of(imported.chat_template, imported.tokenizer)([{"role": "user", "content": "Hi"}])
    certificate = certify(imported, path)
    make_folder(target.parent.resolve())
    check_disk_space(target.parent.resolve(), sum(w.nbytes for w in imported.weights.values()))
    with atomic_folder(target) as unfinished:
        _write(imported, certificate, RunFolder(unfinished), name or target.name)
    return certificate


def _local(source: str | Path) -> Path:
    """The folder or file of a source; one that is only a name on the hub is downloaded."""
    path = Path(source)
    if path.exists():
        return _only_model_in(path) if path.is_dir() else path
    from limelight.interop.hub import download_from_hub

    return _only_model_in(download_from_hub(str(source)))


def _only_model_in(folder: Path) -> Path:
    """The folder, where it is a model as a whole; else the one model file in it, if there is one.

    A `tok*.bin` belongs to the llama2.c file beside it.
    """
    if any(recognise(folder) for recognise, _ in READERS.values()):
        return folder
    files = [path for path in sorted(folder.iterdir()) if not path.match("tok*.bin")]
    found = [path for path in files if any(recognise(path) for recognise, _ in READERS.values())]
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:8])
        raise UserError(f"{folder} has several models: name one of {names}")
    return found[0] if found else folder


def read(path: Path) -> ImportedModel:
    """The model in a folder or file, whatever format it has."""
    for recognise, reader in READERS.values():
        if recognise(path):
            return reader(path)
    raise UserError(
        f"{path} is no model of a format that can be imported: a folder with config.json, a .gguf, "
        "Firefox's folder of model.*.bin and vocab.*.spm, fairseq's of checkpoint*.pt and "
        "dict.*.txt, nanoGPT's ckpt.pt, and llama2.c's .bin with tok*.bin beside it"
    )


def _write(imported: ImportedModel, certificate: Certificate, run: RunFolder, name: str) -> None:
    recipe = Recipe(
        name,
        imported.config,
        DataConfig(kind=imported.kind),
        TokenizerConfig(vocab=max(SMALLEST, len(imported.tokenizer))),
        decode=imported.decode,
        about=imported.about or f"{imported.origin.architecture}, imported",
    )
    facts: dict[str, Any] = {"origin": asdict(imported.origin), "pooling": imported.pooling}
    run.write_json("imported.json", {**facts, "max_tokens": imported.max_tokens})
    if imported.chat_template:
        run.write("chat_template.jinja", imported.chat_template)
    run.write_json("certificate.json", asdict(certificate))
    write_run(run, imported.weights, imported.tokenizer, recipe, imported.classes)
