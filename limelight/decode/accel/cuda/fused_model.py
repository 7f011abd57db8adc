"""A step in few kernels, for GPUs: what lean decoding is for CPUs.

A recorded step takes as long as its kernels, and each of those takes a few millionths of a second
whatever it does. So there are few: one product for queries, keys and values, attention in one
kernel, a sum with the norm that follows it in another (see `kernels` and `row_kernels`). For a row
or two even the products are our own, with the norm before them and the sum behind.

Nothing moves when a search exchanges its texts. The key and value of a token stay in the slot they
were written to, a new column of slots at every step; a row is a line of a table that says in which
slots its past lies, and which source it looks at. Only such lines are moved.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.decode.accel.cuda.attention_kernels import (
    decode_cross_attention,
    decode_self_attention,
)
from limelight.decode.accel.cuda.graph_slot import GraphSlot, move_sources_in, room_for_sources
from limelight.decode.accel.cuda.row_kernels import add_and_norm, small_batch_linear, topk_logprobs
from limelight.model.kv_cache import KVCache
from limelight.model.layers import ACTIVATIONS, FeedForward, Layer
from limelight.model.stack import Classifier, Stack

_Step = Callable[[Tensor], Tensor]  # B D -> B D, for one token in every row
FEW_ROWS = 2  # up to which products of our own are faster: LAB.md has the times
_FUSED = ("relu", "gelu-tanh")  # activations that they know
_EPILOGUES = {ACTIVATIONS["relu"]: False, ACTIVATIONS["gelu-tanh"]: True}  # what cuBLAS can add


class FusedModel:
    """A model as it is now, its weights put together for steps of one token."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config
        layers = list(cast(Iterable[Layer], model.decoder.layers))
        self.products = [
            _joined(*(getattr(layer.self_attention, name) for name in ("query", "key", "value")))
            for layer in layers
        ]
        self.inner = [_inner_of(layer.feed_forward) for layer in layers]
        self.norms = list(_norms_of(model.decoder))
        self.classify = _classifier_of(model.classifier)
        self.pre = self.config.norm_order == "pre"

    @torch.no_grad()
    def step(self, place: "PagedSlot") -> Tensor:
        """Read one token in every row; score the one that follows it, B V."""
        few = place.shape[0] <= FEW_ROWS and self.config.activation in _FUSED
        x = self.embed(place)
        h = self.climb_with_few(place, x) if few else self.run_layers(place, x)
        place.length.add_(1)
        place.column.add_(1)
        return self.classify(h)

    def run_layers(self, place: "PagedSlot", x: Tensor) -> Tensor:
        """Through all layers, B D; a sum together with the norm of it."""
        norms, h = iter(self.norms), x
        if self.pre:
            _, h = add_and_norm(x, None, next(norms))
        for sub in self.sublayers(place):
            x, h = add_and_norm(x, sub.last(sub.between(sub.first(h))), next(norms))
            x = x if self.pre else h
        return h

    def climb_with_few(self, place: "PagedSlot", x: Tensor) -> Tensor:
        """The same for very few rows; a norm together with the product that reads it."""
        norms = iter(self.norms if self.pre else [None, *self.norms])
        for sub in self.sublayers(place):
            first, h = small_batch_linear(x, sub.linear, next(norms), activation=sub.activation)
            x, _ = small_batch_linear(sub.between(first), sub.last, more=x if self.pre else h)
        return add_and_norm(x, None, next(norms))[1]

    def embed(self, place: "PagedSlot") -> Tensor:
        """A token's vector and its position's, B D."""
        target = self.model.target
        x: Tensor = target.tokens(place.tokens[:, 0])
        if target.positions is None:
            return x * target.scale
        positions = place.length.clamp(max=place.shape[1] - 1)
        return torch.add(torch.embedding(place.position_table, positions), x, alpha=target.scale)

    def sublayers(self, place: "PagedSlot") -> Iterator["_Sublayer"]:
        """What Figure 1 stacks, from the bottom to the top."""
        rotary, table = self.config.positions == "rotary", place.table
        for i, layer in enumerate(cast(Iterable[Layer], self.model.decoder.layers)):
            past = {"keys": place.keys[i], "values": place.values[i], "column": place.column}
            look = partial(decode_self_attention, **past, table=table, rotary=rotary)
            yield _Sublayer(self.products[i], self.products[i], look, layer.self_attention.output)
            if place.seen is not None:
                keys, values = place.memory[i]
                look = partial(
                    decode_cross_attention, keys=keys, values=values, table=table, seen=place.seen
                )
                cross = layer.cross_attention
                yield _Sublayer(cross.query, cross.query, look, cross.output)
            feed = layer.feed_forward
            yield _Sublayer(
                self.inner[i], feed.inner, _as_it_is, feed.outer, self.config.activation
            )


class _Sublayer(NamedTuple):
    """Two linear layers and what is between them, B D -> B D."""

    first: _Step  # with its activation, if it has one
    linear: nn.Linear  # the same without
    between: _Step
    last: nn.Linear
    activation: str = ""


