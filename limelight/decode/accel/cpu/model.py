"""The fast way to write on a CPU: the same numbers as the model's own step, in less time.

    writer = lean(model)
    state = writer.start(source, source_real)
    logits = writer.step(tokens, state)

The model stays the truth, and reads prompts itself. What is done over again here is what a search
waits for, sources and steps of one token in every row, without all that these can do without: no
work for padding; one product for queries, keys and values; weights that lie as the processor wants
them; no mask where nothing is to be hidden; one copy of a source for all the beams that look at it.
A test holds the two equal.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.decode.accel.cpu.folded_cross_attention import fold
from limelight.decode.accel.cpu.huge_pages import alloc_huge_pages
from limelight.decode.accel.cpu.kv_cache import CpuDecodeState
from limelight.decode.accel.cpu.linear import PackedLinear, linear_class
from limelight.errors import UserError
from limelight.model.attention import attention_mask
from limelight.model.decoder_only import DecoderOnly
from limelight.model.encoder_decoder import EncoderDecoder
from limelight.model.kv_cache import KVCache
from limelight.model.layers import FeedForward, Layer, Residual
from limelight.model.positions import LearnedPositions, positions_of, rotation
from limelight.model.stack import Embedding, Stack

# Torch's ways for short rows are slow, below 16 numbers in a softmax and 400 products in a `bmm`
# (7 positions, where heads have 64 numbers); there are others, which pay for many rows.
FEW, VERY_FEW, MANY = 16, 7, 64

_Step = Callable[[Tensor], Tensor]  # M D -> M D, for M tokens
_SubLayer = Callable[[Tensor, Tensor], Tensor]  # x and what it is to read of it: x and what it adds


def for_cpu(model: Any, int8: bool = False) -> Any:
    """The model as it is now, made ready to write fast; or itself, where no faster way is known.

    A model that is trained on has to be made ready again. With `int8` it rounds weights and
    states to one byte, which is faster still, and not exact.
    """
    kinds = {EncoderDecoder: _CpuEncoderDecoder, DecoderOnly: _CpuDecoderOnly}
    kind = kinds.get(type(model))
    if kind is None:
        if int8:
            raise UserError(
                f"int8 is for Transformers, and this model is {model.config.family}: use float32"
            )
        return model
    weight = model.classifier.weight
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.float64):
        return model
    with torch.no_grad():
        return kind(model, linear_class(int8, weight.dtype))


class CpuModel:
    """A model that writes, with what it has learned by now. It is one in use: in `eval()`."""

    def __init__(self, model: EncoderDecoder | DecoderOnly, product: type[PackedLinear]) -> None:
        self.model = model
        self.config = model.config
        self.target = _CpuEmbedding(model.target)
        self.layers = _layers_of(model.decoder, product)
        self.norm = _norm_of(model.decoder.norm)
        self.classifier = product(model.classifier)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The model's own."""
        return self.model.parameters()

    def step(self, tokens: Tensor, state: CpuDecodeState, real: Tensor | None = None) -> Tensor:
        """Read the next tokens (B T, padded on the right); score the one that follows them, B V.

        The scores lie where those of the state's next step will lie: copy what is to be kept.
        """
        one_each = tokens.size(1) == 1 and tokens.size(0) > 0 and (real is None or real.all())
        if not one_each:
            with torch.no_grad():
                return self.model.step(tokens, state.as_model_cache(tokens.size(1)), real)
        positions = state.begin()
        reach = state.cache.max_used
        x = self.target(tokens[:, 0], reach if state.same_lengths else positions, reach + 1)
        rotate = self.rotate(positions, x)
        for i, layer in enumerate(self.layers):
            x = layer.step(x, state, i, rotate)
        state.commit()
        return self.classifier(self.norm(x), state.logits_buffer(self.config.vocab))

    def rotate(self, positions: Tensor, x: Tensor) -> _Step | None:
        """Rotary positions of M tokens, if the model has them: turns M H K."""
        if self.config.positions != "rotary":
            return None
        turn = rotation(positions[:, None], self.config.d_head, x.dtype)
        return lambda x: turn(x[:, :, None])[:, :, 0]


