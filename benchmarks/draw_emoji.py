"""Draw held-out pairs of emoji, and recognise them by a classifier that knows nothing of the model.

    python benchmarks/draw_emoji.py RUN [RUN ...] [--captions 500] [--guidance 2] [--sheet FILE.png]

It is trained on the pictures that scenes are made of, in all sizes, on all backgrounds, noisy and
blurred. The widest empty strip of a picture parts its two objects.

The sheet has four rows: true pictures, their reconstructions, drawn for their captions, and the
nearest to these of 10,000 training pictures.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from draw_figure import nearest
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.draw.checker import Verdict
from limelight.draw.emoji import EmojiWorld
from limelight.draw.evaluate import Referee, shares
from limelight.draw.examples import open_pictures, seeded
from limelight.draw.png import to_pixels, write_png
from limelight.draw.scenes import Scenes
from limelight.loading import load
from limelight.training.console import Report

_CROP = 16  # pixels of what the classifier sees
_DIFFERS = 0.12  # from the background
_STEPS, _BATCH, _RATE = 1500, 256, 2e-3
_SHOWN = 12  # pictures in a row of the sheet


class EmojiChecker:
    """Reads which emoji are where in a picture."""

    def __init__(self, world: EmojiWorld) -> None:
        self.world = world
        torch.manual_seed(1)
        self.classifier = nn.Sequential(
            nn.Conv2d(3, 48, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(48, 96, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(96, 160, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(160 * (_CROP // 4) ** 2, len(world.names)),
        ).to(world.device)
        self.train()

    def train(self) -> None:
        optimizer = torch.optim.AdamW(self.classifier.parameters(), lr=_RATE, weight_decay=0.05)
        for step in range(_STEPS):
            generator = seeded(self.world.device, "emoji classifier", step)
            pictures, kinds = self.single(generator)
            for group in optimizer.param_groups:
                group["lr"] = _RATE * (1 - step / _STEPS)
            loss = F.cross_entropy(self.classifier(crops(pictures, foreground(pictures))), kinds)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()

    def single(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Pictures of one object each, as a bad printer might show them, and their kinds."""
        scenes = self.world.sampler.sample("train", _BATCH, generator)
        there = torch.zeros_like(scenes.there)
        there[:, 0] = True
        pictures = self.world.render(replace(scenes, there=there))
        noise, blur = (
            torch.rand(_BATCH, 1, 1, 1, generator=generator, device=pictures.device)
            for _ in range(2)
        )
        soft = F.avg_pool2d(F.pad(pictures, (1, 1, 1, 1), mode="replicate"), 3, 1)
        pictures = torch.lerp(pictures, soft, 0.7 * blur)
        normal = torch.randn(pictures.shape, generator=generator, device=pictures.device)
        return (pictures + 0.03 * noise * normal).clamp(0, 1), scenes.kind[:, 0]

    @torch.no_grad()
    def judge(self, scenes: Scenes, pictures: Tensor) -> list[Verdict]:
        """Whether both objects of each scene are recognised, and where they should be."""
        first, second, sideways = halves(foreground(pictures))
        kinds = [self.classifier(crops(pictures, half)).argmax(dim=1) for half in (first, second)]
        here = torch.stack(kinds, dim=1)  # left or top, right or bottom
        both = first.flatten(1).any(dim=1) & second.flatten(1).any(dim=1)
        relation = scenes.relation[:, 0]
        turned = relation % 2 == 1  # right of, below: the first stands behind the second
        wanted = torch.where(turned[:, None], scenes.kind[:, :2].flip(1), scenes.kind[:, :2])
        right = ((here == wanted) & both[:, None]).sum(dim=1)
        swapped = ((here.flip(1) == wanted) & both[:, None]).sum(dim=1)
        found = torch.maximum(right, swapped)
        related = (found == 2) & (right == 2) & (sideways == (relation < 2))
        return [
            Verdict(2, int(n), 1, int(r), bool(r), "2 objects")
            for n, r in zip(found, related, strict=True)
        ]


