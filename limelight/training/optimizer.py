"""How weights move: Adam (section 5.3), with weight decay for matrices if wanted."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn

from limelight.errors import UserError, unknown_name
from limelight.model.layers import Layer
from limelight.training.config import TrainConfig

if TYPE_CHECKING:
    from limelight.training.optimizer_kernels import FusedAdamW

_MUON_MOMENTUM = 0.95
_Some = TypeVar("_Some", bound=Tensor)


_Masters = dict[nn.Parameter, nn.Parameter]  # what the optimizer moves, by what the model has


def check_master_weights(config: TrainConfig, precision: str) -> None:
    """Raise UserError if weights in bfloat16 are asked for in another precision."""
    if config.master_weights and precision != "bfloat16":
        raise UserError(
            f"master_weights=true is for bfloat16, and the precision is {precision}: "
            "set --train.master-weights false"
        )


def make_masters(
    model: nn.Module, config: TrainConfig, device: torch.device, precision: str
) -> _Masters:
    """Copies of the weights for the optimizer: in float32, and on the CPU if it is offloaded.

    Empty if it moves the model's own. A bfloat16 weight has 8 bits, so that most steps are too
    small to change it; the float32 copy adds them up.
    """
    check_master_weights(config, precision)
    if not (config.master_weights or config.offload_optimizer):
        return {}
    where = torch.device("cpu") if config.offload_optimizer else device
    dtype = torch.float64 if precision == "float64" else torch.float32
    return {
        p: nn.Parameter(p.detach().to(where, dtype, copy=True), p.requires_grad)
        for p in model.parameters()
    }


def move_grads(masters: _Masters) -> None:
    """Add the gradients of the model to those of the masters."""
    found = [(p, master, p.grad) for p, master in masters.items() if p.grad is not None]
    grads = [torch.empty_like(master) for _, master, _ in found]
    if found:
        torch._foreach_copy_(grads, [grad for *_, grad in found])
    for (p, master, _), grad in zip(found, grads, strict=True):
        master.grad = grad if master.grad is None else master.grad.add_(grad)
        p.grad = None


def copy_masters(masters: _Masters) -> None:
    """Set the model's weights to those of the masters, rounded."""
    if masters:
        with torch.no_grad():
            torch._foreach_copy_(list(masters), list(masters.values()))


def make_optimizer(
    model: nn.Module, config: TrainConfig, capturable: bool = False, masters: _Masters | None = None
) -> torch.optim.AdamW:
    """AdamW; norms and biases do not decay. A captured step reads its rate from GPU memory."""
    moved = masters or {}
    trainable = [moved.get(p, p) for p in model.parameters() if p.requires_grad]
    matrices, others = ([p for p in trainable if (p.dim() > 1) == wide] for wide in (True, False))
    groups = [
        *({"params": p, "weight_decay": config.weight_decay} for p in group_by_mesh(matrices)),
        *({"params": p, "weight_decay": 0.0} for p in group_by_mesh(others)),
    ]
    kind = torch.optim.AdamW
    if config.optimizer == "muon":
        kind, groups = Muon, _divide_for_muon(model, groups, moved)
    optimizer: Any = kind(
        groups,
        lr=torch.zeros((), device=trainable[0].device) if capturable else 0.0,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
        capturable=capturable,
    )
    optimizer._warned_capturable_if_run_uncaptured = True  # the first step of a shape is
    return cast(torch.optim.AdamW, optimizer)


def fused_adamw(optimizer: torch.optim.AdamW, masters: _Masters) -> "FusedAdamW | None":
    """A kernel that takes its steps, if there are masters of bfloat16 weights."""
    if not masters or type(optimizer) is not torch.optim.AdamW:
        return None
    from limelight.training.optimizer_kernels import FusedAdamW

    return FusedAdamW(optimizer, masters)


def _divide_for_muon(
    model: nn.Module, groups: list[dict[str, Any]], masters: _Masters
) -> list[dict[str, Any]]:
    """The matrices of all layers in groups of their own: tables of tokens are left to Adam."""
    layers = [part for part in model.modules() if isinstance(part, Layer)]
    own = {masters.get(p, p) for layer in layers for p in layer.parameters() if p.dim() == 2}
    divided = []
    for group in groups:
        for muon in (True, False):
            params = [p for p in group["params"] if (p in own) == muon]
            divided.append(group | {"params": params, "muon": muon})
    found = [group for group in divided if group["params"]]
    if not any(group["muon"] for group in found):
        raise UserError(
            "optimizer='muon' moves the matrices of a Transformer's layers, and none of them is "
            "trained here: set --train.optimizer adam"
        )
    return found


