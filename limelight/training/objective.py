"""What each family is asked for, and how well it answers.

A `Learner` is a model and its exercise in one module: a batch in, a score out. So whatever is put
around a module (compilation, many devices) goes around it whole.
"""

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.text.examples import Batch, Labelled, Masked, Pairs, Texts
from limelight.training.loss import IGNORED, Score, score_tokens


class Learner(nn.Module):
    """A model with its exercise."""

    def __init__(self, model: nn.Module, smoothing: float = 0.0) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, batch: Batch) -> Score:
        """How well the model does on a batch."""
        exercise: Any = EXERCISES[type(batch)]
        return exercise(self.model, batch, self.smoothing)


def predict_target(model: Any, batch: Pairs, smoothing: float) -> Score:
    """Teacher forcing: the target is read, and at every position its next token asked for."""
    answers = batch.target[:, 1:].masked_fill(~batch.target_real[:, 1:], IGNORED)
    memory = model.encode(batch.source, batch.source_real)
    states = model.decode(batch.target[:, :-1], memory, batch.source_real)
    return score_tokens(states, model.classifier.weight, model.classifier.bias, answers, smoothing)


def predict_next(model: Any, batch: Texts, smoothing: float) -> Score:
    """A language model: at every position the next token, where it is asked for."""
    answers = batch.tokens[:, 1:].masked_fill(~batch.asked[:, 1:], IGNORED)
    states = model.decode(batch.tokens[:, :-1])  # padding is on the right: nobody looks at it
    return score_tokens(states, model.classifier.weight, model.classifier.bias, answers, smoothing)


def fill_blanks(model: Any, batch: Masked, smoothing: float) -> Score:
    """BERT: what stood at the blanks. Nothing is computed at the other positions."""
    states, head = model.encode(batch.tokens)[batch.asked], model.masked_head
    classifier = head.classifier
    answers = batch.answers[batch.asked]
    return score_tokens(
        head.prepare(states), classifier.weight, classifier.bias, answers, smoothing
    )


def choose_class(model: Any, batch: Labelled, smoothing: float) -> Score:
    """What is this text?"""
    logits = model(batch.tokens, real=batch.real)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    answers = batch.labels.masked_fill(batch.labels < 0, IGNORED)
    total = partial(F.cross_entropy, ignore_index=IGNORED, reduction="sum")
    loss = total(logits, answers, label_smoothing=smoothing)
    surprise = total(logits.detach(), answers)
    right = (logits.argmax(dim=-1) == answers).sum()
    return Score(loss, surprise, right, (answers != IGNORED).sum())


EXERCISES = {
    Pairs: predict_target,
    Texts: predict_next,
    Masked: fill_blanks,
    Labelled: choose_class,
}


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The same batch where the model is."""
    kind: Any = type(batch)
    moved = (x.to(device, non_blocking=True) if isinstance(x, Tensor) else x for x in batch)
    return cast(Batch, kind(*moved))


def tokens_in(batch: Batch) -> int:
    """How many real tokens a batch makes a model read."""
    named = batch._asdict()
    masks = [named[name] for name in ("real", "source_real", "target_real") if name in named]
    if not masks or masks[0] is None:
        return int(named["tokens"].numel())
    return sum(int(mask.sum()) for mask in masks)
