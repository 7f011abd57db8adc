"""A decoding step in few kernels, for GPUs.

A captured step takes as long as its kernels, and each of those takes microseconds whatever it does.
So there are few: one product for queries, keys and values, one kernel for attention, one for a sum
and the norm that follows it. For one or two rows even the products are our own, with the norm
before them and the sum behind.

Nothing moves when a search reorders its texts. The key and value of a token stay where they were
written, a new column of cache slots at every step. A row is a line of the block table, which says
in which cache slots its past lies and which source it attends to; only such lines are moved.
"""

import math
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
from limelight.decode.accel.cuda.graph_slot import (
    GraphSlot,
    alloc_sources,
    by_layer,
    load_sources,
)
from limelight.decode.accel.cuda.row_kernels import add_and_norm, small_batch_linear, topk_logprobs
from limelight.model.kv_cache import KVCache
from limelight.model.layers import ACTIVATIONS, FeedForward, Layer
from limelight.model.stack import Classifier, Stack

_Step = Callable[[Tensor], Tensor]  # B D -> B D, for one token in every row
FEW_ROWS = 2  # up to which our own products are faster: LAB.md has the times
_FUSED = ("relu", "gelu-tanh", "swiglu")  # activations that they can apply
_EPILOGUES = {ACTIVATIONS["relu"]: False, ACTIVATIONS["gelu-tanh"]: True}  # what cuBLAS can add


