"""The chosen layer, head and word of a trace, and the values there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.errors import UserError
from limelight.explain.stage import Check, Formula, Heatmap, factor, number
from limelight.explain.tokens import Words
from limelight.explain.trace import Trace, in_range
from limelight.model.positions import rotation
from limelight.model.taps import dataflow, depth, sides


@dataclass(frozen=True)
class Focus:
    """A trace at one layer, one head and one word, all counted from 0."""

    trace: Trace
    layer: int
    head: int
    source_word: int
    target_word: int
    asked: tuple[int | None, int | None] = (None, None)  # layer and head that the user chose

    def layer_on(self, side: str) -> int:
        """The chosen layer of this side; its last one, if the other side has more."""
        return min(self.layer, depth(self.trace.config, side) - 1)

    def words(self, side: str) -> Words:
        return self.trace.source if side == "encoder" else self.trace.target

    def word(self, side: str) -> int:
        return self.source_word if side == "encoder" else self.target_word

    def label(self, side: str) -> str:
        return self.words(side).labels[self.word(side)]

    @property
    def side(self) -> str:
        """The stack where the walk starts: the encoder, if there is one."""
        return sides(self.trace.config)[0]

    @property
    def last_side(self) -> str:
        """The stack whose output the classifier reads."""
        return sides(self.trace.config)[-1]

    def tensor(self, name: str) -> Tensor:
        """A value in double precision, so that recomputing from it adds no error."""
        return self.trace.tensor(name).double()

    def weight(self, name: str) -> Tensor:
        return self.trace.parameters[name].detach().cpu().double()

    def bias(self, path: str) -> Tensor | None:
        name = f"{path}.bias"
        return self.weight(name) if name in self.trace.parameters else None

    def linear(self, x: Tensor, path: str) -> Tensor:
        return F.linear(x, self.weight(f"{path}.weight"), self.bias(path))

    def norm(self, x: Tensor, path: str) -> Tensor:
        """Layer norm (Ba et al. 2016) or RMS norm, recomputed."""
        if self.trace.config.norm == "none":
            return x
        gain, eps = self.weight(f"{path}.weight"), self.trace.config.norm_eps
        if self.trace.config.norm == "rms":
            return rms_norm(x, gain, eps)
        centred = x - x.mean(dim=-1, keepdim=True)
        spread = (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt()
        return centred / spread * gain + self.weight(f"{path}.bias")

    def origin(self, name: str) -> tuple[str, ...]:
        return dataflow(self.trace.config)[name].sources

    def check(self, claim: str, value: str | Tensor, again: Tensor) -> Check:
        """Compare a value with its recomputation; masked entries must agree exactly."""
        shown = self.tensor(value) if isinstance(value, str) else value
        if not torch.equal(shown == -torch.inf, again == -torch.inf):
            return Check(claim, float("inf"), 0.0)
        finite = shown != -torch.inf
        both = shown[finite], shown[finite] - again[finite]
        size, error = (x.abs().max().item() if x.numel() else 0.0 for x in both)
        return Check(claim, error, self.trace.tolerance * (1 + size))

    def check_sum(self, probabilities: Tensor) -> Check:
        one = torch.ones(1, dtype=torch.float64)
        return self.check("the probabilities sum to 1", probabilities.sum()[None], one)

    def all_words(self, side: str, name: str, title: str, rows: Sequence[str] = ()) -> Heatmap:
        """A heatmap of a value that has a vector for every word."""
        value, labels = self.tensor(name), rows or self.words(side).labels
        columns = numbered(value.size(1))
        return Heatmap(title, (name,), value, labels, columns, focus=(self.word(side), None))

    def one_word(self, title: str, rows: Mapping[str, str], side: str) -> Heatmap:
        """A heatmap of the chosen word's vectors of several values, by label."""
        i, names = self.word(side), tuple(rows.values())
        values = torch.stack([self.tensor(name)[i] for name in names])
        return Heatmap(title, names, values, list(rows), numbered(values.size(1)), at=i)

    def block(self, side: str, use: str = "self") -> "AttentionView":
        return AttentionView(self, side, use)


