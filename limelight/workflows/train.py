"""From a recipe to a trained model: the parts put together, and a run folder to keep it all.

`train` is what `limelight train` does; `limelight.load` loads its result.
"""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from limelight.data.config import KEYS, SPLITS, DataConfig
from limelight.data.corpora import corpora_for_split
from limelight.data.registry import with_registry_defaults
from limelight.data.tokenizer import Tokenizer
from limelight.device import choose_device, choose_precision
from limelight.errors import UserError, path_from_option, unknown_name
from limelight.files import atomic_write
from limelight.loading import LoadedModel, load
from limelight.recipe import (
    Overrides,
    Recipe,
    as_overrides,
    load_recipe,
    recipe_from_run,
    recipe_names,
    with_absolute_paths,
    with_model_of,
    with_overrides,
)
from limelight.run.atomic import lock, make_folder, remove_stale_temp
from limelight.run.bundled_models import find_run, is_run
from limelight.run.folder import RunFolder
from limelight.run.log import summary
from limelight.run.loggers import check_loggers
from limelight.run.plots import draw_curves
from limelight.tasks.text_model import TEXT_TASKS
from limelight.training.config import TrainConfig
from limelight.training.console import Report
from limelight.training.distributed import World, init_distributed
from limelight.training.loop import fit
from limelight.training.trainer import Callback, Trainer
from limelight.workflows import preflight
from limelight.workflows.build import announce, build_trainer, find_tokenizer, write_run_metadata
from limelight.workflows.datasets import is_sentence_encoder


class _TrainResult(int):
    """0 when a training is done, or the number of the signal that stopped it; and what it reached.

    A training that a callback stops counts as stopped by SIGTERM.
    """

    run: Path

    @property
    def scores(self) -> dict[str, float]:
        """The best validation; of a training without any, its last line of the log."""
        facts = summary(RunFolder(self.run).log)
        return dict(facts["best_validation"] or facts["last"] or {})

    @cached_property
    def model(self) -> LoadedModel:
        """The trained model, loaded when it is first asked for."""
        return load(self.run)


def train(
    recipe: Recipe | str,
    run: str | Path,
    changes: Overrides = (),
    start_from: str | Path | None = None,
    silent: bool = False,
    data: Mapping[str, Iterable[Any]] | None = None,
    callbacks: Sequence[Callback] = (),
) -> _TrainResult:
    """Train what a recipe describes into a run folder, or resume the run in it.

    The result is 0 when done. Otherwise a signal stopped it: its number, after everything was
    saved. `data` has your own examples by split ("train", "valid"): pairs of texts, texts, or what
    the recipe's data.kind says; any iterable will do, as a torch Dataset.
    """
    folder = preflight.named_folder(run)
    if isinstance(recipe, str):
        recipe, start_from = plan(recipe, changes, start_from)
    else:
        recipe = with_overrides(recipe, changes)
    recipe = with_absolute_paths(recipe)
    if data is None:
        preflight.check_data(recipe.data)
    check_loggers(recipe.train.log_to)
    if recipe.data.kind == "images" and (data is not None or callbacks):
        raise UserError("data and callbacks are for models of texts, not for one that draws")
    with init_distributed(recipe.train) as world, lock_run(folder, world):
        report = Report(silent or not world.is_main)
        trainer = None
        if data is not None:
            recipe = _with_examples(recipe, data, folder, world)
        if recipe.data.kind == "images":
            signal = _train_to_draw(recipe, folder, world, report, start_from)
        else:
            trainer = build_trainer(recipe, folder, world, report, start_from)
            trainer.callbacks = callbacks
            signal = fit(trainer)
        if world.is_main:
            draw_curves(folder.log, folder.curves)
            if trainer and not signal:
                _say_result(trainer, recipe, run)
    result = _TrainResult(signal)
    result.run = folder.path
    return result


def _with_examples(
    recipe: Recipe, data: Mapping[str, Iterable[Any]], run: RunFolder, world: World
) -> Recipe:
    """The recipe with examples from Python, which are kept in the run folder to resume it."""
    known = with_registry_defaults(recipe.data)
    files: dict[str, Any] = dict.fromkeys(SPLITS, ())
    if not isinstance(data, Mapping):
        raise UserError("data has examples by split: write data={'train': examples}")
    for split, examples in data.items():
        if split not in files:
            raise unknown_name("split", split, files)
        path = run.path / "examples" / f"{split}.jsonl"
        if world.is_main:
            make_folder(path.parent)
            lines = (
                json.dumps(_as_object(one, known.kind), ensure_ascii=False)
                for one in _each_of(examples)
            )
            atomic_write(path, "".join(f"{line}\n" for line in lines).encode())
        files[split] = (str(path.absolute()),)
    world.barrier()
    origins: dict[str, Any] = {"name": "", "hub": "", "toy": "", "corpora": (), "columns": ()}
    recipe = replace(recipe, data=replace(known, **files, **origins))
    preflight.check_data(recipe.data)
    return recipe


def _each_of(examples: Any) -> Iterator[Any]:
    """Examples in order; a torch Dataset has a length, and need not refuse what is beyond it."""
    if hasattr(examples, "__len__") and not hasattr(examples, "__iter__"):
        return (examples[i] for i in range(len(examples)))
    return iter(examples)


