"""From a recipe to a trained model: the parts put together, and a run folder to keep it all.

`train` is what `limelight train` does; `load` gives back what it made.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from torch import nn

from limelight import info
from limelight.decode.config import DecodeConfig
from limelight.decode.write import write
from limelight.disk import cache_folder, temporary
from limelight.errors import UserError, unknown
from limelight.evaluate.translation import score_translations
from limelight.loaded import Loaded, load
from limelight.model import build
from limelight.progress import counting
from limelight.recipe import Recipe, changed, load_recipe, recipe_of, write_recipe
from limelight.run.bundled import find_run, place_of
from limelight.run.commit import lock, newest, sha256_of, sweep
from limelight.run.curves import draw_curves
from limelight.run.folder import RunFolder
from limelight.run.weights import name_of
from limelight.tasks.trained import Trained
from limelight.tasks.translate import request_for, translate
from limelight.text.batches import Batches
from limelight.text.config import DataConfig, parts_of, sides, tags_of
from limelight.text.corpora import read_split
from limelight.text.examples import (
    Batch,
    BlockExamples,
    Examples,
    LabelledExamples,
    MaskedExamples,
    PairExamples,
    PromptExamples,
    Rows,
)
from limelight.text.named import resolve
from limelight.text.readers import Tally
from limelight.text.store import Store, prepare
from limelight.text.tokenizer import Tokenizer
from limelight.training.config import TrainConfig
from limelight.training.device import choose_precision, describe
from limelight.training.fitting import (
    LARGEST,
    LARGEST_ON_CPU,
    SMALLEST,
    fits_on_gpu,
    largest_that_fits,
    memory_of_machine,
)
from limelight.training.loop import (
    MEASURED,
    FailedError,
    Trainer,
    evaluate,
    fit,
)
from limelight.training.objective import Learner, to_device
from limelight.training.optimizer import freeze
from limelight.training.report import Report
from limelight.training.workers import Workers, join

CHANGEABLE = {  # of [train], when a run is resumed: none of them alters what a step does
    *("steps", "checkpoint_every", "validate_every", "keep", "patience", "metric", "log_every"),
    *("average", "workers", "device"),
}
FINE_TUNED = {  # of [model], with --from: what may differ, or is seen in the shapes of the weights
    *("dropout", "attention_dropout", "classes", "sentence_pairs", "max_len", "d_ff", "kv_heads"),
}
ANSWERED_AT_ONCE = 100  # sources, to know how many come out right
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
    recipe = load_recipe(recipe, changes) if isinstance(recipe, str) else changed(recipe, changes)
    folder = RunFolder(Path(run))
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
    config = recipe.train
    precision = choose_precision(config, workers.device)
    many = f", {workers.ranks} processes" if workers.ranks > 1 else ""
    report.say(f"training {recipe.name} on {describe(workers.device)}, {precision}{many}")
    begun_from = check_origin(run, start_from)
    origin = load(start_from) if start_from else None
    data = resolve(recipe.data)
    check_plan(recipe, data)
    tokenizer = find_tokenizer(recipe, data, run, workers, origin, report)
    recipe = settle(recipe, tokenizer, run)
    stores = {
        split: tokenise(data, split, tokenizer, workers, report)
        for split in ("train", "valid")
        if parts_of(data, split)
    }
    if "train" not in stores:
        raise UserError("the recipe names no data: say --data.train FILE ..., or --data.name")
    classes = classes_of(recipe, stores["train"])
    torch.manual_seed(config.seed)
    model = build(recipe.model)
    if origin is not None:
        take_over(model, origin, report)
    freeze(model, config.freeze)
    make = partial(batches_of, recipe, data, tokenizer, classes, workers)
    batches = make(stores["train"], "train")
    if recipe.train.batch_tokens == "auto":
        size = fit_batch(recipe, model, batches, workers, precision)
        report.say(f"batches of {size:,} tokens fit")
        recipe = replace(recipe, train=replace(recipe.train, batch_tokens=size))
        make = partial(batches_of, recipe, data, tokenizer, classes, workers)
        batches = make(stores["train"], "train")
    if config.ema**config.steps > 0.5:
        report.warn(
            f"ema={config.ema} keeps more than half of the weights that it begins with for all of "
            f"{config.steps} steps: what is finished will have learned little"
        )
    if batches.too_long:
        report.warn(f"{batches.too_long} examples are longer than max_len={recipe.model.max_len}")
    valid = make(stores["valid"], "valid") if "valid" in stores else None
    told = environment(recipe, tokenizer, stores, workers) | {"from": begun_from}
    write_run(recipe, classes, told, run, workers)
    trainer = Trainer(
        learner=Learner(model, config.label_smoothing, config.compile, config.agreement),
        batches=batches,
        config=recipe.train,
        run=run,
        workers=workers,
        report=report,
        valid=valid,
        d_model=recipe.model.d_model,
        widths=(int(batches.examples.lengths.min()), int(batches.examples.lengths.max())),
        precision=precision,
    )
    if valid is not None and sides(data) == 2:
        longest = recipe.model.max_len
        trainer.samples = partial(sample, tokenizer, stores["valid"], longest)
        if "exact" in metrics_of(recipe, data):
            few = valid.readable[:ANSWERED_WHILE_TRAINING]
            trainer.metrics = partial(exact, tokenizer, stores["valid"], few, longest)
            report.say(f"exact is measured on {len(few)} of {len(stores['valid'])} examples")
        if config.metric in ("bleu", "chrf2"):  # they take a while, so only if they are wanted
            trainer.metrics = partial(held_against, recipe, data, tokenizer)
    return trainer


def check_origin(run: RunFolder, start_from: str | Path | None) -> str:
    """The run that this one began with, or "". One that goes on cannot begin with another."""
    said = place_of(find_run(start_from)) if start_from else ""
    if not run.begun:
        return said
    before = str(run.read_json("environment.json").get("from", said))
    if said and said != before:
        raise UserError(
            f"{run.path} was begun from {before or 'no other run'}, and this is from {said}: go on "
            "without --from, or choose another folder"
        )
    if before and not said and newest(run.checkpoints)[0] is None:
        raise UserError(f"{run.path} has saved nothing yet: say --from {before} again")
    return before


def check_plan(recipe: Recipe, data: DataConfig) -> None:
    """Refuse, before anything is made, a training that could not do what its recipe says."""
    config, model = recipe.train, recipe.model
    measured = metrics_of(recipe, data)
    if config.metric not in measured:
        raise unknown("metric", config.metric, measured)
    if not parts_of(data, "valid"):
        check_unvalidated(config)
    if getattr(model, "sentence_pairs", False):
        raise UserError(
            "sentence_pairs=true adds a head for pairs of sentences, as published BERTs have it, "
            "but there is no data here to train it with: set --model.sentence-pairs false"
        )
    if config.shard and config.batch_tokens == "auto":
        raise UserError(
            "batch_tokens='auto' tries the whole model on one device, and shard=true is for those "
            "that fit on none: set --train.batch-tokens 4096, and more if it fits"
        )
    fills_blanks = model.family == "encoder-only" and not getattr(model, "classes", 0)
    if fills_blanks and not config.mask_rate:
        raise UserError(
            "mask_rate=0 hides no token, so there is nothing to fill in and nothing to learn: "
            "set --train.mask-rate 0.15"
        )


def metrics_of(recipe: Recipe, data: DataConfig) -> tuple[str, ...]:
    """What a validation measures for this task; a model that is shared out cannot write."""
    if recipe.train.shard or sides(data) == 1:
        return MEASURED
    return (*MEASURED, "bleu", "chrf2", *(["exact"] if data.toy else []))


def check_unvalidated(config: TrainConfig) -> None:
    """Without validation texts nothing can be seen to improve, or not to."""
    for name, usual in (("patience", 0), ("metric", "loss")):
        if getattr(config, name) != usual:
            raise UserError(
                f"{name}={getattr(config, name)!r} looks at validation texts, and there are none: "
                f"say --data.valid FILE ... or --data.hold-out 0.01, or set --train.{name} {usual}"
            )


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


def settle(recipe: Recipe, tokenizer: Tokenizer, run: RunFolder) -> Recipe:
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
    if not run.begun:
        return recipe
    before = recipe_of(run)
    if recipe.train.batch_tokens == "auto":
        train = replace(recipe.train, batch_tokens=before.train.batch_tokens)
        recipe = replace(recipe, train=train)
    for table in ("model", "data", "tokenizer", "train"):
        old, new = (asdict(getattr(r, table)) for r in (before, recipe))
        for key in old | new:
            if (table != "train" or key not in CHANGEABLE) and old.get(key) != new.get(key):
                raise UserError(
                    f"{run.path} was begun with {table}.{key} = {old.get(key)}, and this is "
                    f"{new.get(key)}: resume it as it was, or choose another folder"
                )
    return recipe


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


def tokenise(
    data: DataConfig, split: str, tokenizer: Tokenizer, workers: Workers, report: Report
) -> Store:
    """The store of a split; the first process makes it, the others find it."""
    stores = cache_folder() / "stores"
    if workers.first:
        with counting(f"tokenising {split}", report.console) as progress:
            prepare(data, split, tokenizer, stores, progress)
    workers.wait()
    return prepare(data, split, tokenizer, stores)


def classes_of(recipe: Recipe, store: Store) -> tuple[str, ...]:
    """The names of the classes, if texts are to be classified."""
    wanted = getattr(recipe.model, "classes", 0)
    if not wanted:
        return ()
    found = tuple(sorted(set(store.facts["labels"])))
    if len(found) != wanted:
        raise UserError(
            f"model.classes is {wanted}, but the data has {len(found)} labels: "
            f"{', '.join(found[:10])}"
        )
    return found


def batches_of(
    recipe: Recipe,
    data: DataConfig,
    tokenizer: Tokenizer,
    classes: tuple[str, ...],
    workers: Workers,
    store: Store,
    split: str,
) -> Batches:
    """A split as this family of models learns from it."""
    config, longest = recipe.train, recipe.model.max_len
    weights = [part.weight for part in parts_of(data, split)] if split == "train" else []
    examples = examples_of(recipe, data, tokenizer, classes, store, weights)
    return Batches(
        examples,
        config.batch_tokens if isinstance(config.batch_tokens, int) else SMALLEST,
        config.seed,
        pad=tokenizer.pad,
        longest=longest,
        rounded=config.compile or config.repeat,
        rank=workers.rank,
        ranks=workers.ranks,
        workers=config.workers,
        pinned=workers.device.type == "cuda",
    )


def examples_of(
    recipe: Recipe,
    data: DataConfig,
    tokenizer: Tokenizer,
    classes: tuple[str, ...],
    store: Store,
    weights: list[float],
) -> Examples:
    """What this family of models makes of this kind of data."""
    family, config, length = recipe.model.family, recipe.train, recipe.model.max_len
    if data.kind in ("pairs", "dialogues"):
        if family.endswith("encoder-decoder"):
            return PairExamples(store, tokenizer, weights)
        if family.endswith("decoder-only"):
            return PromptExamples(store, tokenizer, weights)
    if data.kind == "texts":
        if family.endswith("decoder-only"):
            return BlockExamples(store, tokenizer, length, config.seed, weights)
        if family == "encoder-only" and not classes:
            rate, whole = config.mask_rate, config.whole_words
            return MaskedExamples(store, tokenizer, length, config.seed, rate, whole, weights)
    if data.kind == "labelled" and family == "encoder-only" and classes:
        return LabelledExamples(store, tokenizer, classes, length, weights)
    heads = " without model.classes" if family == "encoder-only" and not classes else ""
    raise UserError(f"a model of family {family!r}{heads} cannot learn from {data.kind}")


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


def check_same_meaning(ours: dict[str, Any], origin: Loaded) -> None:
    """Weights of the same shapes mean something else with other heads, norms or positions."""
    theirs = asdict(origin.recipe.model)
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in FINE_TUNED and ours.get(name) != theirs.get(name):
            raise UserError(
                f"model.{name} is {ours.get(name)} in this recipe and {theirs.get(name)} in the "
                f"model to start from ({origin.recipe.name}): [model] must be the same"
            )


def write_run(
    recipe: Recipe,
    classes: tuple[str, ...],
    told: dict[str, Any],
    run: RunFolder,
    workers: Workers,
) -> None:
    """Write down what this run is, and on resuming check that its data is still the same."""
    if run.begun:
        before = run.read_json("environment.json")
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


def sample(tokenizer: Tokenizer, store: Store, longest: int, model: nn.Module) -> list[str]:
    """What the model makes of the first few validation sources."""
    rows = range(min(3, len(store)))
    room = longest // 2 - 1  # a language model writes its answer behind the source
    sources = [store.columns[0][i].tolist()[:room] for i in rows]
    limit = min(longest - 1, 2 * max(map(len, sources)) + 10)
    written = answer(model, tokenizer, sources, limit)
    shown = [
        (tokenizer.decode(s), tokenizer.decode(w)) for s, w in zip(sources, written, strict=True)
    ]
    return [f"{source!r:.100} -> {answered!r:.100}" for source, answered in shown]


def answer(
    model: nn.Module, tokenizer: Tokenizer, sources: list[list[int]], limit: int
) -> list[list[int]]:
    """What a model answers to each source, the likeliest token at every step."""
    trained = Trained(model, tokenizer)
    config = DecodeConfig(beam=1, max_tokens=limit, extra_tokens=limit)
    requests = [request_for(trained, source, config) for source in sources]
    return [text.tokens for text in write(trained.model, requests, config, tokenizer)]


def exact(
    tokenizer: Tokenizer, store: Store, rows: Rows, longest: int, model: nn.Module
) -> dict[str, float]:
    """The share of these sources whose answer is right in every token."""
    right = 0
    for begin in range(0, len(rows), ANSWERED_AT_ONCE):
        part = rows[begin : begin + ANSWERED_AT_ONCE]
        sources, targets = ([column[i].tolist() for i in part] for column in store.columns)
        limit = min(longest - 1, 2 * max(map(len, targets)))
        written = answer(model, tokenizer, sources, limit)
        right += sum(a == b for a, b in zip(written, targets, strict=True))
    return {"exact": right / len(rows)}


def held_against(
    recipe: Recipe, data: DataConfig, tokenizer: Tokenizer, model: nn.Module
) -> dict[str, float]:
    """BLEU and chrF of what the model makes of the validation sources, a token at a time."""
    outputs: list[str] = []
    references: list[str] = []
    for part in parts_of(data, "valid"):
        sources, targets = zip(*read_split(part, "valid", Tally()), strict=True)
        quick = replace(recipe.decode, beam=1, groups=1)
        trained = Trained(model, tokenizer, quick, data.kind, tags=tags_of(part))
        outputs += [done.text for done in translate(trained, sources)]
        references += targets
    scores = score_translations(outputs, references)
    return {score.name.lower(): score.score for score in scores if score.better == "higher"}


def evaluate_run(
    path: str | Path, split: str = "test", changes: Iterable[str] = (), silent: bool = False
) -> dict[str, Any]:
    """Loss, perplexity and accuracy of a trained model on a split."""
    loaded = load(path)
    run = find_run(path)
    recipe = recipe_of(run, changes)
    data = resolve(recipe.data)
    if not parts_of(data, split):
        raise UserError(f"there is no {split} split: say --data.{split} FILE ..., or --split")
    with join(recipe.train) as workers:
        report = Report(silent or not workers.first)
        store = tokenise(data, split, loaded.tokenizer, workers, report)
        batches = batches_of(recipe, data, loaded.tokenizer, loaded.classes, workers, store, split)
        trainer = Trainer(
            learner=Learner(loaded.model),
            batches=batches,
            config=recipe.train,
            run=run,
            workers=workers,
            report=report,
            precision=choose_precision(recipe.train, workers.device),
        )
        scores: dict[str, Any] = evaluate(trainer, batches, [])
        if data.toy and scores:
            model, longest = trainer.learner.model.eval(), recipe.model.max_len
            scores |= exact(loaded.tokenizer, store, batches.readable, longest, model)
    return {
        "run": str(path),
        "step": loaded.step,
        "split": split,
        "examples": len(store) - batches.too_long,
        "too_long": batches.too_long,
        **scores,
    }


def show_scores(scores: dict[str, Any], console: Console) -> None:
    """The same for people."""
    console.print(f"[bold]{scores['split']}[/]  {scores['examples']:,} examples, ", end="")
    console.print(f"step {scores['step']:,}")
    for name in ("loss", "perplexity", "accuracy", "exact"):
        if name in scores:
            console.print(f"  {name:>10} {scores[name]:.4f}")
    if scores["too_long"]:
        console.print(f"  {scores['too_long']:,} examples were too long for the model")


def verify_resume(
    recipe: Recipe, run: str | Path, start_from: str | Path | None = None, steps: int = 6
) -> int:
    """Prove on this recipe that resuming changes nothing; a certificate is written into the run.

    It trains a few steps twice, once without a break and once with one in the middle, and compares
    every byte of what a checkpoint holds. As with `train`: 0, or the signal that asked to leave.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("--verify-resume is for one process: say it without torchrun")
    report = Report()
    report.say(f"{steps} steps without a break; then {steps // 2}, a break, {steps - steps // 2}")
    Path(run).mkdir(parents=True, exist_ok=True)
    place = temporary(Path(run) / "proof")  # beside the run: elsewhere may be less room
    try:
        left, hashes = with_and_without_a_break(recipe, place, start_from, steps)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if left:
        return left
    same = hashes[0] == hashes[1]
    certificate = {
        "recipe": recipe.name,
        "steps": steps,
        "broken_after": steps // 2,
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
    report.say(f"equal to the last bit; {run}/resume-certificate.json says so", "green")
    return 0


def with_and_without_a_break(
    recipe: Recipe, place: Path, start_from: str | Path | None, steps: int
) -> tuple[int, list[dict[str, str]]]:
    """The hashes of the last checkpoint without a break and with one, and what `train` says."""
    short = replace(
        recipe.train,
        steps=steps,
        warmup=min(recipe.train.warmup, steps - 1),
        checkpoint_every=steps // 2,
        validate_every=steps,
        keep=2,
    )
    recipe = replace(recipe, train=short)
    whole, broken = (RunFolder(place / name) for name in ("whole", "broken"))
    for run in (whole, broken, broken):
        if run.finished.is_dir():  # as if it had been killed in the middle
            shutil.rmtree(run.checkpoints / name_of(steps))
            shutil.rmtree(run.finished)
        left = train(recipe, run.path, start_from=start_from, silent=True)
        if left:
            return left, []
        recipe = replace(recipe, train=recipe_of(run).train)  # "auto" is decided once
    last = [run.checkpoints / name_of(steps) for run in (whole, broken)]
    return 0, [{path.name: sha256_of(path) for path in sorted(f.iterdir())} for f in last]
