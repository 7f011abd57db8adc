"""The fast way to write on a GPU: every step has the same shape, so it is recorded and repeated.

    writer = Fixed(model)
    state = writer.start(source, source_real)
    logits = writer.step(tokens, state)

A step of one token launches hundreds of small kernels, and launching them takes longer than the
work. A CUDA graph launches them all at once, but only on the very same memory. So a batch moves
into a `Place`, whose tensors never change their size or address; places are made once for each
shape, and rows are rounded up so that few shapes are needed. The computing is the model's own, or
where Triton is there, the same in fewer kernels (`swift`). Tests hold all of them equal, the first
without a GPU too: there the same step is taken and not repeated.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from limelight.decode.accel.cuda.device_beam import BeamBuffers, DeviceBeamSearch
from limelight.decode.accel.cuda.graph_slot import GraphSlot, Shape
from limelight.errors import UserError
from limelight.model.kv_cache import KVCache

MOST_PLACES = 16  # that are kept when nobody writes there


def _has_triton() -> bool:
    """Whether kernels can be written here; torch brings Triton along on Linux with CUDA."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


class _GraphState:
    """What a batch keeps between two tokens: an ordinary cache at first, then a place."""

    def __init__(self, writer: "CudaGraphModel", cache: KVCache) -> None:
        self.writer = writer
        self.cache: KVCache | None = cache
        self.chosen: Tensor | None = None  # rows of the cache that are meant, if not all once
        self.place: GraphSlot | None = None
        self.rows = cache.length.numel()
        self.reach = cache.max_used

    def bind(self) -> GraphSlot:
        """Move into a place, if not done yet."""
        if self.place is None:
            if self.cache is None:
                raise AssertionError("a state is in a cache or in a place")
            self.place = self.writer.acquire_slot(self.cache, self.rows)
            self.place.owner = weakref.ref(self)
            self.place.load(self.cache, self.chosen)
            self.reach, self.cache, self.chosen = self.cache.max_used, None, None
        return self.place

    def release(self, rows: Tensor) -> KVCache:
        """Move these rows out again."""
        if self.place is not None:
            self.cache = self.place.unload(rows, self.reach)
            self.place.owner, self.place = None, None
        if self.cache is None:
            raise AssertionError("a state is in a cache or in a place")
        if self.chosen is not None:
            self.cache.select(self.chosen)
            self.chosen = None
        return self.cache

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be named again (beams) or not at all."""
        if self.cache is not None:
            self.chosen = rows if self.chosen is None else self.chosen[rows]
            if rows.numel() < self.cache.length.numel():
                self.release(rows)
        elif self.place is None:
            raise AssertionError("a state is in a cache or in a place")
        elif rounded(rows.numel()) != self.place.shape[0]:
            self.release(rows)
        else:
            self.place.reorder(rows, self.reach)
        self.rows = rows.numel()

    def insert_rows(self, other: "_GraphState", places: Tensor) -> None:
        """Put the rows of another state into these places: over a row, or behind the last one.

        Both move out of where they are, and settle anew with the next token.
        """
        device = places.device
        mine = self.release(torch.arange(self.rows, device=device))
        mine.insert_rows(other.release(torch.arange(other.rows, device=device)), places)
        self.rows, self.reach = mine.length.numel(), mine.max_used


class CudaGraphModel:
    """A Transformer that writes on a GPU."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config
        self.places: list[GraphSlot] = []
        self.make_place: Callable[[Shape, KVCache], GraphSlot] = partial(GraphSlot, model)
        on_gpu = next(model.parameters()).device.type == "cuda"
        self.ranks = on_gpu and _has_triton()  # whether to leave plain choices to the GPU
        self.plain_search = DeviceBeamSearch if self.ranks else None
        if self.ranks:
            from limelight.decode.accel.cuda.fused_model import FusedModel, PagedSlot

            self.make_place = partial(PagedSlot, FusedModel(model))

    def parameters(self) -> Any:
        """The model's own."""
        return self.model.parameters()

    def start(self, *given: Any, **room: Any) -> _GraphState:
        """The state from which `step` writes, from what the model's own `start` takes."""
        return _GraphState(self, self.model.start(*given, **room))

    @torch.no_grad()
    def step(self, tokens: Tensor, state: _GraphState, real: Tensor | None = None) -> Tensor:
        """Read the next tokens (B T, padded on the right); score the one that follows them, B V."""
        if tokens.size(1) == 1 and real is None:
            return self.slot_for_next_token(state).step(tokens)
        everybody = torch.arange(state.rows, device=tokens.device)
        cache = state.release(everybody)
        logits: Tensor = self.model.step(tokens, cache, real)
        state.reach = cache.max_used
        return logits

    @torch.no_grad()
    def step_likeliest(self, tokens: Tensor, state: _GraphState) -> tuple[Tensor, Tensor]:
        """Read a token in each row, B; what is told of the likeliest ones, and these, B."""
        return self.slot_for_next_token(state).step_likeliest(tokens)

    @torch.no_grad()
    def step_beams(self, beams: BeamBuffers, state: _GraphState) -> BeamBuffers:
        """Read the newest tokens of all beams, and extend them; returns where they are now."""
        return self.slot_for_next_token(state).step_beams(beams)

    def slot_for_next_token(self, state: _GraphState) -> GraphSlot:
        """Where a batch is to take its next step."""
        place = state.bind()
        if state.reach >= place.shape[1]:  # a longer row may have left: begin with those that stay
            cache = state.release(torch.arange(state.rows, device=place.tokens.device))
            cache.max_used = max(cache.length.tolist(), default=0)
            place = state.bind()
        if state.reach >= place.shape[1]:
            raise UserError(f"there is no room for more than {place.shape[1]} tokens")
        state.reach += 1
        return place

    def acquire_slot(self, cache: KVCache, rows: int) -> GraphSlot:
        """A free place of the right shape, or a new one."""
        shape = self.shape_for(cache, rows)
        for place in self.places:
            if place.shape == shape and place.is_free:
                self.places.remove(place)
                self.places.append(place)  # the one that was used last
                return place
        self.evict_slots()
        with torch.inference_mode(False), torch.no_grad():  # it may be used later in any mode
            self.places.append(self.make_place(shape, cache))
        return self.places[-1]

    def evict_slots(self) -> None:
        """Let those go that nobody has used for longest, if they are many: they take memory."""
        free = [place for place in self.places if place.is_free]
        for place in free[: max(0, len(self.places) - MOST_PLACES + 1)]:
            self.places.remove(place)

    def shape_for(self, cache: KVCache, rows: int) -> Shape:
        """The shape of a place for this batch: rounded up, but never beyond learned positions."""
        slots = -(-cache.keys[0].size(2) // 64) * 64
        if self.config.positions == "learned":
            slots = min(slots, self.config.max_len)
        width = -(-cache.memory[0][0].size(2) // 16) * 16 if cache.memory else 0
        return rounded(rows), slots, width


def rounded(rows: int) -> int:
    """A number of rows that many batches have in common: 1 to 8, 10, 12, 14, 16, 20, 24, ..."""
    step = 1
    while rows > 8 * step:
        step *= 2
    return -(-rows // step) * step
