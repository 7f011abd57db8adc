"""Where somebody looks: which layer, which head, which word; and the values found there."""

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
from limelight.model.taps import dataflow, sides


@dataclass(frozen=True)
class Focus:
    """A trace, seen at one layer, one head and one word; all are counted from 0 in here."""

    trace: Trace
    layer: int
    head: int
    source_word: int
    target_word: int
    asked: tuple[int | None, int | None] = (None, None)  # the layer and head, if somebody did

    def words(self, side: str) -> Words:
        """What this side reads."""
        return self.trace.source if side == "encoder" else self.trace.target

    def word(self, side: str) -> int:
        """The chosen word on this side."""
        return self.source_word if side == "encoder" else self.target_word

    def label(self, side: str, i: int | None = None) -> str:
        """How a word is called."""
        return self.words(side).labels[self.word(side) if i is None else i]

    @property
    def side(self) -> str:
        """Where the walk begins: the encoder, if there is one."""
        return sides(self.trace.config)[0]

    def tensor(self, name: str) -> Tensor:
        """A value, in double precision: what is computed from it adds no error of its own."""
        return self.trace.tensor(name).double()

    def weight(self, name: str) -> Tensor:
        """A parameter, in double precision."""
        return self.trace.weight(name).double()

    def linear(self, x: Tensor, path: str) -> Tensor:
        """A linear layer done again."""
        bias = f"{path}.bias"
        shift = self.weight(bias) if self.trace.has_weight(bias) else None
        return F.linear(x, self.weight(f"{path}.weight"), shift)

    def norm(self, x: Tensor, path: str) -> Tensor:
        """A norm done again (Ba et al. 2016): centred, divided by its deviation, gain and shift."""
        gain, eps = self.weight(f"{path}.weight"), self.trace.config.norm_eps
        if self.trace.config.norm == "rms":
            return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * gain
        centred = x - x.mean(dim=-1, keepdim=True)
        spread = (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt()
        return centred / spread * gain + self.weight(f"{path}.bias")

    def origin(self, name: str) -> tuple[str, ...]:
        """What a value is made of."""
        return dataflow(self.trace.config)[name].sources

    def check(self, claim: str, value: str | Tensor, again: Tensor) -> Check:
        """Compare a value with the same computed again; masked places must agree exactly."""
        shown = self.tensor(value) if isinstance(value, str) else value
        if not torch.equal(shown == -torch.inf, again == -torch.inf):
            return Check(claim, float("inf"), 0.0)
        finite = shown != -torch.inf
        shown, again = shown[finite], again[finite]
        size = shown.abs().max().item() if shown.numel() else 0.0
        error = (shown - again).abs().max().item() if shown.numel() else 0.0
        return Check(claim, error, self.trace.tolerance * (1 + size))

    def all_words(self, side: str, name: str, title: str, rows: Sequence[str] = ()) -> Heatmap:
        """A value that has a vector for every word."""
        value, labels = self.tensor(name), rows or self.words(side).labels
        columns = numbered(value.size(1))
        return Heatmap(title, (name,), value, labels, columns, focus=(self.word(side), None))

    def one_word(self, title: str, rows: Mapping[str, str], side: str) -> Heatmap:
        """The chosen word's vectors of several values, each with a label."""
        i, names = self.word(side), tuple(rows.values())
        values = torch.stack([self.tensor(name)[i] for name in names])
        return Heatmap(title, names, values, list(rows), numbered(values.size(1)), at=i)

    def block(self, side: str, use: str = "self") -> "AttentionView":
        """An attention of the chosen layer."""
        return AttentionView(self, side, use)


@dataclass(frozen=True)
class AttentionView:
    """One attention at one head, with names for all that is in equation 1."""

    view: Focus
    side: str
    use: str

    @property
    def name(self) -> str:
        """The beginning of its values' names."""
        return f"{self.side}.{self.view.layer}.{self.use}"

    @property
    def path(self) -> str:
        """The beginning of its parameters' names."""
        return f"{self.side}.layers.{self.view.layer}.{self.use}_attention"

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"{self.side}, layer {self.view.layer + 1}, head {self.view.head + 1}"

    @property
    def query_tokens(self) -> Words:
        """The words that ask: a row each."""
        return self.view.words(self.side)

    @property
    def key_tokens(self) -> Words:
        """The words that answer: a column each."""
        return self.view.words("encoder" if self.use == "cross" else self.side)

    @property
    def rows(self) -> Sequence[str]:
        """The rows' names: in a decoder what each reads, and what it has to find."""
        if self.side == "encoder":
            return self.query_tokens.labels
        answers = self.view.trace.answers.labels
        found = [f"{a} → {b}" for a, b in zip(self.query_tokens.labels, answers, strict=False)]
        return [*found, *self.query_tokens.labels[len(found) :]]

    @property
    def query_index(self) -> int:
        """The chosen word among those that ask."""
        return self.view.word(self.side)

    @cached_property
    def key_index(self) -> int:
        """The word that it looks at most, itself left out where there is another."""
        weights = self.get("weights")[self.query_index].clone()
        if self.use == "self" and self.query_index > 0:
            weights[self.query_index] = -1
        return int(weights.argmax())

    @property
    def key_head(self) -> int:
        """The head of keys and values that this head of queries shares."""
        config = self.view.trace.config
        return self.view.head // (config.heads // config.num_kv_heads)

    def get(self, step: str) -> Tensor:
        """A step of equation 1 at this head."""
        head = self.key_head if step in ("k", "v") else self.view.head
        return self.view.tensor(f"{self.name}.{step}")[head]

    def read(self, part: str) -> Tensor:
        """What the query's, key's or value's linear layer reads, for every word."""
        return self.view.tensor(self.view.origin(f"{self.name}.{part}")[0])

    def recompute(self, step: str) -> Tensor:
        """q, k or v computed from the states, by the linear layer, split, and turned if rotary."""
        part = {"q": "query", "k": "key", "v": "value"}[step]
        config = self.view.trace.config
        flat = self.view.linear(self.read(part), f"{self.path}.{part}")
        heads = flat.view(len(flat), -1, config.d_head).transpose(0, 1)  # H T K
        if config.positions == "rotary" and step != "v" and self.use == "self":
            heads = rotation(torch.arange(len(flat)), config.d_head, flat.dtype)(heads)
        return heads[self.view.head if step == "q" else self.key_head]

    def dot_product(self) -> Formula:
        """The score of the chosen word and the one it looks at most, its largest terms first."""
        q, k = self.get("q")[self.query_index], self.get("k")[self.key_index]
        query = self.query_tokens.labels[self.query_index]
        key = self.key_tokens.labels[self.key_index]
        name = f"score({query} asks {key})"
        return sum_of_products(name, "q . k", q, k, ("q", "k"))


def sum_of_products(
    name: str, letters: str, a: Tensor, b: Tensor, of: tuple[str, str], shift: float | None = None
) -> Formula:
    """a . b with its three largest terms spelled out and the others in one number."""
    products = a * b
    largest = products.abs().argsort(descending=True)[:3].tolist()
    total = products.sum().item() + (shift or 0.0)
    others = products.sum().item() - products[largest].sum().item()
    terms = [f"{factor(a[i].item())} x {factor(b[i].item())}" for i in largest]
    numbers = {"total": total, "others": others} | {
        f"{letter}{i + 1}": values[i].item()
        for i in largest
        for letter, values in zip(of, (a, b), strict=True)
    }
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
    """The place somebody asked for; without that, the first layer and head, and a word that tells.

    Of the source that is its last word. Of the target it is the last row that still had a word to
    find, so that it has others to look back at. `rows` says a word of the source and one of the
    target by their places, from 0, for those who can point at them.
    """
    config = trace.config
    at_layer = in_range("layer", 1 if layer is None else layer, config.layers)
    at_head = in_range("head", 1 if head is None else head, config.heads)
    end = trace.trained.tokenizer.end
    asking = [i for i, token in enumerate(trace.answers.ids) if token != end]
    chosen = [i for i in asking if i >= trace.passage.given] or asking
    target = chosen[-1] if chosen else max(0, len(trace.target) - 1)
    real = [i for i, piece in enumerate(trace.source.pieces) if _is_word(piece)]
    blanks = [i for i, t in enumerate(trace.source.ids) if t == trace.trained.tokenizer.mask]
    source = (blanks or real or [0])[-1]
    if word is not None:
        in_source = _find_word(trace.source, trace.text, word)
        in_target = _find_word(trace.target, trace.trained.tokenizer.decode(trace.target.ids), word)
        if in_source is None and in_target is None:
            there = [*trace.source.labels, *trace.target.labels]
            raise UserError(
                f"there is no word {word!r} here, but: {' '.join(dict.fromkeys(there))}"
            )
        source = source if in_source is None else in_source
        target = target if in_target is None else in_target
    source = source if rows[0] is None else _place_of("source", rows[0], len(trace.source))
    target = target if rows[1] is None else _place_of("target", rows[1], len(trace.target))
    asked = (None if layer is None else at_layer, None if head is None else at_head)
    return Focus(trace, at_layer, at_head, source, target, asked)


def _place_of(side: str, row: int, count: int) -> int:
    """A word's place, if there is one."""
    if not 0 <= row < count:
        raise UserError(f"there is no word {row} in the {side}: it has {count}, counted from 0")
    return row


def _is_word(piece: str) -> bool:
    """Whether a piece is more than a mark, and no special token."""
    return piece[0] != "⟨" and any(c.isalnum() for c in piece)


def _find_word(words: Words, text: str, wanted: str) -> int | None:
    """The first token that is this word, or the first of several that are."""
    for i, (piece, label) in enumerate(zip(words.pieces, words.labels, strict=True)):
        if wanted in (piece, piece.strip(), label):
            return i
    start = text.find(wanted) if wanted else -1
    for i, span in enumerate(words.spans):
        if span is not None and start >= 0 and span[0] <= start < span[1]:
            return i
    return None


def numbered(count: int) -> Sequence[str]:
    """Labels for the numbers of a vector."""
    return [str(i + 1) for i in range(count)]
