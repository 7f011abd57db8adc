"""How wrong is a prediction? Cross-entropy with label smoothing (section 5.4), as a sum.

The logits of all positions are the largest thing in training: positions x vocabulary. They are
never in memory all at once here. The classifier and the loss are computed a few thousand positions
at a time, and the gradient along with them, while the logits are at hand.
"""

import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORED = -100  # the label of a position that does not count
_ChunkLoss = Callable[..., tuple[Tensor, Tensor | None]]


class LossSums(NamedTuple):
    """The loss of a batch: sums over all positions that count, and how many these are."""

    loss: Tensor  # with label smoothing: what is minimized
    nll: Tensor  # without: the negative log-probability of the labels
    correct: Tensor  # labels that were the most likely token
    total: Tensor  # positions that count


def chunked_cross_entropy(
    states: Tensor,  # ... D
    weight: Tensor,  # V D, of the classifier
    bias: Tensor | None,  # V
    labels: Tensor,  # ... in 0 to V - 1, or IGNORED
    smoothing: float = 0.0,
    rdrop_alpha: float = 0.0,
    chunk_loss: _ChunkLoss | None = None,  # may be compiled
    products: "_MakeProducts | None" = None,
) -> LossSums:
    """The loss of a classifier on these states; `rdrop_alpha` wants each text in both halves."""
    states, labels = states.flatten(0, -2), labels.flatten()
    if rdrop_alpha:
        states, labels = _interleave_halves(states), _interleave_halves(labels)
    chunk_loss = chunk_loss or cross_entropy_chunk
    chunk_loss = partial(chunk_loss, smoothing=smoothing, rdrop_alpha=rdrop_alpha)
    with_grad = torch.is_grad_enabled()  # inside of a Function it never is
    how = chunk_loss, products or Products, with_grad
    loss, nll, correct = _chunked_loss(states, weight, bias, labels, *how)
    return LossSums(loss, nll, correct, (labels != IGNORED).sum())


def disagreement(logits: Tensor, labels: Tensor) -> Tensor:
    """R-Drop's sum for logits (2N C) that autograd follows; each text is in both halves."""
    kl, _ = _rdrop_kl(_interleave_halves(logits.log_softmax(dim=-1)))
    return kl[labels[: len(kl)] != IGNORED].sum()


def _interleave_halves(both: Tensor) -> Tensor:
    """Two halves, a1 a2 ... b1 b2 ..., as pairs: a1 b1 a2 b2 ..."""
    return torch.stack(both.chunk(2), dim=1).flatten(0, 1)


def sum_loss(
    logits: Tensor, labels: Tensor, smoothing: float = 0.0, weights: Tensor | None = None
) -> LossSums:
    """torch's cross-entropy of logits (N V); `weights` of labels (V) are in the loss alone."""
    total = partial(F.cross_entropy, ignore_index=IGNORED, reduction="sum")
    loss = total(logits, labels, weight=weights, label_smoothing=smoothing)
    nll = total(logits.detach(), labels)
    correct = (logits.argmax(dim=-1) == labels).sum()
    return LossSums(loss, nll, correct, (labels != IGNORED).sum())


