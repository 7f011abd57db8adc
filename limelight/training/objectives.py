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

from limelight.data.datasets import Batch, ClassificationBatch, LMBatch, MaskedLMBatch, Seq2SeqBatch
from limelight.device import COMPILING
from limelight.model.attention import Attention, explicit_attention
from limelight.training.loss import (
    IGNORED,
    LossSums,
    chunked_cross_entropy,
    cross_entropy_chunk,
    cross_entropy_chunk_functional,
)

_Scorer = Callable[..., LossSums]
SHORT = 64  # tokens
_BLOCKS_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


class LossModule(nn.Module):
    """A model with its exercise."""

    def __init__(
        self,
        model: nn.Module,
        smoothing: float = 0.0,
        compiled: bool = False,
        rdrop_alpha: float = 0.0,
    ) -> None:
        super().__init__()
        self.model, self.rdrop_alpha = model, rdrop_alpha
        judge = (
            torch.compile(cross_entropy_chunk_functional, options=COMPILING)
            if compiled
            else cross_entropy_chunk
        )
        self.score = partial(chunked_cross_entropy, smoothing=smoothing, judge=judge)
        self.smoothing = smoothing

    def forward(self, batch: Batch) -> LossSums:
        """How well the model does on a batch."""
        if isinstance(batch, ClassificationBatch):
            return _classification_loss(self.model, batch, self.smoothing)
        exercise: Any = _OBJECTIVES[type(batch)]
        if self.rdrop_alpha and self.training:
            score = partial(self.score, rdrop_alpha=self.rdrop_alpha)
            return exercise(self.model, _duplicate_batch(batch), score)
        return exercise(self.model, batch, self.score)


def _duplicate_batch(batch: Batch) -> Batch:
    """The same texts once more below: dropout will treat them differently."""
    kind: Any = type(batch)
    both = (torch.cat([x, x]) if isinstance(x, Tensor) else x for x in batch)
    return cast(Batch, kind(*both))


def _seq2seq_loss(model: Any, batch: Seq2SeqBatch, score: _Scorer) -> LossSums:
    """Teacher forcing: the target is read, and at every position its next token asked for."""
    answers = batch.target[:, 1:].masked_fill(~batch.target_real[:, 1:], IGNORED)
    memory = model.encode(batch.source, batch.source_real)
    states = model.decode(batch.target[:, :-1], memory, batch.source_real)
    return score(states, model.classifier.weight, model.classifier.bias, answers)


def _causal_lm_loss(model: Any, batch: LMBatch, score: _Scorer) -> LossSums:
    """A language model: at every position the next token, where it is asked for."""
    answers = batch.tokens[:, 1:].masked_fill(~batch.loss_mask[:, 1:], IGNORED)
    states = model.decode(batch.tokens[:, :-1])  # padding is on the right: nobody looks at it
    return score(states, model.classifier.weight, model.classifier.bias, answers)


def _masked_lm_loss(model: Any, batch: MaskedLMBatch, score: _Scorer) -> LossSums:
    """BERT: what stood at the blanks. Nothing is computed at the other positions."""
    states, head = model.encode(batch.tokens)[batch.loss_mask], model.masked_head
    classifier = head.classifier
    answers = batch.labels[batch.loss_mask]
    return score(head.prepare(states), classifier.weight, classifier.bias, answers)


def _classification_loss(model: Any, batch: ClassificationBatch, smoothing: float) -> LossSums:
    """What is this text?"""
    logits = model(batch.tokens, real=batch.real)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    answers = batch.labels.masked_fill(batch.labels < 0, IGNORED)
    total = partial(F.cross_entropy, ignore_index=IGNORED, reduction="sum")
    loss = total(logits, answers, label_smoothing=smoothing)
    surprise = total(logits.detach(), answers)
    right = (logits.argmax(dim=-1) == answers).sum()
    return LossSums(loss, surprise, right, (answers != IGNORED).sum())


_OBJECTIVES = {
    Seq2SeqBatch: _seq2seq_loss,
    LMBatch: _causal_lm_loss,
    MaskedLMBatch: _masked_lm_loss,
}


def use_explicit_attention(model: nn.Module) -> None:
    """Let a compiler see attention step by step; for texts of up to `SHORT` tokens that is faster.

    A fused kernel works on tiles of 128 positions, which short texts leave empty for the most part.
    """
    for part in model.modules():
        if isinstance(part, Attention):
            part.attend = explicit_attention


def prefer_cudnn_attention(batch: Batch) -> AbstractContextManager[Any]:
    """For full blocks of text cuDNN's kernel first, where there is one: it is the faster one."""
    if not isinstance(batch, LMBatch | MaskedLMBatch) or not batch.tokens.is_cuda:
        return nullcontext()
    if isinstance(batch, LMBatch) and batch.real is not None:
        return nullcontext()
    return cast(AbstractContextManager[Any], sdpa_kernel(_BLOCKS_FIRST, set_priority=True))


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The same batch where the model is."""
    kind: Any = type(batch)
    moved = (x.to(device, non_blocking=True) if isinstance(x, Tensor) else x for x in batch)
    return cast(Batch, kind(*moved))


def count_tokens(batch: Batch) -> int:
    """How many real tokens a batch makes a model read."""
    named = batch._asdict()
    masks = [named[name] for name in ("real", "source_real", "target_real") if name in named]
    if not masks or masks[0] is None:
        return int(named["tokens"].numel())
    return sum(int(mask.sum()) for mask in masks)
