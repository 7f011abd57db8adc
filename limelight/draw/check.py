"""`limelight data check` for pictures: how many there are, and what cannot be used."""

from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from limelight.draw.examples import PictureFiles, open_pictures
from limelight.recipe import Recipe, with_overrides
from limelight.training.console import Report


def check_pictures(recipe: Recipe) -> dict[str, Any]:
    """What a training would read, as a JSON document."""
    recipe = with_overrides(recipe, {"train.max_unusable": 1.0})  # all is listed, not refused
    pictures = open_pictures(recipe, torch.device("cpu"), Report(silent=True))
    if isinstance(pictures, PictureFiles):
        counts = {split: pictures.count(split) for split in pictures.captions}
        return {"pictures": counts, "unusable": pictures.stats.rejected}
    pairs = pictures.world.sampler.first_two  # both orders of each
    combinations = {split: len(found) // 2 for split, found in pairs.items()}
    return {"scenes": recipe.data.scenes, "combinations": combinations}


def show_pictures(report: dict[str, Any], console: Console) -> None:
    """Print it as sentences."""
    counts = report.get("pictures") or report["combinations"]
    listed = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    if "scenes" in report:
        console.print(
            f"{report['scenes']}: the package makes these pictures without end while it trains, so "
            f"there is no file to check. Combinations of two kinds of objects: {listed}"
        )
        return
    console.print(f"pictures: {listed}")
    for why, names in report["unusable"].items():
        console.print(Text(f"{len(names):,} {why}: {', '.join(names)}", "yellow"))
