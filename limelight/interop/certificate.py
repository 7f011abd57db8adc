"""The certificate of an import or export: our numbers beside those of the other library.

Both read the same tokens, some of a text and some drawn at random. A model whose numbers differ is
another model: nothing is written then.
"""

import io
import math
import tomllib
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from limelight.data.tokenizer import Tokenizer
from limelight.errors import FailedError
from limelight.interop.imported import NEVER, ImportedModel
from limelight.model import ModelConfig, build

_WITHIN = 1e-4  # of the largest number: float32 in two orders of summation, over 30 layers
TEXTS = (
    "The cat sat on the mat.",
    "  Straße, naïve café: 12,345.67 €\n\tx = [1, 2]  # ok?",
    "日本語 العربية 🙂 don't <tag> </s> [MASK] ﬁ",
)


@dataclass(frozen=True)
class Certificate:
    """What was compared, and how far apart it is."""

    compared: str  # "transformers", "golden numbers" or "nothing"
    largest_difference: float | None = None  # of logits, or of states where there are none
    largest_value: float | None = None
    tokens: int = 0  # positions whose numbers were compared
    texts: int = 0  # whose ids were compared
    versions: dict[str, str] = field(default_factory=dict)
    why: str = ""  # nothing was compared


def certify(imported: ImportedModel, path: Path) -> Certificate:
    """Compare a model with what lies at a path, if the library that reads it is installed."""
    compare = COMPARISONS.get(imported.origin.format)
    if compare is None:
        why = f"no other reader of {imported.origin.format} is known"
        return _golden(imported) or Certificate("nothing", why=why)
    return certify_by(imported, lambda: compare(imported, path))


def certify_by(
    imported: ImportedModel, compare: Callable[[], "tuple[_Logits, int]"]
) -> Certificate:
    """Compare with `transformers`, whose logits and number of texts with our ids this gives."""
    try:
        versions = {name: version(name) for name in ("transformers", "torch")}
    except PackageNotFoundError as error:
        missing = Certificate("nothing", why=f"{error.name} is not installed")
        return _golden(imported) or missing
    import transformers

    log = cast(Any, transformers).logging
    log.disable_progress_bar()
    log.set_verbosity_error()
    theirs, texts = compare()
    source, target = sample_tokens(imported.config, imported.tokenizer)
    ours = _logits_of_import(imported, source, target)
    certificate = verdict(ours, theirs(source, target), "transformers", versions)
    return replace(certificate, texts=texts)


def _golden(imported: ImportedModel) -> Certificate | None:
    """Compare with what others gave once for the same file, if that is in golden.toml."""
    found = tomllib.loads(Path(__file__).with_name("golden.toml").read_text("utf-8"))
    for known in filter(None, map(found.get, imported.origin.files.values())):
        logits = _logits_of_import(imported, *sample_tokens(imported.config, imported.tokenizer))
        theirs = torch.tensor(known["largest"])
        return verdict(logits[0].amax(dim=-1), theirs, "golden numbers", known["versions"])
    return None


_Logits = Callable[[Tensor, Tensor], Tensor]  # of a source and a target; one side reads one of them


def verdict(
    ours: Tensor, theirs: Tensor, library: str, versions: dict[str, str], within: float = _WITHIN
) -> Certificate:
    """How far two computations are apart; too far is an error. B T numbers are one for each token.

    `within` is a share of the largest number.
    """
    possible = ours > NEVER / 2  # what was made impossible
    difference = (ours - theirs)[possible].abs().max().item()
    largest = theirs[possible].abs().max().item()
    if not difference <= within * (1 + largest) or not math.isfinite(largest):
        raise FailedError(
            f"our model and {library} differ: by {difference:.2g} in numbers of up to "
            f"{largest:.3g}; nothing was written"
        )
    tokens = math.prod(ours.shape[:2])
    return Certificate(library, difference, largest, tokens, versions=versions)


