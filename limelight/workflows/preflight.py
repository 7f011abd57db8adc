"""Checks before anything is written, each with an error that says what to change.

Can a recipe be trained at all? Does it match the run to resume, or the model to start from?
"""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from limelight.data.config import NO_DATA, DataConfig, num_columns
from limelight.data.corpora import corpora_for_split, read_split
from limelight.data.input_files import find_files, raw_lines
from limelight.data.lines import LineStats
from limelight.data.tokenizer import Tokenizer
from limelight.errors import UserError, unknown_name
from limelight.loading import LoadedModel, load
from limelight.model import ModelConfig, RecurrentConfig
from limelight.model.config import AnyConfig
from limelight.network import base_of, check_base
from limelight.recipe import Recipe, recipe_from_run, with_absolute_paths
from limelight.run.atomic import latest_valid, list_checkpoints, was_used_before
from limelight.run.bundled_models import canonical_name, find_run
from limelight.run.folder import PARTS, RunFolder
from limelight.run.weights import step_of
from limelight.training.config import TrainConfig
from limelight.training.distributed import World
from limelight.training.evaluate import VALIDATION_METRICS
from limelight.training.tensor_parallel import check_divisible
from limelight.workflows.datasets import is_sentence_encoder

_RESUMABLE_CHANGES = {  # of [train], when a run is resumed: none of them alters what a step does
    *("steps", "checkpoint_every", "validate_every", "keep_checkpoints", "patience", "metric"),
    *("log_every", "log_to", "average_checkpoints", "data_workers", "device", "max_unusable"),
    *("activation_checkpointing", "fsdp", "tensor_parallel"),
}
_ENOUGH = 10_000  # examples to tell that a share of them can be held out
_FINETUNE_CHANGES = {  # of [model], with --from: may differ, or shows in the shapes of the weights
    *("dropout", "attention_dropout", "classes", "masked_head", "sentence_pairs", "max_len"),
    *("d_ff", "kv_heads"),
}


def named_folder(run: str | Path) -> RunFolder:
    """The run folder of this name; an empty name, as of an unset variable, is rejected."""
    if not isinstance(run, str | os.PathLike):
        raise UserError(f"run={run!r:.80} must name a folder, as a str or a Path")
    if not os.fspath(run):  # it would be the current folder
        raise UserError("run is empty: name a folder, or . for this one")
    return RunFolder(Path(run))


def check_run_folder(run: RunFolder) -> None:
    """Reject a folder with files that a run would overwrite, and that no run has left."""
    if run.exists or was_used_before(run.path):
        return
    if foreign := [name for name in PARTS if (run.path / name).exists()]:
        raise UserError(
            f"{run.path} is no run, and has a {foreign[0]} that would be lost: choose another "
            "folder"
        )


def check_data(data: DataConfig) -> None:
    """Reject missing or empty data before the run folder is created."""
    if data.kind == "images":
        return  # it is opened, and checked, before anything is written
    corpora = data.corpora or (data,)
    elsewhere = any(part.name or part.hub or part.toy for part in corpora)
    train, valid = (
        find_files(file for part in (data, *data.corpora) for file in getattr(part, split))
        for split in ("train", "valid")
    )
    if not train and not elsewhere:
        raise UserError(NO_DATA)
    empty = [file for file in (*train, *valid) if next(raw_lines(file), None) is None]
    if not elsewhere and set(train) <= set(empty):
        raise UserError(f"there is no example to train on: {train[0]} is empty")


def check_steps(recipe: Recipe, run: RunFolder) -> None:
    """A run cannot go back to fewer steps than it has done."""
    done = max(map(step_of, list_checkpoints(run.checkpoints)), default=0) if run.exists else 0
    if done > recipe.train.steps:
        raise UserError(
            f"{run.path} has done {done} steps already, and --train.steps is "
            f"{recipe.train.steps}: ask for at least {done}, or choose another folder"
        )


