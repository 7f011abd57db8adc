"""Do two layers of attention learn to copy by analogy, and one does not?

A random text of 8 to 24 tokens out of 32 is repeated up to length 64; the loss is that of the
repeated tokens. They follow from a simple rule: find the last time that this token occurred, and
copy the one after it. Two layers compute it with induction heads (Olsson et al., 2022): a head of
the first marks each token with the one before it, and a head of the second looks for its own token
among these marks. Decoder-only Transformers of width 64 with 4 heads in each layer, the same data
and steps. The prefix-matching score of a head is its mean attention, at repeated tokens, on the
token that followed last time. At the end each head is switched off once.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from limelight.explain.interventions import applied, parse
from limelight.lab.experiment import Findings, Measurements, Panel, Values
from limelight.lab.networks import IGNORED, Batch, config_of, loss_of, make, train
from limelight.lab.report import by_seed
from limelight.model.taps import Recorder

SECONDS = (28.0, 62.0)
_VOCAB, _WIDTH, _HEADS, _LENGTH, _EVERY = 32, 64, 4, 64, 20


def measurements(quick: bool) -> Measurements:
    """A training for each depth and seed."""
    seeds, steps = ((1,), 350) if quick else ((1, 2), 400)
    return {
        f"{layers} layer{'s' * (layers > 1)}, seed {seed}": partial(_learn, layers, seed, steps)
        for layers in (1, 2)
        for seed in seeds
    }


def repeated(seed: int, rows: int) -> Iterator[Batch]:
    """Texts that repeat themselves with a period of their own, and the tokens that follow."""
    random = torch.Generator().manual_seed(seed)
    while True:
        periods = torch.randint(8, 25, (rows, 1), generator=random)
        tokens = torch.randint(_VOCAB, (rows, _LENGTH + 1), generator=random)
        source = torch.arange(_LENGTH + 1) % periods
        tokens = tokens.gather(1, source)
        labels = tokens[:, 1:].clone()
        labels[torch.arange(1, _LENGTH + 1) < periods] = IGNORED  # nothing to copy from yet
        yield tokens[:, :-1], labels


def _learn(layers: int, seed: int, steps: int) -> dict[str, Any]:
    config = config_of("transformer", _VOCAB, layers, _WIDTH, _LENGTH, _HEADS)
    model = make(config, seed)
    held_out = next(repeated(10_000 + seed, 64))
    curve: list[dict[str, float]] = []

    def watch(step: int, _: float) -> None:
        if step % _EVERY == 0 or step == 1:
            loss, scores = _score(model, held_out)
            best = max(max(layer) for layer in scores)
            curve.append({"step": step, "loss": loss, "prefix_matching": best})

    train(model, repeated(seed, 64), steps, 3e-3, watch)
    loss, scores = _score(model, held_out)
    without = [
        [_loss_without(model, layer, head, held_out) for head in range(1, _HEADS + 1)]
        for layer in range(layers)
    ]
    return {"curve": curve, "loss": loss, "scores": scores, "without": without}


@torch.no_grad()
def _score(model: Any, batch: Batch) -> tuple[float, list[list[float]]]:
    """The loss, and the prefix-matching score of every head in every layer."""
    tokens, labels = batch
    with Recorder(model, ["*.self.weights"]) as recorder:
        loss = loss_of(recorder.model, batch).item()
    follows = _token_after_last_time(tokens) & (labels != IGNORED)[:, :, None]  # B T S
    count = follows.any(dim=2).sum()
    scores = [
        ((weights * follows[:, None]).sum(dim=(0, 2, 3)) / count).tolist()
        for weights in recorder.values.values()
    ]
    return loss, scores


def _token_after_last_time(tokens: Tensor) -> Tensor:
    """B T S: the position after the most recent earlier occurrence of each token."""
    length = tokens.size(1)
    same = (tokens[:, :, None] == tokens[:, None, :]).tril(diagonal=-1)  # earlier, not itself
    found, last = (same * torch.arange(1, length + 1)).max(dim=2)  # of position S counts S + 1
    after = torch.zeros_like(same).scatter_(2, (last + 1).clamp(max=length - 1)[:, :, None], True)
    return after & (found > 0)[:, :, None]


@torch.no_grad()
def _loss_without(model: Any, layer: int, head: int, batch: Batch) -> float:
    with applied(model, parse([f"decoder.{layer}.self.weights@{head}=off"])) as changed:
        return loss_of(changed, batch).item()


def findings(values: Values) -> Findings:
    """Whether the second layer made the difference, and by which head."""
    labels = {"loss": "loss of repeated tokens (nats)", "prefix_matching": "best prefix matching"}
    panels = []
    for key, label in labels.items():
        curves = {}
        for depth, runs in by_seed(values).items():
            points = list(zip(*(run["curve"] for run in runs), strict=True))
            curves[depth] = {own[0]["step"]: [point[key] for point in own] for own in points}
        panels.append(Panel("step", label, curves))
    one, two = by_seed(values).values()
    best_one, worst_two = min(run["loss"] for run in one), max(run["loss"] for run in two)
    depth = (
        f"Every network of two layers copies (loss at most {worst_two:.2f}), and none of one layer "
        f"does (at least {best_one:.2f}; guessing among 32 tokens is 3.47)."
    )
    if worst_two >= best_one / 2:
        depth = (
            f"The depths are not clearly apart here: one layer came to {best_one:.2f} at best, two "
            f"to {worst_two:.2f} at worst."
        )
    score, without, loss = max(_best_head(run) for run in two)
    head = "No single head carries the rule alone: others do its work without it."
    if without > 2 * loss:
        head = (
            f"A head of the two-layer network puts {score:.0%} of its attention on the token that "
            f"followed last time; without it the loss rises from {loss:.2f} to {without:.2f}."
        )
    return Findings(panels, [depth, head])


def _best_head(run: Values) -> tuple[float, float, float]:
    """The highest prefix-matching score, the loss without that head, and the loss with it."""
    scores, losses = (chain(*run[key]) for key in ("scores", "without"))
    return (*max(zip(scores, losses, strict=True)), run["loss"])
