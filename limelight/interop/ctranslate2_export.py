"""Folders of CTranslate2, with the tokenizer beside the model: `decode.accel` converts."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limelight.decode.accel.ctranslate2 import require_package, save, unknown_in_model
from limelight.errors import UserError
from limelight.interop.certificate import Certificate, sample_tokens, verdict
from limelight.interop.huggingface_export import tokenizer_files
from limelight.loading import LoadedModel

# How far log-probabilities may be from ours, as a share of the largest. Three times that of en-de
# and writer or more: 1e-6, 1e-4, 0.007, 0.009.
PRECISIONS = {"float32": 1e-4, "float16": 2e-3, "int8": 0.05, "int8_bfloat16": 0.05}
_COMPUTED = {"float16": "float32", "int8_bfloat16": "int8_float32"}  # as every CPU can


def check_ctranslate2(loaded: LoadedModel) -> None:
    """Refuse, by its name, what CTranslate2 cannot compute."""
    require_package()
    if part := unknown_in_model(loaded.model):
        raise UserError(
            f"{part} has no equivalent in CTranslate2: export this model with --to onnx"
        )


def write_ctranslate2(loaded: LoadedModel, folder: Path, precision: str) -> None:
    """The model in the words of its tokenizer, and the tokenizer."""
    model, tokenizer = loaded.model, loaded.tokenizer
    start = tokenizer.start if loaded.family == "encoder-decoder" else None
    options: Any = {"end": tokenizer.end, "precision": precision, "start": start}
    save(model, folder, vocabularies=_vocabularies(loaded), **options)
    keep_tokenizer(loaded, folder)


def keep_tokenizer(loaded: LoadedModel, folder: Path) -> None:
    """A tokenizer.json with special tokens where it can be, else the tokenizer's own files."""
    try:
        files = tokenizer_files(loaded)
    except UserError:
        files = loaded.tokenizer.files
    for name, data in files.items():
        (folder / name).write_bytes(data)


def _vocabularies(loaded: LoadedModel) -> tuple[list[str], list[str]]:
    """The words of source and target."""
    config, tokenizer = loaded.model.config, loaded.tokenizer
    return _words(tokenizer.source, config.num_source_tokens), _words(tokenizer, config.vocab)


def _words(tokenizer: Any, size: int) -> list[str]:
    """The spelling of each token in tokenizer.json; what has none gets one."""
    coder = getattr(tokenizer, "coder", None)
    found = coder.symbols if coder else sorted(tokenizer.vocabulary, key=tokenizer.vocabulary.get)
    spelled = [*found, *[None] * (size - len(found))]
    return [f"<unused{i}>" if word is None else word for i, word in enumerate(spelled)]


def compare_ctranslate2(loaded: LoadedModel, folder: Path, precision: str) -> Certificate:
    """CTranslate2 reads what was just written, and scores the same tokens."""
    package, model, tokenizer = require_package(), loaded.model, loaded.tokenizer
    source, target = sample_tokens(model.config, tokenizer)
    sources, targets = _vocabularies(loaded)

    def spelled(rows: Tensor, names: list[str]) -> list[list[str]]:
        return [[names[i] for i in row] for row in rows.tolist()]

    options: Any = {"compute_type": _COMPUTED.get(precision, precision), "inter_threads": 1}
    options["intra_threads"] = torch.get_num_threads()
    if loaded.family == "encoder-decoder":
        engine = package.Translator(str(folder), device="cpu", **options)
        found = engine.score_batch(spelled(source, sources), spelled(target, targets))
        begun = torch.cat([torch.full((len(target), 1), tokenizer.start), target], dim=1)
        with torch.no_grad():
            logits = model(source, begun)[:, :-1]
    else:
        engine = package.Generator(str(folder), device="cpu", **options)
        found = engine.score_batch(spelled(target, targets))
        with torch.no_grad():
            logits, target = model(target)[:, :-1], target[:, 1:]
    theirs = torch.tensor([each.log_probs[: target.size(1)] for each in found])
    ours = logits.log_softmax(dim=-1).gather(2, target[..., None])[..., 0]
    versions = {name: version(name) for name in ("ctranslate2", "torch")}
    return verdict(ours, theirs, "ctranslate2", versions, PRECISIONS[precision])
