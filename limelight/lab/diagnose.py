"""Is something wrong with this recipe or its data?

Five checks. Data: what `limelight data check` warns of, such as sources of one split in another.
Pairing: IBM Model 1 learns from 2,000 pairs which source tokens become which target tokens; the
loss on a quarter of them, as they are, shifted by a line, and shuffled. Overfitting: a sound model
learns 8 examples by heart (without dropout and smoothing). Collapse: one target for many sources in
the data, or one answer to all of those 8. Rate: the learning rate rises from 1e-6 to 1 within 120
steps (--quick: 60); the loss falls while it is right, and rises where it is too high.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import nn

from limelight.data.batching import EpochPlan
from limelight.data.check import check
from limelight.data.config import num_columns
from limelight.data.corpora import read_split, train_tokenizer
from limelight.data.registry import resolve
from limelight.lab.alignment import fit
from limelight.lab.experiment import Findings, Measurements, Panel, Subject, Values
from limelight.lab.subject import check_memory, spread_out, tokenize
from limelight.model import build
from limelight.recipe import Recipe, load_recipe
from limelight.training import optimizer as optim
from limelight.training.lr_schedule import learning_rate
from limelight.training.objectives import LossModule
from limelight.workflows.datasets import TokenizedData
from limelight.workflows.validation_decoding import sample

SECONDS = (12.0, 18.0)
_SHIFTS = {"as they are": 0, "shifted down": 1, "shifted up": -1}
_EXAMPLES, _BATCH, _LEARNED = 8, 1024, 0.1  # by heart; tokens; nats per token
_Prepared = Callable[[], TokenizedData]


def measurements(quick: bool, subject: Subject) -> Measurements:
    """One measurement for each check."""
    recipe = load_recipe(subject.name)
    check_memory(replace(recipe, train=replace(recipe.train, batch_tokens=_BATCH)))
    prepared = cache(partial(_prepare, recipe))
    return {
        "data": partial(_data, recipe),
        "pairing": partial(_pairing, prepared),
        "overfitting": partial(_overfitting, prepared, 150 if quick else 300),
        "rates": partial(_rates, prepared, 60 if quick else 120),
    }


def _prepare(recipe: Recipe) -> TokenizedData:
    data, whole = resolve(recipe.data), replace(recipe.train, bpe_dropout=0.0, pack=0)
    recipe = replace(recipe, train=whole)  # a row for each text
    return tokenize(recipe, data, train_tokenizer(data, recipe.tokenizer), ("train",))


def _data(recipe: Recipe) -> dict[str, Any]:
    """What `limelight data check` finds, and the most frequent target."""
    data = resolve(recipe.data)
    found = check(data, recipe.tokenizer, _BATCH, recipe.model.max_len)
    targets = Counter(example[-1] for example in read_split(data, "train"))
    (target, count), *_ = targets.most_common(1)
    used = {split: facts["tally"]["used"] for split, facts in found["splits"].items()}
    shared = {"warnings": found["warnings"], "leaks": found["leaks"], "used": used}
    return {**shared, "target": target[:60], "share": count / targets.total()}


def _pairing(prepared: _Prepared) -> dict[str, float]:
    """The loss of a target token given its source; nothing for texts alone."""
    tokenized = prepared()
    store, vocab = tokenized.stores["train"], tokenized.recipe.model.vocab
    sources: Any = store.columns[0]
    targets: Any = store.columns[-1]
    if tokenized.classes:
        targets = [[tokenized.classes.index(label)] for label in store.meta["labels"]]
    elif len(store.columns) < 2:
        return {}
    rows = [i for i in range(len(store)) if len(sources[i]) and len(targets[i])][:2000]
    random = np.random.default_rng(1)
    others = {name: np.roll(rows, lines) for name, lines in _SHIFTS.items()}
    others |= {f"shuffled {i}": random.permutation(rows) for i in range(1, 5)}
    losses = {}
    for name, own in others.items():
        pairs = [(sources[i], targets[j]) for i, j in zip(rows, own, strict=True)]
        learned = [pair for i, pair in enumerate(pairs) if i % 4] or pairs
        losses[name] = fit(learned, vocab).loss(pairs[::4])
    return losses


def _fit(
    tokenized: TokenizedData, batches: Iterable[Any], rates: Iterable[float], enough: float
) -> tuple[list[float], nn.Module]:
    """The losses of a training with these rates, step by step, and the model after it."""
    config = tokenized.recipe.train
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = build(replace(tokenized.recipe.model, dropout=0.0))
    module, losses = LossModule(model), list[float]()
    optimizer = optim.make_optimizer(model, config)
    for batch, rate in zip(cycle(batches), rates, strict=False):
        optim.set_lr(optimizer, rate)
        sums = module.train()(batch)
        torch.autograd.backward(sums.loss / sums.total)
        nn.utils.clip_grad_norm_(model.parameters(), config.clip_grad_norm or float("inf"))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(sums.nll.detach() / sums.total))
        if not np.isfinite(losses[-1]) or losses[-1] < enough:
            break
    return losses, model.eval()


def _overfitting(prepared: _Prepared, steps: int) -> dict[str, Any]:
    tokenized = prepared()
    plan = replace(tokenized.batches("train"), bucketed=False)
    rows = spread_out(plan.usable, _EXAMPLES)
    rate = 3e-3 * min(1.0, 64 / tokenized.recipe.model.d_model) ** 0.5
    rates = (rate * min(1.0, step / 10) for step in range(1, steps + 1))
    losses, model = _fit(tokenized, [EpochPlan(plan, 0, [rows])[0]], rates, _LEARNED / 2)
    answers = targets = 0
    if num_columns(tokenized.data) == 2:
        store = tokenized.stores["train"]
        written = sample(replace(tokenized, stores={"valid": store}), rows, model)
        answers = len({text.rpartition(" -> ")[2] for text in written})
        targets = len({store.columns[1][i].tobytes() for i in rows})
    return {"losses": losses, "answers": answers, "targets": targets}


def _rates(prepared: _Prepared, steps: int) -> dict[str, Any]:
    """The smoothed loss by learning rate, and the highest rate of the recipe's own schedule."""
    tokenized = prepared()
    plan = replace(tokenized.batches("train"), bucketed=False, batch_tokens=_BATCH)
    rates = np.geomspace(1e-6, 1.0, steps)
    losses, _ = _fit(tokenized, plan.epoch(0), rates.tolist(), 0.0)
    smooth, config, width = list[float](), tokenized.recipe.train, tokenized.recipe.model.d_model
    for loss in losses:
        smooth.append(loss if not smooth else 0.7 * smooth[-1] + 0.3 * loss)
    peak = max(learning_rate(config, width, step) for step in range(1, config.steps + 1))
    return {"rates": rates[: len(smooth)].tolist(), "losses": smooth, "peak": peak}


