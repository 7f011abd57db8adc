"""Where a token stands (section 3.5). Attention itself has no order; these give it one.

Sinusoidal is the paper's, learned is GPT-2's and BERT's, rotary is Llama's. The first and the last
are formulas, computed when needed: no parameters, and no length at which a table would end.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from limelight.errors import UserError
from limelight.model.config import ModelConfig


def positions_of(tokens: Tensor, real: Tensor | None) -> Tensor:
    """The position of each token, T or B T, counted from the first real one: padding has none."""
    if real is None:
        return torch.arange(tokens.size(1), device=tokens.device)
    return (real.cumsum(dim=1) - 1).clamp(min=0)


def angles(positions: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """pos / 10000^(2i/width) for i = 0 .. width/2 - 1, the angles of section 3.5: ... width/2."""
    precise = torch.promote_types(dtype, torch.float32)  # half precision cannot count to a thousand
    i = torch.arange(width // 2, device=positions.device, dtype=precise)
    return positions[..., None].to(precise) * 10000 ** (-2 * i / width)


def sinusoids(positions: Tensor, d_model: int, dtype: torch.dtype) -> Tensor:
    """PE(pos, 2i) = sin(angle), PE(pos, 2i+1) = cos(angle): ... D.

    PE(pos + k) is a linear function of PE(pos): a turn by k's angle in each pair.
    """
    angle = angles(positions, d_model, dtype)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2).to(dtype)


def rotary_frequencies(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The angle between two neighbours, for each pair of a head's numbers: K/2.

    `linear` scaling slows all turns alike, so that longer texts have the angles of shorter ones;
    `llama3` slows only those that take long, and blends between (Llama 3.1).
    """
    i = torch.arange(config.d_head // 2, device=device, dtype=dtype)
    frequency = config.rotary_base ** (-2 * i / config.d_head)
    if config.rotary_scaling == "none":
        return frequency
    slowed = frequency / config.rotary_factor
    if config.rotary_scaling == "linear":
        return slowed
    turns = config.rotary_length * frequency / (2 * math.pi)
    share = (turns - config.rotary_low) / (config.rotary_high - config.rotary_low)
    share = share.clamp(0, 1)
    return share * frequency + (1 - share) * slowed


def rotation(
    positions: Tensor, config: ModelConfig, dtype: torch.dtype
) -> Callable[[Tensor], Tensor]:
    """Rotary positions: a function that turns each pair of a query or key by its position's angle.

    Two turned vectors meet at the difference of their angles, so scores depend on distance alone.
    """
    precise = torch.promote_types(dtype, torch.float32)
    frequency = rotary_frequencies(config, positions.device, precise)
    angle = positions[..., None].to(precise) * frequency
    if angle.dim() == 3:
        angle = angle[:, None]  # B 1 T K/2: the same turn in all heads
    sin, cos = angle.sin(), angle.cos()

    def rotate(x: Tensor) -> Tensor:  # B H T K
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2).to(x.dtype)

    return rotate


class SinusoidalPositions(nn.Module):
    """The paper's fixed sinusoids."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return sinusoids(positions, self.d_model, dtype)


class LearnedPositions(nn.Embedding):
    """A learned vector per position, up to the end of the table."""

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Tensor:  # type: ignore[override]
        if positions.size(-1) > self.num_embeddings:
            raise UserError(
                f"{positions.size(-1)} tokens are too many for this model: its learned positions "
                f"end at max_len={self.num_embeddings}; shorten the text"
            )
        return super().forward(positions).to(dtype)


# Positions that are added to the embeddings, and such that are added to the scores of attention:
# modules that make H T S or B H T S numbers of the positions of queries and keys. Rotary ones turn
# queries and keys instead.
ADDED: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "sinusoidal": lambda config: SinusoidalPositions(config.d_model),
    "learned": lambda config: LearnedPositions(config.max_len, config.d_model),
}
BIASES: dict[str, Callable[[ModelConfig], nn.Module]] = {}  # limelight itself has none
