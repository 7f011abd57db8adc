"""One layer of Figure 1: attention and feed-forward, each with its residual connection and norm."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from limelight.model.attention import Attention, KeysValues
from limelight.model.config import ModelConfig
from limelight.model.ssru import SSRU

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,  # the paper
    "gelu": F.gelu,  # BERT
    "gelu-tanh": partial(F.gelu, approximate="tanh"),  # GPT-2
    "silu": F.silu,  # Marian's published translators
    "swiglu": F.silu,  # Llama, with a gate beside it
}


NORMS: dict[str, Callable[..., nn.Module]] = {
    "layer": nn.LayerNorm,  # the paper
    "rms": nn.RMSNorm,  # Llama, without mean and shift
    "none": nn.Identity,  # an experiment
}


def make_norm(config: ModelConfig) -> nn.Module:
    """A norm of the configured kind."""
    return NORMS[config.norm](config.d_model, eps=config.norm_eps)


class FeedForward(nn.Module):
    """Section 3.3: D -> d_ff -> D at every position alike."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activate = ACTIVATIONS[config.activation]
        self.inner = nn.Linear(config.d_model, config.ffn_dim, bias=config.bias)
        self.outer = nn.Linear(config.ffn_dim, config.d_model, bias=config.bias)
        gated = config.activation == "swiglu"
        self.gate = nn.Linear(config.d_model, config.ffn_dim, bias=config.bias) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.outer(self.activate(self.inner(x)))
        return self.outer(self.activate(self.gate(x)) * self.inner(x))


class Residual(nn.Module):
    """What surrounds every sub-layer: dropout, the sum with its input, a norm.

    Post-norm is the paper: norm(x + f(x)). Pre-norm is GPT-2's: x + f(norm(x)), which is easier to
    train in deep stacks because the sums run through untouched. An experiment can do without the
    sum, or without the norm.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.post, self.residual = config.norm_order == "post", config.residual
        self.norm = make_norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        output = self.dropout(sublayer(x if self.post else self.norm(x)))
        total = x + output if self.residual else output
        return self.norm(total) if self.post else total


class Layer(nn.Module):
    """Figure 1: the left column, or with `cross` the right one, which also reads the memory."""

    def __init__(self, config: ModelConfig, cross: bool = False) -> None:
        super().__init__()
        self.self_cell: SSRU | None = None  # where masked self-attention would be
        if cross and config.decoder_cell == "ssru":
            self.self_cell = SSRU(config)
        else:
            self.self_attention = Attention(config)
        self.self_residual = Residual(config)
        if cross:
            self.cross_attention = Attention(config)
            self.cross_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        x: Tensor,  # B T D
        mask: Tensor | None = None,
        causal: bool = False,
        rope: Callable[[Tensor], Tensor] | None = None,
        update_cache: Callable[[Tensor, Tensor], KeysValues | Tensor] | None = None,
        memory: Tensor | KeysValues | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        self_kwargs = {"mask": mask, "causal": causal, "rope": rope, "update_cache": update_cache}
        self_layer = self.self_attention if self.self_cell is None else self.self_cell
        x = self.self_residual(x, lambda x: self_layer(x, **self_kwargs))
        if memory is not None:
            x = self.cross_residual(x, lambda x: self.cross_attention(x, memory, memory_mask))
        return self.feed_forward_residual(x, self.feed_forward)