def sample_tokens(config: ModelConfig, tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """Two rows of source and of target tokens: from a text, and drawn."""
    draw = torch.Generator().manual_seed(1)
    sides = []
    for own, vocab in ((tokenizer.source, config.num_source_tokens), (tokenizer, config.vocab)):
        text = own.encode(" ".join(TEXTS))[: min(24, config.max_len)]
        drawn = torch.randint(vocab, (len(text),), generator=draw)
        sides.append(torch.stack([torch.tensor(text), drawn]))
    return sides[0], sides[1]


def _logits_of_import(imported: ImportedModel, source: Tensor, target: Tensor) -> Tensor:
    model: Any = build(imported.config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(imported.weights[name])
    return our_logits(model, source, target)


@torch.no_grad()
def our_logits(model: Any, source: Tensor, target: Tensor) -> Tensor:
    """What a model says; states where it has no head."""
    both = {"encoder-only": [source], "decoder-only": [target]}
    found: Tensor = model(*both.get(model.config.family, [source, target]))
    return found


def _huggingface(imported: ImportedModel, path: Path) -> tuple[_Logits, int]:
    import transformers

    # The classes of the library by name, never code of the folder.
    kind = getattr(transformers, imported.origin.architecture, None)
    if kind is None:
        raise FailedError(f"transformers has no {imported.origin.architecture}")
    model = kind.from_pretrained(path, local_files_only=True, dtype=torch.float32).eval()
    return _logits_of(model, imported), _compare_ids(imported, path)


def _gguf(imported: ImportedModel, path: Path) -> tuple[_Logits, int]:
    """transformers reading this file; not its tokenizer, which leaves out llama.cpp's rules."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    return gguf_logits(imported, path, config), 0


def gguf_logits(imported: ImportedModel, path: Path, config: Any) -> _Logits:
    """What transformers computes with the tensors of a file, in a model of its own."""
    import transformers
    from transformers import modeling_gguf_pytorch_utils

    hf, reader = cast(Any, transformers), cast(Any, modeling_gguf_pytorch_utils)
    model = hf.AutoModelForCausalLM.from_config(config).float().eval()
    with redirect_stderr(io.StringIO()):  # a progress bar that no setting of theirs turns off
        found = reader.load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)
    model.load_state_dict(found["tensors"], strict=False)
    model.tie_weights()
    return _logits_of(model, imported)


def _logits_of(model: Any, imported: ImportedModel) -> _Logits:
    def logits(source: Tensor, target: Tensor) -> Tensor:
        family = imported.config.family
        with torch.no_grad():
            if family == "encoder-decoder":
                found = model(input_ids=source, decoder_input_ids=target)
            else:
                found = model(input_ids=source if family == "encoder-only" else target)
        for name in ("logits", "prediction_logits", "last_hidden_state"):
            if name in found:
                return found[name]
        raise FailedError(f"{imported.origin.architecture} gives no logits")

    return logits


def _compare_ids(imported: ImportedModel, path: Path) -> int:
    """The ids of a few hard texts, against the origin's own tokenizer, if it can be read."""
    from transformers import AutoTokenizer

    if (path / "vocab.txt").is_file() and not any(path.glob("tokenizer*")):
        return 0  # nothing says whether it lowercases, and both libraries have to guess
    try:
        theirs = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (ValueError, OSError, KeyError, ImportError):  # of a kind that needs more packages
        return 0
    for text in TEXTS:
        plain = text.replace("</s>", "").replace("[MASK]", "")  # ours never reads a special token
        expected = theirs(plain, add_special_tokens=False)["input_ids"]
        if (got := imported.tokenizer.source.encode(plain)) != expected:
            raise FailedError(
                f"our tokenizer and transformers' differ on {plain!a:.60}: {got[:12]} and "
                f"{expected[:12]}; nothing was written"
            )
    return len(TEXTS)


COMPARISONS: dict[str, Callable[[ImportedModel, Path], tuple[_Logits, int]]] = {
    "huggingface": _huggingface,
    "gguf": _gguf,
}
