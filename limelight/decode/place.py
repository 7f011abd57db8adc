"""A place for a batch in a GPU's memory: tensors that never change their size or address.

A CUDA graph, which launches hundreds of kernels at once, repeats them on the very same memory. So a
batch moves in, is written there, and moves out when it no longer fits.
"""

import weakref
from typing import Any

import torch
from torch import Tensor

from limelight.errors import UserError
from limelight.model.attention import KeysValues
from limelight.model.cache import Cache
from limelight.model.config import ModelConfig

Shape = tuple[int, int, int]  # rows, slots, positions of a source


class FixedCache(Cache):
    """A cache for one token at a time that looks at all of its slots, used or not."""

    def open(self, count: int) -> None:
        """The next slot of every row; a row that is not in use may stay at the last one."""
        if count != 1:
            raise UserError(f"a fixed cache reads one token at a time, not {count}")
        self.positions = self.length[:, None].clamp(max=self.keys[0].size(2) - 1)

    def mask(self) -> Tensor:
        """B 1 1 S: a token sees the slots up to its own."""
        slots = torch.arange(self.keys[0].size(2), device=self.length.device)
        return (slots <= self.positions[..., None])[:, None]

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new keys and values into their slots; return all slots."""
        rows = torch.arange(k.size(0), device=k.device)[:, None]
        for kept, new in ((self.keys[layer], k), (self.values[layer], v)):
            kept[rows, :, self.positions] = new.transpose(1, 2).to(kept.dtype)
        return self.keys[layer], self.values[layer]

    def close(self, real: Tensor | None = None) -> Tensor:
        """Count the token, where it is."""
        self.length.add_(1)
        return torch.ones_like(self.length)


class Place:
    """Memory that stays, and a recording of the step that works on it: the model's own step."""

    def __init__(self, model: Any, shape: Shape, like: Cache) -> None:
        self.model, self.shape = model, shape
        self.config: ModelConfig = model.config
        self.owner: weakref.ref[Any] | None = None
        self.tokens = torch.zeros(shape[0], 1, dtype=torch.long, device=like.length.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.make_room(like)
        self.logits = self.take_step()
        if self.tokens.device.type == "cuda":
            self.graph = self.record()

    def make_room(self, like: Cache) -> None:
        """All that is kept between two steps."""
        rows, slots, _ = self.shape
        self.cache = FixedCache(self.config, rows, slots, like.keys[0])
        self.cache.memory, self.cache.memory_mask = room_for_sources(self.shape, like)

    def take_step(self) -> Tensor:
        """The model's own step."""
        logits: Tensor = self.model.step(self.tokens, self.cache)
        return logits

    def record(self) -> torch.cuda.CUDAGraph:
        """Watch a step. It was taken before, so that all kernels are loaded and chosen."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.logits = self.take_step()
        return graph

    def step(self, tokens: Tensor) -> Tensor:
        """Read the next token of each row in use; scores of the one that follows it."""
        self.go_on(tokens)
        return self.logits[: len(tokens)].clone()

    def go_on(self, tokens: Tensor) -> None:
        """Take the step, or repeat it."""
        self.tokens[: len(tokens)] = tokens
        if self.graph is None:
            self.logits = self.take_step()
        else:
            self.graph.replay()

    @property
    def is_free(self) -> bool:
        """Whether nobody writes here any more."""
        return self.owner is None or self.owner() is None

    def move_in(self, cache: Cache) -> None:
        """Take over all that a batch has read so far."""
        rows, reach, own = cache.length.numel(), cache.reach, self.cache
        for theirs, ours in ((cache.keys, own.keys), (cache.values, own.values)):
            for old, new in zip(theirs, ours, strict=True):
                new[:rows, :, :reach] = old[:, :, :reach]
        own.length.zero_()
        own.length[:rows] = cache.length
        if own.memory_mask is not None:
            move_sources_in(cache, own.memory, own.memory_mask)

    def move_out(self, rows: Tensor, reach: int) -> Cache:
        """These rows as a cache of their own."""
        own = self.cache
        cache = Cache(self.config, rows.numel(), own.keys[0].size(2), own.keys[0])
        cache.keys, cache.values = [k[rows] for k in own.keys], [v[rows] for v in own.values]
        cache.length, cache.reach = own.length[rows], reach
        cache.memory = [(k[rows], v[rows]) for k, v in own.memory]
        if own.memory_mask is not None:
            cache.memory_mask = own.memory_mask[rows]
        return cache

    def shuffle(self, rows: Tensor, reach: int) -> None:
        """Keep these rows, in this order, here."""
        count, cache = rows.numel(), self.cache
        for kept in (*cache.keys, *cache.values):
            kept[:count, :, :reach] = kept[rows, :, :reach]
        for kept in (cache.length, *(part for pair in cache.memory for part in pair)):
            kept[:count] = kept[rows]
        if cache.memory_mask is not None:
            cache.memory_mask[:count] = cache.memory_mask[rows]


def move_sources_in(cache: Cache, memory: list[KeysValues], seen: Tensor) -> None:
    """Take over the sources that rows look at, B G S K; there may be room for longer ones."""
    rows, width = cache.length.numel(), cache.memory[0][0].size(2)
    for old_pair, new_pair in zip(cache.memory, memory, strict=True):
        for old, new in zip(old_pair, new_pair, strict=True):
            new[:rows, :, :width] = old
    seen[:rows, ..., :width] = True if cache.memory_mask is None else cache.memory_mask
    seen[:rows, ..., width:] = False


def room_for_sources(shape: Shape, like: Cache) -> tuple[list[KeysValues], Tensor | None]:
    """Keys and values of each layer, and what may be seen of them, B 1 1 S."""
    rows, _, width = shape
    memory = []
    for k, _ in like.memory:
        whole = (rows, k.size(1), width, k.size(3))
        memory.append((k.new_zeros(whole), k.new_zeros(whole)))
    if not memory:
        return [], None
    return memory, torch.ones(rows, 1, 1, width, dtype=torch.bool, device=like.length.device)
