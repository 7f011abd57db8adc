"""Attention, the heart of the paper (section 3.2): a weighted sum of values for every query.

Equation 1 is here twice. `explicit_attention` is the reference, one line per step, each of which
can be watched; `fused_attention` is one kernel, and a test holds the two equal.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.model.config import ModelConfig

_Watch = Callable[[str, Tensor], Tensor]
KeysValues = tuple[Tensor, Tensor]
Mask = Tensor | None  # None where it would be True everywhere; numbers are added to the scores
_UpdateCache = Callable[[Tensor, Tensor], KeysValues]
# Queries (B H T K), keys and values (B G S K, G divides H), a mask that is True where a query may
# attend, whether it is causal, dropout, and scaling: the weighted sums of values, B H T K.
_Attend = Callable[[Tensor, Tensor, Tensor, Mask, bool, float, bool], Tensor]


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    dropout: float,
    scaling: bool = True,
) -> Tensor:
    """Equation 1 in one fused kernel."""
    grouped, scale = q.size(1) != k.size(1), None if scaling else 1.0  # None: 1 / sqrt(d_k)
    return F.scaled_dot_product_attention(
        q, k, v, mask, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=grouped
    )


def explicit_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    scaling: bool = True,
    watch: _Watch = lambda _, value: value,
) -> Tensor:
    """Equation 1 step by step: softmax(Q K^T / sqrt(d_k)) V."""
    q, k, v = watch("q", q), watch("k", k), watch("v", v)
    k, v = _repeat_kv(k, q.size(1)), _repeat_kv(v, q.size(1))
    scores = watch("scores", q @ k.transpose(-2, -1))  # B H T S: each query against each key
    scaled = watch("scaled", scores / math.sqrt(q.size(-1)) if scaling else scores)
    if causal:
        mask = causal_mask(q.size(-2), q.device)
    masked = scaled
    if mask is not None:
        hidden = mask.dtype == torch.bool
        masked = scaled.masked_fill(~mask, -math.inf) if hidden else scaled + mask
    weights = watch("weights", watch("masked", masked).softmax(dim=-1))  # each row sums to 1
    return watch("mixed", F.dropout(weights, dropout) @ v)  # B H T K


def _repeat_kv(x: Tensor, heads: int) -> Tensor:
    return x if x.size(1) == heads else x.repeat_interleave(heads // x.size(1), dim=1)


def causal_mask(length: int, device: torch.device) -> Tensor:
    """T T: a position sees itself and what came before, never what follows."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def attention_mask(real: Tensor, causal: bool = False) -> Tensor:
    """The mask for a padded batch, B 1 T S or B 1 1 S, from `real` (B S), False at padding.

    Softmax over nothing would be NaN. So a padding position under the causal mask sees itself, and
    a row that is all padding sees its padding; nothing real ever attends to it.
    """
    if not causal:
        return (real | ~real.any(dim=1, keepdim=True))[:, None, None, :]
    length = real.size(1)
    itself = torch.eye(length, dtype=torch.bool, device=real.device)
    return (causal_mask(length, real.device) & real[:, None, None, :]) | itself


class Attention(nn.Module):
    """Multi-head attention (section 3.2.2), for self, masked, cross and cached use alike.

    Queries always come from `x`. Keys and values come from `x` too (self-attention) or from
    `memory`, the encoder's output (cross-attention). Many explainers have this reversed; the shape
    B H T S of the weights settles it.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d_model, bias = config.d_model, config.bias or config.qkv_bias
        d_queries, d_keys = (n * config.d_head for n in (config.heads, config.num_kv_heads))
        self.d_head = config.d_head
        self.dropout, self.scaling = config.attention_dropout, config.scaling
        self.query = nn.Linear(d_model, d_queries, bias=bias)
        self.key = nn.Linear(d_model, d_keys, bias=bias)
        self.value = nn.Linear(d_model, d_keys, bias=bias)
        self.output = nn.Linear(d_queries, d_model, bias=config.bias)
        self.query_norm = self.key_norm = None
        if config.qk_norm:
            self.query_norm = nn.RMSNorm(self.d_head, eps=config.norm_eps)
            self.key_norm = nn.RMSNorm(self.d_head, eps=config.norm_eps)
        self.attend: _Attend = fused_attention

    def forward(
        self,
        x: Tensor,  # B T D
        memory: Tensor | KeysValues | None = None,  # B S D, or what `keys_values` made of it before
        mask: Tensor | None = None,  # True where a query may attend
        causal: bool = False,  # the look-ahead mask, without building it
        rope: Callable[[Tensor], Tensor] | None = None,  # rotary positions
        update_cache: _UpdateCache | None = None,  # adds the past
    ) -> Tensor:
        if causal and mask is not None:
            raise ValueError("give a mask or causal=True, not both: attention_mask combines them")
        q, k, v = self.project(x, memory)  # B H T K, B G S K
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if rope is not None:
            q, k = rope(q), rope(k)
        if update_cache is not None:
            k, v = update_cache(k, v)
        dropout = self.dropout if self.training else 0.0
        mixed = self.attend(q, k, v, mask, causal, dropout, self.scaling)
        return self.output(mixed.transpose(1, 2).flatten(2))  # heads side by side again: B T D

    def project(
        self, x: Tensor, memory: Tensor | KeysValues | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values."""
        q = self.split(self.query(x))
        if isinstance(memory, tuple):
            return q, *memory
        return q, *self.keys_values(x if memory is None else memory)

    def keys_values(self, states: Tensor) -> KeysValues:
        """Keys and values of these states; those of a source are computed once and kept."""
        return self.split(self.key(states)), self.split(self.value(states))

    def split(self, x: Tensor) -> Tensor:
        """Split D numbers into heads of K: B T D -> B H T K."""
        return x.view(*x.shape[:2], x.size(2) // self.d_head, self.d_head).transpose(1, 2)
