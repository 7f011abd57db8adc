"""From a recipe to a trained model: the parts put together, and a run folder to keep it all.

`train` is what `limelight train` does; `limelight.load` gives back what it made.
"""

import platform
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from limelight.data.batching import Batches
from limelight.data.config import DataConfig, parts_of, sides, tags_of
from limelight.data.corpora import read_split
from limelight.data.datasets import Batch
from limelight.data.readers import Tally
from limelight.data.registry import resolve
from limelight.data.token_store import Store
from limelight.data.tokenizer import Tokenizer
from limelight.device import choose_precision, describe
from limelight.errors import UserError, place_from
from limelight.loading import Loaded, load
from limelight.model import build
from limelight.recipe import Recipe, changed, load_recipe, write_recipe
from limelight.run.atomic import lock, make_folder, sweep
from limelight.run.folder import RunFolder
from limelight.run.plots import draw_curves
from limelight.training.batch_size import (
    LARGEST,
    LARGEST_ON_CPU,
    SMALLEST,
    fits_on_gpu,
    largest_that_fits,
    memory_of_machine,
)
from limelight.training.console import Report
from limelight.training.distributed import Workers, join
from limelight.training.loop import fit
from limelight.training.objectives import Learner, to_device
from limelight.training.optimizer import freeze
from limelight.training.trainer import Trainer
from limelight.workflows import info
from limelight.workflows.datasets import batches_of, classes_of, tokenise
from limelight.workflows.preflight import (
    check_compiler,
    check_data,
    check_origin,
    check_place,
    check_plan,
    check_same_meaning,
    check_same_tokenizer,
    check_steps,
    check_unvalidated,
    metrics_of,
    named_folder,
    settle,
)
from limelight.workflows.validation_decoding import exact, held_against, sample

ANSWERED_WHILE_TRAINING = 200  # of the validation sources; `evaluate` asks for all


def train(
    recipe: Recipe | str,
    run: str | Path,
    changes: Iterable[str] = (),
    start_from: str | Path | None = None,
    silent: bool = False,
) -> int:
    """Train what a recipe describes into a run folder, or go on with what is there.

    0: done. Otherwise a signal asked to leave, and this is its number; everything is saved.
    """
    folder = named_folder(run)
    recipe = load_recipe(recipe, changes) if isinstance(recipe, str) else changed(recipe, changes)
    check_data(recipe.data)
    with join(recipe.train) as workers, locked(folder, workers):
        report = Report(silent or not workers.first)
        experiment = set_up(recipe, folder, workers, report, start_from)
        left = fit(experiment)
        if workers.first:
            draw_curves(folder.log, folder.curves)
    return left


@contextmanager
def locked(run: RunFolder, workers: Workers) -> Iterator[None]:
    """The first process keeps others out of the folder, and clears away what dead ones left."""
    if workers.first:
        check_place(run)
        with place_from("--run"):
            make_folder(run.path)
    with lock(run.path) if workers.first else nullcontext():
        if workers.first:
            for folder in (run.path, run.checkpoints, run.finished):
                sweep(folder)
        workers.wait()
        yield


def set_up(
    recipe: Recipe,
    run: RunFolder,
    workers: Workers,
    report: Report,
    start_from: str | Path | None = None,
) -> Trainer:
    """Everything that training needs, made or found."""
    precision = choose_precision(recipe.train.precision, workers.device)
    many = f", {workers.ranks} processes" if workers.ranks > 1 else ""
    report.say(f"training {recipe.name} on {describe(workers.device)}, {precision}{many}")
    begun_from = check_origin(run, start_from)
    origin = load(start_from) if start_from else None
    data = resolve(recipe.data)
    check_plan(recipe, data)
    check_steps(recipe, run)
    check_compiler(recipe.train, workers.device)
    tokenizer = find_tokenizer(recipe, data, run, workers, origin, report)
    recipe = settle(recipe, tokenizer, run)
    stores = find_stores(data, tokenizer, workers, report)
    classes = classes_of(recipe, data, stores["train"])
    model = begin_model(recipe, origin, report)
    make = partial(batches_of, data=data, tokenizer=tokenizer, classes=classes, workers=workers)
    if recipe.train.batch_tokens == "auto":
        small = make(recipe, stores["train"], "train")
        size = fit_batch(recipe, model, small, workers, precision)
        report.say(f"batches of {size:,} tokens fit")
        recipe = replace(recipe, train=replace(recipe.train, batch_tokens=size))
    batches = make(recipe, stores["train"], "train")
    valid = make(recipe, stores["valid"], "valid") if "valid" in stores else None
    check_examples(recipe, batches, valid, report)
    warn(recipe, batches, report)
    told = environment(recipe, tokenizer, stores, workers) | {"from": begun_from}
    write_run(recipe, classes, told, run, workers)
    config = recipe.train
    trainer = Trainer(
        learner=Learner(model, config.label_smoothing, config.compile, config.agreement),
        batches=batches,
        config=config,
        run=run,
        workers=workers,
        report=report,
        valid=valid,
        d_model=recipe.model.d_model,
        widths=(int(batches.examples.lengths.min()), int(batches.examples.lengths.max())),
        precision=precision,
    )
    if trainer.valid is not None and sides(data) == 2:
        watch_answers(trainer, trainer.valid, recipe, data, tokenizer, stores["valid"])
    return trainer


