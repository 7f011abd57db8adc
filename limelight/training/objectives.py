"""The objective of each family, in one module with its model, so that wrappers go around both."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from limelight.data.datasets import (
    Batch,
    ClassificationBatch,
    ContrastiveBatch,
    LMBatch,
    MaskedLMBatch,
    PictureBatch,
    Seq2SeqBatch,
)
from limelight.device import COMPILING
from limelight.model.attention import Attention, explicit_attention
from limelight.training import loss as losses
from limelight.training.loss import IGNORED, LossSums

_Loss = Callable[..., LossSums]
SHORT = 64  # tokens
_TEMPERATURE = 0.05  # of similarities: as in SimCSE, and in sentence-transformers (a scale of 20)
_CUDNN_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


class LossModule(nn.Module):
    """A model with its training objective."""

    class_weights: Tensor | None  # of a classifier

    def __init__(
        self,
        model: Any,
        smoothing: float = 0.0,
        compiled: bool = False,
        rdrop_alpha: float = 0.0,
        class_weights: Tensor | None = None,
        objective: str = "",
    ) -> None:
        super().__init__()
        self.model: nn.Module = model
        self.objective = OBJECTIVES[objective] if objective else None
        self.smoothing, self.rdrop_alpha = smoothing, rdrop_alpha
        self.register_buffer("class_weights", class_weights, persistent=False)
        chunk: Any = losses.cross_entropy_chunk
        if compiled:
            chunk = torch.compile(losses.cross_entropy_chunk_functional, options=COMPILING)
        self.loss = partial(losses.chunked_cross_entropy, smoothing=smoothing, chunk_loss=chunk)

    def forward(self, batch: Batch) -> LossSums:
        if isinstance(batch, ClassificationBatch) and self.objective is None:
            return _classification_loss(self.model, batch, self.smoothing, self.class_weights)
        if isinstance(batch, ContrastiveBatch) and self.objective is None:
            return _contrastive_loss(self.model, batch)
        objective: Any = self.objective or _OBJECTIVES[type(batch)]
        if self.rdrop_alpha and self.training:
            loss = partial(self.loss, rdrop_alpha=self.rdrop_alpha)
            twice = _map_tensors(batch, lambda x: torch.cat([x, x]))  # dropout will differ
            return objective(self.model, twice, loss)
        return objective(self.model, batch, self.loss)


def _seq2seq_loss(model: Any, batch: Seq2SeqBatch, loss: _Loss) -> LossSums:
    labels = batch.target[:, 1:].masked_fill(~batch.target_real[:, 1:], IGNORED)
    memory = model.encode(batch.source, batch.source_real)
    real = None if _hides_padding(model) else batch.target_real[:, 1:]  # what has a label
    states = model.decode(batch.target[:, :-1], memory, batch.source_real, real)
    return loss(states, model.classifier.weight, model.classifier.bias, labels)


def _lm_loss(model: Any, batch: LMBatch, loss: _Loss) -> LossSums:
    labels = batch.tokens[:, 1:].masked_fill(~batch.loss_mask[:, 1:], IGNORED)
    real = None if batch.real is None or _hides_padding(model) else batch.real[:, 1:]
    states = model.decode(batch.tokens[:, :-1], real)
    return loss(states, model.classifier.weight, model.classifier.bias, labels)


def _hides_padding(model: Any) -> bool:
    """Padding is on the right, where neither a recurrence nor a causal mask attends."""
    return getattr(model.config, "mask", True)


def _masked_lm_loss(model: Any, batch: MaskedLMBatch, loss: _Loss) -> LossSums:
    """BERT: predict the masked tokens. No logits are computed at the other positions."""
    head, labels = model.masked_head, batch.labels[batch.loss_mask]
    states = head.prepare(model.encode(batch.tokens)[batch.loss_mask])
    return loss(states, head.classifier.weight, head.classifier.bias, labels)


def _classification_loss(
    model: Any, batch: ClassificationBatch, smoothing: float, weights: Tensor | None
) -> LossSums:
    logits = model(batch.tokens, real=batch.real)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    labels = batch.labels.masked_fill(batch.labels < 0, IGNORED)
    return losses.sum_loss(logits, labels, smoothing, weights)


def _contrastive_loss(model: Any, batch: ContrastiveBatch) -> LossSums:
    """Find each text's partner among all of the batch, in both directions (InfoNCE).

    The others are negatives (of this process's batch alone), except for equal texts.
    """
    source, target = (
        F.normalize(model.pool(model.encode(tokens, real=real), real), dim=-1)
        for tokens, real in ((batch.source, batch.source_real), (batch.target, batch.target_real))
    )
    empty, numbers = batch.examples < 0, torch.arange(len(source), device=source.device)
    equal = _equal_rows(batch.source) | _equal_rows(batch.target) | empty
    equal = (equal | equal.T).fill_diagonal_(False)
    cosines = source @ target.T
    cosines = cosines.to(torch.promote_types(cosines.dtype, torch.float32))
    cosines = cosines.masked_fill(equal, -1e4)
    labels = numbers.masked_fill(empty, IGNORED)
    there, back = (losses.sum_loss(s / _TEMPERATURE, labels) for s in (cosines, cosines.T))
    return LossSums(*((one + other) / 2 for one, other in zip(there, back, strict=True)))


def _equal_rows(tokens: Tensor) -> Tensor:
    return (tokens[:, None] == tokens).all(dim=-1)  # B B


_OBJECTIVES = {Seq2SeqBatch: _seq2seq_loss, LMBatch: _lm_loss, MaskedLMBatch: _masked_lm_loss}
OBJECTIVES: dict[str, Callable[[Any, Any, _Loss], LossSums]] = {}  # by `train.objective`, others


def use_explicit_attention(model: nn.Module) -> None:
    """Let the compiler fuse attention itself; for texts of up to `SHORT` tokens that is faster.

    A fused kernel works on tiles of 128 positions, which short texts leave mostly empty.
    """
    for part in model.modules():
        if isinstance(part, Attention):
            part.attend = explicit_attention


def prefer_cudnn_attention(batch: Batch) -> AbstractContextManager[Any]:
    """Try cuDNN's kernel first for blocks without padding, where it is the fastest."""
    padded = isinstance(batch, LMBatch) and batch.real is not None
    if padded or not isinstance(batch, LMBatch | MaskedLMBatch) or not batch.tokens.is_cuda:
        return nullcontext()
    return cast(AbstractContextManager[Any], sdpa_kernel(_CUDNN_FIRST, set_priority=True))


def to_device(batch: Batch, device: torch.device, copy: bool = False) -> Batch:
    """A batch with all its tensors on a device."""
    return _map_tensors(batch, lambda x: x.to(device, non_blocking=not copy, copy=copy))


def _map_tensors(batch: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
    kind: Any = type(batch)
    return cast(Batch, kind(*(function(x) if isinstance(x, Tensor) else x for x in batch)))


def count_tokens(batch: Batch) -> int:
    """Tokens of a batch without padding, on both sides; of a picture its values."""
    if isinstance(batch, PictureBatch):
        return batch.pictures.numel()
    named = batch._asdict()
    masks = [named[name] for name in ("real", "source_real", "target_real") if name in named]
    if not masks or masks[0] is None:
        return int(named["tokens"].numel())
    return sum(int(mask.sum()) for mask in masks)
