"""Tiny recipes of every family, and a way to train them without leaving the process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from limelight.data.config import DataConfig
from limelight.data.tokenizer import TokenizerConfig
from limelight.model import model_config
from limelight.recipe import Recipe
from limelight.run.atomic import MANIFEST, sha256_of, write_manifest
from limelight.run.folder import RunFolder
from limelight.run.log import read_log, without_timing
from limelight.training.config import TrainConfig
from limelight.training.console import Report
from limelight.training.distributed import init_distributed
from limelight.training.loop import fit
from limelight.training.loss import LossSums, sum_loss
from limelight.training.trainer import Trainer
from limelight.workflows.build import build_trainer
from limelight.workflows.train import lock_run

Settings = dict[str, Any]


def cross_entropy_reference(
    states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0
) -> LossSums:
    """The loss without chunks: all logits at once, and torch's own cross-entropy."""
    return sum_loss(F.linear(states, weight, bias).flatten(0, -2), labels.flatten(), smoothing)


def tiny(
    family: str = "encoder-decoder",
    data: DataConfig | None = None,
    model: Settings | None = None,
    **train: Any,
) -> Recipe:
    """A model of a few thousand numbers that reverses letters, or learns from other data."""
    shape: Settings = {"vocab": 261, "layers": 1, "d_model": 8, "max_len": 32}
    if not family.startswith("recurrent"):
        shape |= {"heads": 2, "d_ff": 8}
    usual = {
        "steps": 10,
        "batch_tokens": 40,
        "warmup": 10,
        "average_checkpoints": 0,
        "log_every": 1,
    }
    usual["learning_rate"] = 0.1 if train.get("schedule", "paper") == "paper" else 0.003
    return Recipe(
        "tiny",
        model_config(family=family, **{**shape, **(model or {})}),
        data or DataConfig(toy="reverse", toy_examples=60, toy_length=3),
        TokenizerConfig(kind="char", vocab=261),
        TrainConfig(**{**usual, **train}),
    )


def texts(folder: Path) -> DataConfig:
    """Lines of text, for language models and for BERT."""
    lines = [f"{a}{b}{c} {a}{c}" for a in "abc" for b in "de" for c in "fgh"]
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
    files = {split: (str(folder / f"{split}.txt"),) for split in ("train", "valid", "test")}
    return DataConfig(kind="texts", **files)


def labelled(folder: Path) -> DataConfig:
    """Texts with two classes: which letter stands first?"""
    lines = [f"{a}{'bc' * n}\t{'one' if a == 'x' else 'two'}" for a in "xy" for n in range(9)]
    for split in ("train", "valid"):
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    files = {split: (str(folder / f"{split}.tsv"),) for split in ("train", "valid")}
    return DataConfig(kind="labelled", **files)


def train_in(
    folder: Path,
    recipe: Recipe,
    start_from: Path | None = None,
    touch: Callable[[Trainer], None] = lambda _: None,
    expect: int = 0,
) -> Trainer:
    """What `limelight.train` does, but for the picture, which takes longer than all the rest.

    With `touch` a test can lay a hand on what is trained.
    """
    run = RunFolder(folder)
    with init_distributed(recipe.train) as world, lock_run(run, world):
        trainer = build_trainer(recipe, run, world, Report(silent=True), start_from)
        touch(trainer)
        assert fit(trainer) == expect
    return trainer


def hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file in a folder; what TensorBoard gets is full of times."""
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.parent.name != "tensorboard"
    )
    return {str(path.relative_to(folder)): sha256_of(path) for path in files}


def rewrite(checkpoint: Path, change: Callable[[Path], None]) -> None:
    """Alter the files of a checkpoint, and vouch for them as if nothing had happened."""
    (checkpoint / MANIFEST).unlink()
    change(checkpoint)
    write_manifest(checkpoint)


def accept(run: Path) -> None:
    """Have changed files of a run accepted: their hashes are removed."""
    told = json.loads((run / "run.json").read_text())
    told.pop("sha256", None)
    (run / "run.json").write_text(json.dumps(told))


def log_of(folder: Path) -> list[Settings]:
    """The log of a run, without what differs between any two."""
    return [without_timing(entry) for entry in read_log(folder / "log.jsonl")]
