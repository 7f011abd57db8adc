"""A step in few kernels, for GPUs: what lean decoding is for CPUs.

A recorded step takes as long as its kernels, and each of those takes a few millionths of a second
whatever it does. So there are few: one product for queries, keys and values, attention in one
kernel, a sum with the norm that follows it in another (see `kernels`).

Nothing moves when a search exchanges its texts. The key and value of a token stay in the slot they
were written to, a new column of slots at every step; a row is a line of a table that says in which
slots its past lies, and which source it looks at. Only such lines are moved.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.decode.kernels import add_and_norm, look_across, look_back, rank
from limelight.decode.place import Place, move_sources_in, room_for_sources
from limelight.model.attention import Attention
from limelight.model.cache import Cache
from limelight.model.layers import ACTIVATIONS, FeedForward, Layer
from limelight.model.stack import Classifier, Stack

Step = Callable[[Tensor], Tensor]  # B D -> B D, for one token in every row
EPILOGUES = {ACTIVATIONS["relu"]: False, ACTIVATIONS["gelu-tanh"]: True}  # what cuBLAS can add


class Swift:
    """A model as it is now, its weights put together for steps of one token."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config
        layers = list(cast(Iterable[Layer], model.decoder.layers))
        self.products = [
            joined(*(getattr(layer.self_attention, name) for name in ("query", "key", "value")))
            for layer in layers
        ]
        self.feed_forwards = [feed_forward_of(layer.feed_forward) for layer in layers]
        self.norms = list(norms_of(model.decoder))
        self.classify = classifier_of(model.classifier)

    @torch.no_grad()
    def step(self, place: "SwiftPlace") -> Tensor:
        """Read one token in every row; score the one that follows it, B V."""
        x = h = self.embed(place)
        norms = iter(self.norms)
        if pre := self.config.norm_order == "pre":
            _, h = add_and_norm(x, None, next(norms))
        for sublayer in self.sublayers(place):
            x, h = add_and_norm(x, sublayer(h), next(norms))
            x = x if pre else h
        place.length.add_(1)
        place.column.add_(1)
        return self.classify(h)

    def embed(self, place: "SwiftPlace") -> Tensor:
        """A token's vector and its position's, B D."""
        target = self.model.target
        x: Tensor = target.tokens(place.tokens[:, 0])
        if target.positions is None:
            return x * target.scale
        positions = place.length.clamp(max=place.shape[1] - 1)
        return torch.add(torch.embedding(place.waves, positions), x, alpha=target.scale)

    def sublayers(self, place: "SwiftPlace") -> Iterator[Step]:
        """What Figure 1 stacks, from the bottom to the top."""
        rotary = self.config.positions == "rotary"
        for i, layer in enumerate(cast(Iterable[Layer], self.model.decoder.layers)):
            past = (place.keys[i], place.values[i], place.table, place.column, rotary)
            yield partial(self_attention, self.products[i], layer.self_attention.output, past)
            if place.seen is not None:
                sources = (*place.memory[i], place.table, place.seen)
                yield partial(cross_attention, layer.cross_attention, sources)
            yield self.feed_forwards[i]


