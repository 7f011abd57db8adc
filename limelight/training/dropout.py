"""Dropout on a CPU: four coins from one random number.

A CPU draws random numbers one after the other, and torch draws one for each number that may be
dropped: in a small model that takes as long as the optimizer, the norms and the activations
together. But a random number has 63 bits, and 15 of them are a coin that is exact to 1 in 32,768.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

LEVELS = 2**15  # of a coin


class FastCpuDropout(nn.Dropout):
    """Drops as torch's does, by other coins."""

    def forward(self, input: Tensor) -> Tensor:
        if not (self.training and self.p):
            return input
        return input * dropout_mask(input.shape, self.p, input.dtype)


def dropout_mask(shape: Sequence[int], p: float, dtype: torch.dtype) -> Tensor:
    """Nothing where a number is dropped; elsewhere what makes up for that, so the mean stays."""
    dropped = min(round(p * LEVELS), LEVELS - 1)
    count = math.prod(shape)
    drawn = torch.empty(-(-count // 4), dtype=torch.int64).random_()
    coins = drawn.view(torch.int16)[:count].bitwise_and_(LEVELS - 1)
    # -1 where a coin shows `dropped` or more, else 0, by its sign: comparing takes twice as long
    stays = coins.neg_().add_(dropped - 1).bitwise_right_shift_(15)
    return stays.view(shape).to(dtype).mul_(-LEVELS / (LEVELS - dropped))


def use_fast_cpu_dropout(model: nn.Module) -> None:
    """Let a model that learns on a CPU drop by these coins."""
    for part in model.modules():
        if type(part) is nn.Dropout:
            part.__class__ = FastCpuDropout
