"""A plan, looked over before anything is made: what could not be done is refused with a sentence.

Whether a recipe can be trained at all, whether it fits the run that it shall go on with, and the
model that it shall begin from.
"""

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from limelight.data.config import DataConfig, num_columns
from limelight.data.corpora import corpora_for_split
from limelight.data.readers import raw_lines
from limelight.data.tokenizer import Tokenizer
from limelight.errors import UserError, unknown_name
from limelight.loading import LoadedModel
from limelight.recipe import Recipe, recipe_from_run
from limelight.run.atomic import latest_valid, list_checkpoints, was_used_before
from limelight.run.bundled_models import canonical_name, find_run
from limelight.run.folder import PARTS, RunFolder
from limelight.run.weights import step_of
from limelight.training.config import TrainConfig
from limelight.training.loop import VALIDATION_METRICS

_RESUMABLE_CHANGES = {  # of [train], when a run is resumed: none of them alters what a step does
    *("steps", "checkpoint_every", "validate_every", "keep_checkpoints", "patience", "metric"),
    *("log_every", "average_checkpoints", "data_workers", "device"),
}
_NO_DATA = "the recipe names no data to train on: say --data.train FILE ..., or --data.name"
_FINETUNE_CHANGES = {  # of [model], with --from: may differ, or shows in the shapes of the weights
    *("dropout", "attention_dropout", "classes", "sentence_pairs", "max_len", "d_ff", "kv_heads"),
}


def named_folder(run: str | Path) -> RunFolder:
    """The folder of this name; an empty one, as of a variable that is not set, is none."""
    if not isinstance(run, str | os.PathLike):
        raise UserError(f"run={run!r:.80} is no folder: name it with a str or a Path")
    if not os.fspath(run):  # the path would be the folder that one is in
        raise UserError("run is empty: name a folder, or . for this one")
    return RunFolder(Path(run))


def check_run_folder(run: RunFolder) -> None:
    """Refuse a folder with files that a run would write over, and that no run of ours has left."""
    if run.exists or was_used_before(run.path):
        return
    if foreign := [name for name in PARTS if (run.path / name).exists()]:
        raise UserError(
            f"{run.path} is no run, and has a {foreign[0]} that would be lost: choose another "
            "folder"
        )


def check_data(data: DataConfig) -> None:
    """Refuse data that is not there, or empty, before there is a folder for what comes of it."""
    corpora = data.corpora or (data,)
    elsewhere = any(part.name or part.hub or part.toy for part in corpora)
    train, valid = (
        [Path(file) for part in (data, *data.corpora) for file in getattr(part, split)]
        for split in ("train", "valid")
    )
    if not train and not elsewhere:
        raise UserError(_NO_DATA)
    empty = [file for file in (*train, *valid) if next(raw_lines(file), None) is None]
    if not elsewhere and set(train) <= set(empty):
        raise UserError(f"there is no example to train on: {train[0]} is empty")


def check_steps(recipe: Recipe, run: RunFolder) -> None:
    """A run cannot go back to fewer steps than it has taken."""
    taken = max(map(step_of, list_checkpoints(run.checkpoints)), default=0) if run.exists else 0
    if taken > recipe.train.steps:
        raise UserError(
            f"{run.path} has taken {taken} steps already, and --train.steps is "
            f"{recipe.train.steps}: ask for at least {taken}, or choose another folder"
        )


def check_plan(recipe: Recipe, data: DataConfig) -> None:
    """Refuse, before anything is made, a training that could not do what its recipe says."""
    config, model = recipe.train, recipe.model
    if not corpora_for_split(data, "train"):  # a dataset of the hub may have none
        raise UserError(_NO_DATA)
    measured = metrics_of(recipe, data)
    if config.metric not in measured:
        raise unknown_name("metric", config.metric, measured)
    if not corpora_for_split(data, "valid"):
        check_unvalidated(config)
    if getattr(model, "sentence_pairs", False):
        raise UserError(
            "sentence_pairs=true adds a head for pairs of sentences, as published BERTs have it, "
            "but there is no data here to train it with: set --model.sentence-pairs false"
        )
    if config.fsdp and config.batch_tokens == "auto":
        raise UserError(
            "batch_tokens='auto' tries the whole model on one device, and fsdp=true is for those "
            "that fit on none: set --train.batch-tokens 4096, and more if it fits"
        )
    fills_blanks = model.family == "encoder-only" and not getattr(model, "classes", 0)
    if fills_blanks and not config.mask_rate:
        raise UserError(
            "mask_rate=0 hides no token, so there is nothing to fill in and nothing to learn: "
            "set --train.mask-rate 0.15"
        )