class SwiftPlace(Place):
    """A place whose past is never moved.

    Keys and values lie in slots, B S G K for each layer. The table has a line for each row: how
    long its past is, which source it looks at, and then, by position, the slots of its past.
    """

    model: Swift

    def make_room(self, like: Cache) -> None:
        """All that is kept between two steps."""
        rows, slots, _ = self.shape
        self.memory, self.seen = room_for_sources(self.shape, like)
        past = (2 * len(like.keys), rows, slots, self.config.key_heads, self.config.d_head)
        self.past = like.keys[0].new_zeros(past)  # keys of all layers, then values: B S G K each
        self.keys, self.values = self.past.view(2, -1, *past[1:])
        device = like.length.device
        self.table = torch.zeros(rows, 2 + slots, dtype=torch.long, device=device)
        self.column = torch.zeros(1, dtype=torch.long, device=device)  # where new tokens go
        target = self.model.model.target
        if target.positions is not None:
            places = torch.arange(slots, device=device)
            self.waves: Tensor = target.positions(places, like.keys[0].dtype)

    def take_step(self) -> None:
        """In few kernels."""
        self.logits = self.model.step(self)

    def rank(self) -> tuple[Tensor, Tensor]:
        """While the scores are at hand."""
        return rank(self.logits)

    @property
    def length(self) -> Tensor:
        """How many tokens each row has read, B."""
        return self.table[:, 0]

    def move_in(self, cache: Cache, rows_of: Tensor | None) -> None:
        """Take over all that a batch has read so far; it lies in the first slots of its rows.

        Rows that are the same look at the same past and source.
        """
        (rows, slots, _), reach, count = self.shape, cache.reach, cache.length.numel()
        if reach:
            read = [kept[:, :, :reach] for kept in (*cache.keys, *cache.values)]  # B G S K each
            self.past[:, :count, :reach] = torch.stack(read).transpose(2, 3)
        every = torch.arange(max(rows, slots), device=self.table.device)
        lines = every[:rows].clamp(max=count - 1)
        if rows_of is not None:
            lines[: rows_of.numel()] = rows_of
        self.table[:, 0], self.table[:, 1] = cache.length[lines], lines
        self.table[:, 2:] = lines[:, None] * slots + every[:slots]
        self.column.fill_(reach)
        if self.seen is not None:
            move_sources_in(cache, self.memory, self.seen)

    def move_out(self, rows: Tensor, reach: int) -> Cache:
        """These rows as a cache of their own."""
        cache = Cache(self.config, 0, self.shape[1], self.past)
        lines = self.table[rows]
        cache.length, cache.reach, sources, slots = lines[:, 0], reach, lines[:, 1], lines[:, 2:]
        moved = self.past.flatten(1, 2)[:, slots].transpose(2, 3)
        cache.keys, cache.values = (list(part) for part in moved.chunk(2))
        cache.memory = [(k[sources], v[sources]) for k, v in self.memory]
        cache.memory_mask = None if self.seen is None else self.seen[sources]
        return cache

    def shuffle(self, rows: Tensor, reach: int) -> None:
        """Keep these rows, in this order, here."""
        self.table[: rows.numel()] = self.table[rows]


def self_attention(project: Step, output: Step, past: tuple[Any, ...], h: Tensor) -> Tensor:
    """A row's own past is all there is."""
    return output(look_back(project(h), *past))


def cross_attention(attention: Attention, sources: tuple[Tensor, ...], h: Tensor) -> Tensor:
    """The source that a row translates."""
    mixed: Tensor = attention.output(look_across(attention.query(h), *sources))
    return mixed


def joined(*parts: nn.Linear) -> Step:
    """Linear layers that read the same, as one."""
    weight = torch.cat([part.weight.detach() for part in parts])
    biases = [part.bias.detach() for part in parts if part.bias is not None]
    bias = torch.cat(biases) if biases else None
    return lambda x: F.linear(x, weight, bias)


def classifier_of(classifier: Classifier) -> Step:
    """Scores of all tokens. Matrix units like multiples of 8, so there may be empty rows below."""
    vocab = len(classifier.weight)
    if vocab % 8 == 0:
        return classifier
    weight = F.pad(classifier.weight.detach(), (0, 0, 0, -vocab % 64))
    bias = None if classifier.bias is None else F.pad(classifier.bias.detach(), (0, -vocab % 64))
    return lambda h: F.linear(h, weight, bias)[:, :vocab]


def feed_forward_of(feed_forward: FeedForward) -> Step:
    """Section 3.3; cuBLAS applies some functions while it still has the numbers at hand."""
    inner, outer, activate = feed_forward.inner, feed_forward.outer, feed_forward.activate
    if feed_forward.gate is not None:
        both = joined(feed_forward.gate, inner)

        def gated(x: Tensor) -> Tensor:
            gate, value = both(x).chunk(2, dim=1)
            return cast(Tensor, outer(activate(gate) * value))

        return gated
    common = inner.weight.is_cuda and inner.weight.dtype != torch.float64
    if activate in EPILOGUES and inner.bias is not None and common:
        gelu, weight = EPILOGUES[activate], inner.weight.detach().t()
        return lambda x: outer(torch._addmm_activation(inner.bias, x, weight, use_gelu=gelu))
    return lambda x: outer(activate(inner(x)))


def norms_of(stack: Stack) -> Iterator[nn.Module]:
    """The norms in the order in which a step comes to them; pre-norm has one more, at the end."""
    for layer in cast(Iterable[Layer], stack.layers):
        yield layer.self_residual.norm
        if hasattr(layer, "cross_residual"):
            yield layer.cross_residual.norm
        yield layer.feed_forward_residual.norm
    if layer.self_residual.post is False:
        yield stack.norm
