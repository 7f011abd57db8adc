"""The SSRU (Kim et al. 2019): a recurrent cell in the place of a decoder's masked self-attention.

Production translators such as Firefox's have it, because a step of writing then costs the same
however long the text is: it needs one vector of the past, and not all keys and values.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from limelight.model.config import ModelConfig

_Advance = Callable[[Tensor, Tensor], Tensor]  # gates and inputs, B T D: the states, B T D


class SSRU(nn.Module):
    """f = sigmoid(W_f x + b), c_t = f_t c_{t-1} + (1 - f_t) W x_t, and out comes relu(c_t).

    It is called as self-attention is. Only earlier tokens reach a state, so there is nothing to
    mask but padding, and no use for other positions.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.d_model, config.d_model)
        self.value = nn.Linear(config.d_model, config.d_model, bias=False)
        self.sigmoid, self.relu = nn.Sigmoid(), nn.ReLU()

    def forward(
        self, x: Tensor, mask: Tensor | None = None, update_cache: _Advance | None = None, **_: Any
    ) -> Tensor:
        gate, value = self.sigmoid(self.gate(x)), self.value(x)  # B T D
        if mask is not None and update_cache is None:  # the last token sees all that are real
            gate = gate.masked_fill(~mask[:, 0, -1, :, None], 1.0)  # padding leaves no trace
        states = (update_cache or recurrence)(gate, (1 - gate) * value)
        return self.relu(states)


def recurrence(gate: Tensor, inputs: Tensor, before: Tensor | None = None) -> Tensor:
    """The states c_t = f_t c_{t-1} + inputs_t, B T D, from the one before (B D), or from zero.

    One token after the other: on a CPU an associative scan, which takes log2(T) passes over the
    whole tensor, took about as long at width 64 and T = 256, and 2.5 to 9 times as long elsewhere.
    """
    state, states = inputs.new_zeros(inputs[:, 0].shape) if before is None else before, []
    for f, x in zip(gate.unbind(1), inputs.unbind(1), strict=True):
        state = f * state + x
        states.append(state)
    return torch.stack(states, dim=1)
