"""Trainings of an experiment, each in a run folder of its own: an interrupted one is resumed."""

from pathlib import Path
from typing import Any

import numpy as np

from limelight.data.registry import with_registry_defaults
from limelight.errors import FailedError
from limelight.recipe import Overrides, Recipe, with_overrides
from limelight.run.folder import RunFolder
from limelight.run.log import read_log
from limelight.workflows.preflight import metrics_of
from limelight.workflows.train import train


def _score_of(recipe: Recipe) -> str:
    """The metric by which variants of a recipe are compared."""
    measured = metrics_of(recipe, with_registry_defaults(recipe.data))
    return next(name for name in ("exact", "bleu", "accuracy") if name in measured)


def shortened(recipe: Recipe, steps: int, validations: int = 1) -> Recipe:
    """The recipe with this many steps, validated some times and saved at the end."""
    changes: dict[str, Any] = {"steps": steps, "warmup": min(recipe.train.warmup, steps // 5)}
    changes |= {"validate_every": -(-steps // validations), "checkpoint_every": steps}
    changes |= {"log_every": max(1, steps // 50), "metric": _score_of(recipe)}
    changes |= {"patience": 0, "average_checkpoints": 0}
    return with_overrides(recipe, {f"train.{name}": value for name, value in changes.items()})


def train_in(folder: Path, recipe: Recipe, changes: Overrides = ()) -> dict[str, Any]:
    """Train, and what the log says of it: the last losses and scores, tokens and the curve."""
    recipe, failed = with_overrides(recipe, changes), ""
    try:
        if signal := train(recipe, folder, silent=True):
            raise KeyboardInterrupt(signal)
    except FailedError as error:  # a variant may well diverge
        failed = str(error)
    entries = list(read_log(RunFolder(folder).log))
    steps = [entry for entry in entries if "lr" in entry]
    valid = [entry for entry in entries if entry.get("validation")]
    done, tokens = ([0, *(entry[key] for entry in steps)] for key in ("step", "tokens"))
    curve = [[float(np.interp(entry["step"], done, tokens)), entry["loss"]] for entry in valid]
    last = valid[-1] if valid and not failed else {}
    return {
        "failed": failed,
        "metric": _score_of(recipe),  # which the score is
        "training_loss": steps[-1]["loss"] if last else None,
        "loss": last.get("loss"),
        "score": last.get(_score_of(recipe)),
        "tokens": tokens[-1],
        "minutes": max((entry.get("seconds", 0.0) for entry in entries), default=0.0) / 60,
        "curve": curve,
    }
