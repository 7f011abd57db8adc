"""Composites of emoji: any captioned pictures as objects of scenes, on coloured backgrounds."""

from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.draw.captions import Wording, normalize
from limelight.draw.image_files import ImageStats, captioned, read_picture
from limelight.draw.scenes import Layout, Scenes, SceneSampler
from limelight.errors import UserError
from limelight.training.console import Report

_BACKGROUNDS = {
    "": (255, 255, 255),
    "blue": (176, 214, 255),
    "green": (186, 232, 186),
    "pink": (255, 205, 222),
}
_SIDES = (10, 13)  # small and large, in a picture 32 wide
_SPRITE = 64  # pixels that a picture is read with
_MOST, _FEWEST = 256, 8  # kinds
_ALIKE = 0.045  # mean squared difference on white below which two pictures look the same
_GRID = 2  # pixels of a picture 32 wide: where objects can stand
_SHARES = {"single": 0.15, "counted": 0.1, "pair": 0.75, "counted_pair": 0.0, "triple": 0.0}
_LAYOUT = Layout(**_SHARES, spacing=15.0, members=(2, 1, 0), forward=0.5)


class EmojiWorld:
    """Scenes of emoji: sampled, drawn and described."""

    def __init__(self, size: int, device: torch.device, source: Path, report: Report) -> None:
        self.size, self.device = size, device
        names, sprites = _read_sprites(source, report)
        self.names = names
        self.sampler = SceneSampler(names, _LAYOUT, device, len(_BACKGROUNDS))
        self.wording = Wording([[name] for name in names], 2, device, list(_BACKGROUNDS))
        self.backgrounds = torch.tensor(list(_BACKGROUNDS.values()), device=device) / 255
        self.sides = [side * size // 32 for side in _SIDES]
        self.sprites = [shrink(sprites, side, max(self.sides)).to(device) for side in self.sides]
        content = sprites.numpy().tobytes() + " ".join(names).encode()
        self.fingerprint = sha256(content).hexdigest()[:16]
        self.pixel = torch.arange(size, device=device)

    def render(self, scenes: Scenes) -> Tensor:
        """Pictures, B 3 S S, with values from 0 to 1."""
        scale, widest = self.size / 32, max(self.sides)
        large, kind = scenes.object_large, scenes.object_kind
        picture = self.backgrounds[scenes.background][..., None, None].expand(
            -1, -1, self.size, self.size
        )
        both = torch.stack(self.sprites)  # 2 K 4 P P
        half = torch.where(large, self.sides[1] / 2, self.sides[0] / 2)
        left, top = (
            ((at * scale).clamp(half, self.size - half).sub(half) / (_GRID * scale)).round().long()
            * int(_GRID * scale)
            for at in (scenes.x, scenes.y)
        )
        for i in range(kind.size(1)):
            u, v = (self.pixel - begin[:, i, None] for begin in (top, left))  # B S
            inside = ((u >= 0) & (u < widest))[:, :, None] & ((v >= 0) & (v < widest))[:, None]
            u, v = u.clamp(0, widest - 1), v.clamp(0, widest - 1)
            sprite = both[large[:, i].long(), kind[:, i]]  # B 4 P P
            rows = torch.arange(len(kind), device=self.device)[:, None, None]
            pasted = sprite.movedim(1, -1)[rows, u[:, :, None], v[:, None, :]].movedim(-1, 1)
            alpha = pasted[:, 3:] * inside[:, None] * scenes.there[:, i, None, None, None]
            picture = picture * (1 - alpha) + pasted[:, :3] * alpha
        return picture


def _read_sprites(source: Path, report: Report) -> tuple[list[str], Tensor]:
    """Names, and pictures N 4 P P from 0 to 1: of those that look alike only the first."""
    stats, names, found = ImageStats(), list[str](), list[Tensor]()
    for one in captioned(source, stats):
        name = normalize(one[1])
        pixels = read_picture(one, _SPRITE, stats, crop=False)
        if pixels is None or name in names:
            continue
        stats.used += 1
        names.append(name)
        found.append(torch.from_numpy(np.array(pixels)).movedim(-1, 0) / 255)
    stats.check(1.0, report)
    if len(found) < _FEWEST:
        raise UserError(
            f"{source} has {len(found)} pictures that can be used: {_FEWEST} are needed"
        )
    sprites = torch.stack(found)
    kept = distinct(sprites)[:_MOST]
    report.say(f"{len(kept)} of {len(names)} pictures of {source.name} look different enough")
    return [names[i] for i in kept], sprites[kept]


def distinct(sprites: Tensor) -> list[int]:
    """Which pictures differ from all that come before them, seen small and on white."""
    small = F.adaptive_avg_pool2d(sprites, 12)
    colour, alpha = small[:, :3], small[:, 3:]
    small = (colour * alpha + 1 - alpha).flatten(1)
    kept: list[int] = []
    for i, one in enumerate(small):
        if not kept or (small[kept] - one).square().mean(dim=1).min() > _ALIKE:
            kept.append(i)
    return kept


def shrink(sprites: Tensor, side: int, box: int) -> Tensor:
    """Pictures of this side, anti-aliased, in the top left corner of a box."""
    alpha = sprites[:, 3:]
    mixed = torch.cat([sprites[:, :3] * alpha, alpha], dim=1)  # colour counts where it is seen
    small = F.interpolate(mixed, (side, side), mode="bilinear", antialias=True)
    colour = small[:, :3] / small[:, 3:].clamp(min=1e-3)
    result = torch.cat([colour.clamp(0, 1), small[:, 3:].clamp(0, 1)], dim=1)
    return F.pad(result, (0, box - side, 0, box - side))
