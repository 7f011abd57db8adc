"""From a recipe to a trained model: the parts put together, and a run folder to keep it all.

`train` is what `limelight train` does; `limelight.load` gives back what it made.
"""

import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from limelight.data.batching import BatchPlan
from limelight.data.config import DataConfig, num_columns, tags_of
from limelight.data.corpora import corpora_for_split, read_split
from limelight.data.datasets import Batch
from limelight.data.readers import LineStats
from limelight.data.registry import resolve
from limelight.data.token_store import TokenStore
from limelight.data.tokenizer import Tokenizer
from limelight.device import choose_precision, describe
from limelight.errors import UserError, path_from_option
from limelight.loading import LoadedModel, load
from limelight.model import build
from limelight.recipe import Overrides, Recipe, load_recipe, with_overrides, write_recipe
from limelight.run.atomic import lock, make_folder, remove_stale_temp
from limelight.run.folder import RunFolder
from limelight.run.plots import draw_curves
from limelight.training.batch_size import (
    LARGEST,
    LARGEST_ON_CPU,
    SMALLEST,
    available_memory,
    find_max_batch_tokens,
    fits_on_gpu,
)
from limelight.training.console import Report
from limelight.training.distributed import World, init_distributed
from limelight.training.loop import fit
from limelight.training.objectives import LossModule, to_device
from limelight.training.optimizer import freeze
from limelight.training.trainer import Trainer
from limelight.workflows import info
from limelight.workflows.datasets import build_batches, class_names, tokenize_split
from limelight.workflows.preflight import (
    check_compiler,
    check_data,
    check_init_from,
    check_plan,
    check_run_folder,
    check_same_architecture,
    check_same_tokenizer,
    check_steps,
    check_unvalidated,
    metrics_of,
    named_folder,
    reconcile_with_run,
)
from limelight.workflows.validation_decoding import exact_match, sample, validation_bleu

_ANSWERED_WHILE_TRAINING = 200  # of the validation sources; `evaluate` asks for all


def train(
    recipe: Recipe | str,
    run: str | Path,
    changes: Overrides = (),
    start_from: str | Path | None = None,
    silent: bool = False,
) -> int:
    """Train what a recipe describes into a run folder, or go on with what is there.

    0: done. Otherwise a signal asked to leave, and this is its number; everything is saved.
    """
    folder = named_folder(run)
    recipe = (
        load_recipe(recipe, changes) if isinstance(recipe, str) else with_overrides(recipe, changes)
    )
    check_data(recipe.data)
    with init_distributed(recipe.train) as workers, lock_run(folder, workers):
        report = Report(silent or not workers.is_main)
        experiment = build_trainer(recipe, folder, workers, report, start_from)
        left = fit(experiment)
        if workers.is_main:
            draw_curves(folder.log, folder.curves)
    return left


@contextmanager
def lock_run(run: RunFolder, workers: World) -> Iterator[None]:
    """The first process keeps others out of the folder, and clears away what dead ones left."""
    if workers.is_main:
        check_run_folder(run)
        with path_from_option("--run"):
            make_folder(run.path)
    with lock(run.path) if workers.is_main else nullcontext():
        if workers.is_main:
            for folder in (run.path, run.checkpoints, run.finished):
                remove_stale_temp(folder)
        workers.barrier()
        yield


def build_trainer(
    recipe: Recipe,
    run: RunFolder,
    workers: World,
    report: Report,
    start_from: str | Path | None = None,
) -> Trainer:
    """Everything that training needs, made or found."""
    precision = choose_precision(recipe.train.precision, workers.device)
    many = f", {workers.world_size} processes" if workers.world_size > 1 else ""
    report.say(f"training {recipe.name} on {describe(workers.device)}, {precision}{many}")
    begun_from = check_init_from(run, start_from)
    origin = load(start_from) if start_from else None
    data = resolve(recipe.data)
    check_plan(recipe, data)
    check_steps(recipe, run)
    check_compiler(recipe.train, workers.device)
    tokenizer = _find_tokenizer(recipe, data, run, workers, origin, report)
    recipe = reconcile_with_run(recipe, tokenizer, run)
    stores = _prepare_data(data, tokenizer, workers, report)
    classes = class_names(recipe, data, stores["train"])
    model = _init_model(recipe, origin, report)
    make = partial(build_batches, data=data, tokenizer=tokenizer, classes=classes, workers=workers)
    if recipe.train.batch_tokens == "auto":
        small = make(recipe, stores["train"], "train")
        size = fit_batch(recipe, model, small, workers, precision)
        report.say(f"batches of {size:,} tokens fit")
        recipe = replace(recipe, train=replace(recipe.train, batch_tokens=size))
    batches = make(recipe, stores["train"], "train")
    valid = make(recipe, stores["valid"], "valid") if "valid" in stores else None
    _check_examples(recipe, batches, valid, report)
    _warn(recipe, batches, report)
    told = _collect_environment(recipe, tokenizer, stores, workers) | {"from": begun_from}
    _write_run_metadata(recipe, classes, told, run, workers)
    config = recipe.train
    trainer = Trainer(
        learner=LossModule(model, config.label_smoothing, config.compile, config.rdrop_alpha),
        batches=batches,
        config=config,
        run=run,
        workers=workers,
        report=report,
        valid=valid,
        d_model=recipe.model.d_model,
        length_range=(int(batches.examples.lengths.min()), int(batches.examples.lengths.max())),
        precision=precision,
    )
    if trainer.valid is not None and num_columns(data) == 2:
        _add_decoding_metrics(trainer, trainer.valid, recipe, data, tokenizer, stores["valid"])
    return trainer


