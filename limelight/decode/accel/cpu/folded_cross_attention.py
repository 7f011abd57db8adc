"""Cross-attention when all rows look at one source: two products and a softmax.

Keys depend on nothing but the source, and so does what they are multiplied with the weights of the
queries; likewise values and the weights of the output. Multiplied once, they leave for every token

    softmax(x Wq K^T) V Wo = softmax(x A) B

which reads less memory than the four matrices on the left, as long as the source is short.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from limelight.decode.accel.cpu.linear import PackedLinear


class FoldedCrossAttention(NamedTuple):
    """One layer's A and B, for H heads and a source of S tokens."""

    query_key: Tensor  # D HS
    asking_bias: Tensor  # 1 HS
    value_output: Tensor  # HS D
    length: int  # S

    def add_into(self, x: Tensor, normed: Tensor) -> Tensor:
        """M D: what a layer's cross-attention adds to x; it is written over x."""
        scores = torch.addmm(self.asking_bias, normed, self.query_key)
        shares = scores.view(-1, self.length).softmax(dim=-1)  # MH S
        return x.addmm_(shares.view_as(scores), self.value_output)


def fold(
    query: PackedLinear, output: PackedLinear, keys: Tensor, values: Tensor
) -> FoldedCrossAttention:
    """With keys and values of one source, G S K; its queries are already divided by sqrt(d_k)."""
    groups, length, d_head = keys.shape
    keys, values = keys[:, None], values[:, None]  # G 1 S K: the same for all heads of a group
    asking = query.weight.view(groups, -1, d_head, query.weight.size(1))  # G H/G K D
    asking_bias = query.bias.view(groups, -1, d_head, 1)
    answering = output.weight.t().view(asking.shape)
    heads = groups * asking.size(1)
    return FoldedCrossAttention(
        (keys @ asking).flatten(0, 2).t(),
        (keys @ asking_bias).view(1, -1),
        # The shares of a head's tokens sum to one, so together they bring the bias once.
        (values @ answering).flatten(0, 2) + output.bias / heads,
        length,
    )
