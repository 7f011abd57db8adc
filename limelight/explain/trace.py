"""One text through one model, with every value of the forward pass.

The model first generates in its usual, fast way. Then all tokens go through it once more, in one
pass with a recorder, as in training: row t of that pass is step t of the generation. The checks say
whether that holds: the same tokens, the same logits, weights that sum to 1.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
from limelight.explain.tokens import label_at, words_of
from limelight.explain.traced_text import TracedText
from limelight.model.config import RecurrentConfig
from limelight.model.taps import Edits, Recorder, attends, dataflow, depth, matching, sides, taps
from limelight.tasks.text_model import TextModel

_TOP = 20  # candidates kept of every step
Which = Literal["encoder", "decoder", "cross"]
_Keep = Callable[[str, Tensor], Tensor]  # what to keep of a value, by its name


class _Summary(NamedTuple):
    """Statistics of a tensor, over its finite values."""

    shape: tuple[int, ...]
    low: float | None
    high: float | None
    mean: float | None
    spread: float | None  # standard deviation
    hidden: int  # count of -inf: masked
    broken: int  # count of NaN and +inf: the model is damaged


class _TokenCandidate(NamedTuple):
    token: int
    piece: str
    probability: float
    logit: float


@dataclass(frozen=True)
class DecodingStep:
    """The prediction at one row, and the token that was chosen."""

    row: int
    reads: str  # the token at this row, as people read it
    chosen: _TokenCandidate
    top: tuple[_TokenCandidate, ...]  # of the whole vocabulary, the most likely first
    entropy: float  # in nats: from 0 (certain) to log(vocabulary)
    logsumexp: float  # probability = exp(logit - logsumexp)
    end: bool


@dataclass
class _Checks:
    same_words: bool | None = None  # the pass leads to the tokens that were generated
    fast_difference: float | None = None  # largest, of log-probabilities
    traced_difference: float = 0.0  # largest, of logits with and without a recorder
    row_error: float = 0.0  # largest distance of a row of weights from summing to 1
    max_future_weight: float = 0.0  # largest weight on a later token
    broken: dict[str, int] = field(default_factory=dict)  # counts of NaN, by name


class Trace:
    """One forward pass over one text. `tensor(name)` gives any value of it.

    Values that match `names` are kept up to `max_bytes`; all others are recomputed on request,
    which gives the same numbers. So a trace can be as small as its tokens.
    """

    def __init__(
        self,
        trained: TextModel,
        text: str,
        traced_text: TracedText,
        config: DecodeConfig,
        names: str | Sequence[str] = "*",
        max_bytes: float = math.inf,
        edits: Edits | None = None,
        changes: Sequence[str] = (),
    ) -> None:
        self.edits, self.changes = edits or {}, tuple(changes)  # see `interventions`
        self.trained, self.text, self.traced_text, self.decode = trained, text, traced_text, config
        self.smoothing = trained.label_smoothing
        self._bytes_left = max_bytes
        self.model: Any = trained.model
        self.config = self.model.config
        tokenizer = trained.tokenizer
        self.source = words_of(tokenizer.source, traced_text.source, text)
        self.target = words_of(tokenizer, traced_text.target, tokenizer.decode(traced_text.target))
        self.answers = words_of(tokenizer, traced_text.answers, "")
        self.wanted = matching(names, taps(self.model))
        self.summaries: dict[str, _Summary] = {}
        self.checks = _Checks()
        self.values: dict[str, Tensor] = {}
        self._prefetched: dict[str, Tensor] = {}  # beyond max_bytes, until the next prefetch
        # T V, or one per class; T 0 of an encoder without a head.
        self.logits: Tensor = torch.empty(len(self.source), 0)
        found = self._record("*", self._observe)
        self.values = {k: v for k, v in found.items() if k in self.wanted and v.numel()}
        self.steps = self._steps()
        self._check()

    def label(self, row: int, piece: str) -> str:
        """A piece that this row could predict, as people read it."""
        return label_at(self.answers.pieces, row, piece)

    @property
    def recurrent(self) -> bool:
        return isinstance(self.config, RecurrentConfig)

    @property
    def is_headless(self) -> bool:
        """Whether it only embeds texts: an encoder that predicts nothing."""
        return not (self.recurrent or self.config.masked_head or self.config.classes)

    @property
    def decoder_cell(self) -> str:
        """What stands where the paper has masked self-attention; see `ModelConfig`."""
        return getattr(self.config, "decoder_cell", "")

    @property
    def names(self) -> list[str]:
        """The names of all values, in the order of computation."""
        return list(taps(self.model))

    @property
    def weight_names(self) -> list[str]:
        """Those of the attention weights."""
        return [name for name in self.names if name.endswith(".weights")]

    def tensor(self, name: str, head: int | None = None, rows: slice | None = None) -> Tensor:
        """A value by name, without the batch axis; optionally one head (from 1) or some rows."""
        if name not in self.summaries:
            raise unknown_name("value", name, self.names)
        return self.collect([name], lambda n, value: self.part(n, value, head, rows))[name]

    def collect(self, names: Sequence[str], keep: _Keep) -> dict[str, Tensor]:
        """`keep` applied to each of these values, with one pass for all that were not kept."""
        cached = {**self._prefetched, **self.values}
        missing = [name for name in names if name not in cached]
        found = self._record(missing, lambda n, v: keep(n, v).clone()) if missing else {}
        return {name: found[name] if name in found else keep(name, cached[name]) for name in names}

    def prefetch(self, names: Iterable[str]) -> None:
        """Keep these values too, until the next call: one pass for all of them."""
        wanted = [name for name in names if name not in self.values]
        if wanted and set(wanted) != set(self._prefetched):
            self._prefetched = {}
            self._prefetched = self._record(wanted, lambda _, value: value)

    @property
    def size(self) -> int:
        """Bytes of the values that are kept; the logits always are."""
        cached = {**self.values, **self._prefetched, "logits": self.logits}
        return sum(value.nbytes for value in cached.values())

    def part(self, name: str, value: Tensor, head: int | None, rows: slice | None) -> Tensor:
        if head is not None:
            if "head" not in dataflow(self.config)[name].axes:
                raise UserError(f"{name!r} has no heads")
            value = value[in_range("head", head, value.size(0))]
        if rows is not None and value.dim() < 2:
            raise UserError(f"{name!r} has no rows")
        return value if rows is None else value[..., rows, :]

    def attention(self, layer: int, head: int, which: Which | None = None) -> Tensor:
        """The weights of one head, a row for each query; layers and heads are counted from 1."""
        return self.tensor(f"{self.block(layer, which)}.weights", head)

    def mean_attention(
        self, which: Which, layer: int | None = None, head: int | None = None
    ) -> Tensor:
        """Weights averaged over the layers and heads that were not chosen, T S; both from 1."""
        side = "decoder" if which == "cross" else which
        layers = range(1, depth(self.config, side) + 1) if layer is None else [layer]
        names = [f"{self.block(n, which)}.weights" for n in layers]
        found = self.collect(names, lambda n, value: self.part(n, value, head, None))
        return mean_weights([value.float() for value in found.values()])

    def block(self, layer: int, which: Which | None = None) -> str:
        """The name of an attention: `encoder.0.self`, `decoder.0.self` or `decoder.0.cross`."""
        there = sides(self.config)
        which = which or ("encoder" if "encoder" in there else "decoder")
        if which not in (*there, *(["cross"] if len(there) == 2 else [])):
            raise UserError(f"a model that is {self.config.family} has no {which} attention")
        if which == "decoder" and not attends(self.config, which, "self"):
            cell = "a recurrent cell, decoder_cell = 'ssru': choose 'encoder' or 'cross'"
            raise UserError(f"this decoder has no self-attention but {cell}")
        side = "decoder" if which == "cross" else which
        at = in_range("layer", layer, depth(self.config, side))
        if self.recurrent:  # its layers share one attention, if there is any
            if which != "cross" or not self.config.attention:
                raise UserError(f"this {self.config.family} has no {which} attention")
            return "decoder.cross"
        return f"decoder.{at}.cross" if which == "cross" else f"{which}.{at}.self"

    @property
    def inputs(self) -> list[Tensor]:
        return self.traced_text.inputs(self.trained.device)

    def _record(self, names: str | Sequence[str], keep: _Keep) -> dict[str, Tensor]:
        return record(self.model, self.inputs, names, keep, self.edits)

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """Those of the model, by their names in the weights file."""
        return dict(self.model.state_dict(keep_vars=True))

    @property
    def tolerance(self) -> float:
        """How far two computations of the same value may differ, for numbers near 1.

        Long sums collect errors; half precision accumulates in single and rounds once.
        """
        eps = torch.finfo(next(self.model.parameters()).dtype).eps
        return (200 if eps < 1e-5 else 16) * eps

    def _observe(self, name: str, value: Tensor) -> Tensor:
        """Summarise each value as it passes; keep it only if it is wanted and fits."""
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
        if name not in self.wanted or value.nbytes > self._bytes_left:
            return value.new_empty(0)
        self._bytes_left -= value.nbytes
        return value

    def _steps(self) -> list[DecodingStep]:
        """One step per generated token; in an encoder, one per blank."""
        if self.trained.classes or self.is_headless or self.checks.broken.get("logits"):
            return []
        tokenizer = self.trained.tokenizer
        if self.trained.family == "encoder-only":
            blanks = [i for i, t in enumerate(self.source.ids) if t == tokenizer.mask]
            rows = blanks or [i for i, special in enumerate(self.source.special) if not special]
            text_ids = torch.tensor(tokenizer.text_ids)  # no specials
            best = self.logits[rows][:, text_ids].argmax(dim=-1)
            return self._steps_at(rows, text_ids[best].tolist())
        rows = list(range(self.traced_text.given, len(self.answers)))
        return self._steps_at(rows, [self.answers.ids[row] for row in rows])

    def _steps_at(self, rows: list[int], chosen: list[int]) -> list[DecodingStep]:
        logits = self.logits[rows].double()
        largest = logits.amax(dim=-1, keepdim=True)
        powers = (logits - largest).exp_()  # once: there is a vocabulary for every row
        sums = powers.sum(dim=-1)
        totals = largest[:, 0] + sums.log()
        entropies = totals - powers.mul_(logits).nansum(dim=-1) / sums
        top = self.logits[rows].topk(min(_TOP, logits.size(1))).indices
        tokens = torch.cat([top, torch.tensor(chosen, dtype=torch.long)[:, None]], dim=1)
        picked = logits.gather(1, tokens)
        columns = [tokens, (picked - totals[:, None]).exp(), picked]
        numbers = zip(rows, *(x.tolist() for x in (*columns, entropies, totals)), strict=True)
        steps, labels = [], (self.target or self.source).labels
        for row, ids, *candidates, entropy, total in numbers:
            known = self.trained.tokenizer.pieces(ids)
            *best, last = map(_TokenCandidate, ids, known, *candidates)
            end = last.token == self.trained.tokenizer.end
            steps.append(DecodingStep(row, labels[row], last, tuple(best), entropy, total, end))
        return steps

    def _check(self) -> None:
        checks, traced_text = self.checks, self.traced_text
        with torch.no_grad(), evaluating(self.model), edited(self.model, self.edits):
            plain = self.model(*self.inputs)[0].cpu()
        last = self.tensor("encoder.output") if self.is_headless else self.logits
        checks.traced_difference = (plain - last).abs().max().item()
        if not traced_text.logprobs:
            return
        if not self.steps:  # a fused kernel can hide a NaN that the explicit one shows
            checks.same_words, checks.fast_difference = False, math.nan
            return
        replayed = [math.log(max(step.chosen.probability, 1e-300)) for step in self.steps]
        pairs = zip(replayed, traced_text.logprobs, strict=True)
        checks.fast_difference = max(abs(a - b) for a, b in pairs)
        if traced_text.mode == "beam":
            checks.same_words = checks.fast_difference <= 10 * self.tolerance
        else:
            chosen = [step.chosen.token for step in self.steps]
            checks.same_words = self._replay_choices() == chosen

    def _replay_choices(self) -> list[int]:
        """The tokens that the logits of this pass lead to, with the same random numbers."""
        rows = [step.row for step in self.steps]
        logits = self.logits[rows]
        config, read = self.decode, list(self.traced_text.target)
        if config.repetition_penalty != 1 or config.no_repeat_ngram:
            history = [pad_histories([read[: row + 1]], logits.device) for row in rows]
            special = self.trained.tokenizer.special_ids
            both = zip(logits[:, None], history, strict=True)
            logits = torch.cat([apply_repetition_penalty(x, h, config, special) for x, h in both])
        if self.traced_text.needs_leading_space and rows:
            logits[0, without_space(self.trained.tokenizer)] = NEG_INF
        if not config.temperature:
            return logits.argmax(dim=-1).tolist()
        # As many as generation drew, so that they are the same numbers.
        uniforms = uniform_draws(self.traced_text.seed, self.traced_text.limit + 1)
        return sample(logits, uniforms[: len(rows)], config).tolist()


def record(
    model: nn.Module,
    inputs: Sequence[Tensor],
    names: str | Sequence[str],
    keep: _Keep = lambda _, value: value,
    edits: Edits | None = None,
) -> dict[str, Tensor]:
    """Values of one pass over a batch of one, without the batch axis."""

    def alone(name: str, value: Tensor) -> Tensor:
        # Without padding, all rows of a batch share their positions, which have no batch axis.
        once = name.endswith(".positions") and value.dim() == 2
        return keep(name, (value if once else value[0]).detach().cpu())

    recording = Recorder(model, names, alone, edits)
    with torch.no_grad(), evaluating(model), recording as recorder:
        recorder.model(*inputs)
    return recorder.values


def edited(model: nn.Module, edits: Edits | None) -> AbstractContextManager[object]:
    """The model as changed, while this lasts."""
    return Recorder(model, (), edits=edits) if edits else nullcontext()


def mean_weights(layers: Sequence[Tensor]) -> Tensor:
    """Attention weights averaged over heads, then over layers: H T S each, or T S without heads."""
    return torch.stack([x if x.dim() == 2 else x.mean(dim=0) for x in layers]).mean(dim=0)


def in_range(what: str, number: int, count: int) -> int:
    """The index of a layer, a head or a patch that a person counts from 1."""
    if not 1 <= number <= count:
        have = f"1 to {count}" if count > 1 else "only 1"
        raise UserError(f"there is no {what} {number}: this model has {have}")
    return number - 1


def _summarise(value: Tensor) -> _Summary:
    hidden = broken = 0
    shape, value = tuple(value.shape), value.float()
    if not math.isfinite(value.sum().item()):
        hidden = int((value == -math.inf).sum())
        finite = value[torch.isfinite(value)]
        broken, value = value.numel() - finite.numel() - hidden, finite
    if not value.numel():
        return _Summary(shape, None, None, None, None, hidden, broken)
    low, high = value.aminmax()
    spread, mean = torch.std_mean(value, correction=0)
    return _Summary(shape, low.item(), high.item(), mean.item(), spread.item(), hidden, broken)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
