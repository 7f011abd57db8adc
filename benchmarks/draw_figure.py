"""The figure of docs/draw.md: the first test captions, not picked, and what a model draws for them.

    python benchmarks/draw_figure.py draw docs/pictures/draw.png

Beside each picture is the nearest of 10,000 training pictures, by squared difference of pixels: a
model that copied would show the same picture twice.
"""

import argparse
import textwrap

import torch
from torch import Tensor

from limelight.draw.evaluate import Referee
from limelight.draw.examples import open_pictures, seeded
from limelight.draw.png import to_pixels
from limelight.loading import load
from limelight.training.console import Report

_SHOWN, _COLUMNS, _TRAINED, _BATCH = 12, 4, 10_000, 500


def nearest(pictures: Tensor, referee: Referee) -> Tensor:
    """The training picture nearest to each of these, B 3 S S."""
    best, found = pictures.new_full((len(pictures),), torch.inf), pictures.clone()
    for part in range(_TRAINED // _BATCH):
        generator = seeded(pictures.device, "figure", part)
        scenes = referee.world.sampler.sample("train", _BATCH, generator)
        made = referee.world.render(scenes)
        distance, which = torch.cdist(pictures.flatten(1), made.flatten(1)).min(dim=1)
        nearer = distance < best
        best, found[nearer] = torch.where(nearer, distance, best), made[which[nearer]]
    return found


def main() -> None:
    from matplotlib import pyplot

    wanted = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    wanted.add_argument("run")
    wanted.add_argument("file")
    given = wanted.parse_args()
    loaded = load(given.run, device="cpu", precision="float32")
    pictures = open_pictures(loaded.recipe, loaded.device, Report(silent=True))
    referee = Referee(pictures, loaded.tokenizer, loaded.image_tokenizer, loaded.decode)
    captions, drawn, verdicts = referee.judged(loaded.model, _SHOWN, "test")
    both = zip(to_pixels(drawn), to_pixels(nearest(drawn, referee)), strict=True)
    figure = pyplot.figure(figsize=(9.6, 6.6), dpi=100, layout="constrained")
    parts = figure.subfigures(_SHOWN // _COLUMNS, _COLUMNS).flat
    for part, caption, pair, verdict in zip(parts, captions, both, verdicts, strict=True):
        title = "\n".join(textwrap.wrap(caption, 34)) + ("" if verdict.exact else "\n(wrong)")
        part.suptitle(title, fontsize=7.5)
        for axes, pixels, name in zip(
            part.subplots(1, 2), pair, ("drawn", "nearest trained on"), strict=True
        ):
            axes.imshow(pixels, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_xlabel(name, fontsize=7)
    figure.savefig(given.file, pil_kwargs={"optimize": True})


if __name__ == "__main__":
    main()
