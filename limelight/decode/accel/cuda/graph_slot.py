"""A slot for a batch in GPU memory: tensors that never change their size or address.

A CUDA graph launches hundreds of kernels at once, and repeats them on the very same memory. So a
batch is copied in, decoded there, and copied out when it no longer fits.
"""

import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from limelight.decode.accel.cuda.device_beam import BeamBuffers
from limelight.errors import UserError
from limelight.model.attention import KeysValues
from limelight.model.config import ModelConfig
from limelight.model.kv_cache import KVCache

Shape = tuple[int, int, int]  # rows, positions of the KV cache, positions of a source
MAX_STEPS = 8  # greedy steps whose tokens are kept until somebody reads them


class _StaticCache(KVCache):
    """A cache for one token at a time that attends to all of its positions, masked if unused."""

    def begin(self, count: int) -> None:
        """The next position of every row; a row that is not in use may stay at the last one."""
        if count != 1:
            raise UserError(f"a static cache reads one token at a time, not {count}")
        self.positions = self.length[:, None].clamp(max=self.keys[0].size(2) - 1)

    def mask(self) -> Tensor:
        """B 1 1 S: a token sees the positions up to its own."""
        every = torch.arange(self.keys[0].size(2), device=self.length.device)
        return (every <= self.positions[..., None])[:, None]

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new keys and values; return those of all positions."""
        rows = torch.arange(k.size(0), device=k.device)[:, None]
        for kept, new in ((self.keys[layer], k), (self.values[layer], v)):
            kept[rows, :, self.positions] = new.transpose(1, 2).to(kept.dtype)
        return self.keys[layer], self.values[layer]

    def commit(self, real: Tensor | None = None) -> Tensor:
        """Count the token in place, as a graph needs it."""
        self.length.add_(1)
        return torch.ones_like(self.length)


class GraphSlot:
    """Fixed memory, and CUDA graphs that work on it: the model's own step.

    A graph may also choose the next tokens: the most likely ones, or those of all beams.
    """

    def __init__(self, model: Any, shape: Shape, like: KVCache) -> None:
        self.model, self.shape = model, shape
        self.config: ModelConfig = model.config
        self.owner: weakref.ref[Any] | None = None
        self.tokens = torch.zeros(shape[0], 1, dtype=torch.long, device=like.length.device)
        self.outputs = self.tokens.new_zeros(MAX_STEPS, 2, shape[0], dtype=torch.float64)
        self.next_output = self.tokens.new_zeros(1)  # where the next step writes its tokens
        self.beams: dict[tuple[int, int], BeamBuffers] = {}
        self.graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Any]] = {}
        self.allocate(like)
        # Before a capture everything runs once, so that all kernels are chosen and loaded.
        self.warm_up_logits = self.run_step()
        self.topk_logprobs(self.warm_up_logits, 1)

    def allocate(self, like: KVCache) -> None:
        """All that is kept between two steps."""
        rows, slots, _ = self.shape
        self.cache = _StaticCache(self.config, rows, slots, like.keys[0])
        self.sources, self.cache.memory_mask = alloc_sources(self.shape, like)
        self.cache.memory = by_layer(self.sources)

    def run_step(self) -> Tensor:
        """The model's own step."""
        logits: Tensor = self.model.step(self.tokens, self.cache)
        return logits

    def topk_logprobs(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The most likely tokens after a step: log-probabilities and tokens, B count."""
        precise = torch.promote_types(logits.dtype, torch.float32)
        logprobs = logits.to(precise).log_softmax(dim=-1)
        best = logprobs.topk(min(count, logprobs.size(1)), dim=1)
        return best.values, best.indices

    def step(self, tokens: Tensor) -> Tensor:
        """Read the next token of each row in use, B 1; return logits of the one after it, B V."""
        self.tokens[: len(tokens)] = tokens
        logits: Tensor = self.replay("step", self.run_step)
        return logits[: len(tokens)].clone()

    def step_greedy(self, tokens: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Read the next token of each row in use, B; see `GreedyStepModel`."""
        if tokens.data_ptr() != self.tokens.data_ptr():  # not those that were chosen here
            self.tokens[: len(tokens), 0] = tokens
        self.next_output.zero_()
        for _ in range(count):
            self.replay("greedy", self.greedy_step)
        return self.outputs[:count], self.tokens[: len(tokens), 0]

    def greedy_step(self) -> None:
        """A step, and the most likely tokens to be read by the next one."""
        logprobs, tokens = self.topk_logprobs(self.run_step(), 1)
        self.tokens.copy_(tokens[:, :1])
        output = torch.stack([tokens[:, 0].to(self.outputs.dtype), logprobs[:, 0].double()])
        self.outputs.index_copy_(0, self.next_output, output[None])
        self.next_output.add_(1)

    def step_beams(self, beams: BeamBuffers) -> BeamBuffers:
        """A step of a search and its choices; return the slot's own buffers with the beams."""
        own = self.own_buffers(beams)
        if beams is not own:
            own.load(beams)
        self.replay((own.shape[1], own.end), partial(self.beam_step, own))
        return own

    def own_buffers(self, like: BeamBuffers) -> BeamBuffers:
        """Fixed buffers for beams of this width; making them runs once what will be captured."""
        width, end = like.shape[1], like.end
        if (width, end) not in self.beams:
            with torch.inference_mode(False), torch.no_grad():
                count = self.shape[0] // width
                made = BeamBuffers(count, width, end, like.scores.new_zeros(1, 1))
                made.newest = self.tokens[: count * width].view(count, width)
                self.beams[width, end] = made
                self.choose(made, self.warm_up_logits)
                self.reorder(torch.arange(count * width, device=self.tokens.device), 0)
        return self.beams[width, end]

    def beam_step(self, beams: BeamBuffers) -> None:
        """A step, and the best tokens of all beams to be read by the next one."""
        self.reorder(self.choose(beams, self.run_step()), self.shape[1])

    def choose(self, beams: BeamBuffers, logits: Tensor) -> Tensor:
        """Extend all beams by their most likely tokens; return the rows that they continue."""
        rows = beams.scores.numel()
        logprobs, tokens = self.topk_logprobs(logits, beams.shape[1])
        return beams.extend(logprobs[:rows], tokens[:rows])

    def replay(self, name: Hashable, work: Callable[[], Any]) -> Any:
        """Run some work on the slot's memory: on a GPU, capture it the first time, then replay it.

        Its results are valid until it is replayed.
        """
        if self.tokens.device.type != "cuda":
            return work()
        if name not in self.graphs:
            graph = torch.cuda.CUDAGraph()
            # It may be used later in any mode.
            with torch.inference_mode(False), torch.no_grad(), torch.cuda.graph(graph):
                made = work()
            self.graphs[name] = graph, made
        graph, made = self.graphs[name]
        graph.replay()
        return made

    @property
    def is_free(self) -> bool:
        """Whether no batch uses it any more."""
        return self.owner is None or self.owner() is None

    @property
    def can_insert(self) -> bool:
        """Whether rows that have finished can be overwritten."""
        return True

    def insert(self, cache: KVCache, rows: Tensor) -> None:
        """Copy in what other requests have read so far, to these rows."""
        used, own = cache.max_used, self.cache
        for theirs, ours in ((cache.keys, own.keys), (cache.values, own.values)):
            for old, new in zip(theirs, ours, strict=True):
                new[rows, :, :used] = old[:, :, :used]
        own.length[rows] = cache.length
        if own.memory_mask is not None:
            load_sources(cache, self.sources, own.memory_mask, rows)

    def load(self, cache: KVCache, rows_of: Tensor | None) -> None:
        """Copy in all that a batch has read so far; these rows of it, if not all."""
        if rows_of is not None:
            cache.select(rows_of)
        rows, used, own = cache.length.numel(), cache.max_used, self.cache
        for theirs, ours in ((cache.keys, own.keys), (cache.values, own.values)):
            for old, new in zip(theirs, ours, strict=True):
                new[:rows, :, :used] = old[:, :, :used]
        own.length.zero_()
        own.length[:rows] = cache.length
        if own.memory_mask is not None:
            load_sources(cache, self.sources, own.memory_mask)

    def unload(self, rows: Tensor, max_used: int) -> KVCache:
        """These rows as a cache of their own."""
        own = self.cache
        cache = KVCache(self.config, rows.numel(), own.keys[0].size(2), own.keys[0])
        cache.keys, cache.values = [k[rows] for k in own.keys], [v[rows] for v in own.values]
        cache.length, cache.max_used = own.length[rows], max_used
        cache.memory = [(k[rows], v[rows]) for k, v in own.memory]
        if own.memory_mask is not None:
            cache.memory_mask = own.memory_mask[rows]
        return cache

    def reorder(self, rows: Tensor, max_used: int) -> None:
        """Keep these rows, in this order, in place."""
        count, cache = rows.numel(), self.cache
        for kept in (*cache.keys, *cache.values):
            kept[:count, :, :max_used] = kept[rows, :, :max_used]
        for kept in (cache.length, *(part for pair in cache.memory for part in pair)):
            kept[:count] = kept[rows]
        if cache.memory_mask is not None:
            cache.memory_mask[:count] = cache.memory_mask[rows]


def load_sources(cache: KVCache, sources: Tensor, seen: Tensor, rows: Tensor | None = None) -> None:
    """Copy in the keys and values of sources, 2 L B G S K, to the first rows or to these.

    The slot may be wider.
    """
    at = slice(cache.length.numel()) if rows is None else rows
    width = cache.memory[0][0].size(2)
    sources[:, at, :, :width] = torch.stack([part for layer in cache.memory for part in layer])
    seen[at, ..., :width] = True if cache.memory_mask is None else cache.memory_mask
    seen[at, ..., width:] = False


def alloc_sources(shape: Shape, like: KVCache) -> tuple[Tensor, Tensor | None]:
    """Keys and values of all layers, 2 L B G S K, and their mask, B 1 1 S."""
    rows, _, width = shape
    if not like.memory:
        return like.keys[0].new_zeros(0), None
    _, heads, _, size = like.memory[0][0].shape
    sources = like.memory[0][0].new_zeros(2 * len(like.memory), rows, heads, width, size)
    return sources, torch.ones(rows, 1, 1, width, dtype=torch.bool, device=like.length.device)


def by_layer(sources: Tensor) -> list[KeysValues]:
    """The keys and values of each layer, B G S K, in the same memory."""
    return list(zip(sources[::2], sources[1::2], strict=True))
