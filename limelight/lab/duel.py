"""Does a Transformer translate better than recurrent networks with attention?

All contestants have the recipe's data, tokenizer, batches and layers, and as many parameters as its
Transformer, within 5%, by their width: an LSTM and a GRU with additive attention, and a Transformer
whose decoder has an SSRU instead of masked self-attention. Each is trained on the same tokens
(--quick: a quarter of the recipe's steps), with one seed, at the best of three learning rates (a
third, 1 and 3 times the recipe's, and up to two beyond if the best is at the edge), chosen by the
validation loss after a fifth of the steps. The test: 500 sentences (--quick: 200), with paired
bootstrap against the Transformer. Memory is the plan of `limelight info` for training; the time to
translate a sentence is that of the CPU.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from limelight.data.config import DataConfig
from limelight.data.corpora import corpora_for_split, read_split
from limelight.data.registry import resolve
from limelight.errors import UserError
from limelight.evaluate.significance import compare_examples, compare_translations
from limelight.lab.experiment import Findings, Measurements, Panel, Subject, Values
from limelight.lab.networks import nearest, parameters_of
from limelight.lab.subject import check_memory
from limelight.lab.trainings import shortened, train_in
from limelight.loading import load
from limelight.model import AnyConfig, ModelConfig, RecurrentConfig
from limelight.recipe import Recipe, load_recipe
from limelight.tasks.translate import Constraints
from limelight.workflows.build import memory_of

SECONDS = (130.0, 520.0)
_FACTORS, _MOST = (1 / 3, 1.0, 3.0), 5  # learning rates at first, and with those beyond


def _recurrent(cell: Any, model: ModelConfig, width: int) -> AnyConfig:
    shared = {key: getattr(model, key) for key in ("vocab", "layers", "max_len", "dropout")}
    shared["tied"] = model.tying == "all"
    family: Any = "recurrent-encoder-decoder"
    return RecurrentConfig(family=family, cell=cell, d_model=2 * width, **shared)


CONTESTANTS: dict[str, Callable[[ModelConfig, int], AnyConfig]] = {  # by their width
    "transformer": lambda model, _: model,
    "lstm": partial(_recurrent, "lstm"),
    "gru": partial(_recurrent, "gru"),
    "ssru": lambda model, width: replace(model, decoder_cell="ssru", d_ff=width),
}


def matched(kind: str, model: ModelConfig) -> AnyConfig:
    """The contestant whose number of parameters is nearest to the Transformer's."""
    return nearest(partial(CONTESTANTS[kind], model), parameters_of(model), 4 * model.ffn_dim)