def findings(values: Values) -> Findings:
    """What to do, in the order of the checks."""
    found = checks(values)
    table = [[name, measured, "look here" if todo else "fine"] for name, measured, todo in found]
    sentences = [f"{name}: {todo}." for name, _, todo in found if todo]
    return Findings(
        _panels(values["overfitting"]["losses"], values["rates"]),
        sentences or ["All checks passed: nothing wrong was found."],
        [["check", "measured", ""], *table],
    )


def _panels(losses: list[float], rates: Values) -> list[Panel]:
    """The loss of 8 examples by step, and that of the training data by learning rate."""
    by_heart = {"8 examples": {step: [loss] for step, loss in enumerate(losses, 1)}}
    both = zip(rates["rates"], rates["losses"], strict=True)
    by_rate = {"training data": {rate: [loss] for rate, loss in both if np.isfinite(loss)}}
    fastest, highest = limits(rates)
    marks = {"recipe's peak": rates["peak"], "fastest": fastest, "highest that learns": highest}
    up, top = "loss (nats per token)", 1.5 * rates["losses"][0]
    return [
        Panel("step", up, by_heart, "y", levels={"learned by heart": _LEARNED}),
        Panel("learning rate", up, by_rate, "x", limits=(0, top), marks=marks),
    ]


def checks(values: Values) -> list[tuple[str, str, str]]:
    """Of each check its name, what was measured, and what to do; nothing if all is well."""
    warnings = values["data"]["warnings"]
    return [
        ("data", f"{len(warnings)} warnings of data check", "; ".join(warnings)),
        ("pairing", *_judge_pairing(values["pairing"])),
        ("overfitting", *_judge_overfitting(values["overfitting"]["losses"])),
        ("collapse", *_judge_collapse(values["data"], values["overfitting"])),
        ("rate", *_judge_rate(values["rates"])),
    ]


