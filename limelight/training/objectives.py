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
    PackedSeq2SeqBatch,
    PictureBatch,
    Seq2SeqBatch,
)
from limelight.device import COMPILING
from limelight.model.attention import causal_mask
from limelight.training import loss as losses
from limelight.training.fp8 import check_sizes, cross_entropy_fp8
from limelight.training.loss import IGNORED, LossSums

_Loss = Callable[..., LossSums]
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
        fp8: bool = False,
    ) -> None:
        super().__init__()
        self.model: nn.Module = model
        self.objective = OBJECTIVES[objective] if objective else None
        self.smoothing, self.rdrop_alpha = smoothing, rdrop_alpha
        self.register_buffer("class_weights", class_weights, persistent=False)
        chunk: Any = losses.cross_entropy_chunk
        if compiled:
            chunk = torch.compile(losses.cross_entropy_chunk_functional, options=COMPILING)
        chunk = partial(losses.cross_entropy_chunk_fast, chunk)
        self.loss = partial(losses.chunked_cross_entropy, smoothing=smoothing, chunk_loss=chunk)
        if fp8:
            check_sizes(model.config.vocab, model.config.d_model)
            self.loss = partial(cross_entropy_fp8, self.loss, chunk)

    def forward(self, batch: Batch) -> LossSums:
        if isinstance(batch, ContrastiveBatch) and self.objective is None:
            return _contrastive_loss(self.model, batch)
        alpha = self.rdrop_alpha if self.training else 0.0
        if alpha:
            batch = _map_tensors(batch, lambda x: torch.cat([x, x]))  # dropout will differ
        if isinstance(batch, ClassificationBatch) and self.objective is None:
            return _classification_loss(
                self.model, batch, self.smoothing, self.class_weights, alpha
            )
        objective: Any = self.objective or _OBJECTIVES[type(batch)]
        loss = partial(self.loss, rdrop_alpha=alpha) if alpha else self.loss
        return objective(self.model, batch, loss)


def _seq2seq_loss(model: Any, batch: Seq2SeqBatch, loss: _Loss) -> LossSums:
    labels = batch.target[:, 1:].masked_fill(~batch.target_real[:, 1:], IGNORED)
    memory = model.encode(batch.source, batch.source_real)
    real = None if _hides_padding(model) else batch.target_real[:, 1:]  # what has a label
    states = model.decode(batch.target[:, :-1], memory, batch.source_real, real)
    return loss(states, model.classifier.weight, model.classifier.bias, labels)


def _packed_seq2seq_loss(model: Any, batch: PackedSeq2SeqBatch, loss: _Loss) -> LossSums:
    source, target = batch.source_texts, batch.target_texts
    own = _same_text(source, source), _same_text(target, target), _same_text(target, source)
    where = batch.source_positions
    memory = model.encoder(_embed(model.source, batch.source, where), where, own[0])
    where, mask = batch.target_positions, own[1] & causal_mask(target.size(1), target.device)
    read = _embed(model.target, batch.target, where)
    states = model.decoder(read, where, mask, memory=memory, memory_mask=own[2])
    return loss(states, model.classifier.weight, model.classifier.bias, batch.labels)


def _embed(embedding: Any, tokens: Tensor, positions: Tensor) -> Tensor:
    """Each token for itself: a row may be longer than a table of positions."""
    x: Tensor = embedding(tokens.flatten()[:, None], positions.flatten()[:, None])
    return x.view(*tokens.shape, -1)


def _same_text(queries: Tensor, keys: Tensor) -> Tensor:
    """B 1 T S: whether both are of one text. Padding sees all, since it must see something."""
    queries, keys = queries[:, None, :, None], keys[:, None, None, :]
    return (queries == keys) | (queries == 0)


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
    head, places = model.masked_head, batch.places
    if places is None:
        labels, states = batch.labels[batch.loss_mask], model.encode(batch.tokens)[batch.loss_mask]
    else:  # as many as in other batches
        labels = batch.labels.flatten()[places].masked_fill(places < 0, IGNORED)
        states = model.encode(batch.tokens).flatten(0, 1)[places]
    states = head.prepare(states)
    return loss(states, head.classifier.weight, head.classifier.bias, labels)


def _classification_loss(
    model: Any,
    batch: ClassificationBatch,
    smoothing: float,
    weights: Tensor | None,
    rdrop_alpha: float,
) -> LossSums:
    logits = model(batch.tokens, real=batch.real)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    labels = batch.labels.masked_fill(batch.labels < 0, IGNORED)
    sums = losses.sum_loss(logits, labels, smoothing, weights)
    if rdrop_alpha:
        sums = sums._replace(loss=sums.loss + rdrop_alpha * losses.disagreement(logits, labels))
    return sums


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


_OBJECTIVES = {
    Seq2SeqBatch: _seq2seq_loss,
    PackedSeq2SeqBatch: _packed_seq2seq_loss,
    LMBatch: _lm_loss,
    MaskedLMBatch: _masked_lm_loss,
}
OBJECTIVES: dict[str, Callable[[Any, Any, _Loss], LossSums]] = {}  # by `train.objective`, others


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
    if isinstance(batch, PackedSeq2SeqBatch):  # each target begins with a start token, too
        texts = int((batch.examples >= 0).sum())
        return int((batch.source_texts > 0).sum() + (batch.target_texts > 0).sum()) + texts
    named = batch._asdict()
    masks = [named[name] for name in ("real", "source_real", "target_real") if name in named]
    if not masks or masks[0] is None:
        return int(named["tokens"].numel())
    return sum(int(mask.sum()) for mask in masks)
