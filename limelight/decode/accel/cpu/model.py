"""Decoding on a CPU: the numbers of the model's own step, in less time.

    fast = for_cpu(model)
    state = fast.start(source, source_real)
    logits = fast.step(tokens, state)

The model itself reads prompts. Sources and steps of one token per row, which a search waits for,
are computed here: without padding, with one product for queries, keys and values, with weights in
the layout that the processor reads fastest, without a mask where nothing is masked, and with one
copy of a source for all its beams. Tests hold the two equal.
"""

import copy
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
from limelight.decode.accel.cpu.linear import PackedLinear
from limelight.model.attention import Attention, attention_mask
from limelight.model.decoder_only import DecoderOnly
from limelight.model.encoder_decoder import EncoderDecoder
from limelight.model.kv_cache import KVCache
from limelight.model.layers import FeedForward, Layer, Residual
from limelight.model.positions import LearnedPositions, positions_of, rotation
from limelight.model.stack import Embedding, Stack

_Step = Callable[[Tensor], Tensor]  # M D -> M D, for M tokens
_SubLayer = Callable[[Tensor, Tensor], Tensor]  # x and its norm -> x plus the sub-layer


def for_cpu(model: Any) -> Any:
    """A snapshot of the model that decodes faster; the model itself, if it is of another kind."""
    kinds = {EncoderDecoder: _CpuEncoderDecoder, DecoderOnly: _CpuDecoderOnly}
    kind = kinds.get(type(model))
    if kind is None:
        return model
    weight = model.classifier.weight
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.float64):
        return model
    with torch.no_grad():
        return kind(model)


class CpuModel:
    """A snapshot of a model's weights for decoding."""

    def __init__(self, model: EncoderDecoder | DecoderOnly) -> None:
        self.model = model
        self.config = model.config
        self.target = _CpuEmbedding(model.target)
        self.layers = _layers_of(model.decoder)
        self.norm = _norm_of(model.decoder.norm)
        self.classifier = PackedLinear(model.classifier)

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.model.parameters()

    def step(self, tokens: Tensor, state: CpuDecodeState, real: Tensor | None = None) -> Tensor:
        """As `StepModel.step`; the state's next step overwrites the logits."""
        one_each = tokens.size(1) == 1 and tokens.size(0) > 0 and (real is None or real.all())
        if not one_each:
            with torch.no_grad():
                return self.model.step(tokens, state.as_model_cache(tokens.size(1)), real)
        positions = state.begin()
        used = state.cache.max_used
        x = self.target(tokens[:, 0], used if state.same_lengths else positions, used + 1)
        rotate = self.rotate(positions, x)
        for i, layer in enumerate(self.layers):
            x = layer.step(x, state, i, rotate)
        state.commit()
        return self.classifier(self.norm(x), state.logits_buffer(self.config.vocab))

    def rotate(self, positions: Tensor, x: Tensor) -> _Step | None:
        """A function that applies the rotary positions of M tokens to M H K, if there are any."""
        if self.config.positions != "rotary":
            return None
        turn = rotation(positions[:, None], self.config, x.dtype)
        return lambda x: turn(x[:, :, None])[:, :, 0]


class _CpuDecoderOnly(CpuModel):
    def start(self, rows: int, max_len: int | None = None) -> CpuDecodeState:
        return CpuDecodeState(cast(DecoderOnly, self.model).start(0, max_len), rows)


class _CpuEncoderDecoder(CpuModel):
    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__(model)
        self.source = _CpuEmbedding(model.source)
        self.encoder = _layers_of(model.encoder)
        self.encoder_norm = _norm_of(model.encoder.norm)
        crosses = [layer.cross_attention for layer in cast(Iterable[Layer], model.decoder.layers)]
        self.keys_values = PackedLinear(*(part for a in crosses for part in (a.key, a.value)))

    def start(
        self, source: Tensor, source_real: Tensor | None = None, max_len: int | None = None
    ) -> CpuDecodeState:
        sources = _PackedSources.of(source, source_real)
        positions = sources.pack(positions_of(source, source_real).expand(source.shape))
        x = self.source(sources.pack(source), positions, source.size(1))
        rotate = self.rotate(positions, x)
        for layer in self.encoder:
            x = layer.encode(x, sources, rotate)
        memory = self.keys_values(self.encoder_norm(x)).view(
            len(x), -1, 2, self.config.num_kv_heads, self.config.d_head
        )
        cache = KVCache(self.config, 0, max_len or self.config.max_len, like=x)
        return CpuDecodeState(cache, len(source), sources.spread(memory), sources.hidden)