class PagedSlot(GraphSlot):
    """A place whose past is never moved.

    Keys and values lie in slots, B S G K for each layer. The table has a line for each row: how
    long its past is, which source it looks at, and then, by position, the slots of its past.
    """

    model: FusedModel

    def make_room(self, like: KVCache) -> None:
        """All that is kept between two steps."""
        rows, slots, _ = self.shape
        self.memory, self.seen = room_for_sources(self.shape, like)
        past = (2 * len(like.keys), rows, slots, self.config.num_kv_heads, self.config.d_head)
        self.past = like.keys[0].new_zeros(past)  # keys of all layers, then values: B S G K each
        self.keys, self.values = self.past.view(2, -1, *past[1:])
        device = like.length.device
        self.table = torch.zeros(rows, 2 + slots, dtype=torch.long, device=device)
        self.column = torch.zeros(1, dtype=torch.long, device=device)  # where new tokens go
        target = self.model.model.target
        if target.positions is not None:
            places = torch.arange(slots, device=device)
            self.position_table: Tensor = target.positions(places, like.keys[0].dtype)

    def take_step(self) -> Tensor:
        """In few kernels."""
        return self.model.step(self)

    def topk_logprobs(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """In two kernels."""
        return topk_logprobs(logits, count)

    @property
    def length(self) -> Tensor:
        """How many tokens each row has read, B."""
        return self.table[:, 0]

    def load(self, cache: KVCache, rows_of: Tensor | None) -> None:
        """Take over all that a batch has read so far; it lies in the first slots of its rows.

        Rows that are the same look at the same past and source.
        """
        (rows, slots, _), reach, count = self.shape, cache.max_used, cache.length.numel()
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

    def unload(self, rows: Tensor, reach: int) -> KVCache:
        """These rows as a cache of their own."""
        cache = KVCache(self.config, 0, self.shape[1], self.past)
        lines = self.table[rows]
        cache.length, cache.max_used, sources, slots = lines[:, 0], reach, lines[:, 1], lines[:, 2:]
        moved = self.past.flatten(1, 2)[:, slots].transpose(2, 3)
        cache.keys, cache.values = (list(part) for part in moved.chunk(2))
        cache.memory = [(k[sources], v[sources]) for k, v in self.memory]
        cache.memory_mask = None if self.seen is None else self.seen[sources]
        return cache

    def reorder(self, rows: Tensor, reach: int) -> None:
        """Keep these rows, in this order, here."""
        self.table[: rows.numel()] = self.table[rows]


def _as_it_is(h: Tensor) -> Tensor:
    """Nothing is between the layers of a feed-forward network but its activation."""
    return h


def _joined(*parts: nn.Linear) -> nn.Linear:
    """Linear layers that read the same, as one."""
    outputs, biased = sum(part.out_features for part in parts), parts[0].bias is not None
    whole = nn.Linear(parts[0].in_features, outputs, biased, device="meta")
    for name in ("weight", "bias")[: 1 + biased]:
        values = torch.cat([getattr(part, name).detach() for part in parts])
        setattr(whole, name, nn.Parameter(values, requires_grad=False))
    return whole


def _classifier_of(classifier: Classifier) -> _Step:
    """Scores of all tokens. Matrix units like multiples of 8, so there may be empty rows below."""
    vocab = len(classifier.weight)
    if vocab % 8 == 0:
        return classifier
    weight = F.pad(classifier.weight.detach(), (0, 0, 0, -vocab % 64))
    bias = None if classifier.bias is None else F.pad(classifier.bias.detach(), (0, -vocab % 64))
    return lambda h: F.linear(h, weight, bias)[:, :vocab]


def _inner_of(feed_forward: FeedForward) -> _Step:
    """Section 3.3, the first half; cuBLAS applies some functions while the numbers are at hand."""
    inner, activate = feed_forward.inner, feed_forward.activate
    if feed_forward.gate is not None:
        both = _joined(feed_forward.gate, inner)

        def gated(x: Tensor) -> Tensor:
            gate, value = both(x).chunk(2, dim=1)
            return activate(gate) * value

        return gated
    common = inner.weight.is_cuda and inner.weight.dtype != torch.float64
    if activate in _EPILOGUES and inner.bias is not None and common:
        gelu, weight = _EPILOGUES[activate], inner.weight.detach().t()
        return lambda x: torch._addmm_activation(inner.bias, x, weight, use_gelu=gelu)
    return lambda x: activate(inner(x))


def _norms_of(stack: Stack) -> Iterator[nn.Module]:
    """The norms in the order in which a step comes to them; pre-norm has one more, at the end."""
    for layer in cast(Iterable[Layer], stack.layers):
        yield layer.self_residual.norm
        if hasattr(layer, "cross_residual"):
            yield layer.cross_residual.norm
        yield layer.feed_forward_residual.norm
    if layer.self_residual.post is False:
        yield stack.norm
