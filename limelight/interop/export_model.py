"""`limelight export`: a run becomes a model of another library, all of it or nothing.

What the other library cannot compute is refused by the setting's name before anything is written.
The other library then reads what was written, and its numbers must be ours.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from limelight.errors import FailedError, UserError
from limelight.files import atomic_folder, sync
from limelight.interop.certificate import Certificate, certify
from limelight.interop.huggingface_export import (
    options_for,
    tokenizer_files,
    write_huggingface,
    write_json,
)
from limelight.interop.imported import ImportedModel, Origin
from limelight.interop.model_card import model_card
from limelight.loading import LoadedModel, load
from limelight.model import ModelConfig
from limelight.run.atomic import check_disk_space, make_folder
from limelight.run.bundled_models import find_run

Format = Literal["huggingface"]


@dataclass(frozen=True)
class _Exporter:
    """How a format is written, by functions that get the model and a folder."""

    check: Callable[[LoadedModel], object]  # refuses, by its name, a setting without equivalent
    write: Callable[[LoadedModel, Path], None]
    compare: Callable[[LoadedModel, Path], Certificate]
    library: str  # as the hub calls it
    use: Callable[[LoadedModel], str]  # Python for the model card


def export_model(
    run: str | Path, folder: str | Path, to: Format = "huggingface", precision: str = "float32"
) -> Certificate:
    """Write a run as a model of another library, and compare both."""
    target, exporter = Path(folder), _exporter(to, precision)
    if target.is_dir() and not any(target.iterdir()):
        target.rmdir()
    if target.exists():
        raise UserError(f"{target} is there already: choose another folder, or delete it")
    found = find_run(run)
    loaded = load(run, device="cpu", precision="float32")
    _refuse_others(loaded)
    exporter.check(loaded)
    make_folder(target.parent.resolve())
    weights = sum(p.nbytes for p in loaded.model.parameters())
    check_disk_space(target.parent.resolve(), weights)
    with atomic_folder(target) as unfinished:
        exporter.write(loaded, unfinished)
        card = model_card(loaded, found, exporter.library, exporter.use(loaded))
        (unfinished / "README.md").write_text(card, "utf-8")
        certificate = exporter.compare(loaded, unfinished)
        write_json(unfinished / "certificate.json", asdict(certificate))
        for path in unfinished.rglob("*"):
            sync(path)
    return certificate


def _refuse_others(loaded: LoadedModel) -> None:
    config = loaded.model.config
    if not isinstance(config, ModelConfig):
        raise UserError(f"family={config.family!r} cannot be exported: only Transformers can be")
    if loaded.image_tokenizer is not None:
        raise UserError("data.kind='images': a model that draws cannot be exported")
    if config.decoder_cell != "attention":
        raise UserError(
            f"decoder_cell={config.decoder_cell!r} cannot be exported: no other library has it"
        )


def _exporter(to: str, precision: str) -> _Exporter:
    return _Exporter(_check_huggingface, write_huggingface, _compare, "transformers", _use)


def _check_huggingface(loaded: LoadedModel) -> None:
    options_for(loaded.model.config)
    tokenizer_files(loaded)


def _compare(loaded: LoadedModel, folder: Path) -> Certificate:
    """`transformers` reads the folder: its numbers and ids must be ours."""
    config, kind = loaded.model.config, "texts"
    origin = Origin("huggingface", options_for(config)["architectures"][0], str(folder))
    weights = {name: value.detach() for name, value in loaded.model.named_parameters()}
    model: Any = ImportedModel(config, weights, loaded.tokenizer, origin, kind)
    certificate = certify(model, folder)
    if certificate.compared != "nothing" and not certificate.texts:
        raise FailedError("transformers cannot read the tokenizer; nothing was written")
    return certificate


_AUTO = {
    "translate": "AutoModelForSeq2SeqLM",
    "write": "AutoModelForCausalLM",
    "fill": "AutoModelForMaskedLM",
    "classify": "AutoModelForSequenceClassification",
    "embed": "AutoModel",
}


def _use(loaded: LoadedModel) -> str:
    kind = "write" if loaded.family == "decoder-only" else loaded.tasks[0]
    run = "print(tokenizer.decode(model.generate(**texts)[0], skip_special_tokens=True))"
    if loaded.family == "encoder-only":
        run = "print(model(**texts))"
    return f"""
from transformers import {_AUTO[kind]}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = {_AUTO[kind]}.from_pretrained(".")
texts = tokenizer("I am hungry.", return_tensors="pt", return_token_type_ids=False)
{run}
"""
