"""Changes inside a model: a head off, a token hidden, a value copied from another sentence.

    with applied(model, parse(["decoder.0.cross.weights@3=off"])) as changed:
        changed(source, target)

TAP[@HEAD]=off|uniform|zero|scale:X|from:TEXT, source:N=hide and target:N=WORD; heads and positions
count from 1. TAP is a tap's name, a pattern with `*`, a layer (decoder.0) or a sub-layer
(decoder.0.cross); a decoder whose `masked` is off sees later tokens. The model
computes on from the changed value, and is as before afterwards.
"""

import math
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from limelight.decode.config import DecodeConfig
from limelight.decode.constraints import has_leading_space_tokens
from limelight.decode.request import Request
from limelight.errors import UserError, unknown_name
from limelight.explain.trace import edited, in_range, record
from limelight.explain.traced_text import TracedText, traced_text_in_steps
from limelight.model.config import ModelConfig
from limelight.model.encoder_decoder import EncoderDecoder
from limelight.model.stack import last_real
from limelight.model.taps import Edits, Recorder, matching, taps
from limelight.tasks.text_model import TextModel

_PLAIN, _WITH_VALUE = ("off", "uniform", "zero"), ("scale", "from")
_ACTIONS = (*_PLAIN, "scale:X", "from:TEXT")
_FORMS = "TAP=off, TAP@HEAD=uniform, TAP=scale:0.5, TAP=from:TEXT, source:3=hide or target:2=WORD"
NOT_NUMBERS = "the scores of the changed model are not numbers: change it less"
_IMPOSSIBLE = -1e30  # as a logit: finite, as search takes anything else for damage
_Edit = Callable[[Tensor], Tensor]
_Donors = Mapping[str, Mapping[str, Tensor]]  # values to copy, without a batch axis; by text, tap


class Change(NamedTuple):
    """One change, as it was written and as it was read."""

    spelling: str
    where: str  # a tap, a pattern, a layer or a sub-layer; "source" or "target"
    at: int | None  # a head or a position, from 1
    action: str  # off, uniform, zero, scale, from; hide; force
    value: str = ""  # X, TEXT or WORD


def parse(spellings: Iterable[str]) -> tuple[Change, ...]:
    """Read changes; whether a model has these taps and heads is checked when they are applied."""
    if isinstance(spellings, str):
        raise UserError(f"change={spellings!r:.80} is not a list: write [{spellings!r:.80}]")
    return tuple(map(_parse, spellings))


def _parse(spelling: str) -> Change:
    where, _, what = spelling.partition("=")
    tap, at, head = where.partition("@")
    side, colon, position = where.partition(":")
    if not (tap and what):
        raise UserError(f"{spelling!r:.200} is not a change: write {_FORMS}")
    if colon:
        if side not in ("source", "target"):
            raise unknown_name("side", side[:200], ("source", "target"))
        if side == "source" and what != "hide":
            raise UserError(f"{spelling!r:.200}: a source token can be hidden: write {where}=hide")
        count = _count(position, spelling)
        return Change(spelling, side, count, *(("force", what) if side == "target" else ("hide",)))
    action, valued, value = what.partition(":")
    if action not in (_WITH_VALUE if valued else _PLAIN):
        raise unknown_name("change", what[:200], _ACTIONS)
    if valued and not value.strip():
        raise UserError(f"{spelling!r:.200} ends too early: write {_FORMS}")
    if action == "scale":
        _factor(value)
    return Change(spelling, tap, _count(head, spelling) if at else None, action, value)


def _count(digits: str, spelling: str) -> int:
    if re.fullmatch("[1-9][0-9]{0,5}", digits):
        return int(digits)
    raise UserError(f"{spelling!r:.200}: {digits[:80]!r} is not a number from 1: write {_FORMS}")


def _factor(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"scale:{text:.80} needs a finite number, as in scale:0.5")
    return number


@contextmanager
def applied(model: nn.Module, changes: Iterable[Change]) -> Iterator[Any]:
    """Run the model that this yields, the eager one, under these changes.

    Decoding reads all tokens again at every step. So nothing is answered from a cache or from
    copies of the weights, and a value has all its rows when it is changed.
    """
    with Recorder(model, (), edits=edits_of(model, changes)) as recorder:
        eager: Any = recorder.model
        writes = hasattr(eager, "step")
        if writes:
            plain = _RereadingModel(eager, {}, {})
            eager.start, eager.step = plain.start, plain.step
        try:
            yield eager
        finally:
            if writes:
                del eager.start, eager.step


