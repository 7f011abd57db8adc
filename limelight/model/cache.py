"""What a decoder keeps between two tokens, so that a step does not redo the past.

All room is taken once. A token's slot is its position: row b writes its next token at slot
`length[b]`, and a query at position p sees the slots up to p. That one rule covers the look-ahead
mask, rows of different lengths, and padding, which is written behind the last real token, never
seen, and overwritten by what comes next.
"""

import torch
from torch import Tensor

from limelight.errors import UserError
from limelight.model.attention import KeysValues
from limelight.model.config import ModelConfig


class Cache:
    """Keys and values of every layer for a batch of rows, and those of the source, if any.

    To read tokens: `open`, then each layer's `append`, then `close`.
    """

    def __init__(self, config: ModelConfig, rows: int, max_len: int, like: Tensor) -> None:
        if config.positions == "learned" and max_len > config.max_len:
            raise UserError(
                f"a cache for max_len={max_len} is of no use: this model's learned positions end "
                f"at max_len={config.max_len}"
            )
        shape = (rows, config.key_heads, max_len, config.d_head)  # B G S K, for each layer
        self.keys = [like.new_zeros(shape) for _ in range(config.layers)]
        self.values = [like.new_zeros(shape) for _ in range(config.layers)]
        self.length = torch.zeros(rows, dtype=torch.long, device=like.device)
        self.reach = 0  # no row is longer than this, so no slot beyond need be looked at
        self.positions = self.length[:, None]  # B T: of the tokens being read now
        self.memory: list[KeysValues] = []  # of each layer's cross-attention, computed once
        self.memory_mask: Tensor | None = None

    def open(self, count: int) -> None:
        """Make ready for `count` more tokens in every row."""
        room = self.keys[0].size(2)
        if self.reach + count > room:
            raise UserError(
                f"{self.reach + count} tokens do not fit into a cache made for max_len={room}: "
                "ask for a longer one, or stop earlier"
            )
        self.positions = self.length[:, None] + torch.arange(count, device=self.length.device)

    def mask(self) -> Tensor:
        """B 1 T S: a token sees the slots up to its own."""
        slots = torch.arange(self.reach + self.positions.size(1), device=self.length.device)
        return (slots <= self.positions[..., None])[:, None]

    def append(self, layer: int, k: Tensor, v: Tensor) -> KeysValues:
        """Write the new keys and values (B G T K) into their slots; return them with the past."""
        rows = torch.arange(k.size(0), device=k.device)[:, None]
        end = self.reach + k.size(2)
        for kept, new in ((self.keys[layer], k), (self.values[layer], v)):
            kept[rows, :, self.positions] = new.transpose(1, 2).to(kept.dtype)
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def close(self, real: Tensor | None = None) -> Tensor:
        """Count the tokens just read, without the padding behind them; return how many, B."""
        count = self.positions.size(1)
        if real is None:
            self.reach += count
            taken = torch.full_like(self.length, count)
        else:
            taken = real.sum(dim=1)
            self.reach = max((self.length + taken).tolist(), default=0)
        self.length = self.length + taken
        return taken

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be named again (beams) or not at all.

        As many rows as before stay where they are in memory, and only what was written is moved.
        """
        same = rows.numel() == self.length.numel()
        for kept in (self.keys, self.values):
            for layer, old in enumerate(kept):
                if same:
                    old[:, :, : self.reach] = old[rows, :, : self.reach]
                else:
                    kept[layer] = old[rows]
        self.length = self.length[rows]
        if not same:  # a longer row may have left
            self.reach = max(self.length.tolist(), default=0)
        self.memory = [(k[rows], v[rows]) for k, v in self.memory]
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask[rows]
