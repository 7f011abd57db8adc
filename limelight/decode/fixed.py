"""The fast way to write on a GPU: every step has the same shape, so it is recorded and repeated.

    writer = Fixed(model)
    state = writer.start(source, source_real)
    logits = writer.step(tokens, state)

A step of one token launches hundreds of small kernels, and launching them takes longer than the
work. A CUDA graph launches them all at once, but only on the very same memory. So a batch moves
into a `Place`, whose tensors never change their size or address; places are made once for each
shape, and rows are rounded up so that few shapes are needed. The computing is the model's own. A
test holds the two equal, without a GPU too: there the same step is taken and not repeated.
"""

import weakref
from typing import Any

import torch
from torch import Tensor

from limelight.errors import UserError
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
    """Memory that stays, and a recording of the step that works on it."""

    def __init__(self, model: Any, shape: Shape, like: Cache) -> None:
        rows, slots, width = shape
        config: ModelConfig = model.config
        self.model, self.shape = model, shape
        self.cache = FixedCache(config, rows, slots, like.keys[0])
        for k, _ in like.memory:
            whole = (rows, k.size(1), width, k.size(3))
            self.cache.memory.append((k.new_zeros(whole), k.new_zeros(whole)))
        if like.memory:
            self.cache.memory_mask = torch.ones(rows, 1, 1, width, dtype=torch.bool).to(k.device)
        self.tokens = torch.zeros(rows, 1, dtype=torch.long, device=like.length.device)
        self.logits = self.take_step()
        self.graph = self.record() if self.tokens.device.type == "cuda" else None
        self.owner: weakref.ref[FixedState] | None = None

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
        self.tokens[: len(tokens)] = tokens
        if self.graph is None:
            self.logits = self.take_step()
        else:
            self.graph.replay()
        return self.logits[: len(tokens)].clone()

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
        for old_pair, new_pair in zip(cache.memory, own.memory, strict=True):
            for old, new in zip(old_pair, new_pair, strict=True):
                new[:rows, :, : old.size(2)] = old
        if own.memory_mask is not None:
            width = cache.memory[0][0].size(2)
            own.memory_mask[:rows, ..., :width] = (
                True if cache.memory_mask is None else cache.memory_mask
            )
            own.memory_mask[:rows, ..., width:] = False

    def move_out(self, config: ModelConfig, rows: Tensor, reach: int) -> Cache:
        """These rows as a cache of their own."""
        own = self.cache
        cache = Cache(config, rows.numel(), own.keys[0].size(2), own.keys[0])
        cache.keys, cache.values = [k[rows] for k in own.keys], [v[rows] for v in own.values]
        cache.length, cache.reach = own.length[rows], reach
        cache.memory = [(k[rows], v[rows]) for k, v in own.memory]
        if own.memory_mask is not None:
            cache.memory_mask = own.memory_mask[rows]
        return cache


class FixedState:
    """What a batch keeps between two tokens: an ordinary cache at first, then a place."""

    def __init__(self, writer: "Fixed", cache: Cache) -> None:
        self.writer = writer
        self.cache: Cache | None = cache
        self.place: Place | None = None
        self.rows = cache.length.numel()
        self.reach = cache.reach
        self.sources = torch.arange(self.rows, device=cache.length.device)  # which each row reads

    def settle(self) -> Place:
        """Move into a place, if not done yet."""
        if self.place is None:
            if self.cache is None:
                raise AssertionError("a state is in a cache or in a place")
            self.place = self.writer.find_place(self.cache)
            self.place.owner = weakref.ref(self)
            self.place.move_in(self.cache)
            self.reach, self.cache = self.cache.reach, None
        return self.place

    def unsettle(self, rows: Tensor) -> Cache:
        """Move these rows out again."""
        if self.place is not None:
            config = self.writer.config
            self.cache = self.place.move_out(config, rows, self.reach)
            self.place.owner, self.place = None, None
        if self.cache is None:
            raise AssertionError("a state is in a cache or in a place")
        return self.cache

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be named again (beams) or not at all."""
        sources = self.sources[rows]
        if self.place is None:
            if self.cache is not None:
                self.cache.select(rows)
        elif rounded(rows.numel()) != self.place.shape[0]:
            self.unsettle(rows)
        else:
            self.shuffle(self.place.cache, rows, same=self.same_sources(sources))
        self.rows, self.sources = rows.numel(), sources

    def put(self, other: "FixedState", places: Tensor) -> None:
        """Put the rows of another state into these places: over a row, or behind the last one.

        Both move out of where they are, and settle anew with the next token.
        """
        device = self.sources.device
        mine = self.unsettle(torch.arange(self.rows, device=device))
        mine.put(other.unsettle(torch.arange(other.rows, device=device)), places)
        self.rows, self.reach = mine.length.numel(), mine.reach
        self.sources = torch.arange(self.rows, device=device)

    def same_sources(self, sources: Tensor) -> bool:
        """Whether every row goes on reading the source that its place had before."""
        return len(sources) <= len(self.sources) and torch.equal(
            sources, self.sources[: len(sources)]
        )

    def shuffle(self, cache: Cache, rows: Tensor, same: bool) -> None:
        """Move rows within a place."""
        count = rows.numel()
        for kept in (*cache.keys, *cache.values):
            kept[:count, :, : self.reach] = kept[rows, :, : self.reach]
        cache.length[:count] = cache.length[rows]
        if same:
            return
        for pair in cache.memory:
            for kept in pair:
                kept[:count] = kept[rows]
        if cache.memory_mask is not None:
            cache.memory_mask[:count] = cache.memory_mask[rows]


class Fixed:
    """A Transformer that writes on a GPU."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config
        self.places: list[Place] = []

    def parameters(self) -> Any:
        """The model's own."""
        return self.model.parameters()

    def start(self, *given: Any, **room: Any) -> FixedState:
        """The state from which `step` writes, from what the model's own `start` takes."""
        return FixedState(self, self.model.start(*given, **room))

    @torch.no_grad()
    def step(self, tokens: Tensor, state: FixedState, real: Tensor | None = None) -> Tensor:
        """Read the next tokens (B T, padded on the right); score the one that follows them, B V."""
        if tokens.size(1) == 1 and real is None:
            place = state.settle()
            if state.reach >= place.shape[1]:
                raise UserError(f"there is no room for more than {place.shape[1]} tokens")
            state.reach += 1
            return place.step(tokens)
        everybody = torch.arange(state.rows, device=tokens.device)
        cache = state.unsettle(everybody)
        logits: Tensor = self.model.step(tokens, cache, real)
        state.reach = cache.reach
        return logits

    def find_place(self, cache: Cache) -> Place:
        """A free place of the right shape, or a new one."""
        shape = self.shape_for(cache)
        for place in self.places:
            if place.shape == shape and place.is_free:
                return place
        with torch.inference_mode(False), torch.no_grad():  # it may be used later in any mode
            self.places.append(Place(self.model, shape, cache))
        return self.places[-1]

    def shape_for(self, cache: Cache) -> Shape:
        """The shape of a place for this batch: rounded up, but never beyond learned positions."""
        slots = -(-cache.keys[0].size(2) // 64) * 64
        if self.config.positions == "learned":
            slots = min(slots, self.config.max_len)
        width = -(-cache.memory[0][0].size(2) // 16) * 16 if cache.memory else 0
        return rounded(cache.length.numel()), slots, width


def rounded(rows: int) -> int:
    """A number of rows that many batches have in common: 1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    step = 1
    while rows > 4 * step:
        step *= 2
    return -(-rows // step) * step
