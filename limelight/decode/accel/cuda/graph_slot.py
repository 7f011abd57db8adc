"""A place for a batch in a GPU's memory: tensors that never change their size or address.

A CUDA graph, which launches hundreds of kernels at once, repeats them on the very same memory. So a
batch moves in, is written there, and moves out when it no longer fits.
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

Shape = tuple[int, int, int]  # rows, slots, positions of a source


class _StaticCache(KVCache):
    """A cache for one token at a time that looks at all of its slots, used or not."""

    def begin(self, count: int) -> None:
        """The next slot of every row; a row that is not in use may stay at the last one."""
        if count != 1:
            raise UserError(f"a fixed cache reads one token at a time, not {count}")
        self.positions = self.length[:, None].clamp(max=self.keys[0].size(2) - 1)

    def mask(self) -> Tensor:
        """B 1 1 S: a token sees the slots up to its own."""
        slots = torch.arange(self.keys[0].size(2), device=self.length.device)
        return (slots <= self.positions[..., None])[:, None]

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new keys and values into their slots; return all slots."""
        rows = torch.arange(k.size(0), device=k.device)[:, None]
        for kept, new in ((self.keys[layer], k), (self.values[layer], v)):
            kept[rows, :, self.positions] = new.transpose(1, 2).to(kept.dtype)
        return self.keys[layer], self.values[layer]

    def commit(self, real: Tensor | None = None) -> Tensor:
        """Count the token, where it is."""
        self.length.add_(1)
        return torch.ones_like(self.length)