def _prepare_data(
    data: DataConfig, tokenizer: Tokenizer, workers: World, report: Report
) -> dict[str, TokenStore]:
    """The texts to be learned from and those to be validated with, as tokens."""
    stores = {
        split: tokenize_split(data, split, tokenizer, workers, report)
        for split in ("train", "valid")
        if corpora_for_split(data, split)
    }
    for split, store in stores.items():
        if store.tally.unusable and len(store):
            report.warn(f"{split}: {store.tally.unusable}")
    if not len(stores["train"]):
        tally = stores["train"].tally
        held = "all are held out for other splits"
        none = held if tally.rejected["in another split"] else "data.train holds none"
        raise UserError(f"there is no example to train on: {tally.unusable or none}")
    return stores


def _check_examples(
    recipe: Recipe, batches: BatchPlan, valid: BatchPlan | None, report: Report
) -> None:
    """Refuse a training for which nothing is left of its data."""
    longest = recipe.model.max_len
    if not len(batches.usable):
        raise UserError(
            f"there is nothing to train on: no example fits the model, whose max_len is {longest}"
        )
    if valid is not None and not len(valid.usable):
        check_unvalidated(recipe.train)
        report.warn(f"no validation text can be used, or fits the model's max_len={longest}")


def _init_model(recipe: Recipe, origin: LoadedModel | None, report: Report) -> nn.Module:
    """The model as it is before the first step: drawn by the seed, or another one's weights."""
    torch.manual_seed(recipe.train.seed)
    model = build(recipe.model)
    if origin is not None:
        _init_from_run(model, origin, report)
    freeze(model, recipe.train.freeze)
    return model


def _warn(recipe: Recipe, batches: BatchPlan, report: Report) -> None:
    """Of what can be done, and may not be what was wanted."""
    config = recipe.train
    if config.ema**config.steps > 0.5:
        report.warn(
            f"ema={config.ema} keeps more than half of the weights that it begins with for all of "
            f"{config.steps} steps: what is finished will have learned little"
        )
    if batches.too_long:
        many = f"{batches.too_long:,} of {len(batches.examples.lengths):,} examples"
        report.warn(f"{many} are longer than max_len={recipe.model.max_len}, and left out")


def _add_decoding_metrics(
    trainer: Trainer,
    valid: BatchPlan,
    recipe: Recipe,
    data: DataConfig,
    tokenizer: Tokenizer,
    store: TokenStore,
) -> None:
    """Have the model answer some of the validation sources whenever it is validated."""
    longest = recipe.model.max_len
    trainer.samples = partial(sample, tokenizer, store, longest)
    if "exact" in metrics_of(recipe, data):
        few = valid.usable[:_ANSWERED_WHILE_TRAINING]
        trainer.metrics = partial(exact_match, tokenizer, store, few, longest)
        trainer.report.say(f"exact is measured on {len(few)} of {len(store)} examples")
    if recipe.train.metric in ("bleu", "chrf2"):  # they take a while, so only if they are wanted
        trainer.metrics = partial(validation_bleu, recipe, data, tokenizer)


