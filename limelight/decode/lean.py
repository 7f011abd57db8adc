"""The fast way to write on a CPU: the same numbers as the model's own step, in less time.

    writer = lean(model)
    state = writer.start(source, source_real)
    logits = writer.step(tokens, state)

The model stays the truth, and reads prompts itself. What is done over again here is the one thing
that a search waits for, a step of one token in every row, without all that such a step can do
without: one product makes queries, keys and values; weights lie as the processor wants them; there
is no mask where nothing is to be hidden; and the beams of one source look at one copy of it.
A test holds the two equal.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from limelight.model.attention import Attention
from limelight.model.cache import Cache
from limelight.model.decoder_only import DecoderOnly
from limelight.model.encoder_decoder import EncoderDecoder
from limelight.model.layers import FeedForward, Layer, Residual
from limelight.model.positions import rotation
from limelight.model.stack import Classifier

Step = Callable[[Tensor], Tensor]  # B D -> B D


def lean(model: Any) -> Any:
    """The model as it is now, made ready to write fast; or itself, where no faster way is known."""
    if isinstance(model, EncoderDecoder | DecoderOnly):
        weight = model.classifier.weight
        if weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64):
            return Lean(model)
    return model


class Lean:
    """A model that writes: what it learned, without dropout. Later training does not reach it."""

    @torch.no_grad()
    def __init__(self, model: EncoderDecoder | DecoderOnly) -> None:
        self.model = model
        self.config = model.config
        layers = cast(Iterable[Layer], model.decoder.layers)
        self.layers = [LeanLayer(layer) for layer in layers]
        self.norm = norm_of(model.decoder.norm)
        self.classifier = Product(model.classifier)
        self.places = torch.empty(0)  # the vector of each position

    def parameters(self) -> Iterator[nn.Parameter]:
        """The model's own."""
        return self.model.parameters()

    @torch.no_grad()
    def start(self, *arguments: Any, **named: Any) -> "LeanState":
        """The state from which `step` writes, from what the model's own `start` takes."""
        state = LeanState(self.model.start(*arguments, **named))
        room, positions = state.past.size(4), self.model.target.positions
        if positions is not None and len(self.places) < room:
            self.places = positions(torch.arange(room), state.past.dtype)
        return state

    @torch.no_grad()
    def step(self, tokens: Tensor, state: "LeanState", real: Tensor | None = None) -> Tensor:
        """Read the next tokens (B T, padded on the right); score the one that follows them, B V."""
        one_each = tokens.size(1) == 1 and tokens.size(0) > 0 and (real is None or real.all())
        if not one_each:
            return self.model.step(tokens, state.lend(), real)
        positions = state.open()
        x = self.embed(tokens[:, 0], positions[:, 0])
        rotate = None
        if self.config.positions == "rotary":
            rotate = rotation(positions, self.config.d_head, x.dtype)
        for i, layer in enumerate(self.layers):
            x = layer(x, state, i, rotate)
        state.close()
        return self.classifier(self.norm(x))

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """As the model's Embedding does it, with the positions looked up."""
        embedding = self.model.target
        x = torch.embedding(embedding.tokens.weight, tokens)  # B D
        if embedding.positions is None:
            return x * embedding.scale
        return torch.add(self.places[positions], x, alpha=embedding.scale)