def find_stores(
    data: DataConfig, tokenizer: Tokenizer, workers: Workers, report: Report
) -> dict[str, Store]:
    """The texts to be learned from and those to be validated with, as tokens."""
    stores = {
        split: tokenise(data, split, tokenizer, workers, report)
        for split in ("train", "valid")
        if parts_of(data, split)
    }
    for split, store in stores.items():
        if store.tally.unusable and len(store):
            report.warn(f"{split}: {store.tally.unusable}")
    if not len(stores["train"]):
        tally = stores["train"].tally
        held = "all are held out for other splits"
        none = held if tally.refused["in another split"] else "data.train holds none"
        raise UserError(f"there is no example to train on: {tally.unusable or none}")
    return stores


def check_examples(recipe: Recipe, batches: Batches, valid: Batches | None, report: Report) -> None:
    """Refuse a training for which nothing is left of its data."""
    longest = recipe.model.max_len
    if not len(batches.readable):
        raise UserError(
            f"there is nothing to train on: no example fits the model, whose max_len is {longest}"
        )
    if valid is not None and not len(valid.readable):
        check_unvalidated(recipe.train)
        report.warn(f"no validation text can be used, or fits the model's max_len={longest}")


def begin_model(recipe: Recipe, origin: Loaded | None, report: Report) -> nn.Module:
    """The model as it is before the first step: drawn by the seed, or another one's weights."""
    torch.manual_seed(recipe.train.seed)
    model = build(recipe.model)
    if origin is not None:
        take_over(model, origin, report)
    freeze(model, recipe.train.freeze)
    return model


def warn(recipe: Recipe, batches: Batches, report: Report) -> None:
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


def watch_answers(
    trainer: Trainer,
    valid: Batches,
    recipe: Recipe,
    data: DataConfig,
    tokenizer: Tokenizer,
    store: Store,
) -> None:
    """Have the model answer some of the validation sources whenever it is validated."""
    longest = recipe.model.max_len
    trainer.samples = partial(sample, tokenizer, store, longest)
    if "exact" in metrics_of(recipe, data):
        few = valid.readable[:ANSWERED_WHILE_TRAINING]
        trainer.metrics = partial(exact, tokenizer, store, few, longest)
        trainer.report.say(f"exact is measured on {len(few)} of {len(store)} examples")
    if recipe.train.metric in ("bleu", "chrf2"):  # they take a while, so only if they are wanted
        trainer.metrics = partial(held_against, recipe, data, tokenizer)


def find_tokenizer(
    recipe: Recipe,
    data: DataConfig,
    run: RunFolder,
    workers: Workers,
    origin: Loaded | None,
    report: Report,
) -> Tokenizer:
    """The run's own tokenizer, the one of the model it starts from, or one learned now."""
    if workers.first and not run.begun:  # what a failed start left may be of another recipe
        if origin is not None:
            check_same_tokenizer(recipe, origin)
            tokenizer = origin.tokenizer
        else:
            report.say(f"learning a tokenizer of {recipe.tokenizer.vocab} tokens")
            config = recipe.tokenizer
            tokenizer = Tokenizer.train(config.kind, texts_of(data), config.vocab, tags_of(data))
        run.write("tokenizer.json", tokenizer.core.to_str())
    workers.wait()
    tokenizer = Tokenizer.load(run.tokenizer)
    if origin is not None and tokenizer.hash != origin.tokenizer.hash:
        raise UserError(f"{run.path} has another tokenizer than the model it should start from")
    return tokenizer


