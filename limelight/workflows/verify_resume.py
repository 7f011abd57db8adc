"""`limelight train --verify-resume`: the proof that an interruption changes nothing."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import torch

from limelight.errors import FailedError, UserError, path_from_option
from limelight.files import temp_sibling
from limelight.recipe import Recipe, recipe_from_run
from limelight.run.atomic import make_folder, sha256_of
from limelight.run.folder import RunFolder
from limelight.run.weights import name_of
from limelight.training.console import Report
from limelight.workflows.train import train

_STEPS = 6


def verify_resume(recipe: Recipe, run: str | Path, start_from: str | Path | None = None) -> int:
    """Prove on this recipe that resuming changes nothing, and write a certificate into the run.

    It trains a few steps twice, once without a break and once with one in the middle, and compares
    every byte of the checkpoints. Returns 0, or the signal that stopped it, as `train` does.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("--verify-resume is for one process: run it without torchrun")
    report = Report()
    report.say(f"{_STEPS} steps without a break; then {_STEPS // 2}, a break, {_STEPS // 2}")
    with path_from_option("--run"):
        make_folder(Path(run))
    temporary = temp_sibling(Path(run) / "proof")  # on the same disk as the run
    try:
        signal, hashes = _run_twice(recipe, temporary, start_from)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if signal:
        return signal
    same = hashes[0] == hashes[1]
    certificate = {
        "recipe": recipe.name,
        "steps": _STEPS,
        "broken_after": _STEPS // 2,
        "equal": same,
        "uninterrupted": hashes[0],
        "resumed": hashes[1],
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    RunFolder(Path(run)).write_json("resume-certificate.json", certificate)
    if not same:
        raise FailedError(
            f"a resumed run differs from an uninterrupted one; see {run}/resume-certificate.json"
        )
    report.say(f"equal to the last bit: see {run}/resume-certificate.json", "green")
    return 0


def _run_twice(
    recipe: Recipe, folder: Path, start_from: str | Path | None
) -> tuple[int, list[dict[str, str]]]:
    """The hashes of the last checkpoint without a break and with one; or the signal of `train`."""
    short = replace(
        recipe.train,
        steps=_STEPS,
        warmup=min(recipe.train.warmup, _STEPS - 1),
        checkpoint_every=_STEPS // 2,
        validate_every=_STEPS,
        keep_checkpoints=2,
    )
    recipe = replace(recipe, train=short)
    uninterrupted, resumed = (RunFolder(folder / name) for name in ("uninterrupted", "resumed"))
    for run in (uninterrupted, resumed, resumed):
        if run.finished.is_dir():  # as if it had been killed in the middle
            shutil.rmtree(run.checkpoints / name_of(_STEPS))
            shutil.rmtree(run.finished)
        signal = train(recipe, run.path, start_from=start_from, silent=True)
        if signal:
            return signal, []
        recipe = replace(recipe, train=recipe_from_run(run).train)  # "auto" is decided once
    last = [run.checkpoints / name_of(_STEPS) for run in (uninterrupted, resumed)]
    return 0, [{path.name: sha256_of(path) for path in sorted(f.iterdir())} for f in last]
