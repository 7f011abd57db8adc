"""Tensor parallelism (Shoeybi et al. 2019): every layer divided among a few devices.

Each device has some of the heads and some of the units inside the feed-forward networks. The first
matrices of a sub-layer are divided by columns and the last one by rows, so that one sum of the
results of all devices ends it. Embeddings, norms and the classifier are on every device.
"""

import logging

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from limelight.errors import UserError
from limelight.model import AnyConfig, ModelConfig
from limelight.model.attention import Attention
from limelight.model.layers import FeedForward, Layer
from limelight.model.positions import BIASES

_COLUMNS, _ROWS = ("query", "key", "value", "inner", "gate"), ("output", "outer")


def divide_layers(module: nn.Module, mesh: DeviceMesh) -> None:
    """Divide each layer among the devices of a mesh; its weights become DTensors."""
    # It warns that a sum over both dimensions of a mesh takes two steps.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    for layer in module.modules():
        if isinstance(layer, Layer):
            for name, part in layer.named_children():
                if isinstance(part, Attention | FeedForward):
                    parallelize_module(part, mesh, _plan(part))
                    parallelize_module(part, mesh, _inputs(name))


def _inputs(name: str) -> ParallelStyle:
    """Queries, keys and values have read the same, so their gradients are summed at once."""
    states = (Replicate(),)
    cross = (Replicate(), Replicate(), None)  # states, memory and its mask
    layouts = cross if name == "cross_attention" else states
    return PrepareModuleInput(input_layouts=layouts, desired_input_layouts=layouts)


def _plan(part: nn.Module) -> dict[str, ParallelStyle]:
    there = dict(part.named_children())
    columns: dict[str, ParallelStyle] = {n: ColwiseParallel() for n in _COLUMNS if n in there}
    return columns | {n: RowwiseParallel() for n in _ROWS if n in there}


def check_divisible(config: AnyConfig, devices: int, lora_rank: int = 0) -> None:
    """Reject a model that cannot be divided among this number of devices."""
    asked = f"tensor_parallel={devices}"
    if devices == 1:
        return
    if not isinstance(config, ModelConfig):
        raise UserError(f"{asked} divides the layers of a Transformer: set it to 1 for others")
    for name, size in (("kv_heads", config.num_kv_heads), ("d_ff", config.ffn_dim)):
        if size % devices:
            raise UserError(f"{asked} must divide {name}={size}")
    whole = {
        "qk_norm=true": config.qk_norm,
        f"positions={config.positions!r}": config.positions in BIASES,
        f"lora_rank={lora_rank}": lora_rank > 0,
    }
    for setting, there in whole.items():
        if there:
            raise UserError(f"{asked} cannot divide a model with {setting}: set it to 1")
