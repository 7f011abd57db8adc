"""How good a trained model is at its task, and whether another one is better.

On top of what training measures (loss, perplexity, accuracy): BLEU, chrF and TER of translations,
and on request exact match, ROUGE and COMET; bits per byte of texts; accuracy, F1 and confusions of
labels; recall of texts that mean the same. All have signatures, so that others can compute them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, groupby, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.text import Text

from limelight.data.config import SPLITS, DataConfig
from limelight.data.corpora import corpora_for_split, read_split
from limelight.data.lines import LineStats, merge_fragments
from limelight.data.progress import counting
from limelight.data.registry import resolve, with_registry_defaults
from limelight.device import choose_precision
from limelight.errors import UserError, unknown_name
from limelight.evaluate import report
from limelight.evaluate.bleu import is_wmt14, paper_bleu, score_translations
from limelight.evaluate.line_metrics import MetricName, check_metrics, line_scores
from limelight.evaluate.metrics import (
    Measure,
    accuracy,
    bits_per_byte,
    confusion_matrix,
    count_bytes,
    score_labels,
    scores_by_class,
)
from limelight.evaluate.outputs import ENDINGS, draw_confusion, write_outputs
from limelight.evaluate.significance import Comparison, compare_examples, compare_translations
from limelight.files import check_output
from limelight.loading import LoadedModel, load
from limelight.recipe import Overrides, Recipe, as_overrides, recipe_from_run, with_overrides
from limelight.run.bundled_models import find_run
from limelight.tasks.classify import classify
from limelight.tasks.fill import HIDDEN, ranks_of_hidden
from limelight.tasks.score import nll_per_text
from limelight.tasks.search import ranks_of_partners
from limelight.tasks.translate import Constraints, translate
from limelight.training.console import Report
from limelight.training.distributed import init_distributed, prepare_module
from limelight.training.evaluate import loss_on
from limelight.training.objectives import LossModule
from limelight.workflows.datasets import TokenizedData, tokenize_splits
from limelight.workflows.preflight import check_compiler
from limelight.workflows.validation_decoding import exact_match

_LOSS_SETTINGS = ("batch_tokens", "compile", "device", "precision", "fsdp", "data_workers")
_MASKING_SETTINGS = ("mask_rate", "seed", "whole_word_masking")  # for masked language models


@dataclass(frozen=True)
class _EvaluationLines:
    """A split as text: sources and references, texts and labels, or texts alone."""

    recipe: Recipe  # of the run, with the user's changes
    columns: list[list[str]]
    tags: list[str]  # of each line, for a model of several tasks
    tally: LineStats  # of all lines that were read

    def warn_of_unusable(self, silent: bool) -> None:
        if self.tally.unusable:
            Report(silent).warn(f"{self.tally.unusable} and are not scored")


@dataclass(frozen=True)
class _Answers:
    """What a run answers to each line: a translation, or a class with its probability."""

    run: str
    texts: list[str]
    probabilities: list[float]  # of classes


def score_run(
    path: str | Path,
    split: str = "test",
    changes: Overrides = (),
    silent: bool = False,
    metrics: Sequence[str] = (),
    output: str = "",
) -> dict[str, Any]:
    """All scores of a run on a split, as the JSON document of `limelight evaluate`.

    `metrics` are further ones: exact, rouge, comet. `output` is a file for what the run answers.
    """
    changes = as_overrides(changes)
    recipe = _evaluation_recipe(path, split, changes)
    if recipe.data.kind == "images":
        from limelight.draw.evaluate import score_drawing

        _check_request(("draw",), metrics, output)
        wanted = recipe.decode.precision
        drawer = load(path, precision="float32" if wanted == "auto" else wanted)
        return {"run": str(path), **score_drawing(drawer, recipe, split)}
    loaded = load(path, device="cpu", precision="auto")  # or fails before a corpus is downloaded
    _check_request(loaded.tasks, metrics, output)
    lines = _read_lines(recipe, split)
    lines.warn_of_unusable(silent)
    losses = evaluate_run(path, split, changes, silent)
    answers = _answer(loaded, str(path), lines, silent)
    scores = _score_task(loaded, lines, answers, metrics)
    settings = asdict(recipe.decode)
    reported = report.report_scores(str(path), split, lines.columns, scores, settings)
    if "classify" in loaded.tasks:
        both = (answers.texts, lines.columns[1])
        reported |= {"classes": scores_by_class(*both), "confusion": confusion_matrix(*both)}
    written = {"written": _write_answers(output, lines, [answers])} if output else {}
    return {**losses, "tally": lines.tally.counts, **reported, **written}


def _check_request(tasks: Sequence[str], metrics: Sequence[str], output: str) -> None:
    """Reject metrics and outputs that a model does not have, before anything is computed."""
    for name in metrics:
        if name not in get_args(MetricName):
            raise unknown_name("metric", name, get_args(MetricName))
    able = {"metric": {"translate"}, "output": {"translate", "classify"}}
    for option, wanted in {"metric": metrics and metrics[0], "output": output}.items():
        if wanted and not able[option] & {*tasks}:
            can = " or ".join(sorted(able[option]))
            raise UserError(
                f"--{option} {wanted} is for models that {can}: this one can {', '.join(tasks)}"
            )
    check_metrics(metrics)
    if output:
        check_output(output, ENDINGS)


def evaluate_run(
    path: str | Path, split: str = "test", changes: Overrides = (), silent: bool = False
) -> dict[str, Any]:
    """Loss, perplexity and accuracy of a trained model on a split."""
    recipe = _evaluation_recipe(path, split, changes)
    config = replace(recipe.train, tensor_parallel=1, pack=0, bpe_dropout=0.0, master_weights=False)
    if config.precision == "fp8":  # of gradients
        config = replace(config, precision="auto")
    recipe, data = replace(recipe, train=config), _data_of(recipe, split)
    loaded = load(path, device="cpu", precision="auto")
    with init_distributed(config) as world:
        check_compiler(config, world.device)
        console = Report(silent or not world.is_main)
        stores = tokenize_splits(data, [split], loaded.tokenizer, world, console)
        tokenized = TokenizedData(recipe, data, loaded.tokenizer, stores, loaded.classes, world)
        batches = tokenized.batches(split)
        precision = choose_precision(config.precision, world.device)
        module = prepare_module(LossModule(loaded.model), world, config, precision)
        scores: dict[str, Any] = loss_on(module, batches, world, precision)
        if data.toy and scores:
            scores |= exact_match(tokenized, split, batches.usable, loaded.model.eval())
    return {
        "run": str(path),
        "step": loaded.step,
        "split": split,
        "examples": len(stores[split]) - batches.too_long,
        "too_long": batches.too_long,
        "truncated": batches.truncated,
        **scores,
    }


def _evaluation_recipe(path: str | Path, split: str, changes: Overrides = ()) -> Recipe:
    """A run's recipe with these changes; files that they name replace the recipe's."""
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    changes = as_overrides(changes)
    named = changes.keys()
    for other in SPLITS:
        if other != split and f"data.{other}" in named:
            raise UserError(f"--data.{other} names texts of another split: use --split {other}")
    recipe = recipe_from_run(find_run(path))
    _check_changes(recipe, changes)
    if f"data.{split}" in named:
        recipe = replace(recipe, data=_without_sources(with_registry_defaults(recipe.data)))
    elif named & {"data.name", "data.hub", "data.toy"}:
        recipe = replace(recipe, data=_without_sources(recipe.data))
    elif recipe.data.corpora and (files := getattr(recipe.data, split)):  # for all of them together
        recipe = replace(recipe, data=replace(_without_sources(recipe.data), **{split: files}))
    # Compiling would take longer here than all the rest: only if these changes ask for it.
    recipe = replace(recipe, train=replace(recipe.train, compile=False))
    return with_overrides(recipe, changes)


def _check_changes(recipe: Recipe, changes: Iterable[str]) -> None:
    masked_lm = recipe.model.family == "encoder-only" and not getattr(recipe.model, "classes", 0)
    usable = (*_LOSS_SETTINGS, *_MASKING_SETTINGS) if masked_lm else _LOSS_SETTINGS
    for change in changes:
        table, _, setting = change.partition(".")
        useless = table == "train" and setting not in usable
        if useless or table in ("model", "tokenizer", "published"):
            raise UserError(
                f"{change!r} cannot be changed any more: only [data], [decode] and, of [train], "
                f"{', '.join(usable)} can, when a trained model is scored"
            )


def _without_sources(data: DataConfig) -> DataConfig:
    """How texts are read, but not from where."""
    data = replace(data, name="", hub="", toy="", corpora=(), hold_out=0.0, valid_tail=0.0)
    return replace(data, train=(), valid=(), test=())


def _data_of(recipe: Recipe, split: str) -> DataConfig:
    own = f"--data.{split} FILE ..."
    try:
        data = resolve(recipe.data, split)
    except UserError as error:
        raise UserError(f"{error}. You can name your own texts instead: {own}") from error
    if not corpora_for_split(data, split):
        others = [f"--split {other}" for other in SPLITS if corpora_for_split(data, other)]
        raise UserError(f"there is no {split} split: use {' or '.join([own, *others])}")
    return data


def _read_lines(recipe: Recipe, split: str) -> _EvaluationLines:
    examples, tags, tally = [], [], LineStats()
    for part in corpora_for_split(_data_of(recipe, split), split):
        read = list(merge_fragments(read_split(part, split, tally)))
        examples += read
        tags += [part.tag] * len(read)
    if not examples:
        why = tally.unusable or "it is empty"
        raise UserError(f"there is nothing to score in the {split} split: {why}")
    columns = [list(column) for column in zip_longest(*examples, fillvalue="")]
    return _EvaluationLines(recipe, columns, tags, tally)


def _answer(loaded: LoadedModel, run: str, lines: _EvaluationLines, silent: bool) -> _Answers:
    """What a run answers to the lines; nothing, if its task is to read them."""
    if "translate" in loaded.tasks:
        return _Answers(run, _translations_of(loaded, lines, silent), [])
    if "classify" not in loaded.tasks:
        return _Answers(run, [], [])
    best = [next(iter(chances.items())) for chances in classify(loaded, lines.columns[0])]
    return _Answers(run, [name for name, _ in best], [chance for _, chance in best])


def _write_answers(output: str, lines: _EvaluationLines, answers: Sequence[_Answers]) -> list[str]:
    """Write answers beside the lines, a column for each run; and a picture of confusions."""
    texts, *references = lines.columns
    path, labelled = Path(output), bool(answers[0].probabilities)
    columns: dict[str, Sequence[Any]] = {"text" if labelled else "source": texts}
    for i, column in enumerate(references):
        name = "label" if labelled else "reference"
        columns[f"{name}_{i + 1}" if i else name] = column
    if len(answers) == 1:
        columns["prediction" if labelled else "output"] = answers[0].texts
        if labelled:
            columns["probability"] = [round(chance, 6) for chance in answers[0].probabilities]
    else:
        columns |= {own.run: own.texts for own in answers}
    write_outputs(path, columns)
    if not labelled:
        return [output]
    picture = path.with_suffix(".confusion.svg")
    drawn = {own.run: confusion_matrix(own.texts, references[0]) for own in answers}
    draw_confusion(drawn, picture)
    return [output, str(picture)]


def _score_task(
    loaded: LoadedModel, lines: _EvaluationLines, answers: _Answers, metrics: Sequence[str]
) -> list[Measure]:
    texts, *references = lines.columns
    if "translate" in loaded.tasks:
        outputs, data = answers.texts, lines.recipe.data
        scores = score_translations(outputs, references)
        if is_wmt14(data.name):
            swapped = data.name.split("-")[1] if data.reverse else ""
            scores.append(paper_bleu(data.name, outputs, references[0], swapped))
        more = line_scores(metrics, texts, outputs, references)
        return [*scores, *(one.measure for one in more)]
    if "classify" in loaded.tasks:
        return score_labels(answers.texts, references[0])
    if "write" in loaded.tasks:
        bits = bits_per_byte(sum(nll_per_text(loaded, texts)), count_bytes(texts))
        return [Measure("bits per byte", bits, "lower", f"context:{loaded.max_len}")]
    kind, ranks = _ranks(loaded, lines.columns)
    tops, among = (1, 10), f"texts:{len(ranks)}"
    if "fill" in loaded.tasks:
        tops, among = (1, 5), f"hidden:{HIDDEN}|context:{loaded.max_len}|seed:1"
    found = {k: accuracy(sum(rank < k for rank in ranks), len(ranks)) for k in tops}
    return [Measure(f"{kind}{k}", share, "higher", among) for k, share in found.items()]


def _ranks(loaded: LoadedModel, columns: Sequence[list[str]]) -> tuple[str, list[int]]:
    """How many others a model prefers to each hidden token, or to the text that means the same."""
    if "fill" in loaded.tasks:
        return "top-", list(chain.from_iterable(ranks_of_hidden(loaded, columns[0])))
    if len(columns) == 1:
        raise UserError(
            "this model only embeds texts, so it is scored on pairs of texts that mean the same: "
            "name a file with --data.test FILE --data.kind pairs"
        )
    return "recall@", ranks_of_partners(loaded, *columns[:2])


def _translations_of(loaded: LoadedModel, lines: _EvaluationLines, silent: bool) -> list[str]:
    outputs, decode = [], lines.recipe.decode
    loaded.to("cpu" if decode.engine == "ctranslate2" else "auto", decode.precision)
    sources = zip(lines.tags, lines.columns[0], strict=True)
    with counting("translating", Console(stderr=True, quiet=silent)) as progress:
        for tag, tagged in groupby(sources, key=itemgetter(0)):
            texts = (source for _, source in tagged)
            constraints = Constraints(tag=tag)
            for done in translate(loaded, texts, decode, constraints=constraints, logprobs=False):
                outputs.append(done.text)
                progress(1)
    return outputs


def compare_runs(
    paths: Sequence[str | Path],
    split: str = "test",
    changes: Overrides = (),
    silent: bool = False,
    metrics: Sequence[str] = (),
    output: str = "",
) -> dict[str, Any]:
    """All scores on the same texts, and whether chance explains the difference to the first run."""
    changes = as_overrides(changes)
    recipes = [_evaluation_recipe(path, split, changes) for path in paths]
    loaded = [load(path, device="cpu", precision="auto") for path in paths]
    for path, other in zip(paths[1:], loaded[1:], strict=True):
        if other.tasks != loaded[0].tasks:
            tasks = [", ".join(each.tasks) for each in (loaded[0], other)]
            raise UserError(f"{paths[0]} can {tasks[0]}, and {path} {tasks[1]}: no comparison")
    _check_request(loaded[0].tasks, metrics, output)
    lines = [_read_lines(recipe, split) for recipe in recipes]  # each with the tags of its run
    for path, own in zip(paths[1:], lines[1:], strict=True):
        if own.columns != lines[0].columns:
            raise UserError(
                f"{paths[0]} and {path} have other {split} texts: name the same for both, with "
                f"--data.{split} FILE ..."
            )
    lines[0].warn_of_unusable(silent)
    if all(recipe.data.toy for recipe in recipes):
        metrics = (*metrics, "exact")
    names = [str(path) for path in paths]
    answers = [_answer(*each, silent) for each in zip(loaded, names, lines, strict=True)]
    found = _compare_task(loaded, lines[0], answers, metrics)
    settings = [asdict(recipe.decode) for recipe in recipes]
    compared = report.report_comparison(names, split, lines[0].columns, found, settings)
    written = {"written": _write_answers(output, lines[0], answers)} if output else {}
    return {"tally": lines[0].tally.counts, **compared, **written}


def _compare_task(
    loaded: Sequence[LoadedModel],
    lines: _EvaluationLines,
    answers: Sequence[_Answers],
    metrics: Sequence[str],
) -> list[Comparison]:
    names, tasks = [own.run for own in answers], loaded[0].tasks
    texts, *references = lines.columns
    if "translate" in tasks:
        outputs = [own.texts for own in answers]
        scored = [line_scores(metrics, texts, own, references) for own in outputs]
        more = (
            compare_examples(
                own[0].name, names, [one.scores for one in own], signature=own[0].signature
            )
            for own in zip(*scored, strict=True)
        )
        return [*compare_translations(names, outputs, references), *more]
    if "classify" in tasks:
        hits = [
            [float(a == b) for a, b in zip(own.texts, references[0], strict=True)]
            for own in answers
        ]
        return [compare_examples("accuracy", names, hits)]
    if "write" in tasks:
        bits = [[x / math.log(2) for x in nll_per_text(model, texts)] for model in loaded]
        sizes = [count_bytes([text]) for text in texts]
        return [compare_examples("bits per byte", names, bits, sizes, better="lower")]
    read = {(model.tokenizer.hash, model.max_len) for model in loaded}
    if "fill" in tasks and len(read) > 1:
        raise UserError(
            f"{' and '.join(names)} differ in tokenizer or max_len, so that other "
            "tokens would be masked: no comparison"
        )
    (kind, *_), ranks = zip(*(_ranks(model, lines.columns) for model in loaded), strict=True)
    first = [[float(rank == 0) for rank in own] for own in ranks]
    return [compare_examples(f"{kind}1", names, first)]


def show(scores: dict[str, Any], console: Console) -> None:
    """Scores, or a comparison, for people."""
    if "tokens_used" in scores:
        from limelight.draw.evaluate import show as show_drawing

        show_drawing(scores, console)
        return
    if "loss" in scores:
        console.print(f"[bold]{scores['split']}[/]  {scores['examples']:,} examples, ", end="")
        console.print(f"step {scores['step']:,}")
        for name in ("loss", "perplexity", "accuracy", "exact"):
            if name in scores:
                console.print(f"  {name:>10} {scores[name]:.4f}")
        if scores["too_long"]:
            console.print(f"  {scores['too_long']:,} examples were too long for the model")
        if scores["truncated"]:
            console.print(f"  {scores['truncated']:,} texts were cut to what the model reads")
    if scores.get("scores") or "comparisons" in scores:
        report.show(scores, console)
    for path in scores.get("written", ()):
        console.print(Text(path, "dim"), soft_wrap=True)
