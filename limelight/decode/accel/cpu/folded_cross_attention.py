"""Cross-attention of rows that share one source: two products and a softmax.

Keys and values depend on the source alone, so the query weights can be multiplied with the keys
once, and the values with the output weights:

    softmax(x Wq K^T) V Wo = softmax(x A) B

A and B are smaller than the four matrices on the left, as long as the source is short.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from limelight.decode.accel.cpu.linear import PackedLinear


class FoldedCrossAttention(NamedTuple):
    """One layer's A and B, for H heads and a source of S tokens."""

    query_key: Tensor  # D HS
    bias: Tensor  # 1 HS
    value_output: Tensor  # HS D
    length: int  # S

    def add_into(self, x: Tensor, normed: Tensor) -> Tensor:
        """x plus the layer's cross-attention, M D, written over x."""
        scores = torch.addmm(self.bias, normed, self.query_key)
        weights = scores.view(-1, self.length).softmax(dim=-1)  # MH S
        return x.addmm_(weights.view_as(scores), self.value_output)


def fold(
    query: PackedLinear, output: PackedLinear, keys: Tensor, values: Tensor
) -> FoldedCrossAttention:
    """A and B of one source's keys and values, G S K; `query` already divides by sqrt(d_k)."""
    groups, length, d_head = keys.shape
    keys, values = keys[:, None], values[:, None]  # G 1 S K: shared by all heads of a group
    query_weight = query.weight.view(groups, -1, d_head, query.weight.size(1))  # G H/G K D
    query_bias = query.bias.view(groups, -1, d_head, 1)
    output_weight = output.weight.t().view(query_weight.shape)
    heads = groups * query_weight.size(1)
    return FoldedCrossAttention(
        (keys @ query_weight).flatten(0, 2).t(),
        (keys @ query_bias).view(1, -1),
        # A head's attention weights sum to one, so each head adds its share of the bias once.
        (values @ output_weight).flatten(0, 2) + output.bias / heads,
        length,
    )