def measurements(quick: bool, subject: Subject) -> Measurements:
    """For each contestant its training, its translations, and the comparison of these."""
    recipe = load_recipe(subject.name)
    if not isinstance(recipe.model, ModelConfig) or recipe.model.family != "encoder-decoder":
        raise UserError(
            f"{recipe.name} is {recipe.model.family}: lab duel needs a recipe of an "
            "encoder-decoder Transformer, such as reverse or multi30k-en-de"
        )
    check_memory(recipe)
    steps, few = max(40, recipe.train.steps // (4 if quick else 1)), 200 if quick else 500
    found: Measurements = {}
    for kind in CONTESTANTS:
        own = replace(recipe, model=matched(kind, recipe.model))
        found[f"{kind} training"] = partial(_train, own, kind, subject, steps)
        found[f"{kind} test"] = partial(_test, own, kind, subject, few)
    return found


def _best_factor(recipe: Recipe, kind: str, subject: Subject) -> float:
    """The learning rate, in multiples of the recipe's, with the lowest loss."""

    def loss(factor: float) -> float:
        rate = {"train.learning_rate": factor * recipe.train.learning_rate}
        found = train_in(subject.folder / f"{kind}-trial-{factor:.2g}", recipe, rate)["loss"]
        return math.inf if found is None else float(found)

    losses = {factor: loss(factor) for factor in _FACTORS}
    while True:
        best = min(losses, key=lambda factor: losses[factor])
        if len(losses) >= _MOST or best not in (min(losses), max(losses)):
            return best
        beyond = best / 3 if best == min(losses) else best * 3
        losses[beyond] = loss(beyond)


def _train(recipe: Recipe, kind: str, subject: Subject, steps: int) -> dict[str, Any]:
    """A training at the best rate of the grid."""
    factor = _best_factor(shortened(recipe, steps // 5), kind, subject)
    rate = {"train.learning_rate": factor * recipe.train.learning_rate}
    run = train_in(subject.folder / kind, shortened(recipe, steps, validations=8), rate)
    if run["failed"]:
        raise UserError(f"{kind} could not be trained on {recipe.name}: {run['failed']}")
    tokens = recipe.train.batch_tokens
    memory = memory_of(recipe, tokens if isinstance(tokens, int) else 0)
    facts = {"parameters": parameters_of(recipe.model), "factor": factor, "memory": memory}
    return {**run, **facts}


def _test(recipe: Recipe, kind: str, subject: Subject, few: int) -> dict[str, Any]:
    """Translations of the test sentences, compared with those of the Transformer."""
    part, pairs = _sentences(recipe, few)
    model = load(subject.folder / kind, device="cpu", precision="float32")
    sources, targets = zip(*pairs, strict=True)
    began = time.process_time()
    answers = model.translate_all(sources, constraints=Constraints(tag=part.tag))
    outputs = [answer.text for answer in answers]
    seconds = time.process_time() - began
    (subject.folder / f"{kind}.txt").write_text("\n".join(outputs), encoding="utf-8")
    theirs = (subject.folder / "transformer.txt").read_text(encoding="utf-8").split("\n")
    exact = [[float(a == b) for a, b in zip(x, targets, strict=True)] for x in (theirs, outputs)]
    names = ("transformer", kind)
    bleu, *_ = compare_translations(names, (theirs, outputs), targets)
    compared = [bleu, compare_examples("exact", names, (exact[0], exact[1]))]
    return {"sentences": len(pairs), "seconds": seconds, "scores": [asdict(c) for c in compared]}


def _sentences(recipe: Recipe, few: int) -> tuple[DataConfig, list[tuple[str, ...]]]:
    """Pairs of the test split, else of the validation; of several corpora the first."""
    for split in ("test", "valid"):
        data = resolve(recipe.data, split)
        for part in corpora_for_split(data, split):
            pairs = [example[:2] for example in read_split(part, split)]
            return part, pairs[:few]
    raise UserError(f"{recipe.name} has neither a test nor a validation split: nothing to compare")


def findings(values: Values) -> Findings:
    """Who is better at what, and whether chance explains it; p is against the Transformer."""
    kinds = [name.removesuffix(" test") for name in values if name.endswith(" test")]
    runs = {kind: values[f"{kind} training"] for kind in kinds}
    tests = {kind: values[f"{kind} test"] for kind in kinds}
    columns = [_column(kind, runs[kind], tests[kind]) for kind in kinds]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    table = [["", *kinds], *rows]
    return Findings(_panels(runs, tests), _conclusion(runs, tests), table)


def _column(kind: str, run: Values, test: Values) -> dict[str, str]:
    column = {
        "parameters": f"{run['parameters']:,}",
        "training tokens": f"{run['tokens']:,}",
        "learning rate / recipe's": f"{run['factor']:.2g}",
        "validation loss": f"{run['loss']:.3f}",
        "minutes of training": f"{run['minutes']:.1f}",
        "memory for training, MB": f"{run['memory'] / 1e6:.0f}",
        "CPU time of a sentence, ms": f"{1000 * test['seconds'] / test['sentences']:.1f}",
    }
    for score in test["scores"]:
        column[score["name"]] = f"{score['second']['score']:.3g}"
        column[f"{score['name']}, p"] = "" if kind == "transformer" else f"{score['p_value']:.3f}"
    return column


def _panels(runs: dict[str, Values], tests: dict[str, Values]) -> list[Panel]:
    """The validation loss by tokens, and the scores with their 95% intervals."""
    curves = {
        kind: {tokens / 1e6: [loss] for tokens, loss in run["curve"]} for kind, run in runs.items()
    }
    panels = [Panel("million training tokens", "validation loss (nats per token)", curves)]
    for i in range(len(tests["transformer"]["scores"])):
        found = {kind: test["scores"][i] for kind, test in tests.items()}
        ends = {
            kind: [own["second"][x] for x in ("low", "score", "high")]
            for kind, own in found.items()
        }
        bars = {kind: {at: own} for at, (kind, own) in enumerate(ends.items())}
        name = f"{found['transformer']['name']} (95% interval)"
        panels.append(Panel("network", name, bars, names=list(bars)))
    return panels


def _conclusion(runs: dict[str, Values], tests: dict[str, Values]) -> list[str]:
    sizes, tokens = ([run[key] for run in runs.values()] for key in ("parameters", "tokens"))
    sentences = [
        f"Numbers of parameters differ by {max(sizes) / min(sizes) - 1:.1%}, tokens by "
        f"{max(tokens) / min(tokens) - 1:.1%}."
    ]
    for kind, test in list(tests.items())[1:]:
        for score in test["scores"]:
            first, second = score["first"]["score"], score["second"]["score"]
            better = "transformer" if first > second else kind
            verdict = (
                "no significant difference" if score["p_value"] >= 0.05 else f"{better} is better"
            )
            sentences.append(
                f"{score['name']}: transformer {first:.3g}, {kind} {second:.3g} "
                f"(p {score['p_value']:.3f}): {verdict}."
            )
    quickest = min(tests, key=lambda kind: tests[kind]["seconds"])
    sentences.append(f"{quickest} takes the least CPU time to translate the test sentences.")
    return sentences
