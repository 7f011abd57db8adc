"""A Triton kernel of AdamW for bfloat16 weights with float32 masters: one pass over everything.

It reads the gradients as the backward pass left them, and writes masters, moments and the rounded
weights. Torch's fused step wants gradients in float32, and leaves the rounding to others, which
moves half as many bytes again.
"""

import math

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor, nn

_CHUNK = 2048  # numbers of a tensor that one program moves
_COLUMNS: tl.constexpr = tl.constexpr(9)  # of the table of chunks

# Arguments of kernels are grouped: tensors, then numbers, then compile-time constants.
# fmt: off


@triton.jit
def _pointer(table, like, aligned: tl.constexpr):
    """An address from a table, of numbers like those here."""
    found = tl.load(table).to(tl.pointer_type(like.dtype.element_ty))
    return tl.multiple_of(found, 16) if aligned else found


@triton.jit
def _adamw(
    chunks, grads, rate, factor, finite, weight_like, master_like,
    log_beta1, log_beta2, beta1, beta2, eps, size: tl.constexpr, aligned: tl.constexpr,
):
    """Move a chunk of a tensor; nothing moves if a gradient is not finite."""
    own = chunks + tl.program_id(0).to(tl.int64) * _COLUMNS
    first, count = tl.multiple_of(tl.load(own + 1), size), tl.load(own + 2)
    grad = _pointer(grads + tl.load(own), weight_like, aligned) + first
    weight = _pointer(own + 3, weight_like, aligned) + first
    master = _pointer(own + 4, master_like, aligned) + first
    mean = _pointer(own + 5, master_like, aligned) + first
    square = _pointer(own + 6, master_like, aligned) + first
    step = tl.load(tl.load(own + 7).to(tl.pointer_type(tl.float32))).to(tl.float64) + 1
    decay = tl.load(own + 8).to(tl.float64, bitcast=True)
    if tl.load(finite) != 0:
        kind: tl.constexpr = master_like.dtype.element_ty
        lr = tl.load(rate).to(tl.float64)
        stride = (lr / (1 - tl.exp(step * log_beta1))).to(kind)  # means begin at 0
        root = tl.sqrt(1 - tl.exp(step * log_beta2)).to(kind)
        keep, times = (1 - lr * decay).to(kind), tl.load(factor).to(kind)
        if count == size:  # without a mask, numbers are read by the dozen
            _move(grad, weight, master, mean, square, stride, root, keep, times,
                  beta1, beta2, eps, count, size, False)
        else:
            _move(grad, weight, master, mean, square, stride, root, keep, times,
                  beta1, beta2, eps, count, size, True)


@triton.jit
def _move(
    grad, weight, master, mean, square, stride, root, keep, times, beta1, beta2, eps, count,
    size: tl.constexpr, masked: tl.constexpr,
):
    at = tl.arange(0, size)
    inside = at < count if masked else None
    kind: tl.constexpr = master.dtype.element_ty
    g = tl.load(grad + at, mask=inside).to(kind) * times
    m, v = tl.load(mean + at, mask=inside), tl.load(square + at, mask=inside)
    m += (1 - beta1) * (g - m)
    v = beta2 * v + (1 - beta2) * g * g
    w = keep * tl.load(master + at, mask=inside) - stride * m / (tl.sqrt(v) / root + eps)
    tl.store(mean + at, m, mask=inside)
    tl.store(square + at, v, mask=inside)
    tl.store(master + at, w, mask=inside)
    tl.store(weight + at, w.to(weight.dtype.element_ty), mask=inside)


# fmt: on
class FusedAdamW:
    """Steps of an optimizer whose masters belong to bfloat16 weights, all on one GPU."""

    def __init__(
        self, optimizer: torch.optim.AdamW, masters: dict[nn.Parameter, nn.Parameter]
    ) -> None:
        self.optimizer, self.masters = optimizer, masters
        self.decay = {p: g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
        self.tables: dict[tuple[int, ...], Tensor] = {}  # captured steps read them for ever
        self.spare: list[Tensor] = []  # pinned memory, which cannot be allocated while capturing
        self.read: list[Tensor] = []  # what captured steps copy from there

    def step(self, factor: Tensor, finite: Tensor) -> None:
        """A step with the gradients of the weights times a factor; none moves if not finite."""
        weights = [p for p in self.masters if p.grad is not None]
        grads = [p.grad for p in weights if p.grad is not None]
        if not weights:
            return
        group = self.optimizer.param_groups[0]
        beta1, beta2 = group["betas"]
        lr = torch.as_tensor(group["lr"], device=weights[0].device)
        chunks, steps = self.chunks(weights)
        addresses = [grad.data_ptr() for grad in grads]
        aligned = all(address % 16 == 0 for address in addresses)
        _adamw[(len(chunks),)](
            chunks, self.to_device(addresses, chunks.device), lr, factor, finite.float(),
            weights[0], self.masters[weights[0]],
            _log(beta1), _log(beta2), beta1, beta2, group["eps"],
            size=_CHUNK, aligned=aligned, num_warps=8,
        )  # fmt: skip
        torch._foreach_add_(steps, [finite.float()] * len(steps))

    def chunks(self, weights: list[nn.Parameter]) -> tuple[Tensor, list[Tensor]]:
        """The table of chunks, and the numbers of steps."""
        rows, steps = [], []
        for i, weight in enumerate(weights):
            master = self.masters[weight]
            state = self.optimizer.state[master]
            if not state:
                state["step"] = torch.zeros((), device=master.device)
                state["exp_avg"] = torch.zeros_like(master)
                state["exp_avg_sq"] = torch.zeros_like(master)
            moved = (weight, master, state["exp_avg"], state["exp_avg_sq"], state["step"])
            decay = np.float64(self.decay[master]).view(np.int64)
            rows.append((i, weight.numel(), *(x.data_ptr() for x in moved), int(decay)))
            steps.append(state["step"])
        key = tuple(number for row in rows for number in row)
        if key not in self.tables:
            self.tables[key] = _table(rows).to(weights[0].device)
        return self.tables[key], steps

    def to_device(self, numbers: list[int], device: torch.device) -> Tensor:
        """These numbers on the device; a captured step copies them there in each replay."""
        values = torch.tensor(numbers)
        if device.type != "cuda":
            return values
        if not torch.cuda.is_current_stream_capturing():
            most = len(self.masters)  # another shape of batch may move other weights
            self.spare.append(torch.empty(most, dtype=torch.int64, pin_memory=True))
            return values.to(device)
        self.read.append(self.spare.pop()[: len(numbers)].copy_(values))
        return self.read[-1].to(device, non_blocking=True)


def _log(decay: float) -> float:
    """Of a decay that may be 0: its powers are 0, too."""
    return math.log(decay) if decay else -math.inf


def _table(rows: list[tuple[int, ...]]) -> Tensor:
    """A row for each chunk of each tensor: its number, first number, count, addresses, decay."""
    made = []
    for i, numel, *others in rows:
        first = np.arange(0, numel, _CHUNK)
        table = np.empty((len(first), int(_COLUMNS.value)), np.int64)
        table[:, 0], table[:, 1], table[:, 2] = i, first, np.minimum(numel - first, _CHUNK)
        table[:, 3:] = others
        made.append(table)
    return torch.from_numpy(np.concatenate(made))