class _CpuDecoderOnly(CpuModel):
    """GPT."""

    def start(self, rows: int, max_len: int | None = None) -> CpuDecodeState:
        """The state from which `step` writes: nothing read yet."""
        return CpuDecodeState(cast(DecoderOnly, self.model).start(0, max_len), rows)


class _CpuEncoderDecoder(CpuModel):
    """The paper's model. It reads sources without their padding."""

    def __init__(self, model: EncoderDecoder, product: type[PackedLinear]) -> None:
        super().__init__(model, product)
        self.source = _CpuEmbedding(model.source)
        self.encoder = _layers_of(model.encoder, product)
        self.encoder_norm = _norm_of(model.encoder.norm)
        crosses = [layer.cross_attention for layer in cast(Iterable[Layer], model.decoder.layers)]
        self.keys_values = product(*(part for a in crosses for part in (a.key, a.value)))

    def start(
        self, source: Tensor, source_real: Tensor | None = None, max_len: int | None = None
    ) -> CpuDecodeState:
        """The state from which `step` writes: the source is read once, its keys and values kept."""
        sources = _PackedSources.of(source, source_real)
        positions = sources.pack(positions_of(source, source_real).expand(source.shape))
        x = self.source(sources.pack(source), positions, source.size(1))
        rotate = self.rotate(positions, x)
        for layer in self.encoder:
            x = layer.encode(x, sources, rotate)
        memory = self.keys_values(self.encoder_norm(x)).view(
            len(x), self.config.layers, 2, self.config.num_kv_heads, self.config.d_head
        )
        cache = KVCache(self.config, 0, max_len or self.config.max_len, like=x)
        return CpuDecodeState(cache, len(source), sources.spread(memory), sources.hidden)


@dataclass
class _PackedSources:
    """Padded sources, B S, whose M tokens lie one behind the other while they are read.

    Sources of the same length are neighbours, and look at themselves together: nothing is hidden.
    """

    rows: list[int]  # in which order they lie
    lengths: list[int]  # in this order
    places: Tensor | None = None  # M: where the tokens were; None if they lay like this
    hidden: Tensor | None = None  # B S: what is behind the shorter ones, in the order of the batch

    @classmethod
    def of(cls, source: Tensor, real: Tensor | None) -> "_PackedSources":
        """As the model sees them: a row that is all padding is read as it is."""
        rows, longest = source.shape
        seen = None if real is None else attention_mask(real)[:, 0, 0]
        if seen is None or seen.all():
            return cls([*range(rows)], [longest] * rows)
        count = seen.sum(dim=1)
        lengths, order = count.sort()
        row, column = seen[order].nonzero(as_tuple=True)
        behind = torch.arange(int(lengths[-1])) >= count[:, None]
        hidden = behind if behind.any() else None
        return cls(order.tolist(), lengths.tolist(), order[row] * longest + column, hidden)

    def pack(self, x: Tensor) -> Tensor:
        """B S -> M"""
        return x.flatten() if self.places is None else x.flatten()[self.places]

    def equal_length_groups(self, x: Tensor) -> list[Tensor]:
        """M W -> sources of the same length, B' S' W, the shortest first."""
        counts = Counter(self.lengths)  # in their order
        parts = x.split_with_sizes([count * length for length, count in counts.items()])
        return [
            part.view(count, length, -1)
            for part, (length, count) in zip(parts, counts.items(), strict=True)
        ]

    def spread(self, x: Tensor) -> Tensor:
        """Keys and values, M N 2 G K -> N 2 B G S K, with zeros behind the shorter sources."""
        layers, two, groups, d_head = x.shape[1:]
        shape = (layers, two, len(self.rows), groups, max(self.lengths), d_head)
        spread = alloc_huge_pages(x, math.prod(shape)).view(shape)
        for row, part in zip(self.rows, x.split_with_sizes(self.lengths), strict=True):
            own = spread[:, :, row]
            own[..., : len(part), :] = part.permute(1, 2, 3, 0, 4)
            own[..., len(part) :, :] = 0
        return spread