class FusedModel:
    """A model's weights, joined for steps of one token in every row."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config
        layers = list(cast(Iterable[Layer], model.decoder.layers))
        self.products = [
            _joined(*(getattr(layer.self_attention, name) for name in ("query", "key", "value")))
            for layer in layers
        ]
        self.inner_linear = [_inner_linear(layer.feed_forward) for layer in layers]
        self.inner = [
            _inner_of(layer.feed_forward, linear)
            for layer, linear in zip(layers, self.inner_linear, strict=True)
        ]
        self.norms = list(_norms_of(model.decoder))
        self.classify = _classifier_of(model.classifier)
        self.pre = self.config.norm_order == "pre"

    @torch.no_grad()
    def step(self, slot: "PagedSlot") -> Tensor:
        """Read one token in every row; return logits of the one after it, B V."""
        few = slot.shape[0] <= FEW_ROWS and self.config.activation in _FUSED
        x = self.embed(slot)
        h = self.run_layers_few_rows(slot, x) if few else self.run_layers(slot, x)
        slot.length.add_(1)
        slot.next_slot.add_(1)
        return self.classify(h)

    def run_layers(self, slot: "PagedSlot", x: Tensor) -> Tensor:
        """All layers, B D; each sum and its norm are one kernel."""
        norms, h = iter(self.norms), x
        if self.pre:
            _, h = add_and_norm(x, None, next(norms))
        for sub in self.sublayers(slot):
            x, h = add_and_norm(x, sub.last(sub.between(sub.first(h))), next(norms))
            x = x if self.pre else h
        return h

    def run_layers_few_rows(self, slot: "PagedSlot", x: Tensor) -> Tensor:
        """All layers for very few rows; each norm and the product that reads it are one kernel."""
        norms = iter(self.norms if self.pre else [None, *self.norms])
        for sub in self.sublayers(slot):
            first, h = small_batch_linear(x, sub.linear, next(norms), activation=sub.activation)
            x, _ = small_batch_linear(sub.between(first), sub.last, more=x if self.pre else h)
        return add_and_norm(x, None, next(norms))[1]

    def embed(self, slot: "PagedSlot") -> Tensor:
        """Token embedding plus position, B D."""
        target = self.model.target
        x: Tensor = target.tokens(slot.tokens[:, 0])
        if target.positions is None:
            return x * target.scale
        positions = slot.length.clamp(max=slot.shape[1] - 1)
        return torch.add(torch.embedding(slot.position_table, positions), x, alpha=target.scale)

    def sublayers(self, slot: "PagedSlot") -> Iterator["_Sublayer"]:
        """The sub-layers of Figure 1, from the bottom to the top."""
        rotary, table = self.config.positions == "rotary", slot.block_table
        log_base = math.log(self.config.rotary_base) if rotary else 0.0
        for i, layer in enumerate(cast(Iterable[Layer], self.model.decoder.layers)):
            past = {"keys": slot.keys[i], "values": slot.values[i], "next_slot": slot.next_slot}
            attend = partial(decode_self_attention, **past, table=table, log_base=log_base)
            yield _Sublayer(self.products[i], self.products[i], attend, layer.self_attention.output)
            if slot.seen is not None:
                keys, values = slot.memory[i]
                attend = partial(
                    decode_cross_attention, keys=keys, values=values, table=table, seen=slot.seen
                )
                cross = layer.cross_attention
                yield _Sublayer(cross.query, cross.query, attend, cross.output)
            linear, last = self.inner_linear[i], layer.feed_forward.outer
            yield _Sublayer(self.inner[i], linear, _identity, last, self.config.activation)


class _Sublayer(NamedTuple):
    """Two linear layers and what is between them, B D -> B D."""

    first: _Step  # with its activation, if it has one
    linear: nn.Linear  # without it
    between: _Step
    last: nn.Linear
    activation: str = ""


class PagedSlot(GraphSlot):
    """A graph slot whose keys and values are never moved.

    They lie in cache slots, B S G K for each layer. The block table has a line for each row: how
    long its past is, which source it attends to, and then, by position, where its past lies.
    """

    model: FusedModel

    def allocate(self, like: KVCache) -> None:
        """All that is kept between two steps."""
        rows, length, _ = self.shape
        self.sources, self.seen = alloc_sources(self.shape, like)
        self.memory = by_layer(self.sources)
        past = (2 * len(like.keys), rows, length, self.config.num_kv_heads, self.config.d_head)
        self.past = like.keys[0].new_zeros(past)  # keys of all layers, then values: B S G K each
        self.keys, self.values = self.past.view(2, -1, *past[1:])
        device = like.length.device
        self.block_table = torch.zeros(rows, 2 + length, dtype=torch.long, device=device)
        self.next_slot = torch.zeros(
            1, dtype=torch.long, device=device
        )  # the column for new tokens
        target = self.model.model.target
        if target.positions is not None:
            every = torch.arange(length, device=device)
            self.position_table: Tensor = target.positions(every, like.keys[0].dtype)

    def run_step(self) -> Tensor:
        """See `FusedModel`."""
        return self.model.step(self)

    def topk_logprobs(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """In two kernels."""
        return topk_logprobs(logits, count)

    @property
    def length(self) -> Tensor:
        """How many tokens each row has read, B."""
        return self.block_table[:, 0]

    @property
    def can_insert(self) -> bool:
        """Whether no row uses the past or the source of another one."""
        return not self.reordered

    def insert(self, cache: KVCache, rows: Tensor) -> None:
        """Copy in what other requests have read so far, to these rows and their own slots."""
        length, used = self.shape[1], cache.max_used
        if used:
            read = [kept[:, :, :used] for kept in (*cache.keys, *cache.values)]  # B G S K each
            self.past[:, rows, :used] = torch.stack(read).transpose(2, 3)
        every = torch.arange(length, device=rows.device)
        self.block_table[rows, 0], self.block_table[rows, 1] = cache.length, rows
        self.block_table[rows, 2:] = rows[:, None] * length + every
        if self.seen is not None:
            load_sources(cache, self.sources, self.seen, rows)

    def load(self, cache: KVCache, rows_of: Tensor | None) -> None:
        """Copy in all that a batch has read so far, to the first cache slots of its rows.

        Equal rows share their past and their source.
        """
        (rows, length, _), used, count = self.shape, cache.max_used, cache.length.numel()
        if used:
            read = [kept[:, :, :used] for kept in (*cache.keys, *cache.values)]  # B G S K each
            self.past[:, :count, :used] = torch.stack(read).transpose(2, 3)
        every = torch.arange(max(rows, length), device=self.block_table.device)
        lines = every[:rows].clamp(max=count - 1)
        if rows_of is not None:
            lines[: rows_of.numel()] = rows_of
        self.block_table[:, 0], self.block_table[:, 1] = cache.length[lines], lines
        self.block_table[:, 2:] = lines[:, None] * length + every[:length]
        self.next_slot.fill_(used)
        self.reordered = rows_of is not None
        if self.seen is not None:
            load_sources(cache, self.sources, self.seen)

    def unload(self, rows: Tensor, max_used: int) -> KVCache:
        """These rows as a cache of their own."""
        cache = KVCache(self.config, 0, self.shape[1], self.past)
        lines = self.block_table[rows]
        cache.length, cache.max_used, sources, slots = (
            lines[:, 0],
            max_used,
            lines[:, 1],
            lines[:, 2:],
        )
        moved = self.past.flatten(1, 2)[:, slots].transpose(2, 3)
        cache.keys, cache.values = (list(part) for part in moved.chunk(2))
        cache.memory = [(k[sources], v[sources]) for k, v in self.memory]
        cache.memory_mask = None if self.seen is None else self.seen[sources]
        return cache

    def reorder(self, rows: Tensor, max_used: int) -> None:
        """Keep these rows, in this order, by moving lines of the table."""
        self.reordered = True
        self.block_table[: rows.numel()] = self.block_table[rows]


def _identity(h: Tensor) -> Tensor:
    return h


def _joined(*parts: nn.Linear) -> nn.Linear:
    outputs, biased = sum(part.out_features for part in parts), parts[0].bias is not None
    joined = nn.Linear(parts[0].in_features, outputs, biased, device="meta")
    for name in ("weight", "bias")[: 1 + biased]:
        values = torch.cat([getattr(part, name).detach() for part in parts])
        setattr(joined, name, nn.Parameter(values, requires_grad=False))
    return joined


def _classifier_of(classifier: Classifier) -> _Step:
    """Logits. Matrix units need multiples of 8, so there may be empty rows below."""
    vocab = len(classifier.weight)
    if vocab % 8 == 0:
        return classifier
    weight = F.pad(classifier.weight.detach(), (0, 0, 0, -vocab % 64))
    bias = None if classifier.bias is None else F.pad(classifier.bias.detach(), (0, -vocab % 64))
    return lambda h: F.linear(h, weight, bias)[:, :vocab]


def _inner_linear(feed_forward: FeedForward) -> nn.Linear:
    """The first linear layer of section 3.3, behind its gate if there is one."""
    gate, inner = feed_forward.gate, feed_forward.inner
    return inner if gate is None else _joined(gate, inner)


def _inner_of(feed_forward: FeedForward, inner: nn.Linear) -> _Step:
    """The first half of section 3.3; cuBLAS applies some activations in the product itself."""
    activate = feed_forward.activate
    if feed_forward.gate is not None:

        def gated(x: Tensor) -> Tensor:
            gate, value = inner(x).chunk(2, dim=1)
            return activate(gate) * value

        return gated
    common = inner.weight.is_cuda and inner.weight.dtype != torch.float64
    if activate in _EPILOGUES and inner.bias is not None and common:
        gelu, weight = _EPILOGUES[activate], inner.weight.detach().t()
        return lambda x: torch._addmm_activation(inner.bias, x, weight, use_gelu=gelu)
    return lambda x: activate(inner(x))


def _norms_of(stack: Stack) -> Iterator[nn.Module]:
    """The norms in the order of a step; pre-norm has one more, at the end."""
    for layer in cast(Iterable[Layer], stack.layers):
        yield layer.self_residual.norm
        if hasattr(layer, "cross_residual"):
            yield layer.cross_residual.norm
        yield layer.feed_forward_residual.norm
    if layer.self_residual.post is False:
        yield stack.norm
