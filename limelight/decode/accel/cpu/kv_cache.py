"""The KV cache of the CPU accelerator: the past of every row, and the sources."""

import math
from typing import cast

import torch
from torch import Tensor

from limelight.decode.accel.cpu.folded_cross_attention import FoldedCrossAttention
from limelight.decode.accel.cpu.huge_pages import alloc_huge_pages
from limelight.model.kv_cache import KVCache, padded


class CpuDecodeState:
    """The model's cache, with all layers in one tensor.

    `kv` has a slot for every position so far, and few more, so that memory is read in one go. Slots
    before the cache's `max_used` are filled in every row. The keys and values of a source are kept
    once for all rows that attend to it: row b attends to source b // rows_per_source.
    """

    def __init__(
        self, cache: KVCache, rows: int, source: Tensor | None = None, hidden: Tensor | None = None
    ) -> None:
        self.cache = cache  # made for no rows: it counts, and the numbers are here
        self.cache.length = cache.length.new_zeros(rows)
        self.empty = cache.keys
        _, groups, self.limit, d_head = self.empty[0].shape
        self.kv = self.empty[0].new_empty(len(self.empty), 2, rows, groups, 0, d_head)
        self.buffer = self.spare = self.kv.flatten()  # the memory of `kv`, and of its next move
        self.logits = self.kv.flatten()  # reused by every step
        self.keep_source(source, None if hidden is None else hidden[:, None])
        self.rows_per_source = 1
        self.same_lengths = True  # all rows are known to be equally long, so nothing is masked
        self.hidden: Tensor | None = None  # B 1 S: slots behind the end of a row

    def keep_source(self, source: Tensor | None, hidden: Tensor | None) -> None:
        """Keys and values of all layers, N 2 sources G S K, and where they are padding."""
        self.source, self.source_hidden = source, hidden
        self.memory = [] if source is None else [tuple(layer.flatten(1, 2)) for layer in source]
        self.has_one_source = source is not None and source.size(2) == 1 and hidden is None
        self.folded: dict[int, FoldedCrossAttention] = {}  # by layer, of a single source
        self.transposed: dict[int, Tensor] = {}  # by layer, keys of several sources

    def transposed_keys(self, layer: int) -> Tensor:
        """BG K S: several queries at once are multiplied four times as fast with these."""
        if layer not in self.transposed:
            self.transposed[layer] = self.memory[layer][0].mT.contiguous()
        return self.transposed[layer]

    def as_model_cache(self, count: int) -> KVCache:
        """The cache as the model knows it, to read a prompt of `count` tokens into."""
        self.reserve(count)
        self.clear(count)
        cache = self.cache
        cache.keys, cache.values = list(self.kv[:, 0]), list(self.kv[:, 1])
        if self.source is not None:
            per_row = self.source.repeat_interleave(self.rows_per_source, dim=2)
            cache.memory = [(k, v) for k, v in per_row]
        cache.memory_mask = None
        if self.source_hidden is not None:
            hidden = self.source_hidden.repeat_interleave(self.rows_per_source, 0)
            cache.memory_mask = ~hidden[:, None]
        self.same_lengths = False  # not known; `begin` will see
        return cache

    def reserve(self, count: int) -> None:
        """Make slots for `count` more tokens in every row."""
        self.cache.keys = self.empty
        self.cache.begin(count)  # rejects too many
        needed = self.cache.max_used + count
        if needed > self.kv.size(4):
            slots = min(needed + max(24, needed // 4), self.limit)
            self.move(torch.arange(len(self.cache.length)), slots)

    def move(self, rows: Tensor, slots: int) -> None:
        """Copy the filled slots of these rows, in this order, to rows of `slots` slots."""
        layers, two, _, groups, _, d_head = self.kv.shape
        shape = (layers, two, len(rows), groups, slots, d_head)
        size = math.prod(shape)
        if self.spare.numel() < size:  # allocate more than is needed now
            later = max(slots, min(2 * slots + 16, self.limit))
            # A step writes to thousands of addresses; finding a small page for each is as slow.
            self.spare = alloc_huge_pages(self.kv, size // slots * later)
        new = self.spare[:size].view(shape)
        filled = (..., slice(self.cache.max_used), slice(None))
        if self.kv.size(2):
            torch.index_select(self.kv[filled], 2, rows, out=new[filled])
        self.buffer, self.spare = self.spare, self.buffer
        self.kv = new

    def clear(self, count: int) -> None:
        """Zero the next slots: old memory could be NaN, which no mask hides."""
        self.kv[..., self.cache.max_used : self.cache.max_used + count, :] = 0

    def begin(self) -> Tensor:
        """Prepare one more token in every row; return their positions, B."""
        self.reserve(1)
        cache = self.cache
        self.same_lengths = self.same_lengths or bool((cache.length == cache.max_used).all())
        self.hidden = None
        if not self.same_lengths:
            self.clear(1)
            self.hidden = ~cache.mask()[:, 0]
        # The views that each layer will write and read, made for all layers at once.
        slot = cache.max_used
        rows = self.kv.select(4, slot) if self.same_lengths else self.kv
        keys, values = self.kv.narrow(4, 0, slot + 1).flatten(2, 3).unbind(1)  # N BG S K
        self.slots = [*zip(keys.mT, values, rows.transpose(1, 2), strict=True)]
        return cache.positions[:, 0]

    def update(self, layer: int, new: Tensor) -> tuple[Tensor, Tensor]:
        """Write new keys and values (B 2G K); return transposed keys, and values, with the past."""
        transposed_keys, values, rows = self.slots[layer]  # BG K S, BG S K
        new = new.view(new.size(0), 2, -1, new.size(2))
        if self.same_lengths:
            rows.copy_(new)
        else:
            rows[torch.arange(new.size(0)), :, :, self.cache.positions[:, 0]] = new
        return transposed_keys, values

    def logits_buffer(self, vocab: int) -> Tensor:
        """B V. Allocating it anew at every step took a tenth of a beam search."""
        shape = self.cache.length.size(0), vocab
        if self.logits.numel() < math.prod(shape):
            self.logits = alloc_huge_pages(self.kv, math.prod(shape))
        return self.logits[: math.prod(shape)].view(shape)

    def commit(self) -> None:
        self.cache.max_used += 1
        self.cache.length = self.cache.length + 1

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be repeated (beams) or left out."""
        cache = self.cache
        cache.length = cache.length[rows]
        if not self.same_lengths:
            cache.max_used = max(cache.length.tolist(), default=0)
        self.move(rows, cache.max_used + 1)
        if self.source is None:
            return
        wanted, hidden = rows // self.rows_per_source, self.source_hidden
        runs = torch.unique_consecutive(wanted, return_counts=True)[1]
        self.rows_per_source = math.gcd(*runs.tolist()) or 1
        wanted = wanted[:: self.rows_per_source]
        # Beams that move within a source move nothing.
        if not torch.equal(wanted, torch.arange(self.source.size(2))):
            self.keep_source(self.source[:, :, wanted], None if hidden is None else hidden[wanted])

    def insert_rows(self, other: "CpuDecodeState", targets: Tensor) -> None:
        """Write another state's rows to these row numbers, which may lie behind the last one.

        Memory is allocated first: if that fails, nothing has changed.
        """
        cache, end = self.cache, other.cache.max_used
        before, rows = cache.max_used, len(cache.length)
        more = max(0, max(targets.tolist(), default=-1) + 1 - rows)
        sources = None if self.source is None else self.sources_with(other, targets, more)
        if other.limit > self.limit:
            self.empty, self.limit = other.empty, other.limit
        if more or end > self.kv.size(4):
            every = torch.arange(rows + more)
            every[rows:] = 0  # any: new rows are filled below
            self.move(every, max(end, self.kv.size(4)))
        cache.length = padded(cache.length, 0, more)
        cache.length[targets] = other.cache.length
        cache.max_used = max(cache.length.tolist(), default=0)
        self.kv[..., before : cache.max_used, :] = 0  # see `clear`
        self.kv[:, :, targets, :, :end] = other.kv[..., :end, :]
        self.kv[:, :, targets, :, end : cache.max_used] = 0
        self.same_lengths = bool((cache.length == cache.max_used).all())
        if sources is not None:
            self.rows_per_source = 1
            self.keep_source(*sources)

    def sources_with(
        self, other: "CpuDecodeState", targets: Tensor, more: int
    ) -> tuple[Tensor, Tensor | None]:
        """The sources of all rows; shorter ones get padding, which is masked."""
        (mine, unseen), (new, new_unseen) = self.source_per_row(), other.source_per_row()
        length = max(mine.size(4), new.size(4))
        mine = padded(padded(mine, 4, length - mine.size(4)), 2, more)
        mine[:, :, targets, :, : new.size(4)] = new
        hidden = mine.new_ones(mine.size(2), 1, length, dtype=torch.bool)
        hidden[: len(unseen), :, : unseen.size(2)] = unseen
        hidden[targets] = True
        hidden[targets, :, : new.size(4)] = new_unseen
        return mine, hidden if hidden.any() else None

    def source_per_row(self) -> tuple[Tensor, Tensor]:
        """The sources with one copy for each row, N 2 B G S K, and a mask of padding, B 1 S."""
        source = cast(Tensor, self.source)
        hidden = self.source_hidden
        if hidden is None:
            hidden = source.new_zeros(source.size(2), 1, source.size(4), dtype=torch.bool)
        if self.rows_per_source == 1:
            return source, hidden
        times = self.rows_per_source
        return source.repeat_interleave(times, 2), hidden.repeat_interleave(times, 0)
