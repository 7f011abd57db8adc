"""Tokens become vectors, these go through N layers, and a classifier gives the logits."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from limelight.model.attention import KeysValues, Mask, causal_mask
from limelight.model.config import ModelConfig
from limelight.model.kv_cache import KVCache
from limelight.model.layers import Layer, make_norm
from limelight.model.positions import ADDED, BIASES, rotation


class Embedding(nn.Module):
    """A learned vector for each token (section 3.4), plus its position (3.5).

    `scale` is the paper's sqrt(d_model), which lifts small shared weights to the size of the
    sinusoids; GPT-2 and BERT have none. `segments` and `norm` are BERT's.
    """

    def __init__(
        self, config: ModelConfig, vocab: int, segments: int = 0, norm: bool = False
    ) -> None:
        super().__init__()
        self.scale = math.sqrt(config.d_model) if config.scales_embedding else 1.0
        self.tokens = nn.Embedding(vocab, config.d_model)
        # Rotary positions enter later, at the queries and keys; an experiment has none at all.
        added = ADDED.get(config.positions)
        self.positions = None if added is None else added(config)
        self.segments = nn.Embedding(segments, config.d_model) if segments else None
        self.norm = make_norm(config) if norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor | None = None) -> Tensor:
        x = self.tokens(tokens) * self.scale  # B T D
        if self.positions is not None:
            x = x + self.positions(positions, x.dtype)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(tokens) if segments is None else segments)
        return self.dropout(self.norm(x))


class Stack(nn.Module):
    """N layers: an encoder, or with `cross` the paper's decoder, or without it GPT's."""

    def __init__(self, config: ModelConfig, cross: bool = False) -> None:
        super().__init__()
        self.config = config
        self.rotary = config.positions == "rotary"
        bias = BIASES.get(config.positions)
        self.position_bias = None if bias is None else bias(config)
        count = config.num_decoder_layers if cross else config.layers
        self.layers = nn.ModuleList(Layer(config, cross) for _ in range(count))
        # Pre-norm leaves its running sum as it is, so it is normalised once, at the end.
        self.norm = make_norm(config) if config.norm_order == "pre" else nn.Identity()

    def forward(
        self,
        x: Tensor,  # B T D
        positions: Tensor,  # T or B T
        mask: Tensor | None = None,
        causal: bool = False,
        memory: Tensor | None = None,  # B S D
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        rope = rotation(positions, self.config, x.dtype) if self.rotary else None
        if self.position_bias is not None:
            mask = causal_mask(x.size(1), x.device) if causal else mask
            mask, causal = self.biased(mask, positions, positions, x.dtype), False
        for layer in self.layers:
            x = layer(x, mask, causal, rope, memory=memory, memory_mask=memory_mask)
        return self.norm(x)

    def step(self, x: Tensor, cache: KVCache) -> Tensor:
        rope = rotation(cache.positions, self.config, x.dtype) if self.rotary else None
        mask = cache.mask()
        if self.position_bias is not None:
            slots = torch.arange(mask.size(-1), device=x.device)
            mask = self.biased(mask, cache.positions, slots, x.dtype)
        for i, layer in enumerate(self.layers):
            memory = cache.memory[i] if cache.memory else None
            update = partial(cache.advance if cache.states else cache.update, i)
            x = layer(x, mask, False, rope, update, memory, cache.memory_mask)
        return self.norm(x)

    def biased(self, mask: Mask, queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor:
        """The mask as numbers to add to the scores: those of the positions, -inf where masked."""
        assert self.position_bias is not None
        bias: Tensor = self.position_bias(queries, keys).to(dtype)
        return bias if mask is None else torch.where(mask, bias, -math.inf)

    def keys_values(self, memory: Tensor) -> list[KeysValues]:
        """What each layer's cross-attention keeps of a source, computed once for all steps."""
        layers = cast(Iterable[Layer], self.layers)
        return [layer.cross_attention.keys_values(memory) for layer in layers]


class Classifier(nn.Module):
    """Logits for each token of the vocabulary: D -> V."""

    def __init__(self, vocab: int, d_model: int, bias: bool) -> None:
        super().__init__()
        self.weight: Tensor = nn.Parameter(torch.empty(vocab, d_model))  # or a shared table: `tie`
        self.bias = nn.Parameter(torch.zeros(vocab)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def initialise(model: nn.Module, draw: Callable[[str, Tensor], object]) -> None:
    """Norms start at one, biases at zero, and every matrix as `draw(name, matrix)` fills it."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            draw(name, parameter)
        else:
            nn.init.constant_(parameter, 1.0 if name.endswith("norm.weight") else 0.0)


class _Undrawn(TorchFunctionMode):
    """Draws no random numbers: on "meta", torch imports its compiler for that, a second."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function.__name__ in ("normal_", "uniform_"):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


@contextmanager
def without_numbers() -> Iterator[None]:
    """Modules that are made here have shapes alone, on torch's device "meta"."""
    with torch.device("meta"), _Undrawn():
        yield


def last_real(states: Tensor, count: Tensor) -> Tensor:
    """The state of each row's last real token, B D, where `count` (B) real ones are in front."""
    rows = torch.arange(states.size(0), device=states.device)
    return states[rows, (count - 1).clamp(min=0)]