@dataclass
class _PackedSources:
    """Padded sources, B S, whose M tokens are packed one behind the other while they are read.

    Sources of the same length are neighbours and computed together, so that nothing is masked.
    """

    rows: list[int]  # of the batch, sorted by length
    lengths: list[int]  # in this order
    positions: Tensor | None = None  # M: of the tokens in the batch; None if nothing moved
    hidden: Tensor | None = None  # B S: padding behind the shorter ones, in the batch's order

    @classmethod
    def of(cls, source: Tensor, real: Tensor | None) -> "_PackedSources":
        """As the model sees them: a row of padding alone is read as it is."""
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
        return x.flatten() if self.positions is None else x.flatten()[self.positions]

    def equal_length_groups(self, x: Tensor) -> list[Tensor]:
        """M W -> sources of the same length, B' S' W, the shortest first."""
        counts = Counter(self.lengths)  # ordered, as dicts are
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
    """Token embedding plus position, from a table."""

    def __init__(self, embedding: Embedding) -> None:
        self.table, self.scale = embedding.tokens.weight.detach(), embedding.scale
        self.positions = embedding.positions
        self.position_table: Tensor = self.table[:0]
        self.ahead = 2  # the table grows to this many times the length needed
        if isinstance(self.positions, LearnedPositions):
            self.position_table, self.ahead = self.positions.weight.detach(), 1

    def __call__(self, tokens: Tensor, positions: Tensor | int, beyond: int) -> Tensor:
        """M D, of tokens at positions before `beyond`, or all at one position."""
        x = torch.embedding(self.table, tokens)
        if self.positions is None:
            return x * self.scale
        known = self.position_table  # other threads may replace it
        if beyond > len(known):
            known = self.positions(torch.arange(self.ahead * beyond), x.dtype)
            self.position_table = known
        return torch.add(known[positions], x, alpha=self.scale)


class _CpuLayer:
    def __init__(self, layer: Layer) -> None:
        attention = layer.self_attention
        self.d_head = attention.d_head
        self.heads = attention.query.out_features // self.d_head  # H
        self.groups = attention.key.out_features // self.d_head  # G
        self.norms = _query_key_norms(attention)
        scaled = 1 if self.norms else self.d_head  # norms undo a scale, so theirs has it
        self.query_key_value = PackedLinear(
            attention.query, attention.key, attention.value, query_scale_dim=scaled
        )
        self.self_output = PackedLinear(attention.output)
        self.self_residual = _residual_of(layer.self_residual)
        if hasattr(layer, "cross_attention"):
            self.query = PackedLinear(layer.cross_attention.query, query_scale_dim=self.d_head)
            self.cross_output = PackedLinear(layer.cross_attention.output)
            self.cross_residual = _residual_of(layer.cross_residual)
        self.feed_forward = _feed_forward_of(layer.feed_forward)
        self.feed_forward_residual = _residual_of(layer.feed_forward_residual)

    def encode(self, x: Tensor, sources: _PackedSources, rotate: _Step | None) -> Tensor:
        x = self.self_residual(x, lambda x, y: self.encoder_attention(x, y, sources, rotate))
        return self.feed_forward_residual(x, self.feed_forward)

    def step(self, x: Tensor, state: CpuDecodeState, i: int, rotate: _Step | None) -> Tensor:
        x = self.self_residual(x, lambda x, y: self.self_attention(x, y, state, i, rotate))
        if state.memory:
            x = self.cross_residual(x, lambda x, y: self.cross_attention(x, y, state, i))
        return self.feed_forward_residual(x, self.feed_forward)

    def project(self, x: Tensor, rotate: _Step | None) -> Tensor:
        """Queries, keys and values side by side: M H+2G K."""
        all_heads = self.query_key_value(x).view(x.size(0), -1, self.d_head)
        if rotate is None and not self.norms:
            return all_heads
        turned, values = all_heads[:, : -self.groups], all_heads[:, -self.groups :]
        if self.norms:
            both = zip(self.norms, (turned[:, : self.heads], turned[:, self.heads :]), strict=True)
            turned = torch.cat([norm(part) for norm, part in both], dim=1)
        return torch.cat([turned if rotate is None else rotate(turned), values], dim=1)

    def encoder_attention(
        self, x: Tensor, y: Tensor, sources: _PackedSources, rotate: _Step | None
    ) -> Tensor:
        """Self-attention of the encoder: tokens of one source see each other."""
        mixed = []
        for part in sources.equal_length_groups(self.project(y, rotate).flatten(1)):
            all_heads = part.view(*part.shape[:2], -1, self.d_head).transpose(1, 2)  # B' H+2G S' K
            q, k, v = all_heads.split_with_sizes([self.heads, self.groups, self.groups], dim=1)
            attended = F.scaled_dot_product_attention(
                q, k, v, scale=1.0, enable_gqa=self.heads != self.groups
            )
            mixed.append(attended.transpose(1, 2).flatten(2).flatten(0, 1))
        return self.self_output.add_into(x, torch.cat(mixed) if len(mixed) > 1 else mixed[0])

    def self_attention(
        self, x: Tensor, y: Tensor, state: CpuDecodeState, i: int, rotate: _Step | None
    ) -> Tensor:
        q, new = self.project(y, rotate).split_with_sizes([self.heads, 2 * self.groups], dim=1)
        transposed_keys, values = state.update(i, new)
        q = q.reshape(values.size(0), -1, self.d_head)  # BG H/G K
        mixed = attention(q, transposed_keys, values, state.hidden)
        return self.self_output.add_into(x, mixed.view(x.size(0), -1))

    def cross_attention(self, x: Tensor, y: Tensor, state: CpuDecodeState, i: int) -> Tensor:
        """Cross-attention; the rows of one source are its queries, like several positions."""
        keys, values = state.memory[i]
        if state.has_one_source and self.heads * keys.size(1) <= 2 * x.size(1):
            if i not in state.folded:
                state.folded[i] = fold(self.query, self.cross_output, keys, values)
            return state.folded[i].add_into(x, y)
        width = self.heads // self.groups * self.d_head
        q = self.query(y).view(-1, state.rows_per_source, self.groups, width).transpose(1, 2)
        transposed = state.transposed_keys(i) if state.rows_per_source > 1 else keys.mT
        q_rows = q.reshape(len(keys), -1, self.d_head)
        mixed = attention(q_rows, transposed, values, state.source_hidden)
        mixed = mixed.view(q.shape).transpose(1, 2).reshape(x.size(0), -1)
        return self.cross_output.add_into(x, mixed)