def _as_object(example: Any, kind: str) -> dict[str, Any]:
    """An example as the JSON object that it would be in a file."""
    keys = KEYS[kind]
    if isinstance(example, Mapping):
        return dict(example)
    values = [example] if len(keys) == 1 or isinstance(example, str) else list(example)
    if len(values) != len(keys):
        raise UserError(
            f"{example!r:.80} is not an example of {kind}: it needs {' and '.join(keys)}"
        )
    return dict(zip(keys, values, strict=True))


def plan(
    name: str, changes: Overrides = (), start_from: str | Path | None = None
) -> tuple[Recipe, str | Path | None]:
    """The recipe of this name, and what it starts from; the name of a model fine-tunes that."""
    if name not in recipe_names() and not name.endswith(".toml") and is_run(name):
        return _to_fine_tune(find_run(name), as_overrides(changes)), start_from or name
    recipe = load_recipe(name, changes)
    if start_from:
        recipe = with_model_of(recipe, recipe_from_run(find_run(start_from)), changes)
    return recipe, start_from


def _to_fine_tune(run: RunFolder, changes: Mapping[str, Any]) -> Recipe:
    """The recipe of a run with changes, without what this machine or these data do not have.

    Weights in bfloat16 are for GPUs; a metric and patience, for validation texts.
    """
    recipe = recipe_from_run(run, changes)
    config, half = recipe.train, "train.master_weights"
    if config.master_weights and half not in changes:
        precision = choose_precision(config.precision, choose_device(config.device))
        recipe = with_overrides(recipe, {half: precision == "bfloat16"})
    if not recipe.data.train or corpora_for_split(recipe.data, "valid"):
        return recipe
    unused = {"train.metric": TrainConfig.metric, "train.patience": TrainConfig.patience}
    return with_overrides(recipe, {k: v for k, v in unused.items() if k not in changes})


def _say_result(trainer: Trainer, recipe: Recipe, run: str | Path) -> None:
    """What a training has reached, where it is, and what to do with it."""
    state = trainer.state
    reached, last = f"done: step {state.step}", summary(trainer.run.log)["last"]
    if state.best_step:  # scores that should be high are negative there
        best = f"{state.metric} {abs(state.best):.4f} at step {state.best_step}"
        reached += f", best validation {best}"
    elif last:
        reached += f", training loss {last['loss']:.4f}"
    trainer.report.say(f"{reached}; see {trainer.run.curves}")
    name = shlex.quote(str(run))
    data = with_registry_defaults(recipe.data)
    split = "" if data.test else " --data.test FILE" if trainer.valid is None else " --split valid"
    for command in (_example_of(recipe, data, name), f"evaluate {name}{split}", f"serve {name}"):
        trainer.report.say(f"  limelight {command}")


def _example_of(recipe: Recipe, data: DataConfig, name: str) -> str:
    """The command for what a model of this recipe does."""
    if recipe.model.family == "encoder-only":
        if data.kind == "labelled":
            return f"classify {name} 'A text.'"
        text = "'A text.'" if is_sentence_encoder(recipe) else "'A text with a ___.'"
        return f"{'embed' if is_sentence_encoder(recipe) else 'fill'} {name} {text}"
    if data.tag == "ask":
        return f"ask {name} 'A question?' --context FILE"
    written = {"texts": "write", "dialogues": "chat"}.get(data.kind, "translate")
    return f"{data.tag if data.tag in TEXT_TASKS else written} {name} 'A text.'"


def _train_to_draw(
    recipe: Recipe, run: RunFolder, world: World, report: Report, start_from: str | Path | None
) -> int:
    """Train an image tokenizer and a model that draws; both are in `limelight.draw`."""
    from limelight.draw.examples import open_pictures
    from limelight.draw.train import PictureTraining

    if start_from:
        raise UserError("--from is for models of texts: leave it out to train one that draws")
    if recipe.train.tensor_parallel > 1:
        raise UserError("tensor_parallel is for models of texts: set --train.tensor-parallel 1")
    for name in ("bpe_dropout", "pack"):
        if value := getattr(recipe.train, name):
            option = f"--train.{name.replace('_', '-')} 0"
            raise UserError(f"{name}={value} is for models of texts: set {option}")
    announce(recipe, world, report)
    preflight.check_steps(recipe, run)
    preflight.check_compiler(recipe.train, world.device)
    pictures = open_pictures(recipe, world.device, report)
    kind, vocab = recipe.tokenizer.kind, recipe.tokenizer.vocab
    learn = partial(Tokenizer.train, kind, pictures.texts(), vocab)
    tokenizer = find_tokenizer(recipe, learn, run, world, None, report)
    recipe = with_overrides(recipe, {"tokenizer.vocab": len(tokenizer)})
    recipe = preflight.reconcile_with_run(recipe, tokenizer, run)
    made_of = {"data": {"train": pictures.fingerprint}}
    write_run_metadata(recipe, tokenizer, made_of, world, run)
    return PictureTraining(recipe, run, world, report, pictures, tokenizer).fit()


@contextmanager
def lock_run(run: RunFolder, world: World) -> Iterator[None]:
    """The main process locks the folder, and removes temporary files of dead processes."""
    if world.is_main:
        preflight.check_run_folder(run)
        with path_from_option("--run"):
            make_folder(run.path)
    with lock(run.path) if world.is_main else nullcontext():
        if world.is_main:
            for folder in (run.path, run.checkpoints, run.finished):
                remove_stale_temp(folder)
        world.barrier()
        yield