def check_plan(recipe: Recipe, data: DataConfig) -> None:
    """Reject a training that could not do what its recipe says."""
    config, model = recipe.train, recipe.model
    if not corpora_for_split(data, "train"):  # a dataset of the hub may have none
        raise UserError(NO_DATA)
    measured = metrics_of(recipe, data)
    if config.metric not in measured:
        raise unknown_name("metric", config.metric, measured)
    if not corpora_for_split(data, "valid"):
        check_unvalidated(config, data)
    if getattr(model, "sentence_pairs", False):
        raise UserError(
            "sentence_pairs=true adds BERT's head for pairs of sentences, but there is no data "
            "here to train it with: set --model.sentence-pairs false"
        )
    check_divisible(model, config.tensor_parallel, config.lora_rank)
    if config.activation_checkpointing != "off" and not isinstance(model, ModelConfig):
        raise UserError(
            f"activation_checkpointing={config.activation_checkpointing!r} is for the layers of a "
            "Transformer: set --train.activation-checkpointing off"
        )
    if config.sharded and config.batch_tokens == "auto":
        raise UserError(
            "batch_tokens='auto' tries the full model on one device, and fsdp=true is for models "
            "that fit on none: set --train.batch-tokens 4096, and more if it fits"
        )
    _check_packing(config, model, data)
    if config.class_weights and data.kind != "labelled":
        raise UserError(f"class_weights=true is for labelled texts, and the data are {data.kind}")
    for name in ("label_smoothing", "rdrop_alpha"):
        if is_sentence_encoder(recipe) and getattr(config, name):
            raise UserError(
                f"{name}={getattr(config, name)} is for models that predict tokens or classes, and "
                f"this one compares texts: set --train.{name.replace('_', '-')} 0"
            )
    masked_lm = model.family == "encoder-only" and data.kind == "texts"
    if masked_lm and not config.mask_rate:
        raise UserError(
            "mask_rate=0 masks no token, so there is nothing to predict and nothing to learn: "
            "set --train.mask-rate 0.15"
        )


def _check_packing(config: TrainConfig, model: AnyConfig, data: DataConfig) -> None:
    """Texts share rows only where a mask can keep them apart."""
    if not config.pack:
        return
    attends = isinstance(model, ModelConfig) and model.decoder_cell == "attention" and model.mask
    if model.family != "encoder-decoder" or data.kind not in ("pairs", "dialogues") or not attends:
        raise UserError(
            f"pack={config.pack} puts several pairs into a row, for a Transformer of "
            f"family='encoder-decoder' that attends with a mask; this is family={model.family!r}: "
            "set --train.pack 0"
        )
    if isinstance(config.batch_tokens, int) and config.pack > config.batch_tokens:
        raise UserError(
            f"pack={config.pack} is longer than a batch of batch_tokens={config.batch_tokens}: "
            f"set --train.pack to {config.batch_tokens} or less"
        )


def check_usable(tally: LineStats, too_long: int, recipe: Recipe) -> None:
    """Reject data of which little is left: a wrong column, encoding or max_len is the likely cause.

    What remains is hardly what the user means to train on, and its scores would look like results.
    """
    used = tally.used - too_long
    rejected = tally.rejected + Counter({f"longer than max_len={recipe.model.max_len}": too_long})
    found = LineStats(tally.read, used, rejected, examples=tally.examples)
    if used < (1 - recipe.train.max_unusable) * (used + sum(found.faults.values())):
        raise UserError(
            f"{found.unusable}, and {used:,} are left to train on. Run limelight data check to see "
            f"them{found.first_fault}, and mend the files or the settings; or train on the rest "
            "with --data.allow-bad"
        )


def check_compiler(config: TrainConfig, device: torch.device) -> None:
    """On a CPU, torch.compile needs a C++ compiler: find out early whether there is one."""
    if not config.compile or device.type != "cpu":
        return
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler
    except ImportError:  # another version of torch has moved it, and will report this itself
        return
    try:
        get_cpp_compiler()
    except RuntimeError as error:
        raise UserError(
            "compile=true needs a C++ compiler, and there is none here: install g++, name yours in "
            "the environment variable CXX, or set --train.compile false"
        ) from error