class AttentionView:
    """One attention at one head: the values of equation 1, and how to recompute them."""

    def __init__(self, focus: Focus, side: str, use: str) -> None:
        self.focus, self.side, self.use = focus, side, use
        self.head = None if focus.trace.recurrent else focus.head  # additive attention has none
        layer = focus.layer_on(side)
        self.name = f"{side}.{layer}.{use}"  # prefix of its taps
        if focus.trace.recurrent:
            self.name = f"{side}.{use}"
        self.path = f"{side}.layers.{layer}.{use}_attention"  # prefix of its parameters
        self.location = f"{side}, layer {layer + 1}, head {focus.head + 1}"
        self.query_tokens = focus.words(side)  # a row each
        self.key_tokens = focus.words("encoder" if use == "cross" else side)  # a column each
        self.query_index = focus.word(side)  # the chosen word

    @property
    def rows(self) -> Sequence[str]:
        """Row labels: in a decoder the token that is read, and the one to predict."""
        if self.side == "encoder":
            return self.query_tokens.labels
        read, answers = self.query_tokens.labels, self.focus.trace.answers.labels
        found = [f"{a} → {b}" for a, b in zip(read, answers, strict=False)]
        return [*found, *read[len(found) :]]

    @cached_property
    def key_index(self) -> int:
        """The key with the largest weight, the word itself left out where there is another."""
        weights = self.get("weights")[self.query_index].clone()
        if self.use == "self" and self.query_index > 0:
            weights[self.query_index] = -1
        return int(weights.argmax())

    @property
    def key_head(self) -> int:
        """The head of keys and values that this head of queries uses (grouped queries)."""
        config = self.focus.trace.config
        return self.focus.head // (config.heads // config.num_kv_heads)

    def get(self, step: str) -> Tensor:
        value = self.focus.tensor(f"{self.name}.{step}")
        if self.head is None:
            return value
        return value[self.key_head if step in ("k", "v") else self.head]

    def check(self, claim: str, step: str, again: Tensor) -> Check:
        return self.focus.check(claim, self.get(step), again)

    def read(self, part: str) -> Tensor:
        """The input of the query's, key's or value's linear layer, for every word."""
        return self.focus.tensor(self.focus.origin(f"{self.name}.{part}")[0])

    def recompute(self, step: str) -> Tensor:
        """q, k or v from the states: linear, split into heads, normalized and rotated as it is."""
        part = {"q": "query", "k": "key", "v": "value"}[step]
        config = self.focus.trace.config
        flat = self.focus.linear(self.read(part), f"{self.path}.{part}")
        heads = flat.view(len(flat), -1, config.d_head).transpose(0, 1)  # H T K
        if config.qk_norm and step != "v":
            gain = self.focus.weight(f"{self.path}.{part}_norm.weight")
            heads = rms_norm(heads, gain, config.norm_eps)
        if config.positions == "rotary" and step != "v" and self.use == "self":
            heads = rotation(torch.arange(len(flat)), config, flat.dtype)(heads)
        return heads[self.focus.head if step == "q" else self.key_head]

    def dot_product(self) -> Formula:
        """The score of the chosen word and its strongest key, the largest terms first."""
        q, k = self.get("q")[self.query_index], self.get("k")[self.key_index]
        key = self.key_tokens.labels[self.key_index]
        name = f"score(query {self.query_tokens.labels[self.query_index]}, key {key})"
        return sum_of_products(name, "q . k", q, k, ("q", "k"))


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Divided by the root mean square (Zhang and Sennrich 2019)."""
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * gain


def sum_of_products(
    name: str, letters: str, a: Tensor, b: Tensor, of: tuple[str, str], shift: float | None = None
) -> Formula:
    """a . b with its three largest terms written out, and the others as one number."""
    products = a * b
    largest = products.abs().argsort(descending=True)[:3].tolist()
    total = products.sum().item() + (shift or 0.0)
    others = products.sum().item() - products[largest].sum().item()
    terms = [f"{factor(a[i].item())} x {factor(b[i].item())}" for i in largest]
    numbers = {"total": total, "others": others}
    for i in largest:
        numbers |= {f"{of[0]}{i + 1}": a[i].item(), f"{of[1]}{i + 1}": b[i].item()}
    if len(products) > len(largest):
        terms.append(f"{factor(others)} from {len(products) - len(largest)} more")
    if shift is not None:
        terms.append(f"{factor(shift)} bias")
        numbers["bias"] = shift
    spelled = " + ".join(terms)
    return Formula(f"{name} = {letters}", f"{spelled} = {number(total)}", numbers)


def focus_on(
    trace: Trace,
    layer: int | None,
    head: int | None,
    word: str | None,
    rows: tuple[int | None, int | None] = (None, None),
) -> Focus:
    """The layer, head (both from 1) and word that were chosen, or good defaults.

    The default is the first layer and head, the last word of the source, and the last row of the
    target that predicts a word, which has others to attend to. `rows` chooses a word of the source
    and one of the target by position, from 0.
    """
    config = trace.config
    most = max(depth(config, side) for side in sides(config))
    at_layer = in_range("layer", 1 if layer is None else layer, most)
    at_head = in_range("head", 1 if head is None else head, getattr(config, "heads", 1))
    end = trace.trained.tokenizer.end
    predicting = [i for i, token in enumerate(trace.answers.ids) if token != end]
    chosen = [i for i in predicting if i >= trace.traced_text.given] or predicting
    target = chosen[-1] if chosen else max(0, len(trace.target) - 1)
    pieces = enumerate(trace.source.pieces)
    real = [i for i, piece in pieces if piece[0] != "⟨" and any(c.isalnum() for c in piece)]
    blanks = [i for i, t in enumerate(trace.source.ids) if t == trace.trained.tokenizer.mask]
    source = (blanks or real or [0])[-1]
    if word is not None:
        in_source = _find_word(trace.source, trace.text, word)
        in_target = _find_word(trace.target, trace.trained.tokenizer.decode(trace.target.ids), word)
        if in_source is None and in_target is None:
            there = " ".join(dict.fromkeys([*trace.source.labels, *trace.target.labels]))
            raise UserError(f"there is no word {word!r} here, but: {there}")
        source = source if in_source is None else in_source
        target = target if in_target is None else in_target
    source = source if rows[0] is None else _check_row("source", rows[0], len(trace.source))
    target = target if rows[1] is None else _check_row("target", rows[1], len(trace.target))
    asked = (None if layer is None else at_layer, None if head is None else at_head)
    return Focus(trace, at_layer, at_head, source, target, asked)


def _check_row(side: str, row: int, count: int) -> int:
    if not 0 <= row < count:
        raise UserError(f"there is no word {row} in the {side}: it has {count}, counted from 0")
    return row


def _find_word(words: Words, text: str, wanted: str) -> int | None:
    """The first token that is this word, or the first of several that spell it."""
    names = enumerate(zip(words.pieces, words.labels, strict=True))
    exact = [i for i, (piece, label) in names if wanted in (piece, piece.strip(), label)]
    start = text.find(wanted) if wanted else -1
    spans = enumerate(words.spans)
    within = [i for i, span in spans if span and start >= 0 and span[0] <= start < span[1]]
    return next(iter(exact + within), None)


def numbered(count: int) -> Sequence[str]:
    """Labels for the dimensions of a vector: "1", "2", ..."""
    return [str(i + 1) for i in range(count)]