def texts_of(data: DataConfig) -> Iterator[str]:
    """All texts to be trained on, one by one."""
    for example in read_split(data, "train", Tally()):
        yield from example[: sides(data)]


def take_over(model: nn.Module, origin: Loaded, report: Report) -> None:
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
    check_same_meaning(asdict(cast(Any, model).config), origin)
    kept = len(dict(model.named_parameters())) - len(fresh)
    new = f"; new: {', '.join(fresh)}" if fresh else ""
    report.say(f"starting from {origin.recipe.name}, step {origin.step}: {kept} tensors{new}")


def fit_batch(
    recipe: Recipe, model: nn.Module, batches: Batches, workers: Workers, precision: str
) -> int:
    """The largest batch that fits, for all processes alike."""
    if workers.device.type == "cuda":
        kind = torch.float64 if precision == "float64" else torch.float32
        learner = Learner(model, recipe.train.label_smoothing).to(workers.device, kind)
        copies = 3 if recipe.train.ema else 2  # Adam's averages, and that of the weights
        moments = [torch.zeros_like(p) for p in model.parameters() for _ in range(copies)]

        def learn(batch: Batch) -> None:
            with torch.autocast("cuda", torch.bfloat16, precision == "bfloat16"):
                score = learner(to_device(batch, workers.device))
            torch.autograd.backward(score.loss)

        size = largest_that_fits(partial(fits_on_gpu, learn, batches), LARGEST)
        if recipe.train.compile or recipe.train.repeat:
            size //= 2  # recorded steps keep their memory, and new shapes need as much beside it
        del moments
        learner.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
    else:
        room = memory_of_machine() // 2
        size = largest_that_fits(lambda tokens: memory_of(recipe, tokens) < room, LARGEST_ON_CPU)
    if size < SMALLEST:
        raise UserError(f"not even a batch of {SMALLEST} tokens fits here: choose a smaller model")
    return workers.least(size)


def memory_of(recipe: Recipe, tokens: int) -> int:
    """Bytes that training takes with batches of so many tokens, as `limelight info` estimates."""
    full = max(tokens, recipe.model.max_len)
    told = dict(info.describe(recipe, full)["training_bytes"])
    return sum(size for part, size in told.items() if part not in ("devices", "tokens"))


def write_run(
    recipe: Recipe,
    classes: tuple[str, ...],
    told: dict[str, Any],
    run: RunFolder,
    workers: Workers,
) -> None:
    """Write down what this run is, and on resuming check that its data is still the same."""
    if run.begun:
        before = run.environment()
        if before.get("data") != told["data"]:
            raise UserError(
                f"the data of {run.path} has changed since it was begun: its files have another "
                "content now. Bring them back, or choose another folder"
            )
    if workers.first:
        if classes:
            run.write_json("classes.json", list(classes))
        run.write_recipe(write_recipe(recipe))
        run.write_json("environment.json", told)
        run.begin(recipe.name)
    workers.wait()


def environment(
    recipe: Recipe, tokenizer: Tokenizer, stores: dict[str, Store], workers: Workers
) -> dict[str, Any]:
    """What a result may depend on besides the recipe."""
    return {
        "versions": {
            "limelight": installed("limelight"),
            "python": platform.python_version(),
            **{name: installed(name) for name in ("torch", "tokenizers", "numpy", "safetensors")},
        },
        "commit": git_commit(),
        "seed": recipe.train.seed,
        "device": describe(workers.device),
        "threads": torch.get_num_threads(),
        "processes": workers.ranks,
        "tokenizer": tokenizer.hash,
        "data": {split: store.folder.name for split, store in stores.items()},
    }


def installed(package: str) -> str:
    """The version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def git_commit() -> str:
    """The commit of the folder that training was started in, if it is one of git."""
    try:
        asked = ["git", "rev-parse", "HEAD"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
