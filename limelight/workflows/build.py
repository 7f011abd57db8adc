"""A recipe becomes a trainer: with tokenizer, data, weights, batch size and a run folder begun."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from limelight.config import extensions_of
from limelight.data.batching import BatchPlan
from limelight.data.config import DataConfig, num_columns
from limelight.data.corpora import corpora_for_split, train_tokenizer
from limelight.data.datasets import Batch
from limelight.data.registry import resolve
from limelight.data.tokenizer import Tokenizer
from limelight.device import choose_precision, describe
from limelight.errors import UserError
from limelight.files import atomic_write
from limelight.loading import LoadedModel, load_tokenizer
from limelight.model import ModelConfig, build
from limelight.recipe import Recipe, write_recipe
from limelight.run.folder import RunFolder, versions
from limelight.run.weights import hash_weights
from limelight.training import batch_size
from limelight.training.activation_checkpointing import checkpoint_layers
from limelight.training.console import Report
from limelight.training.distributed import World
from limelight.training.lora import count_trained, prepare_finetuning
from limelight.training.objectives import LossModule, to_device
from limelight.training.optimizer import check_master_weights
from limelight.training.trainer import Trainer
from limelight.workflows import info, preflight
from limelight.workflows.datasets import TokenizedData, class_names, tokenize_splits
from limelight.workflows.validation_decoding import (
    exact_match,
    sample,
    sample_text,
    validation_bleu,
)

_LONG = 1000  # steps, for which compiling pays
_EXACT_MATCH_SOURCES = 200  # decoded in a validation; `evaluate` decodes all


def announce(recipe: Recipe, world: World, report: Report) -> None:
    """Say what is trained, where, and how precisely."""
    precision = choose_precision(recipe.train.precision, world.device)
    many = f", {world.world_size} processes" if world.world_size > 1 else ""
    report.say(f"training {recipe.name} on {describe(world.device)}, {precision}{many}")
    train, known = recipe.train, isinstance(recipe.model, ModelConfig)
    slow = known and not ((train.compile and train.master_weights) or train.lora_rank)
    alone = world.device.type == "cuda" and world.world_size == 1
    if slow and alone and precision == "bfloat16" and train.steps >= _LONG:
        report.say(
            "--train.compile true --train.master-weights true would be faster, after a minute "
            "of compiling"
        )


def _possible_precision(recipe: Recipe, world: World) -> str:
    """The precision of this training; what cannot be had in it is refused before any work."""
    precision = choose_precision(recipe.train.precision, world.device)
    check_master_weights(recipe.train, precision)
    return precision


def build_trainer(
    recipe: Recipe,
    run: RunFolder,
    world: World,
    report: Report,
    start_from: str | Path | None = None,
) -> Trainer:
    """Check the recipe, prepare data and model, write the run's metadata."""
    announce(recipe, world, report)
    begun_from = preflight.check_init_from(run, start_from)
    origin = preflight.load_origin(recipe, run, start_from)
    data = resolve(recipe.data)
    preflight.check_plan(recipe, data)
    preflight.check_steps(recipe, run)
    preflight.check_compiler(recipe.train, world.device)
    precision = _possible_precision(recipe, world)
    learn = partial(train_tokenizer, data, recipe.tokenizer)
    tokenizer = find_tokenizer(recipe, learn, run, world, origin, report)
    recipe = preflight.reconcile_with_run(recipe, tokenizer, run, world.data_ranks)
    if run.exists and (changed := preflight.compare_processes(recipe, run, world)):
        report.warn(changed)
    tokenized = _prepare_data(recipe, data, tokenizer, world, report)
    recipe = tokenized.recipe
    model = _build_model(recipe, origin, report)
    if origin is not None and recipe.train.lora_rank and world.is_main and not run.exists:
        run.write_json("base.json", {"run": begun_from, "sha256": hash_weights(origin.model)})
    if recipe.train.batch_tokens == "auto":
        size = fit_batch(recipe, model, tokenized.batches("train"), world, precision)
        report.say(f"batches of {size:,} tokens fit")
        recipe = replace(recipe, train=replace(recipe.train, batch_tokens=size))
        tokenized = replace(tokenized, recipe=recipe)
    batches = tokenized.batches("train")
    valid = tokenized.batches("valid") if "valid" in tokenized.stores else None
    _check_examples(recipe, data, batches, valid, report)
    preflight.check_usable(tokenized.stores["train"].tally, batches.too_long, recipe)
    made_of = {
        "answer_share": tokenized.answer_share,
        "data": {split: store.folder.name for split, store in tokenized.stores.items()},
        "from": begun_from,
    }
    write_run_metadata(recipe, tokenizer, made_of, world, run, tokenized.classes)
    config = recipe.train
    trainer = Trainer(
        loss_module=_with_objective(model, tokenized),
        batches=batches,
        config=config,
        run=run,
        world=world,
        report=report,
        valid=valid,
        d_model=recipe.model.d_model,
        length_range=batches.length_range,
        precision=precision,
    )
    if valid is not None and num_columns(data) == 2 and recipe.model.family != "encoder-only":
        _add_decoding_metrics(trainer, valid, tokenized)
    elif valid is not None and recipe.model.family.endswith("decoder-only"):
        trainer.samples = partial(sample_text, tokenized)
    return trainer


