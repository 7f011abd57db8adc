"""The KV cache: keys and values of the tokens so far, so that a step does not compute them again.

It is allocated once. A token's slot is its position: row b writes its next token at slot
`length[b]`, and a query at position p sees the slots up to p. That one rule covers the look-ahead
mask, rows of different lengths, and padding, which is written behind the last real token, never
seen, and overwritten by what comes next.
"""

import torch
from torch import Tensor

from limelight.errors import UserError
from limelight.model.attention import KeysValues
from limelight.model.config import ModelConfig
from limelight.model.ssru import recurrence


class KVCache:
    """Keys and values of each layer. To read tokens: `begin`, each layer's `update`, `commit`."""

    def __init__(self, config: ModelConfig, rows: int, max_len: int, like: Tensor) -> None:
        if config.positions == "learned" and max_len > config.max_len:
            raise UserError(
                f"a cache for max_len={max_len} is of no use: this model's learned positions end "
                f"at max_len={config.max_len}"
            )
        recurrent = config.decoder_cell == "ssru"  # needs no keys and values but those of a source
        heads = 0 if recurrent else config.num_kv_heads
        shape = (rows, heads, max_len, config.d_head)  # B G S K, for each layer
        layers = config.num_decoder_layers
        self.keys = [like.new_zeros(shape) for _ in range(layers)]
        self.values = [like.new_zeros(shape) for _ in range(layers)]
        # B D of each layer: the state of a recurrent cell; and B T D: after the tokens being read.
        states = layers if recurrent else 0
        self.states = [like.new_zeros(rows, config.d_model) for _ in range(states)]
        self.next_states: dict[int, Tensor] = {}
        self.length = torch.zeros(rows, dtype=torch.long, device=like.device)
        self.max_used = 0  # no row is longer than this, so no slot beyond need be looked at
        self.positions = self.length[:, None]  # B T: of the tokens being read now
        self.memory: list[KeysValues] = []  # of each layer's cross-attention, computed once
        self.memory_mask: Tensor | None = None

    def begin(self, count: int) -> None:
        needed, capacity = self.max_used + count, self.keys[0].size(2)
        if needed > capacity:
            raise UserError(
                f"{needed} tokens do not fit into a cache made for max_len={capacity}: "
                "ask for a longer one, or stop earlier"
            )
        self.positions = self.length[:, None]
        if count > 1:
            self.positions = self.positions + torch.arange(count, device=self.length.device)

    def mask(self) -> Tensor:
        """B 1 T S: a token sees the slots up to its own."""
        slots = torch.arange(self.max_used + self.positions.size(1), device=self.length.device)
        return (slots <= self.positions[..., None])[:, None]

    def update(self, layer: int, k: Tensor, v: Tensor) -> KeysValues:
        """Write the new keys and values (B G T K) into their slots; return them with the past."""
        rows = torch.arange(k.size(0), device=k.device)[:, None]
        end = self.max_used + k.size(2)
        for kept, new in ((self.keys[layer], k), (self.values[layer], v)):
            kept[rows, :, self.positions] = new.transpose(1, 2).to(kept.dtype)
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def advance(self, layer: int, gate: Tensor, inputs: Tensor) -> Tensor:
        """What `update` is for a recurrent cell: the states that follow from the last one."""
        self.next_states[layer] = recurrence(gate, inputs, self.states[layer])
        return self.next_states[layer]

    def commit(self, real: Tensor | None = None) -> Tensor:
        """Count the tokens just read, without the padding behind them; return how many, B."""
        count = self.positions.size(1)
        if real is None:
            self.max_used += count
            read = torch.full_like(self.length, count)
        else:
            read = real.sum(dim=1)
            self.max_used = max((self.length + read).tolist(), default=0)
        self.length = self.length + read
        for layer, states in self.next_states.items():
            rows, last = torch.arange(read.numel(), device=read.device), (read - 1).clamp(min=0)
            some = read[:, None] > 0  # a row with nothing real in it stays where it was
            self.states[layer] = torch.where(some, states[rows, last], self.states[layer])
        return read

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be named again (beams) or not at all.

        If their number stays the same, the memory does too, and only what was written is moved.
        """
        same = rows.numel() == self.length.numel()
        for kept in (self.keys, self.values):
            for layer, old in enumerate(kept):
                if same:
                    old[:, :, : self.max_used] = old[rows, :, : self.max_used]
                else:
                    kept[layer] = old[rows]
        self.states = [state[rows] for state in self.states]
        self.length = self.length[rows]
        if not same:  # a longer row may have left
            self.max_used = max(self.length.tolist(), default=0)
        self.memory = [(k[rows], v[rows]) for k, v in self.memory]
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask[rows]

    def insert_rows(self, other: "KVCache", indices: Tensor) -> None:
        """Insert the rows of another cache at these indices: over a row, or behind the last one."""
        rows, capacity = self.length.numel(), max(self.keys[0].size(2), other.keys[0].size(2))
        more = max(0, max(indices.tolist(), default=-1) + 1 - rows)
        self.length = padded(self.length, 0, more)
        self.length[indices] = other.length
        self.max_used = max(self.length.tolist(), default=0)
        for kept, new in ((self.keys, other.keys), (self.values, other.values)):
            for layer, old in enumerate(kept):
                kept[layer] = with_rows(old, new[layer], indices, more, capacity)
        for layer, state in enumerate(other.states):
            self.states[layer] = padded(self.states[layer], 0, more)
            self.states[layer][indices] = state
        if self.memory:
            self.insert_memory(other, indices, more)

    def insert_memory(self, other: "KVCache", indices: Tensor, more: int) -> None:
        """The sources' part of `insert_rows`; shorter ones get padding, which is hidden."""
        length = max(self.memory[0][0].size(2), other.memory[0][0].size(2))
        both = zip(self.memory, other.memory, strict=True)
        seen, new_seen = self.seen_memory(), other.seen_memory()
        self.memory = [
            (with_rows(k, new_k, indices, more, length), with_rows(v, new_v, indices, more, length))
            for (k, v), (new_k, new_v) in both
        ]
        mask = with_rows(seen.mT, new_seen.mT, indices, more, length).mT
        self.memory_mask = None if mask.all() else mask

    def seen_memory(self) -> Tensor:
        if self.memory_mask is not None:
            return self.memory_mask
        rows, _, length, _ = self.memory[0][0].shape
        return torch.ones(rows, 1, 1, length, dtype=torch.bool, device=self.length.device)


def padded(x: Tensor, dim: int, count: int) -> Tensor:
    """Append `count` zeros to a dimension."""
    if not count:
        return x
    shape = list(x.shape)
    shape[dim] = count
    return torch.cat([x, x.new_zeros(shape)], dim=dim)


def with_rows(old: Tensor, new: Tensor, indices: Tensor, more: int, length: int) -> Tensor:
    """B ... S K: the new rows inserted among the old ones, all of this length."""
    result = padded(padded(old, -2, length - old.size(-2)), 0, more)
    result[indices] = padded(new, -2, length - new.size(-2))
    return result