def edits_of(model: nn.Module, changes: Iterable[Change], donors: _Donors | None = None) -> Edits:
    """The functions that make these changes, by tap; forcing a token is left to decoding."""
    found: dict[str, list[_Edit]] = {}
    # Hidden tokens come first, as uniform weights are equal over the others.
    for change in sorted(changes, key=lambda change: change.action != "hide"):
        for tap in [] if change.action == "force" else _named(model, change):
            for name, edit in _edits_at(model, tap, change, donors or {}):
                found.setdefault(name, []).append(edit)
    return found


def _reading_source(model: Any) -> list[str]:
    """Where attention is masked among the tokens of the text that is given."""
    if not isinstance(model.config, ModelConfig):
        raise UserError(f"this model is {model.config.family}: source:N=hide is for Transformers")
    found = [name for name in taps(model) if name.endswith(".masked")]
    both = model.config.family == "encoder-decoder"
    return [name for name in found if not (both and _is_causal(name))]


def _is_causal(name: str) -> bool:
    return name.startswith("decoder") and ".self." in name


def _named(model: nn.Module, change: Change) -> list[str]:
    """The taps that are meant; of a layer or a sub-layer, those that switch it off."""
    if change.action == "hide":
        return _reading_source(model)
    known, where = taps(model), change.where
    inside = [name for name in known if name.startswith(f"{where}.")]
    if "*" in where or where in known:
        return matching(where, known)
    if not inside:
        parts = {".".join(name.split(".")[:n]) for name in known for n in (2, 3)}
        raise unknown_name("tap", where, parts | known.keys())
    heads = change.action == "uniform" or change.at is not None
    found = [name for name in inside if name.endswith(".weights" if heads else ".output")]
    if change.action not in ("off", "uniform") or where.count(".") == 0 or not found:
        raise UserError(f"{change.spelling!r:.200}: name one value, such as {inside[-1]}")
    return found


def _edits_at(
    model: Any, name: str, change: Change, donors: _Donors
) -> Iterator[tuple[str, _Edit]]:
    block, _, step = name.rpartition(".")
    action = change.action
    if action == "hide":
        yield name, partial(_hide, change, name)
        return
    edit = partial(_at_head, _head_of(model, name, change))
    if action == "uniform":
        if step != "weights":
            raise UserError(f"{name!r} cannot be uniform: only the weights of attention can")
        seen: list[Tensor] = []
        yield f"{block}.masked", partial(_remember, seen)
        yield name, partial(edit, lambda _: _scaled(0.0, seen[-1]).softmax(dim=-1))
    elif action == "off" and step == "masked" and _is_causal(name):
        unmasked: list[Tensor] = []
        yield f"{block}.scaled", partial(_remember, unmasked)
        yield name, partial(edit, lambda masked: _without_look_ahead(masked, unmasked[-1]))
    elif action == "from":
        if change.value not in donors:
            raise UserError(f"{change.spelling!r:.200} copies from a text: only explain reads one")
        growing = _growing_axes(name, model.config.family)
        axes = [axis in growing for axis in taps(model)[name].axes]
        yield name, partial(edit, partial(_copied, name, donors[change.value][name], axes))
    else:
        if action == "off" and step not in ("weights", "mixed", "output"):
            raise UserError(f"{name!r} cannot be off, only weights, mixed and output: write zero")
        yield name, partial(edit, partial(_scaled, _factor(change.value or "0")))


def _head_of(model: Any, name: str, change: Change) -> int | None:
    if change.at is None:
        return None
    if "head" not in taps(model)[name].axes:
        raise UserError(f"{name!r} has no heads: leave @{change.at} out")
    config, grouped = model.config, name.endswith((".k", ".v"))
    return in_range("head", change.at, config.num_kv_heads if grouped else config.heads)


def _at_head(head: int | None, new: _Edit, value: Tensor) -> Tensor:
    changed = new(value)
    if head is None:
        return changed
    mixed = value.clone()
    mixed[..., head, :, :] = changed[..., head, :, :]
    return mixed


def _scaled(factor: float, value: Tensor) -> Tensor:
    """What a mask has hidden stays hidden."""
    return torch.where(value == -math.inf, value, value * factor)


