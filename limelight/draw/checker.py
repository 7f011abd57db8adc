"""A picture of shapes read back from its pixels alone, and compared with its scene.

The checker knows no model. Pixels that differ from white form connected regions; the colour of a
region is that of its core, since edges are mixtures with white, and a colour too far from all of
the palette is none. Shape and size follow from area, width and height, measured by how much of
each pixel is covered.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import product
from statistics import fmean

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.draw.scenes import Scenes
from limelight.draw.shapes import NAMES, PALETTE, RADIUS, SHAPES

_FOREGROUND = 0.27  # a channel this far below white
_SPECK = 4.0  # pixels of a 32 x 32 picture: smaller regions are noise
_FAR = 0.26  # from the nearest colour of the palette, in RGB
_LARGE = 0.96 * (RADIUS[0] + RADIUS[1])  # width or height: between 5.6 and 7.6
_FULL = 0.865  # of its box: true squares fill 1.00, true circles up to 0.83
_COLOURS = torch.tensor(list(PALETTE.values())) / 255


@dataclass(frozen=True)
class _FoundObject:
    """A region of a picture."""

    colour: int  # of the palette, or -1
    shape: int
    large: bool
    x: float  # centre, in units of a picture 32 wide
    y: float

    @property
    def kind(self) -> int:
        return -1 if self.colour < 0 else self.colour * len(SHAPES) + self.shape

    def __str__(self) -> str:
        size, name = "large" if self.large else "small", NAMES[self.kind]
        return f"{size} {name if self.kind >= 0 else 'object of no known colour'}"


def connected_regions(mask: Tensor) -> Tensor:
    """A number above 0 for each 4-connected region of each picture, B H W."""
    count = mask[0].numel()
    labels = torch.arange(1.0, count + 1, device=mask.device).view(mask.shape[1:]) * mask
    while True:
        beside = F.max_pool2d(labels, (1, 3), 1, (0, 1))
        grown = torch.maximum(beside, F.max_pool2d(labels, (3, 1), 1, (1, 0))) * mask
        if torch.equal(grown, labels):
            return labels
        labels = grown


def read_objects(pictures: Tensor) -> list[list[_FoundObject]]:
    """The objects in each picture (B 3 S S, values from 0 to 1)."""
    pictures = pictures.detach().float().cpu().clamp(0, 1)
    scale = pictures.size(-1) / 32
    labels = connected_regions(1 - pictures.amin(dim=1) > _FOREGROUND)
    found = []
    for picture, regions in zip(pictures, labels, strict=True):
        numbers = [int(n) for n in regions.unique() if n]
        objects = [_measure(picture, regions, number, scale) for number in numbers]
        found.append([one for one in objects if one is not None])
    return found


def _measure(picture: Tensor, regions: Tensor, number: int, scale: float) -> _FoundObject | None:
    core = regions == number
    if core.sum() < _SPECK * scale**2:
        return None
    colour, nearest = _core_colour(picture[:, core])
    near = F.max_pool2d(core[None, None].float(), 3, 1, 1)[0, 0] > 0  # with its faint edge
    near &= (regions == number) | (regions == 0)
    tint = colour[:, None, None] - 1  # how full coverage changes white
    cover = ((picture - 1) * tint).sum(dim=0) / (tint**2).sum()
    cover = cover.clamp(0, 1) * near
    area, columns, rows = float(cover.sum()), cover.amax(dim=0), cover.amax(dim=1)
    width, height = float(columns.sum()), float(rows.sum())
    at = torch.arange(len(rows)) + 0.5
    x, y = (float((cover.sum(dim=d) * at).sum() / area) for d in (0, 1))
    middle = float((rows * at).sum()) / height
    low = (y - middle) / height  # the centre of a triangle lies below its middle
    shape = 2 if low > 0.06 else 1 if area / (width * height) > _FULL else 0
    large = max(width, height) / scale > _LARGE
    return _FoundObject(nearest, shape, large, x / scale, y / scale)


def _core_colour(pixels: Tensor) -> tuple[Tensor, int]:
    """The palette's colour nearest to the third of the pixels (3 N) farthest from white, or -1."""
    distance = (1 - pixels).square().sum(dim=0)
    keep = distance.topk(max(1, len(distance) // 3)).indices
    colour = pixels[:, keep].median(dim=1).values
    far = (_COLOURS - colour).square().sum(dim=1).sqrt()
    best = int(far.argmin())
    return _COLOURS[best], best if far[best] < _FAR else -1


@dataclass(frozen=True)
class Verdict:
    """What of a scene is in a picture."""

    objects: int  # that the scene has
    right: int  # of them found: shape, colour and, if said, size
    relations: int
    relations_right: int
    exact: bool  # all of it, and nothing else
    form: str  # of the scene, for scores by category


def judge(scenes: Scenes, sized: Tensor, found: list[list[_FoundObject]]) -> list[Verdict]:
    """Compare what was read with the scenes; a size that the caption does not say is free."""
    return [_judge_one(scenes, sized, i, objects) for i, objects in enumerate(found)]


def _judge_one(scenes: Scenes, sized: Tensor, row: int, found: list[_FoundObject]) -> Verdict:
    counts, kinds = scenes.count[row].tolist(), scenes.kind[row].tolist()
    large, said = scenes.large[row].tolist(), sized[row].tolist()
    there = Counter((one.kind, one.large) for one in found)
    right = 0
    members: list[list[_FoundObject]] = []
    for count, kind, big, matters in zip(counts, kinds, large, said, strict=True):
        fitting = [b for b in (big, not big) if b == big or not matters]
        right += min(count, sum(there[kind, b] for b in fitting))
        members.append([one for one in found if one.kind == kind])
    relations = [
        (r, members[0], members[i + 1])
        for i, r in enumerate(scenes.relation[row].tolist())
        if r >= 0
    ]
    held = sum(_holds(*one) for one in relations)
    several = max(counts) > 1
    form = f"{sum(c > 0 for c in counts)} groups" if several else f"{sum(counts)} objects"
    exact = right == sum(counts) == len(found) and held == len(relations)
    return Verdict(sum(counts), right, len(relations), held, exact, form)


def _holds(relation: int, first: list[_FoundObject], second: list[_FoundObject]) -> bool:
    """Whether all of the first are on that side of all of the second, by more than sideways."""
    apart = [(b.x - a.x, b.y - a.y) for a, b in product(first, second)]
    if not apart or any((dx, -dx, dy, -dy)[relation] < 3 for dx, dy in apart):
        return False
    dx, dy = (abs(fmean(side)) for side in zip(*apart, strict=True))
    return dx > dy if relation < 2 else dy > dx