def _find_tokenizer(
    recipe: Recipe,
    data: DataConfig,
    run: RunFolder,
    workers: World,
    origin: LoadedModel | None,
    report: Report,
) -> Tokenizer:
    """The run's own tokenizer, the one of the model it starts from, or one learned now."""
    if workers.is_main and not run.exists:  # what a failed start left may be of another recipe
        if origin is not None:
            check_same_tokenizer(recipe, origin)
            tokenizer = origin.tokenizer
        else:
            report.say(f"learning a tokenizer of {recipe.tokenizer.vocab} tokens")
            config = recipe.tokenizer
            tokenizer = Tokenizer.train(config.kind, _texts_of(data), config.vocab, tags_of(data))
        run.write("tokenizer.json", tokenizer.core.to_str())
    workers.barrier()
    tokenizer = Tokenizer.load(run.tokenizer)
    if origin is not None and tokenizer.hash != origin.tokenizer.hash:
        raise UserError(f"{run.path} has another tokenizer than the model it should start from")
    return tokenizer


def _texts_of(data: DataConfig) -> Iterator[str]:
    """All texts to be trained on, one by one."""
    for example in read_split(data, "train", LineStats()):
        yield from example[: num_columns(data)]


def _init_from_run(model: nn.Module, origin: LoadedModel, report: Report) -> None:
    """Begin with another model's weights; only a head for a new purpose starts afresh."""
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
    check_same_architecture(asdict(cast(Any, model).config), origin)
    kept = len(dict(model.named_parameters())) - len(fresh)
    new = f"; new: {', '.join(fresh)}" if fresh else ""
    report.say(f"starting from {origin.recipe.name}, step {origin.step}: {kept} tensors{new}")


def fit_batch(
    recipe: Recipe, model: nn.Module, batches: BatchPlan, workers: World, precision: str
) -> int:
    """The largest batch that fits, for all processes alike."""
    if workers.device.type == "cuda":
        kind = torch.float64 if precision == "float64" else torch.float32
        learner = LossModule(model, recipe.train.label_smoothing).to(workers.device, kind)
        copies = 3 if recipe.train.ema else 2  # Adam's averages, and that of the weights
        moments = [torch.zeros_like(p) for p in model.parameters() for _ in range(copies)]

        def learn(batch: Batch) -> None:
            with torch.autocast("cuda", torch.bfloat16, precision == "bfloat16"):
                score = learner(to_device(batch, workers.device))
            torch.autograd.backward(score.loss)

        size = find_max_batch_tokens(partial(fits_on_gpu, learn, batches), LARGEST)
        if recipe.train.compile or recipe.train.cuda_graphs:
            size //= 2  # recorded steps keep their memory, and new shapes need as much beside it
        del moments
        learner.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
    else:
        room = available_memory() // 2
        size = find_max_batch_tokens(
            lambda tokens: memory_of(recipe, tokens) < room, LARGEST_ON_CPU
        )
    if size < SMALLEST:
        raise UserError(f"not even a batch of {SMALLEST} tokens fits here: choose a smaller model")
    return workers.all_reduce_min(size)


def memory_of(recipe: Recipe, tokens: int) -> int:
    """Bytes that training takes with batches of so many tokens, as `limelight info` estimates."""
    full = max(tokens, recipe.model.max_len)
    told = dict(info.describe(recipe, full)["training_bytes"])
    return sum(size for part, size in told.items() if part not in ("devices", "tokens"))


def _write_run_metadata(
    recipe: Recipe,
    classes: tuple[str, ...],
    told: dict[str, Any],
    run: RunFolder,
    workers: World,
) -> None:
    """Write down what this run is, and on resuming check that its data is still the same."""
    if run.exists:
        before = run.environment()
        if before.get("data") != told["data"]:
            raise UserError(
                f"the data of {run.path} has changed since it was begun: its files have another "
                "content now. Bring them back, or choose another folder"
            )
    if workers.is_main:
        if classes:
            run.write_json("classes.json", list(classes))
        run.write_recipe(write_recipe(recipe))
        run.write_json("environment.json", told)
        run.begin(recipe.name)
    workers.barrier()


def _collect_environment(
    recipe: Recipe, tokenizer: Tokenizer, stores: dict[str, TokenStore], workers: World
) -> dict[str, Any]:
    """What a result may depend on besides the recipe."""
    return {
        "versions": {
            "limelight": _installed("limelight"),
            "python": platform.python_version(),
            **{name: _installed(name) for name in ("torch", "tokenizers", "numpy", "safetensors")},
        },
        "commit": _git_commit(),
        "seed": recipe.train.seed,
        "device": describe(workers.device),
        "threads": torch.get_num_threads(),
        "processes": workers.world_size,
        "tokenizer": tokenizer.hash,
        "data": {split: store.folder.name for split, store in stores.items()},
    }


def _installed(package: str) -> str:
    """The version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _git_commit() -> str:
    """The commit of the folder that training was started in, if it is one of git."""
    try:
        asked = ["git", "rev-parse", "HEAD"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
