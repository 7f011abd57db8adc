"""Which parts of a Transformer matter? A table like the paper's Table 3."""

from functools import partial
from math import gcd
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from limelight.errors import UserError
from limelight.evaluate.significance import welch_p_value
from limelight.lab.experiment import Measurements, Subject, Values
from limelight.lab.report import new_figure, style_of
from limelight.lab.subject import check_memory
from limelight.lab.trainings import shortened, train_in
from limelight.model import ModelConfig
from limelight.recipe import Recipe, load_recipe, with_overrides

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "Which parts of a Transformer matter?"
SETTING = (
    "The recipe's model is trained again and again, each time with one part changed, on the same "
    "tokens: three seeds (--quick: one, and a third of the steps). The score is that of the last "
    "validation: whole answers that are right for the toys, BLEU for other pairs, else accuracy "
    "of tokens. Learning rates are the recipe's, so that a part may look more important than it "
    "is where another rate would have helped."
)
SECONDS = (150.0, 1300.0)


def variants(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """What is changed in each row; settings that the recipe has anyway are left out."""
    model, train = recipe.model, recipe.train
    if not isinstance(model, ModelConfig):
        raise UserError(f"{recipe.name} is {model.family}: lab ablate takes a Transformer apart")
    many, smoothing = gcd(16, model.d_model), 0.0 if train.label_smoothing else 0.1
    dropout = 0.0 if model.dropout else 0.1
    rows: dict[str, dict[str, Any]] = {
        "no positions": {"model.positions": "none"},
        "1 head": {"model.heads": 1, "model.kv_heads": 0},
        f"{many} heads": {"model.heads": many, "model.kv_heads": 0},
        "no residual": {"model.residual": False},
        "no norm": {"model.norm": "none"},
        "no mask": {"model.mask": False},
        "no scaling": {"model.scaling": False},
        "no warm-up": {"train.warmup": 0},
        f"label smoothing {smoothing}": {"train.label_smoothing": smoothing},
        f"dropout {dropout}": {"model.dropout": dropout},
        "tables not tied": {"model.tied": False},
    }
    if model.family == "encoder-only":
        del rows["no mask"]  # it has none
    changed = {name: row for name, row in rows.items() if with_overrides(recipe, row) != recipe}
    return {"as it is": {}, **changed}


def measurements(quick: bool, subject: Subject) -> Measurements:
    """A training for each row and seed."""
    recipe = load_recipe(subject.name)
    check_memory(recipe)
    recipe = shortened(recipe, max(5, recipe.train.steps // (3 if quick else 1)))
    return {
        f"{name}, seed {seed}": partial(
            train_in,
            subject.folder / f"{name.replace(' ', '-')}-{seed}",
            recipe,
            {**row, "train.seed": seed},
        )
        for name, row in variants(recipe).items()
        for seed in ((1,) if quick else (1, 2, 3))
    }


def _rows(values: Values) -> dict[str, list[dict[str, Any]]]:
    """The trainings of each row that did not fail."""
    found: dict[str, list[dict[str, Any]]] = {}
    for key, run in values.items():
        own = found.setdefault(key.rpartition(", seed ")[0], [])
        own += [] if run["failed"] else [run]
    return found


def _metric(values: Values) -> str:
    return str(next(iter(values.values()))["metric"])


def _spread(runs: list[dict[str, Any]], key: str) -> str:
    numbers = [run[key] for run in runs]
    if not numbers:
        return "failed"
    return f"{fmean(numbers):.3f}" + (f" ± {stdev(numbers):.3f}" if len(numbers) > 1 else "")


def table(values: Values) -> list[list[str]]:
    """A row for each change: means and standard deviations over the seeds."""
    keys = {_metric(values): "score", "training loss": "training_loss", "validation loss": "loss"}
    rows = [
        [name, *(_spread(runs, key) for key in keys.values()), _millions(runs)]
        for name, runs in _rows(values).items()
    ]
    return [["", *keys, "tokens"], *rows]


def _millions(runs: list[dict[str, Any]]) -> str:
    return f"{runs[0]['tokens'] / 1e6:.2f}M" if runs else ""


def figure(values: Values) -> "Figure":
    """The score and both losses of every training."""
    drawn, (left, right) = new_figure(2)
    rows = _rows(values)
    for i, runs in enumerate(rows.values()):
        for key, ax, name in (
            ("score", left, "transformer"),
            ("training_loss", right, "training"),
            ("loss", right, "validation"),
        ):
            numbers = [max(run[key], 1e-4 * (ax is right)) for run in runs]
            label = name if ax is right and i == 0 else None
            style = {**style_of(name), "linestyle": ""}
            ax.plot(numbers, [i] * len(numbers), label=label, alpha=0.8, **style)
    left.set_yticks(range(len(rows)), rows)
    right.set_yticks(range(len(rows)), [])
    left.set(xlabel=f"{_metric(values)} of the last validation (a point for each seed)")
    right.set(xlabel="loss (nats per token)", xscale="log")
    for ax in (left, right):
        ax.invert_yaxis()
    right.legend()
    return drawn


def conclusion(values: Values) -> list[str]:
    """What the model loses with each change, and whether the seeds alone explain it."""
    rows = _rows(values)
    base = [run["score"] for run in rows["as it is"]]
    if not base:
        return ["The recipe itself did not train to its end: nothing can be compared with it."]
    worse, equal, failed = list[str](), list[str](), list[str]()
    for name, runs in rows.items():
        scores = [run["score"] for run in runs]
        if name == "as it is":
            continue
        if not scores:
            failed.append(name)
            continue
        lost = fmean(base) - fmean(scores)
        p_value = welch_p_value(base, scores)
        least = 0.1 if p_value is None else 0.02  # of the score: one seed says little
        clear = abs(lost) > least * abs(fmean(base)) and (p_value or 0.0) < 0.05
        (worse if clear else equal).append(f"{name} {-lost:+.3f}")
    sentences = [f"As it is, the model scores {fmean(base):.3f}."]
    sentences += [f"The score changes clearly: {', '.join(worse)}."] if worse else []
    sentences += [f"No clear change: {', '.join(equal)}."] if equal else []
    sentences += [f"Not finite, so that training stopped: {', '.join(failed)}."] if failed else []
    if len(base) == 1:
        sentences.append("With one seed nobody knows how much of this is chance.")
    for run in rows.get("no mask", [])[:1]:
        if run["training_loss"] < 0.5 * run["loss"]:
            sentences.append(
                f"Without the mask the training loss falls to {run['training_loss']:.3f}, for the "
                f"next token can be read; while writing it cannot, and the loss is "
                f"{run['loss']:.2f}."
            )
    return sentences