def _with_objective(model: nn.Module, tokenized: TokenizedData) -> LossModule:
    config = tokenized.recipe.train
    weights = tokenized.class_weights if config.class_weights else None
    settings = (config.label_smoothing, config.compile, config.rdrop_alpha)
    fp8, named = config.precision == "fp8", config.objective
    return LossModule(model, *settings, weights, named, fp8)


def _prepare_data(
    recipe: Recipe, data: DataConfig, tokenizer: Tokenizer, world: World, report: Report
) -> TokenizedData:
    splits = [split for split in ("train", "valid") if corpora_for_split(data, split)]
    stores = tokenize_splits(data, splits, tokenizer, world, report)
    for split, store in stores.items():
        if store.tally.unusable and len(store):
            report.warn(f"{split}: {store.tally.unusable}")
        for warning in store.tally.headers:
            report.warn(warning)
    if not len(stores["train"]):
        tally = stores["train"].tally
        held = "all are held out for other splits"
        none = held if tally.rejected["in another split"] else "data.train holds none"
        raise UserError(f"there is no example to train on: {tally.unusable or none}")
    if data.kind == "labelled" and "valid" in stores:
        preflight.check_labels(data, *(stores[s].meta["labels"] for s in ("train", "valid")))
    classes = class_names(recipe, data, stores["train"])
    if classes and isinstance(recipe.model, ModelConfig) and not recipe.model.classes:
        shown = ", ".join(classes[:10]) + (", ..." if len(classes) > 10 else "")
        report.say(f"{len(classes)} classes: {shown}")
        recipe = replace(recipe, model=replace(recipe.model, classes=len(classes)))
    return TokenizedData(recipe, data, tokenizer, stores, classes, world)


def _check_examples(
    recipe: Recipe, data: DataConfig, batches: BatchPlan, valid: BatchPlan | None, report: Report
) -> None:
    """Reject data of which nothing fits the model, and warn of what is left out."""
    config, longest = recipe.train, recipe.model.max_len
    if not len(batches.usable):
        raise UserError(
            f"there is nothing to train on: no example fits the model, whose max_len is {longest}"
        )
    if valid is not None and not len(valid.usable):
        preflight.check_unvalidated(config, data)
        report.warn(f"no validation text can be used, or fits the model's max_len={longest}")
    if config.ema**config.steps > 0.5:
        report.warn(
            f"ema={config.ema} keeps more than half of the initial weights for all of "
            f"{config.steps} steps: the finished weights will have learned little"
        )
    for split, plan in {"train": batches, "valid": valid}.items():
        if plan is not None:
            _warn_of_long(split, plan, report)


def _warn_of_long(split: str, plan: BatchPlan, report: Report) -> None:
    for count, fate in ((plan.too_long, "left out"), (plan.truncated, "cut to it")):
        if count:
            many = f"{split}: {count:,} of {len(plan.examples.lengths):,} examples"
            report.warn(f"{many} are longer than max_len={plan.longest}, and {fate}")


def _add_decoding_metrics(trainer: Trainer, valid: BatchPlan, tokenized: TokenizedData) -> None:
    trainer.samples = partial(sample, tokenized, valid.usable[:3])
    if "exact" in preflight.metrics_of(tokenized.recipe, tokenized.data):
        few = valid.usable[:_EXACT_MATCH_SOURCES]
        trainer.metrics = partial(exact_match, tokenized, "valid", few)
        many = len(tokenized.stores["valid"])
        trainer.report.say(f"exact is measured on {len(few)} of {many} examples")
    if trainer.config.metric in ("bleu", "chrf2"):  # slow, so only if they are wanted
        trainer.metrics = partial(validation_bleu, tokenized)


def find_tokenizer(
    recipe: Recipe,
    learn: Callable[[], Tokenizer],
    run: RunFolder,
    world: World,
    origin: LoadedModel | None,
    report: Report,
) -> Tokenizer:
    """The run's own tokenizer, that of the model it starts from, or one trained now."""
    if world.is_main and not run.exists:  # what a failed start left may be of another recipe
        if origin is not None:
            preflight.check_same_tokenizer(recipe, origin)
            preflight.check_same_pooling(recipe, origin)
            tokenizer = origin.tokenizer
        elif recipe.tokenizer.file:
            tokenizer = Tokenizer.load(Path(recipe.tokenizer.file))
        else:
            report.say(f"training a tokenizer of {recipe.tokenizer.vocab} tokens")
            tokenizer = learn()
        for name, content in tokenizer.files.items():
            atomic_write(run.path / name, content)
        for name, text in (origin.carried if origin else {}).items():
            run.write(name, text)
    world.barrier()
    # One of ours may have more tokens than the recipe says: `reconcile_with_run` compares them.
    ours = not run.is_imported
    tokenizer = Tokenizer.load(run.tokenizer) if ours else load_tokenizer(run, recipe.model)
    if origin is not None and tokenizer.hash != origin.tokenizer.hash:
        raise UserError(f"{run.path} has another tokenizer than the model it should start from")
    return tokenizer