class LeanState:
    """What is kept between two tokens: the model's cache, with the layers in one piece.

    `past` has a slot for every position. The keys and values of a source are kept once for all the
    rows that look at it: row b looks at source b // shared.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        layers, shape = len(cache.keys), cache.keys[0].shape
        self.past = cache.keys[0].new_zeros(layers, 2, *shape)  # N 2 B G S K
        self.source: Tensor | None = None
        self.source_hidden: Tensor | None = None
        if cache.memory:
            self.source = torch.stack([torch.stack(pair) for pair in cache.memory])  # N 2 B G S K
        if cache.memory_mask is not None and not cache.memory_mask.all():
            self.source_hidden = ~cache.memory_mask[:, 0]  # B 1 S
        self.shared = 1
        self.even = True  # all rows are equally long, so nothing needs hiding
        self.hidden: Tensor | None = None  # B 1 S: slots behind the end of a row

    def lend(self) -> Cache:
        """The cache as the model knows it, to read a prompt into."""
        self.cache.keys, self.cache.values = list(self.past[:, 0]), list(self.past[:, 1])
        if self.source is not None:
            per_row = self.source.repeat_interleave(self.shared, dim=2)
            self.cache.memory = [(k, v) for k, v in per_row]
        if self.source_hidden is not None:
            self.cache.memory_mask = ~self.source_hidden.repeat_interleave(self.shared, 0)[:, None]
        self.even = False  # not known; `open` will look
        return self.cache

    def open(self) -> Tensor:
        """Make ready for one more token in every row; return their positions, B 1."""
        cache = self.cache
        cache.open(1)
        self.even = self.even or bool((cache.length == cache.reach).all())
        self.hidden = None if self.even else ~cache.mask()[:, 0]
        return cache.positions

    def append(self, layer: int, new: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new keys and values (B 2G K); return them with the past, (BG S K)."""
        kept = self.past[layer]
        new = new.view(new.size(0), 2, -1, new.size(2))
        if self.even:
            kept[:, :, :, self.cache.reach] = new.transpose(0, 1)
        else:
            rows = torch.arange(new.size(0))
            kept[:, rows, :, self.cache.positions[:, 0]] = new
        keys, values = kept.flatten(1, 2)[:, :, : self.cache.reach + 1]
        return keys, values

    def close(self) -> None:
        """Count the tokens just read."""
        self.cache.close()

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be named again (beams) or not at all."""
        cache = self.cache
        cache.length = cache.length[rows]
        if not self.even:
            cache.reach = max(cache.length.tolist(), default=0)
        moved = self.past[:, :, rows, :, : cache.reach]
        if len(rows) > self.past.size(2):
            layers, two, _, *shape = self.past.shape
            self.past = self.past.new_zeros(layers, two, len(rows), *shape)
        self.past = self.past[:, :, : len(rows)]
        self.past[..., : cache.reach, :] = moved
        if self.source is not None:
            self.select_sources(self.source, rows // self.shared)

    def select_sources(self, source: Tensor, wanted: Tensor) -> None:
        """Row b is to look at source wanted[b]. Beams that move within a source move nothing."""
        runs = torch.unique_consecutive(wanted, return_counts=True)[1]
        self.shared = math.gcd(*runs.tolist()) or 1
        wanted = wanted[:: self.shared]
        if torch.equal(wanted, torch.arange(source.size(2))):
            return
        self.source = source[:, :, wanted]
        if self.source_hidden is not None:
            self.source_hidden = self.source_hidden[wanted]


class LeanLayer:
    """One layer of the decoder, for one token in every row."""

    def __init__(self, layer: Layer) -> None:
        attention = layer.self_attention
        self.groups = attention.key.out_features // attention.d_head  # G
        self.query_key_value = Product(attention.query, attention.key, attention.value)
        self.query_key_value.shrink(attention)
        self.self_output = Product(attention.output)
        self.self_residual = residual_of(layer.self_residual)
        if hasattr(layer, "cross_attention"):
            self.query = Product(layer.cross_attention.query)
            self.query.shrink(layer.cross_attention)
            self.cross_output = Product(layer.cross_attention.output)
            self.cross_residual = residual_of(layer.cross_residual)
        self.feed_forward = feed_forward_of(layer.feed_forward)
        self.feed_forward_residual = residual_of(layer.feed_forward_residual)
        self.d_head = attention.d_head

    def __call__(self, x: Tensor, state: LeanState, i: int, rotate: Step | None) -> Tensor:
        x = self.self_residual(x, lambda x: self.look_back(x, state, i, rotate))
        if (source := state.source) is not None:
            x = self.cross_residual(x, lambda x: self.look_across(x, source[i], state))
        return self.feed_forward_residual(x, self.feed_forward)

    def look_back(self, x: Tensor, state: LeanState, i: int, rotate: Step | None) -> Tensor:
        """Masked self-attention: the row's own past is all there is."""
        everything = self.query_key_value(x).view(x.size(0), -1, self.d_head)  # B H+2G K
        if rotate is not None:
            turning, v = everything[:, : -self.groups], everything[:, -self.groups :]
            everything = torch.cat([rotate(turning[:, :, None])[:, :, 0], v], dim=1)
        q, new = everything[:, : -2 * self.groups], everything[:, -2 * self.groups :]
        keys, values = state.append(i, new)
        q = q.reshape(keys.size(0), -1, self.d_head)  # BG H/G K
        return self.self_output(gather(q, keys, values, state.hidden).view(x.shape))

    def look_across(self, x: Tensor, source: Tensor, state: LeanState) -> Tensor:
        """Cross-attention: the rows of one source ask it together, like several positions."""
        keys, values = source.flatten(1, 2)  # for each of B/shared sources, G S K
        q = self.query(x).view(-1, state.shared, self.groups, x.size(1) // self.groups)
        q = q.transpose(1, 2)
        mixed = gather(q.reshape(keys.size(0), -1, self.d_head), keys, values, state.source_hidden)
        return self.cross_output(mixed.view(q.shape).transpose(1, 2).reshape(x.shape))


def gather(q: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None) -> Tensor:
    """Equation 1; the queries are already divided by sqrt(d_k)."""
    scores = torch.bmm(q, keys.transpose(1, 2))
    if hidden is not None:
        scores.view(hidden.size(0), -1, keys.size(1)).masked_fill_(hidden, -math.inf)
    return torch.bmm(scores.softmax(dim=-1), values)


class Product:
    """x W + b for one token in every row; linear layers that read the same x become one."""

    def __init__(self, *parts: nn.Linear | Classifier) -> None:
        weights: list[Tensor] = [part.weight for part in parts]
        self.weight = torch.cat(weights)
        biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
        self.bias = torch.cat(biases) if biases else self.weight.new_zeros(len(self.weight))

    def shrink(self, attention: Attention) -> None:
        """Divide the queries by sqrt(d_k) beforehand."""
        width = attention.query.out_features
        for values in (self.weight, self.bias):
            values[:width] /= math.sqrt(attention.d_head)

    def __call__(self, x: Tensor) -> Tensor:
        # A single row is faster with the plain product, more of them with oneDNN's.
        if x.size(0) == 1 or x.dtype != torch.float32 or not torch._C._has_mkldnn:
            return torch.addmm(self.bias, x, self.turned)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")

    @cached_property
    def turned(self) -> Tensor:
        """W, D_in D_out, row after row."""
        return self.weight.t().contiguous()

    @cached_property
    def packed(self) -> Tensor:
        """W in the blocks that oneDNN multiplies."""
        return torch.ops.mkldnn._reorder_linear_weight(self.weight)


def norm_of(norm: nn.Module) -> Step:
    """A norm's formula with its weights."""
    if isinstance(norm, nn.LayerNorm):
        shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
    return norm


def residual_of(residual: Residual) -> Callable[[Tensor, Step], Tensor]:
    """What surrounds a sub-layer, without dropout."""
    norm = norm_of(residual.norm)
    if residual.post:
        return lambda x, sublayer: norm(sublayer(x).add_(x))
    return lambda x, sublayer: sublayer(norm(x)).add_(x)


def feed_forward_of(feed_forward: FeedForward) -> Step:
    """Section 3.3; a gate, if there is one, is computed beside the inner layer."""
    activate, outer = feed_forward.activate, Product(feed_forward.outer)
    if feed_forward.gate is None:
        inner = Product(feed_forward.inner)
        return lambda x: outer(activate(inner(x)))
    both = Product(feed_forward.gate, feed_forward.inner)

    def gated(x: Tensor) -> Tensor:
        gate, value = both(x).chunk(2, dim=1)
        return outer(activate(gate) * value)

    return gated


def likeliest(logits: Tensor) -> Tensor:
    """The index of the highest score of each row, B V -> B; the first one among equals.

    First the highest of each block, then where it is: a processor finds a highest value many times
    faster than the place of it.
    """
    block = 128
    whole = logits.size(1) // block * block
    if whole == 0:
        return logits.argmax(dim=1)
    highest = logits[:, :whole].view(len(logits), -1, block).amax(dim=2)
    best = highest.argmax(dim=1, keepdim=True) * block
    index = best + torch.arange(block, device=logits.device)
    first = best[:, 0] + logits.gather(1, index).argmax(dim=1)
    if whole == logits.size(1):
        return first
    rest = whole + logits[:, whole:].argmax(dim=1)
    both = torch.stack([first, rest], dim=1)
    return both.gather(1, logits.gather(1, both).argmax(dim=1, keepdim=True))[:, 0]
