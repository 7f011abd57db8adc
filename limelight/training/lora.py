"""LoRA (Hu et al. 2021): fine-tuning with two small matrices beside each frozen linear layer.

W x becomes W x + (alpha / rank) B A x, where A has `rank` rows and B as many columns. B starts at
zero, so training starts from the model as it is. Only A and B are trained and saved, and norms and
biases, which are small; whoever loads them adds the product to W, and has a model like any other.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.model.encoder_only import ClassificationHead
from limelight.training.config import TrainConfig
from limelight.training.optimizer import freeze

_A, _B = "lora_a", "lora_b"


class _LoRALinear(nn.Linear):
    """A frozen linear layer with its adapter; its weights keep their names."""

    def __init__(self, frozen: nn.Linear, rank: int, scale: float) -> None:
        wide, high = frozen.in_features, frozen.out_features
        super().__init__(wide, high, frozen.bias is not None, "meta")
        self.weight, self.bias, self.scale = frozen.weight, frozen.bias, scale
        self.lora_a = nn.Parameter(frozen.weight.new_empty(rank, wide))
        self.lora_b = nn.Parameter(frozen.weight.new_zeros(high, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))  # as in the paper's code

    def forward(self, input: Tensor) -> Tensor:
        wide = super().forward(input)
        narrow, rows = F.linear(input, self.lora_a).flatten(0, -2), wide.flatten(0, -2)
        return torch.addmm(rows, narrow, self.lora_b.t(), alpha=self.scale).view_as(wide)


def prepare_finetuning(model: nn.Module, config: TrainConfig) -> None:
    """Add what a training adds to a model, and freeze what it does not train."""
    if config.lora_rank:
        add_lora(model, config)
    freeze(model, config.freeze)


def count_trained(model: nn.Module) -> tuple[int, int]:
    """How many parameters a model has, and how many of them are trained."""
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, grad in sizes if grad)


def add_lora(model: nn.Module, config: TrainConfig) -> None:
    """Freeze all matrices, and put an adapter beside each linear layer; new heads train in full."""
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.dim() == 1)
    for parent in list(model.modules()):
        if isinstance(parent, ClassificationHead):  # of a new task, so there is nothing to adapt
            parent.requires_grad_(True)
            continue
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                setattr(parent, name, _LoRALinear(child, config.lora_rank, _scale(config)))


def merge(
    weights: Mapping[str, Tensor], trained: Mapping[str, Tensor], config: TrainConfig
) -> dict[str, Tensor]:
    """The base's weights with what was trained: adapters added, all else in place of theirs."""
    merged = {**weights, **{n: t for n, t in trained.items() if not n.endswith((_A, _B))}}
    for name in trained:
        if name.endswith(_A):
            layer = name.removesuffix(_A)
            a, b, before = trained[name], trained[layer + _B], merged[f"{layer}weight"]
            exact = before.double() + _scale(config) * (b.double() @ a.double())
            merged[f"{layer}weight"] = exact.to(torch.promote_types(before.dtype, a.dtype))
    return merged


def _scale(config: TrainConfig) -> float:
    return config.lora_alpha / config.lora_rank
