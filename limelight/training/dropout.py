"""Dropout on a CPU: four random decisions from one random number.

A CPU draws random numbers one after the other, and torch draws one for each number that may be
dropped: in a small model that takes as long as the optimizer, the norms and the activations
together. But a random number has 63 bits, and 15 of them decide with a precision of 1 in 32,768.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

LEVELS = 2**15  # of a decision


class FastCpuDropout(nn.Dropout):
    """torch's dropout with other random bits."""

    def forward(self, input: Tensor) -> Tensor:
        if not (self.training and self.p):
            return input
        return input * dropout_mask(input.shape, self.p, input.dtype)


def dropout_mask(shape: Sequence[int], p: float, dtype: torch.dtype) -> Tensor:
    """0 where a number is dropped, elsewhere the factor that keeps the mean."""
    dropped = min(round(p * LEVELS), LEVELS - 1)
    count = math.prod(shape)
    drawn = torch.empty(-(-count // 4), dtype=torch.int64).random_()
    levels = drawn.view(torch.int16)[:count].bitwise_and_(LEVELS - 1)
    # -1 where a level is `dropped` or more, else 0, by its sign: comparing takes twice as long
    stays = levels.neg_().add_(dropped - 1).bitwise_right_shift_(15)
    return stays.view(shape).to(dtype).mul_(-LEVELS / (LEVELS - dropped))


def use_fast_cpu_dropout(model: nn.Module) -> None:
    """Replace every dropout module of a model that trains on a CPU."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, FastCpuDropout(child.p).train(child.training))
