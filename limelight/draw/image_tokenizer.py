"""Pictures become a short sequence of discrete tokens, and come back.

A convolutional encoder turns every patch of 4 x 4 pixels into a few numbers, and finite scalar
quantisation (FSQ, arXiv 2309.15505) rounds each of these to one of a few levels: the levels of a
patch together are its token. Unlike a learned codebook, levels cannot fall out of use one by one,
and need no losses of their own.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.data.config import ImageConfig
from limelight.model.stack import without_numbers
from limelight.run.atomic import list_checkpoints
from limelight.run.folder import RunFolder
from limelight.run.weights import WEIGHTS, check_tensors, read_weights, shapes_in

PATCH = 4  # pixels on a side
FOLDER = "image_tokenizer"  # in a run folder: checkpoints and weights, as the run itself has
DECODER = "decoder"  # in that folder: the same for a decoder that was trained alone afterwards
_MOMENTUM = 0.02  # of the averages that normalize what is rounded


class FSQ(nn.Module):
    """Rounds each channel to its levels; the gradient passes as if nothing was rounded."""

    levels: Tensor
    centre: Tensor  # the level of 0
    bases: Tensor

    def __init__(self, levels: Sequence[int]) -> None:
        super().__init__()
        self.codes = math.prod(levels)
        bases = [math.prod(levels[:i]) for i in range(len(levels))]
        # Constants of the configuration: on the device, but in no checkpoint.
        self.register_buffer("levels", torch.tensor(levels), persistent=False)
        self.register_buffer("centre", torch.tensor(levels) // 2, persistent=False)
        self.register_buffer("bases", torch.tensor(bases), persistent=False)

    def bound(self, z: Tensor) -> Tensor:
        """Channels (..., C) squeezed to between the lowest and the highest level of each."""
        reach = (self.levels - 1) * 1.001 / 2
        offset = (self.levels % 2 == 0) / 2.0  # an even number of levels has none at 0
        return torch.tanh(z + torch.atanh(offset / reach)) * reach - offset

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """What the decoder sees (..., C), and the token of each position (...)."""
        bounded = self.bound(z.float())
        rounded = bounded + (bounded.round() - bounded).detach()
        ids = ((rounded.detach().round().long() + self.centre) * self.bases).sum(dim=-1)
        return rounded / self.centre, ids

    def vectors(self, ids: Tensor) -> Tensor:
        """What the decoder sees of these tokens."""
        return ((ids[..., None] // self.bases) % self.levels - self.centre) / self.centre


class RunningNorm(nn.Module):
    """Each channel (of ... C) to mean 0 and variance 1, by running averages over batches.

    Without it all patches of an untrained encoder round to one token, the gradient drives the
    encoder into saturation, and one token is all that is ever used. The averages are parameters
    without gradients, so that checkpoints have them, and resume exactly.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(channels), requires_grad=False)
        self.variance = nn.Parameter(torch.ones(channels), requires_grad=False)

    def forward(self, z: Tensor) -> Tensor:
        z = z.float()
        if not self.training:
            return (z - self.mean) * torch.rsqrt(self.variance + 1e-5)
        flat = z.flatten(0, -2)
        mean, variance = flat.mean(dim=0), flat.var(dim=0, correction=0)
        with torch.no_grad():
            self.mean.lerp_(mean.detach(), _MOMENTUM)
            self.variance.lerp_(variance.detach(), _MOMENTUM)
        return (z - mean) * torch.rsqrt(variance + 1e-5)


class _Residual(nn.Module):
    """Two convolutions added to their input; at first they add nothing."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.silu(self.first(F.silu(x))))


class ImageTokenizer(nn.Module):
    """Pictures B 3 S S with values from 0 to 1, tokens B (S/4)^2 row by row, and back.

    All convolutions work on patches, whose 48 values are channels: far less work than on pixels.
    """

    def __init__(self, levels: Sequence[int], channels: int) -> None:
        super().__init__()
        values = 3 * PATCH**2
        self.encoder = nn.Sequential(
            nn.PixelUnshuffle(PATCH),
            nn.Conv2d(values, channels, 3, padding=1),
            _Residual(channels),
            _Residual(channels),
            nn.SiLU(),
            nn.Conv2d(channels, len(levels), 1),
        )
        self.norm = RunningNorm(len(levels))
        self.quantizer = FSQ(levels)
        self.decoder = nn.Sequential(
            nn.Conv2d(len(levels), channels, 3, padding=1),
            _Residual(channels),
            _Residual(channels),
            _Residual(channels),
            nn.SiLU(),
            nn.Conv2d(channels, values, 1),
            nn.PixelShuffle(PATCH),
        )

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Reconstructions as raw values, and tokens B h w."""
        vectors, ids = self.quantize(pictures)
        return self.reconstruct(vectors), ids

    def quantize(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """What the decoder sees, B h w C, and tokens, B h w."""
        z = self.encoder(pictures * 2 - 1).movedim(1, -1)
        found: tuple[Tensor, Tensor] = self.quantizer(self.norm(z))
        return found

    def reconstruct(self, vectors: Tensor) -> Tensor:
        """Pictures from what the quantizer gives, B h w C."""
        return (self.decoder(vectors.movedim(-1, 1)).float() + 1) / 2

    @torch.no_grad()
    def encode(self, pictures: Tensor) -> Tensor:
        """Tokens of pictures, B N."""
        return self.quantize(pictures)[1].flatten(1)

    @torch.no_grad()
    def decode(self, ids: Tensor, patches: int = 0) -> Tensor:
        """Pictures of tokens (B N), with values from 0 to 1.

        If `patches` are more, those that are missing are zeros, as beyond the edge of a picture.
        """
        missing = max(0, patches - ids.size(1))
        vectors = F.pad(self.quantizer.vectors(ids), (0, 0, 0, missing))
        side = math.isqrt(vectors.size(1))
        vectors = vectors.view(len(ids), side, side, -1)
        dtype = next(self.decoder.parameters()).dtype
        return self.reconstruct(vectors.to(dtype)).clamp(0, 1)


def token_entropy(ids: Tensor, codes: int) -> Tensor:
    """The entropy of the tokens that are used, in nats; its exponential is their perplexity."""
    counts = torch.zeros(codes, device=ids.device)
    flat = ids.flatten()
    counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=counts.dtype))
    return torch.special.entr(counts / flat.numel()).sum()


def load_image_tokenizer(run: RunFolder, images: ImageConfig) -> ImageTokenizer:
    """The trained image tokenizer of a run; a file with other shapes is refused unread."""
    with without_numbers():
        model = ImageTokenizer(images.levels, images.channels)
    wanted = {name: tuple(p.shape) for name, p in model.named_parameters()}

    def examine(folder: Path) -> None:
        check_tensors(folder / WEIGHTS, shapes_in(folder / WEIGHTS), wanted)

    inner = RunFolder(run.path / FOLDER)
    alone = RunFolder(inner.path / DECODER)
    folder, _ = (alone if list_checkpoints(alone.finished) else inner).weights(examine)
    model = ImageTokenizer(images.levels, images.channels)
    model.load_state_dict(read_weights(folder / WEIGHTS))
    return model.eval().requires_grad_(False)