class Muon(torch.optim.AdamW):
    """AdamW, but matrices in layers move by the orthogonal matrix nearest to their mean gradient.

    So all directions of a matrix learn alike, also those in which gradients are always small
    (Jordan et al. 2024). Its size is that of Adam's steps, so one learning rate suits both (Liu et
    al. 2025).
    """

    param_groups: list[dict[str, Any]]
    grad_scale: Tensor | None = None  # what the fused kernel of AdamW reads, too
    found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        every = self.param_groups
        for group in every:
            if group["muon"]:
                alike: dict[tuple[int, ...], list[Tensor]] = {}
                for p in group["params"]:
                    if p.grad is not None:
                        alike.setdefault(tuple(p.shape), []).append(p)
                for weights in alike.values():
                    self._move(weights, group)
        try:
            self.param_groups = [group for group in every if not group["muon"]]
            if self.param_groups:
                super().step(closure)
        finally:
            self.param_groups = every

    def _move(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """A step of some matrices of one shape."""
        grads = torch.stack([cast(Tensor, p.grad) for p in weights])
        for p in weights:
            if not self.state[p]:
                self.state[p]["step"] = torch.zeros((), device=p.device)
                self.state[p]["exp_avg"] = torch.zeros_like(p)
        means = [self.state[p]["exp_avg"] for p in weights]
        lr: Any = group["lr"]
        went: Any = 1.0
        if self.grad_scale is not None and self.found_inf is not None:
            grads = torch.where(self.found_inf > 0, torch.stack(means), grads / self.grad_scale)
            went = 1 - self.found_inf
            lr = lr * went
        torch._foreach_lerp_(means, list(grads.unbind()), 1 - _MUON_MOMENTUM)
        ahead = grads.lerp(torch.stack(means), _MUON_MOMENTUM)  # Nesterov's
        moves = orthogonal(ahead) * (0.2 * max(ahead.shape[1:]) ** 0.5)
        for p, move in zip(weights, moves.unbind(), strict=True):
            self.state[p]["step"] += went
            p.mul_(1 - lr * group["weight_decay"]).sub_(move.to(p.dtype) * lr)


def orthogonal(matrices: Tensor) -> Tensor:
    """U V^T of each U S V^T, roughly: singular values come out between 0.7 and 1.2.

    Five steps of an odd polynomial that lifts small values fast (Newton and Schulz; Jordan's
    coefficients), in bfloat16 on a GPU, where that is enough.
    """
    x = matrices.to(torch.bfloat16) if matrices.is_cuda else matrices
    tall = x.size(1) > x.size(2)
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-12)
    for _ in range(5):
        square = x @ x.mT
        square = torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, square, x, beta=3.4445)
    return (x.mT if tall else x).to(matrices.dtype)


def group_by_mesh(tensors: Iterable[_Some]) -> list[list[_Some]]:
    """Tensors that are sharded over the same devices: torch's fused functions want no others."""
    groups: dict[object, list[_Some]] = {}
    for tensor in tensors:
        groups.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    return list(groups.values())


def moment_names(optimizer: torch.optim.Optimizer, parameter: Tensor) -> tuple[str, ...]:
    """What the optimizer keeps of a parameter, besides its number of steps."""
    for group in optimizer.param_groups:
        if group.get("muon") and any(p is parameter for p in group["params"]):
            return ("exp_avg",)
    return ("exp_avg", "exp_avg_sq")


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def freeze(model: nn.Module, parts: Iterable[str]) -> None:
    """Exclude these parts from training."""
    known = {
        name.rsplit(".", dots)[0]
        for name, _ in model.named_parameters(remove_duplicate=False)
        for dots in range(name.count(".") + 1)
    }
    for part in parts:
        if part not in known:
            alike = [name for name in known if name.count(".") <= part.count(".")]
            raise unknown_name("part of the model", part, alike)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if any(name == part or name.startswith(f"{part}.") for part in parts):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"freeze={tuple(parts)} leaves nothing to train: freeze fewer parts")


def optimizer_step(
    optimizer: torch.optim.AdamW, parameters: list[nn.Parameter], factor: Tensor, finite: Tensor
) -> None:
    """A step with gradients times a factor; nothing moves if it is not finite."""
    if finite:
        for grads in group_by_mesh(p.grad for p in parameters if p.grad is not None):
            torch._foreach_mul_(grads, factor.item())
        optimizer.step()


def optimizer_step_no_sync(
    optimizer: torch.optim.AdamW, parameters: list[nn.Parameter], factor: Tensor, finite: Tensor
) -> None:
    """`optimizer_step` without reading a number from the GPU, which would wait for it.

    The fused kernel divides by `grad_scale` and leaves everything as it is where `found_inf` is 1,
    as it does for torch's GradScaler.
    """
    kernel: Any = optimizer
    kernel.grad_scale = 1 / factor.float()
    kernel.found_inf = 1 - finite.float()
    optimizer.step()