def _judge_pairing(losses: Values) -> tuple[str, str]:
    if not losses:
        return "texts have no targets", ""
    own, beside = losses["as they are"], min(losses["shifted down"], losses["shifted up"])
    shuffled = [loss for name, loss in losses.items() if name.startswith("shuffled")]
    chance = max(shuffled) - min(shuffled) + 0.02  # by which few pairs differ anyway
    todo = ""
    if beside < own - chance:
        todo = (
            "targets fit the source of the line beside them better than their own: a line is "
            "missing or doubled in one of the files, near the beginning; compare their lines"
        )
    elif own > min(shuffled) - chance:
        todo = (
            "targets fit their sources no better than shuffled ones: are the columns right, and "
            "do the files belong together? (With very few or free answers this may be no fault)"
        )
    return f"as they are {own:.2f}, best shift {beside:.2f}, shuffled {min(shuffled):.2f}", todo


def _judge_overfitting(losses: list[float]) -> tuple[str, str]:
    todo = (
        "the model cannot learn 8 examples by heart: look for equal sources with different "
        "targets, then for a model that is too small or a setting that is an experiment"
    )
    measured = f"loss {losses[0]:.2f} to {losses[-1]:.3f} in {len(losses)} steps"
    return measured, "" if losses[-1] < _LEARNED else todo


def _judge_collapse(data: Values, found: Values) -> tuple[str, str]:
    share, answers, targets = data["share"], found["answers"], found["targets"]
    todo = ""
    if share > 0.5:
        todo = (
            f"{share:.0%} of all targets are {data['target']!r}: a model that always gives it "
            "scores as much; balance the data, and compare scores with that share"
        )
    elif 2 * answers < targets or answers == 1 < targets:
        todo = "the model gives different sources the same answer: is the source column right?"
    written = f", {answers} answers for {targets} targets" if targets else ""
    return f"most frequent target {share:.0%}{written}", todo


def _judge_rate(rates: Values) -> tuple[str, str]:
    best, highest = limits(rates)
    todo = ""
    if rates["peak"] > 2 * highest:
        todo = f"the learning rate is too high: set its peak to about {highest / 3:.1e}"
    elif rates["peak"] < best / 30:
        todo = f"the learning rate is low: {best:.1e} learns faster; set its peak there"
    return f"fastest at {best:.1e}, falls up to {highest:.1e}, recipe {rates['peak']:.1e}", todo


def limits(rates: Values) -> tuple[float, float]:
    """The rate at which the loss falls fastest, and that from which it no longer falls."""
    losses = np.array([loss if np.isfinite(loss) else np.inf for loss in rates["losses"]])
    last = int(losses.argmin())
    apart = max(1, len(losses) // 10)  # a single step is mostly noise
    falling = losses[: max(1, last)] - losses[apart : max(1, last) + apart]
    return rates["rates"][int(falling.argmax()) + apart // 2], rates["rates"][last]
