"""One text through one model, and every value of it: the model writes first, then we look.

It writes in its usual, fast way. Then all that it read and wrote goes through it once more, in one
pass with a recorder, as in training: row t of that pass is step t of the writing. The checks say
whether that is true: the same words, the same scores, weights that sum to 1.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from limelight.decode.config import DecodeConfig
from limelight.decode.constraints import without_space
from limelight.decode.request import pad_histories
from limelight.decode.sampling import NEG_INF, apply_repetition_penalty, sample, uniform_draws
from limelight.errors import UserError, unknown_name
from limelight.explain.tokens import pieces_of, words_of
from limelight.explain.traced_text import TracedText
from limelight.model.taps import Recorder, dataflow, matching, sides, taps
from limelight.tasks.text_model import TextModel

_TOP = 20  # candidates that are kept of every step
_Which = Literal["encoder", "decoder", "cross"]


class Summary(NamedTuple):
    """A tensor in a few numbers, taken over those of its values that are numbers."""

    shape: tuple[int, ...]
    low: float | None
    high: float | None
    mean: float | None
    spread: float | None  # standard deviation
    hidden: int  # how many are -inf: masked
    broken: int  # how many are NaN or +inf: the model is damaged


class _TokenCandidate(NamedTuple):
    """A token that could come next."""

    token: int
    piece: str
    probability: float
    logit: float


@dataclass(frozen=True)
class DecodingStep:
    """What the model says at one row: what could come, and what was taken."""

    row: int
    reads: str  # the piece at this row
    chosen: _TokenCandidate
    top: tuple[_TokenCandidate, ...]  # of the whole vocabulary, the likeliest first
    entropy: float  # in nats: 0 is sure, log(vocabulary) knows nothing
    logsumexp: float  # probability = exp(logit - logsumexp)
    end: bool


@dataclass
class _Checks:
    """Whether what is shown is what the model does."""

    same_words: bool | None = None  # the pass chose what the fast way chose
    fast_difference: float | None = None  # of the words' log-probabilities, the largest
    traced_difference: float = 0.0  # of the logits with and without a recorder
    row_error: float = 0.0  # how far a row of attention is from summing to 1
    max_future_weight: float = 0.0  # the largest weight on something that comes later
    broken: dict[str, int] = field(default_factory=dict)  # values that are NaN, by name


class Trace:
    """What happened to one text. `tensor(name)` gives any value of it.

    Values that match `names` are kept as far as there is room; any other is computed again when it
    is asked for, which gives the same numbers: a trace can be as small as a few tokens.
    """

    def __init__(
        self,
        trained: TextModel,
        text: str,
        passage: TracedText,
        config: DecodeConfig,
        names: str | Sequence[str] = "*",
        smoothing: float = 0.0,
        room: float = math.inf,
    ) -> None:
        self.trained, self.text, self.passage, self.decode = trained, text, passage, config
        self.smoothing = smoothing  # of the labels, in the training of this model
        self.room = room  # bytes for values that are kept
        self.model: Any = trained.model
        self.config = self.model.config
        tokenizer = trained.tokenizer
        self.source = words_of(tokenizer, passage.source, text)
        self.target = words_of(tokenizer, passage.target, tokenizer.decode(passage.target))
        self.answers = words_of(tokenizer, passage.answers, "")
        self.wanted = matching([names] if isinstance(names, str) else names, taps(self.model))
        self.summaries: dict[str, Summary] = {}
        self.checks = _Checks()
        self.values: dict[str, Tensor] = {}
        self.held: dict[str, Tensor] = {}  # beyond the room, for a while
        self.logits: Tensor  # the scores of all tokens at every row, or of all classes
        found = self.record("*", self._observe)
        self.values = {k: v for k, v in found.items() if k in self.wanted and v.numel()}
        self.steps = self._steps()
        self._check()

    @property
    def names(self) -> list[str]:
        """Every value that can be asked for, in the order of happening."""
        return list(taps(self.model))

    def tensor(self, name: str, head: int | None = None, rows: slice | None = None) -> Tensor:
        """A value by name, without the batch; of it one head (counted from 1), or some rows."""
        if name not in self.summaries:
            raise unknown_name("value", name, self.names)
        if (kept := self.kept(name)) is not None:
            return self.part(name, kept, head, rows)
        return self.record(name, lambda n, value: self.part(n, value, head, rows).clone())[name]

    def collect(
        self, names: Sequence[str], keep: Callable[[str, Tensor], Tensor]
    ) -> dict[str, Tensor]:
        """Something of each of these values, in one pass for all that were not kept."""
        missing = [name for name in names if self.kept(name) is None]
        found = self.record(missing, lambda n, v: keep(n, v).clone()) if missing else {}
        at_hand = {**self.values, **self.held}
        return {name: found[name] if name in found else keep(name, at_hand[name]) for name in names}

    def kept(self, name: str) -> Tensor | None:
        """A value, if it is at hand."""
        return self.values.get(name, self.held.get(name))

    def prefetch(self, names: Iterable[str]) -> None:
        """Have these values at hand too, until others are asked for: one pass for all of them."""
        wanted = [name for name in names if name not in self.values]
        if wanted and set(wanted) != set(self.held):
            self.held = {}
            self.held = self.record(wanted, lambda _, value: value)

    @property
    def size(self) -> int:
        """Bytes of the values that are kept; the scores are, in any case."""
        at_hand = {**self.values, **self.held, "logits": self.logits}
        return sum(value.nbytes for value in at_hand.values())

    def part(self, name: str, value: Tensor, head: int | None, rows: slice | None) -> Tensor:
        """One head of a value, or some of its rows."""
        if head is not None:
            if "head" not in dataflow(self.config)[name].axes:
                raise UserError(f"{name!r} has no heads")
            value = value[in_range("head", head, value.size(0))]
        if rows is not None and value.dim() < 2:
            raise UserError(f"{name!r} has no rows")
        return value if rows is None else value[..., rows, :]

    def attention(self, layer: int, head: int, which: _Which | None = None) -> Tensor:
        """The weights of one head, a row for each query; layers and heads are counted from 1."""
        return self.tensor(f"{self.block(layer, which)}.weights", head)

    def block(self, layer: int, which: _Which | None = None) -> str:
        """The name of an attention: the encoder's, the decoder's own, or the one between them."""
        there = sides(self.config)
        which = which or ("encoder" if "encoder" in there else "decoder")
        if (which == "cross" and len(there) < 2) or (which != "cross" and which not in there):
            raise UserError(f"a model that is {self.config.family} has no {which} attention")
        at = in_range("layer", layer, self.config.layers)
        return f"decoder.{at}.cross" if which == "cross" else f"{which}.{at}.self"

    def record(
        self, names: str | Sequence[str], keep: Callable[[str, Tensor], Tensor]
    ) -> dict[str, Tensor]:
        """The pass with a recorder: a batch of one, in evaluation mode, without gradients."""

        def alone(name: str, value: Tensor) -> Tensor:
            # Without padding all rows of a batch have the same positions, and these come once.
            once = name.endswith(".positions") and value.dim() == 2
            return keep(name, (value if once else value[0]).detach().cpu())

        with (
            torch.no_grad(),
            _evaluating(self.model),
            Recorder(self.model, names, alone) as recorder,
        ):
            recorder.model(*self.inputs)
        return recorder.values

    @property
    def inputs(self) -> list[Tensor]:
        """What the model is called with."""
        device = next(self.model.parameters()).device
        given = [side for side in (self.passage.source, self.passage.target) if len(side)]
        return [torch.tensor([list(side)], device=device) for side in given]

    def weight(self, name: str) -> Tensor:
        """A parameter of the model, by the name it has in the weights' file."""
        return self._parameters[name].detach().cpu()

    def has_weight(self, name: str) -> bool:
        """Whether the model has such a parameter; biases can be left out."""
        return name in self._parameters

    @cached_property
    def _parameters(self) -> dict[str, Tensor]:
        return dict(self.model.state_dict(keep_vars=True))

    @property
    def tolerance(self) -> float:
        """How far two ways to compute the same may be apart, for numbers of about 1.

        Long sums collect errors; in half precision, they are made in single and rounded once.
        """
        eps = torch.finfo(self.values_type).eps
        return (200 if eps < 1e-5 else 16) * eps

    @property
    def values_type(self) -> torch.dtype:
        """In which precision the model computes."""
        kind: torch.dtype = next(self.model.parameters()).dtype
        return kind

    def _observe(self, name: str, value: Tensor) -> Tensor:
        """Sum a value up as it comes by, and keep it only if it is wanted."""
        self.summaries[name] = summary = _summarise(value)
        if summary.broken:
            self.checks.broken[name] = summary.broken
        if name.endswith(".weights") and not summary.broken:
            error = (value.double().sum(dim=-1) - 1).abs().max().item()
            self.checks.row_error = max(self.checks.row_error, error)
            if name.startswith("decoder") and ".self." in name:
                ahead = value.triu(diagonal=1).max().item()
                self.checks.max_future_weight = max(self.checks.max_future_weight, ahead)
        if name == "logits":
            self.logits = value
        if name not in self.wanted or value.nbytes > self.room:
            return value.new_empty(0)
        self.room -= value.nbytes
        return value

    def _steps(self) -> list[DecodingStep]:
        """What the model says where it chose: the rows after the prompt, or the blanks."""
        if self.config.classes or self.checks.broken.get("logits"):
            return []
        tokenizer = self.trained.tokenizer
        if self.trained.family == "encoder-only":
            blanks = [i for i, t in enumerate(self.source.ids) if t == tokenizer.mask]
            rows = blanks or [i for i, special in enumerate(self.source.special) if not special]
            words = self.logits[
                rows, tokenizer.first_text_id : len(tokenizer)
            ]  # no blank is a special one
            return self._steps_at(rows, (words.argmax(dim=-1) + tokenizer.first_text_id).tolist())
        rows = list(range(self.passage.given, len(self.answers)))
        return self._steps_at(rows, [self.answers.ids[row] for row in rows])

    def _steps_at(self, rows: list[int], chosen: list[int]) -> list[DecodingStep]:
        """The scores of these rows as probabilities over the whole vocabulary."""
        logits = self.logits[rows].double()
        totals = logits.logsumexp(dim=-1)
        logprobs = logits - totals[:, None]
        entropies = -(logprobs.exp() * logprobs).nansum(dim=-1)
        tokens = torch.cat(
            [
                logits.topk(min(_TOP, logits.size(1))).indices,
                torch.tensor(chosen, dtype=torch.long)[:, None],
            ],
            dim=1,
        )
        columns = [tokens, logprobs.gather(1, tokens).exp(), logits.gather(1, tokens)]
        told = zip(*(x.tolist() for x in (*columns, entropies, totals)), strict=True)
        return [self._step(row, *numbers) for row, numbers in zip(rows, told, strict=True)]

    def _step(
        self,
        row: int,
        tokens: list[int],
        chances: list[float],
        logits: list[float],
        entropy: float,
        total: float,
    ) -> DecodingStep:
        """One row; the token that was chosen comes last."""
        pieces = pieces_of(self.trained.tokenizer, tokens)
        found = zip(tokens, pieces, chances, logits, strict=True)
        *top, chosen = (_TokenCandidate(*facts) for facts in found)
        reads = (self.target or self.source).pieces[row]
        end = chosen.token == self.trained.tokenizer.end
        return DecodingStep(row, reads, chosen, tuple(top), entropy, total, end)

    def _check(self) -> None:
        """Compare with the model as it is without a recorder, and with what it wrote."""
        checks, passage = self.checks, self.passage
        with torch.no_grad(), _evaluating(self.model):
            plain = self.model(*self.inputs)[0].cpu()
        checks.traced_difference = (plain - self.logits).abs().max().item()
        if not passage.logprobs:
            return
        if not self.steps:  # a fused kernel can hide a NaN that the explicit one shows
            checks.same_words, checks.fast_difference = False, math.nan
            return
        replayed = [math.log(max(step.chosen.probability, 1e-300)) for step in self.steps]
        apart = [abs(a - b) for a, b in zip(replayed, passage.logprobs, strict=True)]
        checks.fast_difference = max(apart)
        close = checks.fast_difference <= 10 * self.tolerance
        checks.same_words = (
            close
            if passage.mode == "beam"
            else self._replay_choices() == [step.chosen.token for step in self.steps]
        )

    def _replay_choices(self) -> list[int]:
        """What would be chosen from the scores of this pass, with the same luck."""
        rows = [step.row for step in self.steps]
        logits = self.logits[rows]
        config, read = self.decode, list(self.passage.target)
        if config.repetition_penalty != 1 or config.no_repeat_ngram:
            history = [pad_histories([read[: row + 1]], logits.device) for row in rows]
            first = self.trained.tokenizer.first_text_id
            both = zip(logits[:, None], history, strict=True)
            judged = [apply_repetition_penalty(row, before, config, first) for row, before in both]
            logits = torch.cat(judged)
        if self.passage.spaced and rows:
            logits[0, without_space(self.trained.tokenizer)] = NEG_INF
        if not config.temperature:
            return logits.argmax(dim=-1).tolist()
        luck = uniform_draws(self.passage.seed, self.passage.limit + 1)  # as many as writing has
        return sample(logits, luck[: len(rows)], config).tolist()


def in_range(what: str, number: int, count: int) -> int:
    """A layer's or head's place, for people who count from 1."""
    if not 1 <= number <= count:
        have = f"1 to {count}" if count > 1 else "only 1"
        raise UserError(f"there is no {what} {number}: this model has {what}s {have}")
    return number - 1


def _summarise(value: Tensor) -> Summary:
    """A tensor in a few numbers."""
    hidden = broken = 0
    shape, value = tuple(value.shape), value.float()
    if not math.isfinite(value.sum().item()):
        hidden = int((value == -math.inf).sum())
        finite = value[torch.isfinite(value)]
        broken, value = value.numel() - finite.numel() - hidden, finite
    if not value.numel():
        return Summary(shape, None, None, None, None, hidden, broken)
    low, high = value.aminmax()
    spread, mean = torch.std_mean(value, correction=0)
    return Summary(shape, low.item(), high.item(), mean.item(), spread.item(), hidden, broken)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout, and afterwards as it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
