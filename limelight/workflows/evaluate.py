"""How good a trained model is at its task, and whether another one is better.

On top of what training measures (loss, perplexity, accuracy): translations are held against their
references, texts are weighed in bits per byte, labels are compared; all with signatures, so that
others can do the same.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.console import Console

from limelight.data.config import DataConfig
from limelight.data.corpora import corpora_for_split, read_split
from limelight.data.progress import counting
from limelight.data.readers import LineStats
from limelight.data.registry import resolve, with_registry_defaults
from limelight.device import choose_precision
from limelight.errors import UserError, unknown_name
from limelight.evaluate import report
from limelight.evaluate.bleu import score_translations
from limelight.evaluate.labels import score_labels
from limelight.evaluate.language import accuracy, bits_per_byte, count_bytes
from limelight.evaluate.metrics import Measure
from limelight.evaluate.significance import Comparison, compare_examples, compare_translations
from limelight.evaluate.wmt14 import is_wmt14, paper_bleu
from limelight.loading import LoadedModel, load
from limelight.recipe import Overrides, Recipe, as_overrides, recipe_from_run, with_overrides
from limelight.run.bundled_models import find_run
from limelight.tasks.classify import classify
from limelight.tasks.fill import HIDDEN, ranks_of_hidden
from limelight.tasks.score import nll_per_text
from limelight.tasks.translate import Constraints, translate
from limelight.training.console import Report
from limelight.training.distributed import init_distributed
from limelight.training.loop import evaluate
from limelight.training.objectives import LossModule
from limelight.training.trainer import Trainer
from limelight.workflows.datasets import build_batches, tokenize_split
from limelight.workflows.preflight import check_compiler
from limelight.workflows.validation_decoding import exact_match

_SPLITS = ("train", "valid", "test")
_COMPUTING = (
    "batch_tokens",
    "compile",
    "device",
    "precision",
    "fsdp",
    "data_workers",
)  # of the loss
_HIDING = (
    "mask_rate",
    "seed",
    "whole_word_masking",
)  # which tokens a model that fills in has to find


@dataclass(frozen=True)
class _EvaluationLines:
    """A split as it was written: sources and targets, texts and labels, or texts alone."""

    columns: list[list[str]]
    tags: list[str]  # what is asked of the model for each line, if it learned several things
    tally: LineStats  # what became of all that was read

    @property
    def counts(self) -> dict[str, Any]:
        """The tally as `limelight data check` has it."""
        reasons = {"rejected": dict(self.tally.rejected), "repaired": dict(self.tally.repaired)}
        return {"read": self.tally.read, "used": self.tally.used, **reasons}

    def tell_unusable(self, report: Report) -> None:
        """Say how many lines are not scored because something is wrong with them, and what."""
        if self.tally.unusable:
            report.warn(f"{self.tally.unusable} and are not scored")


def score_run(
    path: str | Path, split: str = "test", changes: Overrides = (), silent: bool = False
) -> dict[str, Any]:
    """All scores of a run on a split, as one JSON document has them."""
    changes = as_overrides(changes)
    recipe = _evaluation_recipe(path, split, changes)
    find_run(path).weights()  # that there are any is known before a corpus is downloaded
    lines = _read_lines(recipe, split)
    lines.tell_unusable(Report(silent))
    losses = evaluate_run(path, split, changes, silent)
    scores = _score_task(load(path), recipe, lines, silent)
    settings = asdict(recipe.decode)
    told = report.report_scores(str(path), split, lines.columns, scores, settings)
    return {**losses, "tally": lines.counts, **told}


def evaluate_run(
    path: str | Path, split: str = "test", changes: Overrides = (), silent: bool = False
) -> dict[str, Any]:
    """Loss, perplexity and accuracy of a trained model on a split."""
    recipe = _evaluation_recipe(path, split, changes)
    loaded = load(path)
    data = _data_of(recipe, split)
    with init_distributed(recipe.train) as workers:
        check_compiler(recipe.train, workers.device)
        telling = Report(silent or not workers.is_main)
        store = tokenize_split(data, split, loaded.tokenizer, workers, telling)
        batches = build_batches(
            recipe, store, split, data, loaded.tokenizer, loaded.classes, workers
        )
        trainer = Trainer(
            learner=LossModule(loaded.model),
            batches=batches,
            config=recipe.train,
            run=find_run(path),
            workers=workers,
            report=telling,
            precision=choose_precision(recipe.train.precision, workers.device),
        )
        scores: dict[str, Any] = evaluate(trainer, batches, [])
        if data.toy and scores:
            model, longest = trainer.learner.model.eval(), recipe.model.max_len
            scores |= exact_match(loaded.tokenizer, store, batches.usable, longest, model)
    return {
        "run": str(path),
        "step": loaded.step,
        "split": split,
        "examples": len(store) - batches.too_long,
        "too_long": batches.too_long,
        **scores,
    }


def _evaluation_recipe(path: str | Path, split: str, changes: Overrides = ()) -> Recipe:
    """A run's recipe with these changes; texts that they name are read instead of the recipe's."""
    if split not in _SPLITS:
        raise unknown_name("split", split, _SPLITS)
    changes = as_overrides(changes)
    named = changes.keys()
    for other in _SPLITS:
        if other != split and f"data.{other}" in named:
            raise UserError(f"--data.{other} names texts of another split: say --split {other}")
    recipe = recipe_from_run(find_run(path))
    _refuse_others(recipe, changes)
    if f"data.{split}" in named:
        recipe = replace(recipe, data=_without_sources(with_registry_defaults(recipe.data)))
    elif named & {"data.name", "data.hub", "data.toy"}:
        recipe = replace(recipe, data=_without_sources(recipe.data))
    elif recipe.data.corpora and (files := getattr(recipe.data, split)):  # for all of them together
        recipe = replace(recipe, data=replace(_without_sources(recipe.data), **{split: files}))
    # What pays in a long training takes longer here than all the rest: only if it is asked for.
    recipe = replace(recipe, train=replace(recipe.train, compile=False))
    return with_overrides(recipe, changes)


def _refuse_others(recipe: Recipe, changes: Iterable[str]) -> None:
    """A trained model is what it is; a setting that would change nothing is refused."""
    fills = recipe.model.family == "encoder-only" and not getattr(recipe.model, "classes", 0)
    usable = (*_COMPUTING, *_HIDING) if fills else _COMPUTING
    for change in changes:
        table, _, setting = change.partition(".")
        useless = table == "train" and setting not in usable
        if useless or table in ("model", "tokenizer", "published"):
            raise UserError(
                f"{change!r} cannot be changed any more: only [data], [decode] and, of [train], "
                f"{', '.join(usable)} can, when a trained model is scored"
            )


def _without_sources(data: DataConfig) -> DataConfig:
    """How texts are read, without where they come from."""
    data = replace(data, name="", hub="", toy="", corpora=(), hold_out=0.0, valid_tail=0.0)
    return replace(data, train=(), valid=(), test=())


def _data_of(recipe: Recipe, split: str) -> DataConfig:
    """The data with its files; if there are none to be had, what to do about it."""
    own = f"--data.{split} FILE ..."
    try:
        data = resolve(recipe.data, split)
    except UserError as error:
        raise UserError(f"{error}. You can give texts of your own instead: {own}") from error
    if not corpora_for_split(data, split):
        raise UserError(f"there is no {split} split: say {own}, or --split")
    return data


def _read_lines(recipe: Recipe, split: str) -> _EvaluationLines:
    """The lines of a split, of one corpus after the other."""
    examples, tags, tally = [], [], LineStats()
    for part in corpora_for_split(_data_of(recipe, split), split):
        read = list(read_split(part, split, tally))
        examples += read
        tags += [part.tag] * len(read)
    if not examples:
        why = tally.unusable or "it is empty"
        raise UserError(f"there is nothing to score in the {split} split: {why}")
    return _EvaluationLines([list(column) for column in zip(*examples, strict=True)], tags, tally)


def _score_task(
    loaded: LoadedModel, recipe: Recipe, lines: _EvaluationLines, silent: bool = False
) -> list[Measure]:
    """The scores of the task that a model was trained for."""
    texts, *rest = lines.columns
    if "translate" in loaded.tasks:
        outputs = _translations_of(loaded, recipe, lines, silent)
        scores = score_translations(outputs, rest[0])
        if is_wmt14(recipe.data.name):
            swapped = recipe.data.name.split("-")[1] if recipe.data.reverse else ""
            scores.append(paper_bleu(recipe.data.name, outputs, rest[0], swapped))
        return scores
    if "classify" in loaded.tasks:
        return score_labels(_labels_of(loaded, texts), rest[0])
    if "write" in loaded.tasks:
        bits = bits_per_byte(sum(nll_per_text(loaded, texts)), count_bytes(texts))
        return [Measure("bits per byte", bits, "lower", f"context:{loaded.max_len}")]
    return _score_blanks(
        [rank for ranks in ranks_of_hidden(loaded, texts) for rank in ranks], loaded
    )


def _score_blanks(ranks: Sequence[int], loaded: LoadedModel) -> list[Measure]:
    """How often the right token is the first choice for a blank, and one of the first five."""
    signature = f"hidden:{HIDDEN}|context:{loaded.max_len}|seed:1"
    return [
        Measure(
            f"top-{most}", accuracy(sum(r < most for r in ranks), len(ranks)), "higher", signature
        )
        for most in (1, 5)
    ]


def _translations_of(
    loaded: LoadedModel, recipe: Recipe, lines: _EvaluationLines, silent: bool = False
) -> list[str]:
    """What the model makes of the sources, as its recipe says."""
    outputs = []
    loaded.to(precision=recipe.decode.precision)
    sources = zip(lines.tags, lines.columns[0], strict=True)
    with counting("translating", Console(stderr=True, quiet=silent)) as progress:
        for tag, tagged in groupby(sources, key=itemgetter(0)):
            texts = (source for _, source in tagged)
            for done in translate(loaded, texts, recipe.decode, wishes=Constraints(tag=tag)):
                outputs.append(done.text)
                progress(1)
    return outputs


def _labels_of(loaded: LoadedModel, texts: Sequence[str]) -> list[str]:
    """The likeliest class of each text."""
    return [next(iter(chances)) for chances in classify(loaded, texts)]


def compare_runs(
    paths: tuple[str | Path, str | Path],
    split: str = "test",
    changes: Overrides = (),
    silent: bool = False,
) -> dict[str, Any]:
    """Two runs on the same texts: both scores, and whether chance explains the difference."""
    changes = as_overrides(changes)
    recipes = [_evaluation_recipe(path, split, changes) for path in paths]
    both = [load(path) for path in paths]
    if both[0].tasks != both[1].tasks:
        told = [", ".join(loaded.tasks) for loaded in both]
        raise UserError(f"{paths[0]} can {told[0]}, and {paths[1]} {told[1]}: no comparison")
    lines = [_read_lines(recipe, split) for recipe in recipes]  # each with what is asked of its run
    if lines[0].columns != lines[1].columns:
        raise UserError(
            f"{paths[0]} and {paths[1]} have other {split} texts: name the same for both, with "
            f"--data.{split} FILE ..."
        )
    lines[0].tell_unusable(Report(silent))
    names = (str(paths[0]), str(paths[1]))
    found = _compare_task(names, both, recipes, lines, silent)
    settings = (asdict(recipes[0].decode), asdict(recipes[1].decode))
    compared = report.report_comparison(names, split, lines[0].columns, found, settings)
    return {"tally": lines[0].counts, **compared}


def _compare_task(
    names: tuple[str, str],
    both: list[LoadedModel],
    recipes: list[Recipe],
    lines: list[_EvaluationLines],
    silent: bool,
) -> list[Comparison]:
    """The comparison for the task that both were trained for."""
    texts, *rest = lines[0].columns
    if "translate" in both[0].tasks:
        first, second = (
            _translations_of(*asked, silent) for asked in zip(both, recipes, lines, strict=True)
        )
        return compare_translations(names, (first, second), rest[0])
    if "classify" in both[0].tasks:
        right = [
            [float(a == b) for a, b in zip(_labels_of(loaded, texts), rest[0], strict=True)]
            for loaded in both
        ]
        return [compare_examples("accuracy", names, (right[0], right[1]))]
    if "write" in both[0].tasks:
        one, other = (
            [nats / math.log(2) for nats in nll_per_text(loaded, texts)] for loaded in both
        )
        sizes = [count_bytes([text]) for text in texts]
        return [compare_examples("bits per byte", names, (one, other), sizes, better="lower")]
    return [_compare_blanks(names, both, texts)]


def _compare_blanks(
    names: tuple[str, str], both: list[LoadedModel], texts: Sequence[str]
) -> Comparison:
    """How often the first choice for a blank is right, if the same tokens are hidden from both."""
    if len({(loaded.tokenizer.hash, loaded.max_len) for loaded in both}) > 1:
        raise UserError(
            f"{names[0]} and {names[1]} have other tokenizers or another max_len, so that other "
            "tokens would be hidden from them: no comparison"
        )
    one, other = (
        [float(rank == 0) for ranks in ranks_of_hidden(loaded, texts) for rank in ranks]
        for loaded in both
    )
    return compare_examples("top-1", names, (one, other))


def show(told: dict[str, Any], console: Console) -> None:
    """Scores, or a comparison, for people."""
    if "loss" in told:
        _show_scores(told, console)
    if told.get("scores") or "comparisons" in told:
        report.show(told, console)


def _show_scores(scores: dict[str, Any], console: Console) -> None:
    """The same for people."""
    console.print(f"[bold]{scores['split']}[/]  {scores['examples']:,} examples, ", end="")
    console.print(f"step {scores['step']:,}")
    for name in ("loss", "perplexity", "accuracy", "exact"):
        if name in scores:
            console.print(f"  {name:>10} {scores[name]:.4f}")
    if scores["too_long"]:
        console.print(f"  {scores['too_long']:,} examples were too long for the model")