def check_compiler(config: TrainConfig, device: torch.device) -> None:
    """On a CPU a compiled model is C++; that nothing here can compile it is known beforehand."""
    if not config.compile or device.type != "cpu":
        return
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler
    except ImportError:  # torch's own affair: where another version has moved it, torch will tell
        return
    try:
        get_cpp_compiler()
    except RuntimeError as error:
        raise UserError(
            "compile=true needs a C++ compiler, and there is none here: install g++, name yours in "
            "the environment variable CXX, or set --train.compile false"
        ) from error


def metrics_of(recipe: Recipe, data: DataConfig) -> tuple[str, ...]:
    """What a validation measures for this task; a model that is shared out cannot write."""
    if recipe.train.fsdp or num_columns(data) == 1:
        return VALIDATION_METRICS
    return (*VALIDATION_METRICS, "bleu", "chrf2", *(["exact"] if data.toy else []))


def check_unvalidated(config: TrainConfig) -> None:
    """Without validation texts nothing can be seen to improve, or not to."""
    for name, usual in (("patience", 0), ("metric", "loss")):
        if getattr(config, name) != usual:
            raise UserError(
                f"{name}={getattr(config, name)!r} looks at validation texts, and there are none: "
                f"say --data.valid FILE ... or --data.hold-out 0.01, or set --train.{name} {usual}"
            )


def check_init_from(run: RunFolder, start_from: str | Path | None) -> str:
    """The run that this one began with, or "". One that goes on cannot begin with another."""
    said = canonical_name(find_run(start_from)) if start_from else ""
    if not run.exists:
        return said
    before = str(run.environment().get("from", said))
    if said and said != before:
        raise UserError(
            f"{run.path} was begun from {before or 'no other run'}, and this is from {said}: go on "
            "without --from, or choose another folder"
        )
    if before and not said and latest_valid(run.checkpoints)[0] is None:
        raise UserError(f"{run.path} has saved nothing yet: say --from {before} again")
    return before


def reconcile_with_run(recipe: Recipe, tokenizer: Tokenizer, run: RunFolder) -> Recipe:
    """The recipe with as many tokens as the tokenizer has; or as in the run that it goes on with.

    A change that would alter the model or the order of the data is refused.
    """
    if len(tokenizer) > recipe.model.vocab:
        raise UserError(
            f"the tokenizer has {len(tokenizer)} tokens, but the model knows only "
            f"{recipe.model.vocab}: set model.vocab"
        )
    if recipe.model.vocab == recipe.tokenizer.vocab:  # a small text may have given fewer
        vocab = len(tokenizer)
        learned = replace(recipe.tokenizer, vocab=vocab)
        recipe = replace(recipe, model=replace(recipe.model, vocab=vocab), tokenizer=learned)
    if not run.exists:
        return recipe
    before = recipe_from_run(run)
    if recipe.train.batch_tokens == "auto":
        train = replace(recipe.train, batch_tokens=before.train.batch_tokens)
        recipe = replace(recipe, train=train)
    for table in ("model", "data", "tokenizer", "train"):
        old, new = (asdict(getattr(r, table)) for r in (before, recipe))
        for key in old | new:
            if (table != "train" or key not in _RESUMABLE_CHANGES) and old.get(key) != new.get(key):
                raise UserError(
                    f"{run.path} was begun with {table}.{key} = {old.get(key)}, and this is "
                    f"{new.get(key)}: resume it as it was, or choose another folder"
                )
    return recipe


def check_same_tokenizer(recipe: Recipe, origin: LoadedModel) -> None:
    """A model goes on with the tokenizer that it learned with."""
    ours, theirs = recipe.tokenizer.kind, origin.recipe.tokenizer.kind
    if ours != theirs:
        raise UserError(
            f"tokenizer.kind is {ours!r} in this recipe and {theirs!r} in the model to start from "
            f"({origin.recipe.name}), which cannot learn another: set --tokenizer.kind {theirs}"
        )


def check_same_architecture(ours: dict[str, Any], origin: LoadedModel) -> None:
    """Weights of the same shapes mean something else with other heads, norms or positions."""
    theirs = asdict(origin.recipe.model)
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in _FINETUNE_CHANGES and ours.get(name) != theirs.get(name):
            raise UserError(
                f"model.{name} is {ours.get(name)} in this recipe and {theirs.get(name)} in the "
                f"model to start from ({origin.recipe.name}): [model] must be the same"
            )