def metrics_of(recipe: Recipe, data: DataConfig) -> tuple[str, ...]:
    """The metrics of a validation for this task; a sharded model cannot decode."""
    if data.kind == "labelled":
        return tuple(name for name in VALIDATION_METRICS if name != "perplexity")
    if recipe.train.sharded or num_columns(data) == 1 or recipe.model.family == "encoder-only":
        return VALIDATION_METRICS
    return (*VALIDATION_METRICS, "bleu", "chrf2", *(["exact"] if data.toy else []))


def check_unvalidated(config: TrainConfig, data: DataConfig) -> None:
    """Reject settings that need validation texts."""
    usual = {"patience": 0, "metric": "loss"}
    given = {name: getattr(config, name) for name in usual}
    wrong = [name for name in usual if given[name] != usual[name]]
    if wrong:
        share = _share_to_hold_out(data)
        held = f" or --data.hold-out {share}" if share else ""
        off = " ".join(f"--train.{name} {usual[name]}" for name in wrong)
        raise UserError(
            f"{wrong[0]}={given[wrong[0]]!r} needs validation texts, and there are none: "
            f"use --data.valid FILE ...{held}, or set {off}"
        )


def check_labels(data: DataConfig, trained: Iterable[str], held: Iterable[str]) -> None:
    """Reject a share that holds all texts of a label out of the training."""
    labels, missing = {*trained}, {*held} - {*trained}
    if not data.hold_out or (len(labels) > 1 and not missing):
        return
    share = _share_to_hold_out(data)
    if missing or share:  # else there is one label in all
        left = f"no text of the label {min(missing)!r}" if missing else "one label"
        other = f"--data.hold-out {share}" if share else "--data.valid FILE instead"
        raise UserError(f"hold_out={data.hold_out} leaves {left} to train on: use {other}")


def _share_to_hold_out(data: DataConfig) -> float:
    """The first of some shares that leaves texts to train on and to validate with; 0: none does."""
    if data.test or data.stream or data.corpora or data.hub or data.toy:
        return 0.0
    for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4):
        held = replace(data, valid=(), valid_tail=0.0, hold_out=share)
        train, valid = ([*islice(read_split(held, split), _ENOUGH)] for split in ("train", "valid"))
        labels, held_labels = ({example[-1] for example in some} for some in (train, valid))
        learned = len(labels) > 1 and held_labels <= labels
        if train and valid and (learned or data.kind != "labelled"):
            return share
    return 0.0


def check_init_from(run: RunFolder, start_from: str | Path | None) -> str:
    """The run that this one starts from, or "". A resumed run cannot change it."""
    given = canonical_name(find_run(start_from)) if start_from else ""
    if not run.exists:
        return given
    before = str(run.environment().get("from", given))
    if given and given != before:
        raise UserError(
            f"{run.path} was begun from {before or 'no other run'}, and this is from {given}: "
            "resume without --from, or choose another folder"
        )
    if before and not given and latest_valid(run.checkpoints)[0] is None:
        raise UserError(f"{run.path} has saved nothing yet: use --from {before} again")
    return before


def load_origin(
    recipe: Recipe, run: RunFolder, start_from: str | Path | None
) -> LoadedModel | None:
    """The model to start from, if there is one. LoRA needs it again when it resumes."""
    adapted = recipe.train.lora_rank > 0
    if adapted and isinstance(recipe.model, RecurrentConfig):
        raise UserError(
            f"lora_rank={recipe.train.lora_rank} adapts the linear layers of a Transformer, and "
            f"this is family={recipe.model.family!r}: set --train.lora-rank 0"
        )
    if adapted and run.exists:
        origin = load(base_of(run).path, device="cpu", precision="auto")
        check_base(run, origin.model)
        return origin
    if adapted and not start_from:
        raise UserError(
            f"lora_rank={recipe.train.lora_rank} adapts a model that is trained already: name it "
            "with --from RUN, or set --train.lora-rank 0"
        )
    return load(start_from, device="cpu", precision="auto") if start_from else None