def _without_look_ahead(masked: Tensor, scaled: Tensor) -> Tensor:
    """Every token sees what the last one sees: what is hidden from that one too is padding."""
    return torch.where(masked[..., -1:, :] == -math.inf, masked, scaled)


def _hide(change: Change, name: str, masked: Tensor) -> Tensor:
    """As padding is: no query reads this key, but in a decoder a token still reads itself."""
    column = (change.at or 1) - 1
    if column >= masked.size(-1):
        raise UserError(f"there is no {change.where} token {change.at}: it has {masked.size(-1)}")
    hidden = torch.zeros(masked.shape[-2:], dtype=torch.bool, device=masked.device)
    hidden[:, column] = True
    if _is_causal(name):
        hidden[column, column] = False
    return masked.masked_fill(hidden, -math.inf)


def _remember(seen: list[Tensor], value: Tensor) -> Tensor:
    seen[:] = [value]
    return value


def _copied(name: str, donor: Tensor, growing: Sequence[bool], value: Tensor) -> Tensor:
    """A value of another text: in a decoder, which knows no end before it, as far as both go."""
    shape = value.shape[value.dim() - donor.dim() :]
    sizes = list(zip(shape, donor.shape, growing, strict=True))
    if any(here != there and not grows for here, there, grows in sizes):
        own, other = (" x ".join(map(str, size)) for size in (shape, donor.shape))
        sizes_differ = f"{name} is {other} in the text to copy from, and {own} here"
        raise UserError(f"{sizes_differ}: choose a text with as many tokens")
    both: Any = tuple(slice(min(here, there)) for here, there, _ in sizes)
    changed = value.clone()
    changed[..., *both] = donor.to(value)[both]
    return changed


def _growing_axes(name: str, family: str) -> tuple[str, ...]:
    """Those that are as long as what the decoder has read so far."""
    cross = ".cross." in name
    of_source = name.startswith("encoder") or (cross and name.endswith((".key", ".value")))
    if of_source or family == "encoder-only":
        return ()
    return ("word", "query") if cross else ("word", "query", "key")


@dataclass
class _Texts:
    """The tokens of a batch so far: the state of a model without a cache."""

    source: Tensor | None = None
    source_real: Tensor | None = None
    memory: Tensor | None = None  # of the changed encoder: read once
    tokens: Tensor | None = None
    real: Tensor | None = None

    def select(self, rows: Tensor) -> None:
        for name, value in vars(self).items():
            setattr(self, name, None if value is None else value[rows])


class _RereadingModel:
    """Decodes with the plain forward pass over all tokens, under `edits`, one step at a time.

    `forced` has the only token that may follow, by the number of tokens that were read.
    """

    def __init__(self, model: Any, edits: Edits, forced: Mapping[int, int]) -> None:
        self.model, self.config, self.edits, self.forced = model, model.config, edits, forced

    def parameters(self) -> Any:
        return self.model.parameters()

    def start(self, given: Any, real: Tensor | None = None, **_: object) -> _Texts:
        """The state: sources with what is real of them, or only a number of rows."""
        return _Texts(given, real) if isinstance(given, Tensor) else _Texts()

    @torch.no_grad()
    def step(self, tokens: Tensor, state: _Texts, real: Tensor | None = None) -> Tensor:
        """Read the next tokens (B T) and all before them again; logits of the next ones, B V."""
        real = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
        if state.tokens is not None and state.real is not None:
            tokens = torch.cat([state.tokens, tokens], dim=1)
            real = torch.cat([state.real, real], dim=1)
        state.tokens, state.real = tokens, real
        with edited(self.model, self.edits):
            logits = self._logits(state, tokens, None if real.all() else real)
        if not torch.isfinite(logits).all():
            raise UserError(NOT_NUMBERS)
        last = torch.arange(tokens.size(1), device=tokens.device).where(real, 0).amax(dim=1)
        logits = last_real(logits, last + 1)
        if tokens.size(1) in self.forced:
            only, token = torch.full_like(logits, _IMPOSSIBLE), self.forced[tokens.size(1)]
            only[:, token] = logits[:, token]
            return only
        return logits

    def _logits(self, state: _Texts, tokens: Tensor, real: Tensor | None) -> Any:
        if state.source is None:
            return self.model(tokens, real)
        if not isinstance(self.model, EncoderDecoder):
            return self.model(state.source, tokens, state.source_real, real)
        if state.memory is None:
            state.memory = self.model.encode(state.source, state.source_real)
        states = self.model.decode(tokens, state.memory, state.source_real, real)
        return self.model.classifier(states)