def attention(q: Tensor, transposed_keys: Tensor, values: Tensor, hidden: Tensor | None) -> Tensor:
    """Equation 1; the queries are already divided by sqrt(d_k)."""
    scores = torch.bmm(q, transposed_keys)
    if hidden is not None:
        scores.view(hidden.size(0), -1, values.size(1)).masked_fill_(hidden, -math.inf)
    return torch.bmm(scores.softmax(dim=-1), values)


def _layers_of(stack: Stack) -> list[_CpuLayer]:
    return [_CpuLayer(layer) for layer in cast(Iterable[Layer], stack.layers)]


def _norm_of(norm: nn.Module) -> _Step:
    if isinstance(norm, nn.Identity):
        return lambda x: x
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    weight, shape = norm.weight.detach(), norm.normalized_shape
    if isinstance(norm, nn.RMSNorm):
        own_eps = norm.eps
        return lambda x: torch.rms_norm(x, shape, weight, own_eps)
    bias, eps = norm.bias.detach(), norm.eps
    return lambda x: torch.native_layer_norm(x, shape, weight, bias, eps)[0]


def _query_key_norms(attention: Attention) -> tuple[_Step, ...]:
    """Norms of queries, which also divide them by sqrt(d_k), and of keys, if there are any."""
    if attention.query_norm is None or attention.key_norm is None:
        return ()
    query, keys = copy.deepcopy(attention.query_norm), _norm_of(attention.key_norm)
    query.weight.data /= math.sqrt(attention.d_head)
    return _norm_of(query), keys


def _residual_of(residual: Residual) -> Callable[[Tensor, _SubLayer], Tensor]:
    norm = _norm_of(residual.norm)
    if residual.post:
        return lambda x, sublayer: norm(sublayer(x, x))
    return lambda x, sublayer: sublayer(x, norm(x))


def _feed_forward_of(feed_forward: FeedForward) -> _SubLayer:
    """Section 3.3; a gate and the inner layer are one product."""
    activate, outer = feed_forward.activate, PackedLinear(feed_forward.outer)
    if activate is F.relu:
        activate = torch.relu_  # in place
    if feed_forward.gate is None:
        inner = PackedLinear(feed_forward.inner)
        return lambda x, y: outer.add_into(x, activate(inner(y)))
    both = PackedLinear(feed_forward.gate, feed_forward.inner)

    def gated(x: Tensor, y: Tensor) -> Tensor:
        gate, value = both(y).chunk(2, dim=1)
        return outer.add_into(x, activate(gate) * value)

    return gated
