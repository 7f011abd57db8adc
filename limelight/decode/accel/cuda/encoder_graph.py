"""The encoder's pass over new sources as a CUDA graph, for batches that requests join.

A service encodes a few short sources at a time, which is hundreds of launches for little work. A
graph launches them at once. Sources are padded to one of few shapes, each with its own graph.
"""

from typing import Any

import torch
from torch import Tensor

from limelight.decode.accel.cuda.graph_slot import by_layer
from limelight.model.attention import attention_mask
from limelight.model.encoder_decoder import EncoderDecoder
from limelight.model.kv_cache import KVCache

_ROWS, _WIDTH = 8, 32  # shapes are powers of two from the first, and multiples of the second
_MOST = 16  # shapes that are kept


class EncoderGraph:
    """Fixed memory for sources of one shape, and the graph that reads them."""

    def __init__(self, model: EncoderDecoder, rows: int, width: int) -> None:
        self.model = model
        device = next(model.parameters()).device
        self.tokens = torch.zeros(rows, width, dtype=torch.long, device=device)
        self.real = torch.ones(rows, width, dtype=torch.bool, device=device)
        self.made = self.encode()  # all kernels are chosen and loaded before a capture
        self.graph: Any = None
        if device.type == "cuda":
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.made = self.encode()

    def encode(self) -> Tensor:
        """Keys and values of all layers of the decoder, 2 L B G S K."""
        memory = self.model.encode(self.tokens, self.real)
        kept = self.model.decoder.keys_values(memory)
        return torch.stack([part for layer in kept for part in layer])

    def keys_values(self, source: Tensor, real: Tensor) -> Tensor:
        """Those of these sources, 2 L B G S K: a copy, as the next sources overwrite them."""
        rows, width = source.shape
        self.tokens[:rows, :width] = source
        # Unused rows keep what they had: every row must see something, or attention divides by 0.
        self.real[:rows, :width] = real
        self.real[:rows, width:] = False
        if self.graph is None:
            self.made = self.encode()
        else:
            self.graph.replay()
        return self.made[:, :rows, :, :width].clone()


class EncoderGraphs:
    """`EncoderDecoder.start`, with a graph for each shape of sources."""

    def __init__(self, model: EncoderDecoder) -> None:
        self.model = model
        self.graphs: dict[tuple[int, int], EncoderGraph] = {}

    @torch.no_grad()
    def start(self, source: Tensor, real: Tensor | None = None, max_len: int = 0) -> KVCache:
        """The state before the first token."""
        rows, width = source.shape
        seen = torch.ones_like(source, dtype=torch.bool) if real is None else real
        kept = self.graph_for(rows, width).keys_values(source, seen)
        cache = KVCache(self.model.config, rows, max_len or self.model.config.max_len, kept)
        cache.memory = by_layer(kept)
        cache.memory_mask = None if real is None else attention_mask(real)
        return cache

    def graph_for(self, rows: int, width: int) -> EncoderGraph:
        """The graph of a shape, captured when the shape comes for the first time."""
        shape = max(_ROWS, 2 ** (rows - 1).bit_length()), -(-width // _WIDTH) * _WIDTH
        if shape not in self.graphs:
            if len(self.graphs) == _MOST:
                del self.graphs[next(iter(self.graphs))]
            with torch.inference_mode(False), torch.no_grad():  # it may be used later in any mode
                self.graphs[shape] = EncoderGraph(self.model, *shape)
        return self.graphs[shape]
