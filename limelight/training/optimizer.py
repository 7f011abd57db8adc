"""How weights move: Adam (section 5.3), with weight decay for matrices where it is asked for."""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from limelight.errors import UserError, unknown_name
from limelight.training.config import TrainConfig


def make_optimizer(
    model: nn.Module, config: TrainConfig, repeated: bool = False
) -> torch.optim.AdamW:
    """AdamW over what is to be learned; norms and biases do not decay.

    A step that is repeated reads the rate from the GPU's memory, where `set_rate` writes it.
    """
    learned = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in learned if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in learned if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer: Any = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=torch.zeros((), device=learned[0].device) if repeated else 0.0,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
        capturable=repeated,
    )
    optimizer._warned_capturable_if_run_uncaptured = True  # the first step of a shape is
    return cast(torch.optim.AdamW, optimizer)


def set_lr(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the next step."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def freeze(model: nn.Module, parts: Iterable[str]) -> None:
    """Let these parts stay as they are."""
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
        raise UserError(f"freeze={tuple(parts)} leaves nothing to learn")


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The length of all gradients together, over all devices that hold a share of them."""
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(grads)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def optimizer_step(
    optimizer: torch.optim.AdamW, parameters: list[nn.Parameter], factor: Tensor, finite: Tensor
) -> None:
    """A step with gradients times a factor; nothing moves if it is not finite."""
    if finite:
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], factor.item())
        optimizer.step()


def optimizer_step_no_sync(
    optimizer: torch.optim.AdamW, parameters: list[nn.Parameter], factor: Tensor, finite: Tensor
) -> None:
    """The same without looking at a number, so that a GPU need not be waited for.

    The fused kernel divides by `grad_scale` and leaves everything as it is where `found_inf` is 1,
    as it does for torch's GradScaler.
    """
    kernel: Any = optimizer
    kernel.grad_scale = 1 / factor.float()
    kernel.found_inf = 1 - finite.float()
    optimizer.step()