def reconcile_with_run(
    recipe: Recipe, tokenizer: Tokenizer, run: RunFolder, ranks: int = 1
) -> Recipe:
    """The recipe with the tokenizer's vocabulary size, and the batch size of a run to resume.

    Changes that would alter the model or the order of the data are rejected.
    """
    if recipe.model.vocab == recipe.tokenizer.vocab:  # a small text gave fewer
        vocab = len(tokenizer)
        learned = replace(recipe.tokenizer, vocab=vocab)
        recipe = replace(recipe, model=replace(recipe.model, vocab=vocab), tokenizer=learned)
    if len(tokenizer) > recipe.model.vocab:
        raise UserError(
            f"the tokenizer has {len(tokenizer)} tokens, but the model knows only "
            f"{recipe.model.vocab}: set model.vocab"
        )
    if not run.exists:
        return recipe
    before = with_absolute_paths(recipe_from_run(run))
    ours, counted = recipe.model, getattr(before.model, "classes", 0)
    if counted and isinstance(ours, ModelConfig) and ours.family == before.model.family:
        recipe = replace(recipe, model=replace(ours, classes=ours.classes or counted))
    if recipe.train.batch_tokens == "auto":
        train = replace(recipe.train, batch_tokens=before.train.batch_tokens)
        recipe = replace(recipe, train=train)
    tables = ("model", "data", "tokenizer", "train", *(["images"] if recipe.images else []))
    resumable = set(_RESUMABLE_CHANGES)
    if _batches_before(before, run) == recipe.train.grad_accumulation * ranks:
        resumable.add("grad_accumulation")  # other processes, and the same steps
    for table in tables:
        old, new = (asdict(getattr(r, table)) for r in (before, recipe))
        for key in old | new:
            if table == "train" and key in resumable:
                continue
            if old.get(key) != new.get(key):
                raise UserError(
                    f"{run.path} was begun with {table}.{key} = {old.get(key)}, and this is "
                    f"{new.get(key)}: resume it as it was, or choose another folder"
                )
    return recipe


def _batches_before(before: Recipe, run: RunFolder) -> int:
    """How many batches a step of this run had, of all processes together."""
    processes = int(run.environment().get("processes", 1)) // before.train.tensor_parallel
    return before.train.grad_accumulation * processes


def compare_processes(recipe: Recipe, run: RunFolder, world: World) -> str:
    """What is not exact when a run is resumed by other processes than before, if it is."""
    before = recipe_from_run(run)
    past, config = int(run.environment().get("processes", 1)), recipe.train
    layout = ("fsdp", "tensor_parallel")
    if past == world.world_size and all(
        getattr(before.train, name) == getattr(config, name) for name in layout
    ):
        return ""
    said = f"this run had {past} processes and has {world.world_size} now"
    was, now = _batches_before(before, run), config.grad_accumulation * world.data_ranks
    if was == now:
        return f"{said}: its steps are the same within rounding, and not bit for bit"
    same = f": --train.grad-accumulation {was // world.data_ranks} would keep them"
    hint = "" if was % world.data_ranks else same
    return f"{said}, so its steps have {now} batches instead of {was}{hint}"


def check_same_tokenizer(recipe: Recipe, origin: LoadedModel) -> None:
    """A model keeps the tokenizer that it was trained with."""
    ours, theirs = recipe.tokenizer.kind, origin.recipe.tokenizer.kind
    if ours != theirs:
        raise UserError(
            f"tokenizer.kind is {ours!r} in this recipe and {theirs!r} in the model to start from "
            f"({origin.recipe.name}), which cannot learn another: set --tokenizer.kind {theirs}"
        )


def check_same_pooling(recipe: Recipe, origin: LoadedModel) -> None:
    """A sentence encoder is trained by the mean of its states."""
    if is_sentence_encoder(recipe) and origin.pooling == "first":
        raise UserError(
            f"{origin.recipe.name} embeds a text by its first token, and pairs train the mean of "
            "all: start from another model"
        )


def check_same_architecture(ours: dict[str, Any], origin: LoadedModel) -> None:
    """Weights of equal shapes mean something else with other heads, norms or positions."""
    theirs = asdict(origin.recipe.model)
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in _FINETUNE_CHANGES and ours.get(name) != theirs.get(name):
            raise UserError(
                f"model.{name} is {ours.get(name)} in this recipe and {theirs.get(name)} in the "
                f"model to start from ({origin.recipe.name}): [model] must be the same"
            )
