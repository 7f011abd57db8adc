"""Coloured shapes on white: circles, squares and triangles, anti-aliased, at any size."""

import torch
from torch import Tensor

from limelight.draw.captions import Wording
from limelight.draw.scenes import Layout, Scenes, SceneSampler

PALETTE = {  # far from each other, and from each other's mixtures with white
    "red": (220, 30, 40),
    "green": (30, 160, 60),
    "blue": (40, 70, 220),
    "yellow": (245, 215, 20),
    "purple": (130, 40, 170),
    "orange": (250, 130, 10),
    "black": (25, 25, 25),
    "pink": (255, 125, 195),
}
SHAPES = {"circle": ("circle", "disc"), "square": ("square", "box"), "triangle": ("triangle",)}
NAMES = [f"{colour} {shape}" for colour in PALETTE for shape in SHAPES]
RADIUS = (2.8, 4.3)  # small and large, in a picture 32 wide
_LAYOUT = Layout(single=0.12, counted=0.08, pair=0.3, counted_pair=0.25, triple=0.25)
_FEW = Layout(single=0.25, counted=0.0, pair=0.75, counted_pair=0.0, triple=0.0, members=(1, 1, 0))


class ShapeWorld:
    """Scenes of shapes: sampled, drawn and described."""

    fingerprint = "shapes"

    def __init__(self, size: int, device: torch.device, objects: int = 3) -> None:
        self.size, self.device = size, device
        self.sampler = SceneSampler(NAMES, _LAYOUT if objects == 3 else _FEW, device)
        names = [[f"{colour} {word}" for word in SHAPES[s]] for colour in PALETTE for s in SHAPES]
        self.wording = Wording(names, objects, device)
        self.colours = torch.tensor(list(PALETTE.values()), device=device) / 255
        self.middle = (torch.arange(size, device=device) + 0.5) * (32 / size)  # of each pixel

    def render(self, scenes: Scenes) -> Tensor:
        """Pictures, B 3 S S, with values from 0 to 1."""
        small, large = RADIUS
        radius = torch.where(scenes.object_large, large, small)[..., None, None]  # B M 1 1
        dx = self.middle[None, None, None, :] - scenes.x[..., None, None]
        dy = self.middle[None, None, :, None] - scenes.y[..., None, None]
        shape = (scenes.object_kind % len(SHAPES))[..., None, None]
        inside = _inside(shape, dx, dy, radius) * (self.size / 32)  # B M S S, in pixels
        alpha = (inside + 0.5).clamp(0, 1) * scenes.there[..., None, None]
        colour = self.colours[scenes.object_kind // len(SHAPES)]  # B M 3
        # No two objects overlap, so that each pixel is a mixture of white and their colours.
        tint = torch.einsum("bohw,boc->bchw", alpha, colour - 1)
        return (1 + tint).clamp(0, 1)


def _inside(shape: Tensor, dx: Tensor, dy: Tensor, r: Tensor) -> Tensor:
    """How far a point lies inside a shape, negative outside: a signed distance."""
    circle = r - torch.sqrt(dx**2 + dy**2)
    square = 0.886 * r - torch.maximum(dx.abs(), dy.abs())  # of equal area
    triangle = torch.minimum(0.95 * r - dy, (dy + r - 2 * dx.abs()) / 2.24)
    return torch.where(shape == 0, circle, torch.where(shape == 1, square, triangle))