class GraphSlot:
    """Memory that stays, and recordings of what works on it, which is the model's own step.

    What chooses the next tokens may be a part of it: the likeliest, or a search.
    """

    def __init__(self, model: Any, shape: Shape, like: KVCache) -> None:
        self.model, self.shape = model, shape
        self.config: ModelConfig = model.config
        self.owner: weakref.ref[Any] | None = None
        self.tokens = torch.zeros(shape[0], 1, dtype=torch.long, device=like.length.device)
        self.outputs = torch.zeros(2, shape[0], dtype=torch.float64, device=like.length.device)
        self.beams: dict[tuple[int, int], BeamBuffers] = {}
        self.graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Any]] = {}
        self.make_room(like)
        # Before anything is recorded it is done once: all kernels are chosen and loaded then.
        self.some_scores = self.take_step()
        self.topk_logprobs(self.some_scores, 1)

    def make_room(self, like: KVCache) -> None:
        """All that is kept between two steps."""
        rows, slots, _ = self.shape
        self.cache = _StaticCache(self.config, rows, slots, like.keys[0])
        self.cache.memory, self.cache.memory_mask = room_for_sources(self.shape, like)

    def take_step(self) -> Tensor:
        """The model's own step."""
        logits: Tensor = self.model.step(self.tokens, self.cache)
        return logits

    def topk_logprobs(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The likeliest tokens after a step: log-probabilities and tokens, B count."""
        precise = torch.promote_types(logits.dtype, torch.float32)
        logprobs = logits.to(precise).log_softmax(dim=-1)
        best = logprobs.topk(min(count, logprobs.size(1)), dim=1)
        return best.values, best.indices

    def step(self, tokens: Tensor) -> Tensor:
        """Read the next token of each row in use, B 1; scores of the one that follows it, B V."""
        self.tokens[: len(tokens)] = tokens
        logits: Tensor = self.replay("step", self.take_step)
        return logits[: len(tokens)].clone()

    def step_likeliest(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Read the next token of each row in use, B; the likeliest ones that follow, B.

        The first result has these and their log-probabilities, 2 B or more, until the next step.
        """
        if tokens.data_ptr() != self.tokens.data_ptr():  # not what was chosen here
            self.tokens[: len(tokens), 0] = tokens
        self.replay("likeliest", self.write_on)
        return self.outputs, self.tokens[: len(tokens), 0]

    def write_on(self) -> None:
        """A step, and the likeliest tokens to be read at the next one."""
        logprobs, tokens = self.topk_logprobs(self.take_step(), 1)
        self.tokens.copy_(tokens[:, :1])
        self.outputs[0], self.outputs[1] = tokens[:, 0], logprobs[:, 0]

    def step_beams(self, beams: BeamBuffers) -> BeamBuffers:
        """A step of a search, all of it. Returns the beams where they are now, which is here."""
        here = self.room_for_beams(beams)
        if beams is not here:
            here.load(beams)
        self.replay((here.shape[1], here.end), partial(self.search_on, here))
        return here

    def room_for_beams(self, like: BeamBuffers) -> BeamBuffers:
        """Buffers of this width that stay here; all rows that fill a beam belong to one.

        What they do was done once then, as before any recording.
        """
        width, end = like.shape[1], like.end
        if (width, end) not in self.beams:
            with torch.inference_mode(False), torch.no_grad():
                count = self.shape[0] // width
                made = BeamBuffers(count, width, end, like.scores.new_zeros(1, 1))
                made.newest = self.tokens[: count * width].view(count, width)
                self.beams[width, end] = made
                self.choose(made, self.some_scores)
                self.reorder(torch.arange(count * width, device=self.tokens.device), 0)
        return self.beams[width, end]

    def search_on(self, beams: BeamBuffers) -> None:
        """A step, and the best tokens of all beams to be read at the next one."""
        self.reorder(self.choose(beams, self.take_step()), self.shape[1])

    def choose(self, beams: BeamBuffers, logits: Tensor) -> Tensor:
        """Extend all beams by what is likeliest after a step; which rows they have now."""
        rows = beams.scores.numel()
        logprobs, tokens = self.topk_logprobs(logits, beams.shape[1])
        return beams.extend(logprobs[:rows], tokens[:rows])

    def replay(self, name: Hashable, work: Callable[[], Any]) -> Any:
        """Do some work on what is here; on a GPU, watch it the first time, and repeat it.

        What it makes is to be used before the next time.
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
        """Whether nobody writes here any more."""
        return self.owner is None or self.owner() is None

    def load(self, cache: KVCache, rows_of: Tensor | None) -> None:
        """Take over all that a batch has read so far; these rows of it, if not all."""
        if rows_of is not None:
            cache.select(rows_of)
        rows, reach, own = cache.length.numel(), cache.max_used, self.cache
        for theirs, ours in ((cache.keys, own.keys), (cache.values, own.values)):
            for old, new in zip(theirs, ours, strict=True):
                new[:rows, :, :reach] = old[:, :, :reach]
        own.length.zero_()
        own.length[:rows] = cache.length
        if own.memory_mask is not None:
            move_sources_in(cache, own.memory, own.memory_mask)

    def unload(self, rows: Tensor, reach: int) -> KVCache:
        """These rows as a cache of their own."""
        own = self.cache
        cache = KVCache(self.config, rows.numel(), own.keys[0].size(2), own.keys[0])
        cache.keys, cache.values = [k[rows] for k in own.keys], [v[rows] for v in own.values]
        cache.length, cache.max_used = own.length[rows], reach
        cache.memory = [(k[rows], v[rows]) for k, v in own.memory]
        if own.memory_mask is not None:
            cache.memory_mask = own.memory_mask[rows]
        return cache

    def reorder(self, rows: Tensor, reach: int) -> None:
        """Keep these rows, in this order, here."""
        count, cache = rows.numel(), self.cache
        for kept in (*cache.keys, *cache.values):
            kept[:count, :, :reach] = kept[rows, :, :reach]
        for kept in (cache.length, *(part for pair in cache.memory for part in pair)):
            kept[:count] = kept[rows]
        if cache.memory_mask is not None:
            cache.memory_mask[:count] = cache.memory_mask[rows]


def move_sources_in(cache: KVCache, memory: list[KeysValues], seen: Tensor) -> None:
    """Take over the sources that rows look at, B G S K; there may be room for longer ones."""
    rows, width = cache.length.numel(), cache.memory[0][0].size(2)
    for old_pair, new_pair in zip(cache.memory, memory, strict=True):
        for old, new in zip(old_pair, new_pair, strict=True):
            new[:rows, :, :width] = old
    seen[:rows, ..., :width] = True if cache.memory_mask is None else cache.memory_mask
    seen[:rows, ..., width:] = False


def room_for_sources(shape: Shape, like: KVCache) -> tuple[list[KeysValues], Tensor | None]:
    """Keys and values of each layer, and what may be seen of them, B 1 1 S."""
    rows, _, width = shape
    memory = []
    for k, _ in like.memory:
        whole = (rows, k.size(1), width, k.size(3))
        memory.append((k.new_zeros(whole), k.new_zeros(whole)))
    if not memory:
        return [], None
    return memory, torch.ones(rows, 1, 1, width, dtype=torch.bool, device=like.length.device)
