"""Decoding on a GPU in CUDA graphs: every step has the same shape, so it is captured and replayed.

    fast = CudaGraphModel(model)
    state = fast.start(source, source_real)
    logits = fast.step(tokens, state)

A step of one token launches hundreds of small kernels, and launching them takes longer than their
work. A CUDA graph launches them all at once, but only on the very same memory. So a batch moves
into a `GraphSlot`, whose tensors never change their size or address; slots are made once for each
shape, and rows are rounded up so that few shapes are needed. Without a GPU the same step is
computed and not captured, so that most tests need none.
"""

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from limelight.data.tokenizer import Tokenizer
from limelight.decode.accel.cuda.device_beam import BeamBuffers, DeviceBeamSearch
from limelight.decode.accel.cuda.graph_slot import MAX_STEPS, GraphSlot, Shape
from limelight.decode.config import DecodeConfig
from limelight.decode.request import Request, device_of
from limelight.device import copy_to_device_async
from limelight.errors import UserError
from limelight.model.kv_cache import KVCache

# cuDNN's attention would be planned anew for every length of a source, milliseconds each.
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
MAX_SLOTS = 16  # kept in memory while no batch uses them


class _GraphState:
    """What a batch keeps between two tokens: an ordinary cache at first, then a slot."""

    def __init__(self, runner: "CudaGraphModel", cache: KVCache) -> None:
        self.runner = runner
        self.cache: KVCache | None = cache
        self.selected: Tensor | None = None  # rows of the cache, if not each of them once
        self.slot: GraphSlot | None = None
        self.rows = cache.length.numel()
        self.max_used = cache.max_used
        self.max_len = cache.keys[0].size(2)  # tokens that its longest request may come to

    def bind(self) -> GraphSlot:
        """Move into a slot, if not done yet."""
        if self.slot is None:
            if self.cache is None:
                raise AssertionError("a state is in a cache or in a slot")
            self.slot = self.runner.acquire_slot(self.cache, self.rows, self.max_len)
            self.slot.owner = weakref.ref(self)
            self.slot.load(self.cache, self.selected)
            self.max_used, self.cache, self.selected = self.cache.max_used, None, None
        return self.slot

    def release(self, rows: Tensor) -> KVCache:
        """Move these rows out again."""
        if self.slot is not None:
            self.cache = self.slot.unload(rows, self.max_used)
            self.slot.owner, self.slot = None, None
            self.cache.length = self.cache.length.clamp(max=self.max_len)  # of finished rows
            if self.runner.grows:  # the longest row may have left: use no more than the others need
                self.cache.max_used = int(self.cache.length.max())
        if self.cache is None:
            raise AssertionError("a state is in a cache or in a slot")
        if self.selected is not None:
            self.cache.select(self.selected)
            self.selected = None
        return self.cache

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be repeated (beams) or left out."""
        if self.cache is not None:
            self.selected = rows if self.selected is None else self.selected[rows]
            if rows.numel() < self.cache.length.numel():
                self.release(rows)
        elif self.slot is None:
            raise AssertionError("a state is in a cache or in a slot")
        elif self.runner.rows_for(rows.numel()) != self.slot.shape[0]:
            self.release(rows)
        else:
            self.slot.reorder(rows, self.max_used)
        self.rows = rows.numel()

    def insert_rows(self, other: "_GraphState", rows: Tensor) -> None:
        """Write another state's rows to these row numbers, which may lie behind the last one.

        They are copied into the slot if they fit there. Otherwise both states leave their slots,
        and move into a larger one with the next token.
        """
        device = self.runner.device
        last, rows = int(rows.max()), copy_to_device_async(rows, device)
        self.runner.grows = True
        self.max_len = max(self.max_len, other.max_len)
        if self.slot is not None and other.cache is not None and other.selected is None:
            fits = last < self.slot.shape[0] and self.runner.fits(other.cache, self.slot.shape)
            if fits and other.max_used <= self.max_used and self.slot.can_insert:
                self.slot.insert(other.cache, rows)
                self.rows = max(self.rows, last + 1)
                return
        mine = self.release(torch.arange(self.rows, device=device))
        mine.insert_rows(other.release(torch.arange(other.rows, device=device)), rows)
        self.rows, self.max_used = mine.length.numel(), mine.max_used


class CudaGraphModel:
    """A Transformer whose steps are CUDA graphs."""

    def __init__(
        self, model: Any, make_slot: Callable[[Shape, KVCache], GraphSlot] | None = None
    ) -> None:
        self.model, self.config, self.device = model, model.config, device_of(model)
        self.make_slot = make_slot or partial(GraphSlot, model)
        self.slots: list[GraphSlot] = []
        self.grows = False  # whether rows are inserted into batches, as a service does

    def parameters(self) -> Any:
        """Those of the model underneath."""
        return self.model.parameters()

    def start(self, *given: Any, **options: Any) -> _GraphState:
        """The state from which `step` writes, from what the model's own `start` reads."""
        with sdpa_kernel(_ATTENTION):
            return _GraphState(self, self.model.start(*given, **options))

    @torch.no_grad()
    def step(self, tokens: Tensor, state: _GraphState, real: Tensor | None = None) -> Tensor:
        """Read the next tokens (B T, padded on the right); return logits of the next ones, B V."""
        if tokens.size(1) == 1 and real is None:
            return self.slot_for_next_token(state).step(tokens)
        cache = state.release(torch.arange(state.rows, device=tokens.device))
        with sdpa_kernel(_ATTENTION):
            logits: Tensor = self.model.step(tokens, cache, real)
        state.max_used = cache.max_used
        return logits

    def slot_for_next_token(self, state: _GraphState) -> GraphSlot:
        """The slot in which a batch computes its next step."""
        slot = state.bind()
        if state.max_used >= slot.shape[1]:  # the longest row may have left: compact the others
            cache = state.release(torch.arange(state.rows, device=slot.tokens.device))
            cache.max_used = max(cache.length.tolist(), default=0)
            slot = state.bind()
        if state.max_used >= slot.shape[1]:
            raise UserError(f"the KV cache is full: it was made for {slot.shape[1]} tokens")
        state.max_used += 1
        return slot

    def acquire_slot(self, cache: KVCache, rows: int, max_len: int) -> GraphSlot:
        """A free slot of the right shape, or a new one."""
        shape = self.shape_for(cache, rows, max_len)
        for slot in self.slots:
            if slot.shape == shape and slot.is_free:
                self.slots.remove(slot)
                self.slots.append(slot)  # the most recently used is the last
                return slot
        self.evict_slots()
        with torch.inference_mode(False), torch.no_grad():  # it may be used later in any mode
            self.slots.append(self.make_slot(shape, cache))
        return self.slots[-1]

    def evict_slots(self) -> None:
        """Free the memory of the least recently used slots, if there are many."""
        free = [slot for slot in self.slots if slot.is_free]
        for slot in free[: max(0, len(self.slots) - MAX_SLOTS + 1)]:
            self.slots.remove(slot)

    def shape_for(self, cache: KVCache, rows: int, max_len: int) -> Shape:
        """The shape of a slot for this batch: rounded up, but never beyond learned positions.

        Batches that grow get twice the positions, so that they are compacted less often.
        """
        length = -(-max_len // 64) * (128 if self.grows else 64)
        if self.config.positions == "learned":
            length = min(length, self.config.max_len)
        step = 64 if self.grows else 16
        width = -(-cache.memory[0][0].size(2) // step) * step if cache.memory else 0
        return self.rows_for(rows), length, width

    def rows_for(self, rows: int) -> int:
        """Rows of a slot. Batches that grow have few sizes, so that few graphs are captured."""
        return max(8, 2 ** (rows - 1).bit_length()) if self.grows else rounded(rows)

    def fits(self, cache: KVCache, shape: Shape) -> bool:
        """Whether rows of this cache can become rows of a slot."""
        width = cache.memory[0][0].size(2) if cache.memory else 0
        return cache.keys[0].size(2) <= shape[1] and width <= shape[2]


class DeviceSearchModel(CudaGraphModel):
    """One whose graphs also choose the next tokens: the most likely ones, or those of all beams."""

    @torch.no_grad()
    def step_greedy(
        self, tokens: Tensor, state: _GraphState, most: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Read a token in each row, B; see `GreedyStepModel`."""
        slot = self.slot_for_next_token(state)
        more = min(most - 1, MAX_STEPS - 1, slot.shape[1] - state.max_used)
        state.max_used += more
        return slot.step_greedy(tokens, 1 + more)

    @torch.no_grad()
    def step_beams(self, beams: BeamBuffers, state: _GraphState) -> BeamBuffers:
        """Read the newest tokens of all beams and extend them; return the slot's own buffers."""
        return self.slot_for_next_token(state).step_beams(beams)

    def new_beam_search(
        self, requests: Sequence[Request], config: DecodeConfig, tokenizer: Tokenizer, nbest: int
    ) -> DeviceBeamSearch:
        """A search whose steps are graphs; see `DeviceBeamModel`."""
        return DeviceBeamSearch(self, requests, config, tokenizer, nbest)


def rounded(rows: int) -> int:
    """A number of rows that many batches have in common: 1 to 8, 10, 12, 14, 16, 20, 24, ..."""
    step = 1
    while rows > 8 * step:
        step *= 2
    return -(-rows // step) * step