def foreground(pictures: Tensor) -> Tensor:
    """Pixels that differ from the background, which is what most of the frame shows, B S S."""
    frame = [pictures[..., 0, :], pictures[..., -1, :], pictures[..., 0], pictures[..., -1]]
    background = torch.cat(frame, dim=2).median(dim=2).values[..., None, None]
    return (pictures - background).abs().amax(dim=1) > _DIFFERS


def halves(mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The two sides of the widest empty strip, and whether they are side by side."""
    cuts = [_widest_gap(mask.any(dim=dim)) for dim in (1, 2)]  # of columns, of rows
    (column, width), (row, height) = cuts
    sideways = width >= height
    at = torch.arange(mask.size(1), device=mask.device)
    before = torch.where(
        sideways[:, None, None],
        (at < column[:, None])[:, None, :].expand_as(mask),
        (at < row[:, None])[:, :, None].expand_as(mask),
    )
    return mask & before, mask & ~before, sideways


def _widest_gap(used: Tensor) -> tuple[Tensor, Tensor]:
    """Where the widest empty stretch between used positions (B S) ends, and how wide it is."""
    size = used.size(1)
    at = torch.arange(size, device=used.device)
    last = torch.where(used, at, -1).cummax(dim=1).values  # the last used up to here
    before = F.pad(last[:, :-1], (1, 0), value=-1)
    gap = torch.where(used & (before >= 0), at - before - 1, -1)
    width, end = gap.max(dim=1)
    return end, width


def crops(pictures: Tensor, mask: Tensor) -> Tensor:
    """What the mask (B S S) encloses, less the background, scaled to one size."""
    size = mask.size(1)
    at = torch.arange(size, device=mask.device)
    edges = []
    for used in (mask.any(dim=1), mask.any(dim=2)):  # columns, rows
        low = torch.where(used, at, size).amin(dim=1)
        high = torch.where(used, at, -1).amax(dim=1) + 1
        edges.append((low.clamp(max=size - 1), torch.maximum(high, low + 1)))
    step = (torch.arange(_CROP, device=mask.device) + 0.5) / _CROP
    x, y = ((low[:, None] + (high - low)[:, None] * step) / size * 2 - 1 for low, high in edges)
    grid = torch.stack([x[:, None].expand(-1, _CROP, -1), y[:, :, None].expand(-1, -1, _CROP)], -1)
    frame = [pictures[..., 0, :], pictures[..., -1, :], pictures[..., 0], pictures[..., -1]]
    background = torch.cat(frame, dim=2).median(dim=2).values[..., None, None]
    inside = torch.where(mask[:, None], pictures - background, 0.0)
    return F.grid_sample(inside, grid, align_corners=False)


def main() -> None:
    wanted = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    wanted.add_argument("run", nargs="+")
    wanted.add_argument("--captions", type=int, default=500)
    wanted.add_argument("--guidance", type=float)
    wanted.add_argument("--temperature", type=float)
    wanted.add_argument("--sheet", type=Path)
    given = wanted.parse_args()
    changes = {k: v for k in ("guidance", "temperature") if (v := getattr(given, k)) is not None}
    checker: EmojiChecker | None = None
    for run in given.run:
        loaded = load(run)
        pictures = open_pictures(loaded.recipe, loaded.device, Report())
        checker = checker or EmojiChecker(pictures.world)
        tokenizer = loaded.image_tokenizer.to(loaded.device)
        decode = loaded.settings(**changes)
        referee = Referee(pictures, loaded.tokenizer, tokenizer, decode)
        scenes, captions = referee.scenes(given.captions, "test")
        true = referee.world.render(scenes)
        drawn = referee.draw(loaded.model, pictures.tokens(captions.words, loaded.tokenizer))
        with torch.no_grad():
            rebuilt = tokenizer(true)[0].clamp(0, 1)
        shown = {"truth": true, "reconstructions": rebuilt, "drawn": drawn}
        scores = {k: shares(checker.judge(scenes, each)) for k, each in shown.items()}
        if given.sheet:
            rows = [part[:_SHOWN] for part in (*shown.values(), nearest(drawn[:_SHOWN], referee))]
            write_png(given.sheet, to_pixels(torch.cat(rows)), _SHOWN)
        print(json.dumps({"run": run, "emoji": len(checker.world.names), **changes, **scores}))


if __name__ == "__main__":
    main()