@dataclass(frozen=True)
class Intervention:
    """Changes made ready for one model and one text: edits of its values, and forced tokens."""

    changes: tuple[Change, ...] = ()
    edits: Edits = field(default_factory=dict)
    forced: Mapping[int, int] = field(default_factory=dict)  # by position, from 1

    @property
    def spellings(self) -> list[str]:
        return [change.spelling for change in self.changes]

    def text_in_steps(
        self, trained: TextModel, text: str, target: str | None, config: DecodeConfig, tag: str
    ) -> Generator[None, None, TracedText]:
        """As `traced_text_in_steps`, generated by the changed model."""

        def model_for(request: Request) -> _RereadingModel:
            read = {len(request.prompt) + at - 1: token for at, token in self.forced.items()}
            return _RereadingModel(trained.model, self.edits, read)

        found = yield from traced_text_in_steps(trained, text, target, config, tag, model_for)
        self._check(found)
        forced = self.force(found)
        if target is None and forced.answers != found.answers:
            raise UserError(f"{self._forcing()} cannot be forced: a setting of [decode] forbids it")
        return forced

    def _check(self, found: TracedText) -> None:
        hidden = {change.at or 0 for change in self.changes if change.action == "hide"}
        count, written = len(found.source) or found.given + 1, len(found.answers) - found.given
        if hidden and max(hidden) > count:
            raise UserError(f"there is no source token {max(hidden)}: the text has {count}")
        if found.source and len(hidden) == count:
            raise UserError("all tokens of the source are hidden: leave at least one")
        if self.forced and not found.target:
            raise UserError(f"{self._forcing()} is for models that write: this one has no target")
        if self.forced and max(self.forced) > written:
            raise UserError(f"{self._forcing()} is out of reach: the target has {written} tokens")

    def _forcing(self) -> str:
        return next(change.spelling for change in self.changes if change.action == "force")

    def force(self, found: TracedText) -> TracedText:
        """The text with the forced tokens in their positions, as far as it goes."""
        if not self.forced:
            return found
        answers = list(found.answers)
        for at, token in self.forced.items():
            if found.given + at <= len(answers):
                answers[found.given + at - 1] = token
        target = [*found.target[:1], *answers[:-1]]
        return replace(found, target=target, answers=answers, mode="given", logprobs=(), tree=[])


def intervention_in_steps(
    trained: TextModel,
    changes: Sequence[Change],
    target: str | None,
    config: DecodeConfig,
    tag: str,
    check: Callable[[TracedText], object] = lambda _: None,
) -> Generator[None, None, Intervention]:
    """Make changes ready, one token per `next()`; `check` may reject a text to copy from.

    A text to copy from is read with the same target, or else generates its own.
    """
    donors: dict[str, dict[str, Tensor]] = {}
    for change in [change for change in changes if change.action == "from"]:
        other = change.value
        found = yield from traced_text_in_steps(trained, other, target, config, tag)
        check(found)
        names, inputs = _named(trained.model, change), found.inputs(trained.device)
        donors[other] = donors.get(other, {}) | record(trained.model, inputs, names)
    edits = edits_of(trained.model, changes, donors)
    return Intervention(tuple(changes), edits, _forced_tokens(trained, changes))


def _forced_tokens(trained: TextModel, changes: Iterable[Change]) -> dict[int, int]:
    """Tokens by position; a word of several takes as many. A space comes first, if text does."""
    found: dict[int, int] = {}
    tokenizer, continued = trained.tokenizer, trained.kind == "texts"
    for change in [change for change in changes if change.action == "force"]:
        first = change.at or 1
        spaced = (continued or first > 1) and has_leading_space_tokens(tokenizer)
        tokens = tokenizer.encode(f" {change.value}" if spaced else change.value)
        wanted = dict(enumerate(tokens, first))
        if not tokens or any(found.get(at, token) != token for at, token in wanted.items()):
            raise UserError(
                f"{change.spelling!r:.200} has no token, or another change takes its position"
            )
        found |= wanted
    return found
