"""Which parts of a Transformer matter?

A table like the paper's Table 3. The recipe's model is trained again and again, each time with one
part changed, on the same tokens: three seeds (--quick: one, and a third of the steps). The score is
that of the last validation: whole answers that are right for the toys, BLEU for other pairs, else
accuracy of tokens. Learning rates are the recipe's, so that a part may look more important than it
is where another rate would have helped.
"""

from functools import partial
from math import gcd
from statistics import fmean
from typing import Any

from limelight.errors import UserError
from limelight.evaluate.significance import welch_p_value
from limelight.lab.experiment import Findings, Measurements, Panel, Subject, Values
from limelight.lab.report import by_seed
from limelight.lab.subject import check_memory
from limelight.lab.trainings import shortened, train_in
from limelight.model import ModelConfig
from limelight.recipe import Recipe, load_recipe, with_overrides

SECONDS = (150.0, 1300.0)


def variants(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """What is changed in each row; settings that the recipe has anyway are left out."""
    model = recipe.model
    if not isinstance(model, ModelConfig):
        raise UserError(f"{recipe.name} is {model.family}: lab ablate takes a Transformer apart")
    many, dropout = gcd(16, model.d_model), 0.0 if model.dropout else 0.1
    smoothing = 0.0 if recipe.train.label_smoothing else 0.1
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
    found: Measurements = {}
    for name, row in variants(recipe).items():
        for seed in (1,) if quick else (1, 2, 3):
            folder = subject.folder / f"{name.replace(' ', '-')}-{seed}"
            changes = {**row, "train.seed": seed}
            found[f"{name}, seed {seed}"] = partial(train_in, folder, recipe, changes)
    return found


def findings(values: Values) -> Findings:
    """What the model loses with each change, and whether the seeds alone explain it."""
    rows = by_seed(values).items()
    trained = {name: [run for run in own if not run["failed"]] for name, own in rows}
    return Findings(_panels(values, trained), _conclusion(trained))


def _panels(values: Values, trained: dict[str, list[Values]]) -> list[Panel]:
    def by_row(key: str) -> dict[float, list[float]]:
        found = enumerate(trained.values())
        return {i: [max(run[key], 1e-4) for run in runs] for i, runs in found if runs}

    metric = next(iter(values.values()))["metric"]
    losses = {"training": by_row("training_loss"), "validation": by_row("loss")}
    draw = partial(Panel, "change", form=".3f", names=list(trained))
    return [
        draw(f"{metric} of the last validation", {metric: by_row("score")}),
        draw("loss (nats per token)", losses, "y"),
    ]


def _conclusion(trained: dict[str, list[Values]]) -> list[str]:
    base = [run["score"] for run in trained["as it is"]]
    if not base:
        return ["The recipe itself did not train to its end: nothing can be compared with it."]
    said: dict[str, list[str]] = {}
    for name, runs in list(trained.items())[1:]:
        scores = [run["score"] for run in runs]
        if not scores:
            said.setdefault("Not finite, so that training stopped", []).append(name)
            continue
        change, p_value = fmean(scores) - fmean(base), welch_p_value(base, scores)
        least = 0.1 if p_value is None else 0.02  # of the score: one seed says little
        clear = abs(change) > least * abs(fmean(base)) and (p_value or 0.0) < 0.05
        verdict = "The score changes clearly" if clear else "No clear change"
        said.setdefault(verdict, []).append(f"{name} {change:+.3f}")
    tokens = [run["tokens"] for runs in trained.values() for run in runs]
    sentences = [
        f"As it is, the model scores {fmean(base):.3f}.",
        *(f"{verdict}: {', '.join(names)}." for verdict, names in said.items()),
        f"Every training read {min(tokens):,} to {max(tokens):,} tokens.",
    ]
    if len(base) == 1:
        sentences.append("With one seed nobody knows how much of this is chance.")
    for run in trained.get("no mask", [])[:1]:
        if run["training_loss"] < 0.5 * run["loss"]:
            sentences.append(
                f"Without the mask the training loss falls to {run['training_loss']:.3f}, for the "
                "next token can be read; while writing it cannot, and the loss is "
                f"{run['loss']:.2f}."
            )
    return sentences
