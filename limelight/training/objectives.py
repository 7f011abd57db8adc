"""What each family is asked for, and how well it answers.

A `Learner` is a model and its exercise in one module: a batch in, a score out. So whatever is put
around a module (compilation, many devices) goes around it whole.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from limelight.data.datasets import Batch, Labelled, Masked, Pairs, Texts
from limelight.device import COMPILING
from limelight.model.attention import Attention, attend_explicitly
from limelight.training.loss import IGNORED, Score, judge_logits, judge_to_compile, score_tokens

Scorer = Callable[..., Score]
SHORT = 64  # tokens
BLOCKS_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


class Learner(nn.Module):
    """A model with its exercise."""

    def __init__(
        self,
        model: nn.Module,
        smoothing: float = 0.0,
        compiled: bool = False,
        agreement: float = 0.0,
    ) -> None:
        super().__init__()
        self.model, self.agreement = model, agreement
        judge = torch.compile(judge_to_compile, options=COMPILING) if compiled else judge_logits
        self.score = partial(score_tokens, smoothing=smoothing, judge=judge)
        self.smoothing = smoothing

    def forward(self, batch: Batch) -> Score:
        """How well the model does on a batch."""
        if isinstance(batch, Labelled):
            return choose_class(self.model, batch, self.smoothing)
        exercise: Any = EXERCISES[type(batch)]
        if self.agreement and self.training:
            score = partial(self.score, agreement=self.agreement)
            return exercise(self.model, twice(batch), score)
        return exercise(self.model, batch, self.score)


def twice(batch: Batch) -> Batch:
    """The same texts once more below: dropout will treat them differently."""
    kind: Any = type(batch)
    both = (torch.cat([x, x]) if isinstance(x, Tensor) else x for x in batch)
    return cast(Batch, kind(*both))


def predict_target(model: Any, batch: Pairs, score: Scorer) -> Score:
    """Teacher forcing: the target is read, and at every position its next token asked for."""
    answers = batch.target[:, 1:].masked_fill(~batch.target_real[:, 1:], IGNORED)
    memory = model.encode(batch.source, batch.source_real)
    states = model.decode(batch.target[:, :-1], memory, batch.source_real)
    return score(states, model.classifier.weight, model.classifier.bias, answers)


def predict_next(model: Any, batch: Texts, score: Scorer) -> Score:
    """A language model: at every position the next token, where it is asked for."""
    answers = batch.tokens[:, 1:].masked_fill(~batch.asked[:, 1:], IGNORED)
    states = model.decode(batch.tokens[:, :-1])  # padding is on the right: nobody looks at it
    return score(states, model.classifier.weight, model.classifier.bias, answers)


def fill_blanks(model: Any, batch: Masked, score: Scorer) -> Score:
    """BERT: what stood at the blanks. Nothing is computed at the other positions."""
    states, head = model.encode(batch.tokens)[batch.asked], model.masked_head
    classifier = head.classifier
    answers = batch.answers[batch.asked]
    return score(head.prepare(states), classifier.weight, classifier.bias, answers)


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


EXERCISES = {Pairs: predict_target, Texts: predict_next, Masked: fill_blanks}


def write_out_attention(model: nn.Module) -> None:
    """Let a compiler see attention step by step; for texts of up to `SHORT` tokens that is faster.

    A fused kernel works on tiles of 128 positions, which short texts leave empty for the most part.
    """
    for part in model.modules():
        if isinstance(part, Attention):
            part.attend = attend_explicitly


def fused_attention(batch: Batch) -> AbstractContextManager[Any]:
    """For full blocks of text cuDNN's kernel first, where there is one: it is the faster one."""
    if not isinstance(batch, Texts | Masked) or not batch.tokens.is_cuda:
        return nullcontext()
    if isinstance(batch, Texts) and batch.real is not None:
        return nullcontext()
    return cast(AbstractContextManager[Any], sdpa_kernel(BLOCKS_FIRST, set_priority=True))


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