class Products:
    """The matrix products of a classifier: logits, and gradients from those of the logits."""

    def __init__(
        self, states: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> None:
        self.states, self.dtype = states, dtype
        self.weight, self.shift = weight.to(dtype), None if bias is None else bias.to(dtype)

    def logits(self, part: slice) -> Tensor:
        """Of some rows of states."""
        return F.linear(self.states[part].to(self.dtype), self.weight, self.shift)

    def accumulate(self, grads: list[Any], part: slice, grad: Tensor) -> None:
        """Back-propagate the gradient of some logits to their states, the weights and the bias."""
        for_states, for_weight, for_bias = grads
        if for_states is not None:
            for_states[part] = grad @ self.weight
        if for_weight is not None:
            _add_product(for_weight, grad.T, self.states[part].to(self.dtype))
        if for_bias is not None:
            for_bias += grad.new_ones(len(grad)) @ grad


_MakeProducts = Callable[[Tensor, Tensor, Tensor | None, torch.dtype], Products]


class ChunkedLoss(torch.autograd.Function):
    """Classifier and loss, some positions at a time; gradients are made in the forward pass.

    The gradient of the loss with respect to the logits is: softmax - label. It needs the logits, so
    it is computed while they are there; the backward pass only multiplies.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,  # N D
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,  # N
        chunk_loss: _ChunkLoss,
        make_products: "_MakeProducts",
        with_grad: bool,
    ) -> tuple[Tensor, ...]:
        device = states.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else states.dtype
        products = make_products(states, weight, bias, dtype)
        inputs = zip((states, weight, bias), ctx.needs_input_grad, strict=False)
        wanted = [x if with_grad and needed else None for x, needed in inputs]
        # Those of the classifier are sums over all chunks, which bfloat16 would round each time.
        sums_in = torch.promote_types(weight.dtype, torch.float32)
        kinds = (states.dtype, sums_in, sums_in)
        grads = [
            None if x is None else torch.zeros_like(x, dtype=kind)
            for x, kind in zip(wanted, kinds, strict=True)
        ]
        sums = []
        rows = chunk_rows(states.size(0), weight.size(0), states.device)
        rows += rows % 2  # R-Drop's pairs stay together
        for begin in range(0, max(1, states.size(0)), rows):  # an empty batch is one chunk too
            part = slice(begin, begin + rows)
            logits = products.logits(part)
            chunk_sums, grad = chunk_loss(logits, labels[part], with_grad=with_grad)
            sums.append(chunk_sums)
            if grad is not None:
                products.accumulate(grads, part, grad)
        ctx.save_for_backward(*grads)
        ctx.kinds = [None if x is None else x.dtype for x in wanted]
        return tuple(x.clone() for x in torch.stack(sums).sum(dim=0))  # FSDP warns of views

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        made = [
            None if grad is None else _scale(grad, upstream, kind)
            for grad, kind in zip(ctx.saved_tensors, ctx.kinds, strict=True)
        ]
        return (*made, None, None, None, None)


def chunk_rows(positions: int, vocab: int, device: torch.device) -> int:
    """Positions at a time, in chunks of like size; multiples of 128 suit a GPU's matrix units."""
    most = max(1, _max_logits(vocab, device) // vocab)
    most -= most % 128 if most > 128 else 0
    chunks = max(1, -(-positions // most))
    return min(most, -(-positions // (128 * chunks)) * 128) or 1


def _max_logits(vocab: int, device: torch.device) -> int:
    # Each takes up to ten bytes, so on an NVIDIA GPU they take 4% of the memory. On a CPU they
    # should stay in its cache; but as each chunk reads all of the classifier, it needs some rows.
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // 256
    return 2**25 if device.type == "mps" else min(max(512 * vocab, 2**22), 2**24)


def cross_entropy_chunk(
    logits: Tensor, labels: Tensor, smoothing: float, with_grad: bool, rdrop_alpha: float = 0.0
) -> tuple[Tensor, Tensor | None]:
    """Loss, nll, correct labels (3), and the gradient (n V), 0 at ignored positions."""
    kind = torch.float64 if logits.dtype == torch.float64 else torch.float32
    counts, index = labels != IGNORED, labels.clamp(min=0)[:, None]
    p, first = logits.softmax(dim=-1, dtype=kind), logits.argmax(dim=-1, keepdim=True)
    # log p = logit - total, and the largest p is never so small that its logarithm is inexact
    total = logits.gather(1, first).to(kind) - p.gather(1, first).log()
    correct = (first[:, 0] == labels).sum()
    nll = ((total - logits.gather(1, index))[:, 0] * counts).sum()
    spread = ((total[:, 0] - logits.mean(dim=-1, dtype=kind)) * counts).sum()
    loss, rdrop = (1 - smoothing) * nll + smoothing * spread, None
    if rdrop_alpha:
        kl, rdrop = _rdrop_kl(logits - total)
        loss = loss + rdrop_alpha * (kl * counts[::2]).sum()
    sums = torch.stack([loss, nll, correct.to(kind)])
    if not with_grad:
        return sums, None
    grad = p if rdrop is None else p.add_(rdrop, alpha=rdrop_alpha)
    if smoothing:
        grad.sub_(smoothing / logits.size(-1))
    grad.scatter_add_(1, index, torch.full_like(total, smoothing - 1))
    if not logits.is_cpu or not counts.all():  # a GPU would have to be waited for
        grad.mul_(counts[:, None])
    return sums, grad.to(logits.dtype)


def cross_entropy_chunk_fast(
    other: _ChunkLoss, logits: Tensor, labels: Tensor, rdrop_alpha: float = 0.0, **settings: Any
) -> tuple[Tensor, Tensor | None]:
    """`cross_entropy_chunk` by a kernel of our own where it can run, else by `other`."""
    if rdrop_alpha or not has_kernels(logits):
        return other(logits, labels, rdrop_alpha=rdrop_alpha, **settings)
    from limelight.training.loss_kernels import loss_of_rows

    return loss_of_rows(logits, labels, **settings)


def has_kernels(x: Tensor) -> bool:
    """Whether Triton kernels can work on this: they compute in float32."""
    return x.is_cuda and x.dtype != torch.float64 and kernels_run(x.device)


@lru_cache
def kernels_run(device: torch.device) -> bool:
    """Whether Triton is there and finds its compiler; it is tried before a step is captured."""
    try:
        from limelight.training.loss_kernels import loss_of_rows
    except ImportError:  # no Triton for this machine
        return False
    logits = torch.zeros(16, 16, device=device, dtype=torch.bfloat16)
    labels = torch.zeros(16, device=device, dtype=torch.int64)
    try:
        loss_of_rows(logits, labels, smoothing=0.1, with_grad=True)
    except Exception as error:  # of its own kinds, and of the C compiler
        warnings.warn(f"Triton kernels do not run here, training is slower: {error}", stacklevel=1)
        return False
    return True


def cross_entropy_chunk_functional(
    logits: Tensor, labels: Tensor, smoothing: float, with_grad: bool, rdrop_alpha: float = 0.0
) -> tuple[Tensor, Tensor | None]:
    """`cross_entropy_chunk` without in-place operations: compiled, it reads the logits twice.

    A label is the most likely token if its logit is the highest, and none before it is as high.
    That is seen in the second pass; `argmax` would carry indices through the first, which is slow.
    """
    kind = torch.float64 if logits.dtype == torch.float64 else torch.float32
    logits, given = logits.to(kind), logits.dtype
    counts, index = labels != IGNORED, labels.clamp(min=0)[:, None]
    top = logits.amax(dim=-1, keepdim=True)
    total = (logits - top).exp().sum(dim=-1, keepdim=True).log() + top
    tokens = torch.arange(logits.size(-1), device=logits.device)
    wanted = logits.gather(1, index)
    before = ((logits == top) & (tokens < index)).any(dim=-1)
    correct = ((wanted == top)[:, 0] & ~before & counts).sum()
    nll = ((total - wanted)[:, 0] * counts).sum()
    spread = ((total[:, 0] - logits.mean(dim=-1)) * counts).sum() if smoothing else nll
    loss, rdrop = (1 - smoothing) * nll + smoothing * spread, None
    if rdrop_alpha:
        kl, rdrop = _rdrop_kl(logits - total)
        loss = loss + rdrop_alpha * (kl * counts[::2]).sum()
    sums = torch.stack([loss, nll, correct.to(kind)])
    if not with_grad:
        return sums, None
    hit = (tokens == index).to(kind)
    grad = (logits - total).exp() - smoothing / logits.size(-1) - (1 - smoothing) * hit
    grad = grad if rdrop is None else grad + rdrop_alpha * rdrop
    return sums, (grad * counts[:, None]).to(given)


def _rdrop_kl(log_p: Tensor) -> tuple[Tensor, Tensor]:
    """R-Drop (Liang et al. 2021): the divergence of two predictions, and its gradient.

    Dropout makes them differ, rows 2i and 2i + 1. It is symmetric, (KL(p, q) + KL(q, p)) / 2, one
    number for each pair; its gradient is for all rows, n V.
    """
    one, other = log_p[0::2], log_p[1::2]
    p, q, difference = one.exp(), other.exp(), one - other
    there, back = (p * difference).sum(dim=-1), -(q * difference).sum(dim=-1)
    for_one = p * (difference - there[:, None]) + p - q
    for_other = q * (-difference - back[:, None]) + q - p
    return (there + back) / 2, torch.stack([for_one, for_other], dim=1).flatten(0, 1) / 2


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a product to a sum, which may have more bits."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif a.is_cuda and _adds_precisely(a.device, a.dtype, total.dtype):
        _precise_addmm(total, a, b, total.dtype, out=total)
    else:
        total += a @ b


@lru_cache
def _adds_precisely(device: torch.device, given: torch.dtype, kind: torch.dtype) -> bool:
    """Whether this torch can add up a product in more bits than its factors have."""
    a = torch.ones(16, 16, device=device, dtype=given)
    total = torch.ones(16, 16, device=device, dtype=kind)
    try:
        _precise_addmm(total, a, a, kind, out=total)
    except (RuntimeError, TypeError):
        return False
    return bool((total == 17).all())


_precise_addmm: Any = getattr(torch.ops.aten.addmm, "dtype_out", None)


def _scale(grad: Tensor, factor: Tensor, kind: torch.dtype) -> Tensor:
    return torch.mul(grad, factor, out=torch.empty_like(grad, dtype=kind))


# Compiled models leave out this part, in which the number of chunks depends on the batch.
_disable: Any = torch.compiler.disable
_chunked_loss: Any = _disable(ChunkedLoss.apply)