class _CpuEmbedding:
    """A token's vector and its position's, the latter looked up."""

    def __init__(self, embedding: Embedding) -> None:
        self.table, self.scale = embedding.tokens.weight.detach(), embedding.scale
        self.positions = embedding.positions
        self.places: Tensor = self.table[:0]
        self.ahead = 2  # so many times what is needed now is made
        if isinstance(self.positions, LearnedPositions):
            self.places, self.ahead = self.positions.weight.detach(), 1

    def __call__(self, tokens: Tensor, positions: Tensor | int, beyond: int) -> Tensor:
        """M D, of tokens at positions before `beyond`, or all at one."""
        x = torch.embedding(self.table, tokens)
        if self.positions is None:
            return x * self.scale
        places = self.places  # other threads may put a new table there
        if beyond > len(places):
            places = self.positions(torch.arange(self.ahead * beyond), x.dtype)
            self.places = places
        return torch.add(places[positions], x, alpha=self.scale)


class _CpuLayer:
    """One layer, for M tokens."""

    def __init__(self, layer: Layer, product: type[PackedLinear]) -> None:
        attention = layer.self_attention
        self.d_head = attention.d_head
        self.heads = attention.query.out_features // self.d_head  # H
        self.groups = attention.key.out_features // self.d_head  # G
        self.query_key_value = product(
            attention.query, attention.key, attention.value, query_scale_dim=self.d_head
        )
        self.self_output = product(attention.output)
        self.self_residual = _residual_of(layer.self_residual)
        if hasattr(layer, "cross_attention"):
            self.query = product(layer.cross_attention.query, query_scale_dim=self.d_head)
            self.cross_output = product(layer.cross_attention.output)
            self.cross_residual = _residual_of(layer.cross_residual)
        self.folds = product is PackedLinear  # others have forgotten their weights
        self.feed_forward = _feed_forward_of(layer.feed_forward, product)
        self.feed_forward_residual = _residual_of(layer.feed_forward_residual)

    def encode(self, x: Tensor, sources: _PackedSources, rotate: _Step | None) -> Tensor:
        """For all tokens of the sources."""
        x = self.self_residual(x, lambda x, y: self.encoder_attention(x, y, sources, rotate))
        return self.feed_forward_residual(x, self.feed_forward)

    def step(self, x: Tensor, state: CpuDecodeState, i: int, rotate: _Step | None) -> Tensor:
        """For one new token in every row."""
        x = self.self_residual(x, lambda x, y: self.self_attention(x, y, state, i, rotate))
        if state.memory:
            x = self.cross_residual(x, lambda x, y: self.cross_attention(x, y, state, i))
        return self.feed_forward_residual(x, self.feed_forward)

    def project(self, x: Tensor, rotate: _Step | None) -> Tensor:
        """Queries, keys and values side by side: M H+2G K."""
        all_heads = self.query_key_value(x).view(x.size(0), -1, self.d_head)
        if rotate is None:
            return all_heads
        turning, values = all_heads[:, : -self.groups], all_heads[:, -self.groups :]
        return torch.cat([rotate(turning), values], dim=1)

    def encoder_attention(
        self, x: Tensor, y: Tensor, sources: _PackedSources, rotate: _Step | None
    ) -> Tensor:
        """Self-attention of the encoder: tokens of one source see each other."""
        mixed = []
        for part in sources.equal_length_groups(self.project(y, rotate).flatten(1)):
            all_heads = part.view(*part.shape[:2], -1, self.d_head).transpose(1, 2)  # B' H+2G S' K
            q, k, v = all_heads.split_with_sizes([self.heads, self.groups, self.groups], dim=1)
            looked = F.scaled_dot_product_attention(
                q, k, v, scale=1.0, enable_gqa=self.heads != self.groups
            )
            mixed.append(looked.transpose(1, 2).flatten(2).flatten(0, 1))
        return self.self_output.add_into(x, torch.cat(mixed) if len(mixed) > 1 else mixed[0])

    def self_attention(
        self, x: Tensor, y: Tensor, state: CpuDecodeState, i: int, rotate: _Step | None
    ) -> Tensor:
        """Masked self-attention: the row's own past is all there is."""
        q, new = self.project(y, rotate).split_with_sizes([self.heads, 2 * self.groups], dim=1)
        turned_keys, values = state.update(i, new)
        q = q.reshape(values.size(0), -1, self.d_head)  # BG H/G K
        mixed = attention(q, turned_keys, values, state.hidden)
        return self.self_output.add_into(x, mixed.view(x.shape))

    def cross_attention(self, x: Tensor, y: Tensor, state: CpuDecodeState, i: int) -> Tensor:
        """Cross-attention: the rows of one source ask it together, like several positions."""
        keys, values = state.memory[i]
        if state.has_one_source and self.folds and self.heads * keys.size(1) <= 2 * x.size(1):
            if i not in state.folded:
                state.folded[i] = fold(self.query, self.cross_output, keys, values)
            return state.folded[i].add_into(x, y)
        q = self.query(y).view(-1, state.rows_per_source, self.groups, x.size(1) // self.groups)
        q = q.transpose(1, 2)
        turned = state.transposed_keys(i) if state.rows_per_source > 1 else keys.mT
        mixed = attention(
            q.reshape(len(keys), -1, self.d_head), turned, values, state.source_hidden
        )
        mixed = mixed.view(q.shape).transpose(1, 2).reshape(x.shape)
        return self.cross_output.add_into(x, mixed)


def attention(q: Tensor, transposed_keys: Tensor, values: Tensor, hidden: Tensor | None) -> Tensor:
    """Equation 1; the queries are already divided by sqrt(d_k)."""
    scores = torch.bmm(q, transposed_keys)
    if hidden is not None:
        scores.view(hidden.size(0), -1, values.size(1)).masked_fill_(hidden, -math.inf)
    if q.size(1) == 1 and values.size(1) < FEW and q.size(0) >= MANY:
        shares = scores.mT.softmax(dim=1)  # the same numbers by another way through torch
        if values.size(1) < VERY_FEW:
            return (shares * values).sum(dim=1, keepdim=True)
        return torch.bmm(shares.mT, values)
    return torch.bmm(scores.softmax(dim=-1), values)


def _layers_of(stack: Stack, product: type[PackedLinear]) -> list[_CpuLayer]:
    """The layers of an encoder or a decoder."""
    return [_CpuLayer(layer, product) for layer in cast(Iterable[Layer], stack.layers)]


def _norm_of(norm: nn.Module) -> _Step:
    """A norm's formula with its weights."""
    if isinstance(norm, nn.Identity):
        return lambda x: x
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    weight, shape = norm.weight.detach(), norm.normalized_shape
    if isinstance(norm, nn.RMSNorm):
        own_eps = norm.eps
        return lambda x: torch.rms_norm(x, shape, weight, own_eps)
    bias, eps = norm.bias.detach(), norm.eps
    return lambda x: torch.native_layer_norm(x, shape, weight, bias, eps)[0]


def _residual_of(residual: Residual) -> Callable[[Tensor, _SubLayer], Tensor]:
    """What surrounds a sub-layer, without dropout."""
    norm = _norm_of(residual.norm)
    if residual.post:
        return lambda x, sublayer: norm(sublayer(x, x))
    return lambda x, sublayer: sublayer(x, norm(x))


def _feed_forward_of(feed_forward: FeedForward, product: type[PackedLinear]) -> _SubLayer:
    """Section 3.3; a gate, if there is one, is computed beside the inner layer."""
    activate, outer = feed_forward.activate, product(feed_forward.outer)
    if activate is F.relu:
        activate = torch.relu_  # in place
    if feed_forward.gate is None:
        inner = product(feed_forward.inner)
        return lambda x, y: outer.add_into(x, activate(inner(y)))
    both = product(feed_forward.gate, feed_forward.inner)

    def gated(x: Tensor, y: Tensor) -> Tensor:
        gate, value = both(y).chunk(2, dim=1)
        return outer.add_into(x, activate(gate) * value)

    return gated
