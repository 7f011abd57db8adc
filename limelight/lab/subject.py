"""What some experiments examine: a run, or a recipe with its data."""

from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from limelight.data.config import SPLITS, DataConfig
from limelight.data.datasets import Rows
from limelight.data.input_files import cached_sha256
from limelight.data.tokenizer import Tokenizer
from limelight.errors import UserError
from limelight.recipe import Recipe, load_recipe, recipe_from_run, write_recipe
from limelight.run.bundled_models import find_run
from limelight.training.batch_size import SMALLEST, available_memory
from limelight.training.console import Report
from limelight.training.distributed import World
from limelight.workflows import preflight
from limelight.workflows.build import memory_of
from limelight.workflows.datasets import TokenizedData, class_names, tokenize_splits
from limelight.workflows.info import short


def fingerprint(kind: str, name: str) -> str:
    """A hash of what results depend on: settings, and a recipe's files or a run's weights."""
    if kind == "RUN":
        run = find_run(name)
        weights, _ = run.weights(lambda _: None)
        content = [
            write_recipe(recipe_from_run(run)),
            (weights / "MANIFEST.json").read_text("utf-8"),
        ]
    else:
        recipe = load_recipe(name)
        preflight.check_data(recipe.data)
        parts = (recipe.data, *recipe.data.corpora)
        files = [file for part in parts for split in SPLITS for file in getattr(part, split)]
        content = [write_recipe(recipe), *(cached_sha256(Path(file))[0] for file in files)]
    return sha256("\0".join(content).encode()).hexdigest()[:16]


def check_memory(recipe: Recipe, available: int = 0) -> None:
    """Refuse a training that this machine has too little memory for."""
    tokens, there = recipe.train.batch_tokens, available or available_memory()
    needed = memory_of(recipe, tokens if isinstance(tokens, int) else SMALLEST)
    if needed > there:
        smaller = max(SMALLEST, recipe.model.max_len)
        raise UserError(
            f"to train {recipe.name} takes about {short(needed, 'B')}, and {short(there, 'B')} are "
            f"free here: set batch_tokens to {smaller}, or fewer layers or a smaller d_model, in a "
            "recipe of your own"
        )


def tokenize(
    recipe: Recipe,
    data: DataConfig,
    tokenizer: Tokenizer,
    splits: tuple[str, ...],
    classes: tuple[str, ...] = (),
) -> TokenizedData:
    """Splits of some data as tokens, for batches of the recipe's model."""
    world = World(torch.device("cpu"))
    stores = tokenize_splits(data, splits, tokenizer, world, Report(silent=True))
    classes = classes or class_names(recipe, data, stores[splits[0]])
    return TokenizedData(recipe, data, tokenizer, stores, classes, world)


def spread_out(rows: Rows, count: int) -> Rows:
    """Some of the rows, from everywhere: files are often sorted by topic."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, count).astype(int))]