def _build_model(recipe: Recipe, origin: LoadedModel | None, report: Report) -> nn.Module:
    """The model with its first weights, drawn or those of another, some of them frozen."""
    torch.manual_seed(recipe.train.seed)
    model = build(recipe.model)
    if origin is not None:
        _init_from_run(model, origin, report)
    prepare_finetuning(model, recipe.train)
    total, trained = count_trained(model)
    if trained < total:
        report.say(f"{trained:,} of {total:,} parameters are trained")
    return model


def _init_from_run(model: nn.Module, origin: LoadedModel, report: Report) -> None:
    """Copy another model's weights; only a head for a new task keeps its initial ones."""
    theirs = dict(origin.model.named_parameters())
    fresh = []
    for name, parameter in model.named_parameters():
        if name in theirs and theirs[name].shape == parameter.shape:
            with torch.no_grad():
                parameter.copy_(theirs[name])
        elif "_head." in name:
            fresh.append(name)
        else:
            shape = tuple(theirs[name].shape) if name in theirs else "missing"
            raise UserError(
                f"{name} is {tuple(parameter.shape)} in this recipe and {shape} in the model to "
                f"start from ({origin.recipe.name}): [model] must be the same"
            )
    preflight.check_same_architecture(asdict(cast(Any, model).config), origin)
    kept = len(dict(model.named_parameters())) - len(fresh)
    new = f"; new: {', '.join(fresh)}" if fresh else ""
    report.say(f"starting from {origin.recipe.name}, step {origin.step}: {kept} tensors{new}")


def fit_batch(
    recipe: Recipe, model: nn.Module, batches: BatchPlan, world: World, precision: str
) -> int:
    """The largest batch that fits in every process."""
    if world.device.type == "cuda":
        size = _fit_batch_on_gpu(recipe, model, batches, world, precision)
    else:
        limit = batch_size.available_memory() // 2
        size = batch_size.find_max_batch_tokens(
            lambda tokens: memory_of(recipe, tokens) < limit, batch_size.LARGEST_ON_CPU
        )
    if size < batch_size.SMALLEST:
        raise UserError(
            f"not even a batch of {batch_size.SMALLEST} tokens fits here: choose a smaller model"
        )
    return world.all_reduce_min(size)


def _fit_batch_on_gpu(
    recipe: Recipe, model: nn.Module, batches: BatchPlan, world: World, precision: str
) -> int:
    dtype = torch.float64 if precision == "float64" else torch.float32
    loss_module = LossModule(model, recipe.train.label_smoothing).to(world.device, dtype)
    checkpoint_layers(loss_module, recipe.train.activation_checkpointing)
    config = recipe.train
    copies = 2 + bool(config.ema) + config.master_weights  # Adam's moments, averages, masters
    trained = [p for p in model.parameters() if p.requires_grad]
    copies = 0 if config.offload_optimizer else copies
    moments = [torch.zeros_like(p, dtype=dtype) for p in trained for _ in range(copies)]
    if config.master_weights:
        loss_module.to(torch.bfloat16)

    def forward_backward(batch: Batch) -> None:
        with torch.autocast("cuda", torch.bfloat16, precision == "bfloat16"):
            sums = loss_module(to_device(batch, world.device))
        torch.autograd.backward(sums.loss)

    size = batch_size.find_max_batch_tokens(
        partial(batch_size.fits_on_gpu, forward_backward, batches), batch_size.LARGEST
    )
    del moments
    loss_module.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    # Captured steps keep their memory, and new shapes need as much beside it.
    return size // 2 if recipe.train.compile or recipe.train.cuda_graphs else size


def memory_of(recipe: Recipe, tokens: int) -> int:
    """Bytes that training takes with batches of this many tokens, as `limelight info` estimates."""
    return info.training_memory(recipe, max(tokens, recipe.model.max_len))["total"]


def write_run_metadata(
    recipe: Recipe,
    tokenizer: Tokenizer,
    made_of: Mapping[str, Any],
    world: World,
    run: RunFolder,
    classes: Sequence[str] = (),
) -> None:
    """Write down what a result may depend on; when resuming, check that the data is the same."""
    environment = {
        "versions": versions(),
        "commit": _git_commit(),
        "seed": recipe.train.seed,
        "device": describe(world.device),
        "threads": torch.get_num_threads(),
        "processes": world.world_size,
        "tokenizer": tokenizer.hash,
        **made_of,
    }
    if run.exists and run.environment().get("data") != environment["data"]:
        raise UserError(
            f"the data of {run.path} has changed since it was begun: its files have another "
            "content now. Bring them back, or choose another folder"
        )
    if world.is_main:
        if classes:
            run.write_json("classes.json", list(classes))
        run.write_recipe(write_recipe(recipe))
        run.write_json("environment.json", environment)
        run.begin(recipe.name, extensions_of(recipe.model, recipe.train))
    world.barrier()


def _git_commit() -> str:
    """The commit of the folder that training was started in, if it is a git repository."""
    try:
        command = ["git", "rev-parse", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
