"""One process or many: started by `torchrun`, each with a device and a share of every step.

Data parallelism (DDP) keeps a full model in every process; full sharding (FSDP2) spreads it over
all of them, for models that fit on no device. Both are torch's own, and applied from outside.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from limelight.device import COMPILING, choose_device, local_rank
from limelight.model.layers import Layer
from limelight.training.activation_checkpointing import checkpoint_layers
from limelight.training.config import TrainConfig
from limelight.training.dropout import use_fast_cpu_dropout
from limelight.training.objectives import SHORT, LossModule, use_explicit_attention


@dataclass(frozen=True)
class World:
    """This process among all of them."""

    device: torch.device
    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add up the values of all processes, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def all_reduce_min(self, value: int) -> int:
        smallest = torch.tensor(value, device=self.device)
        if self.world_size > 1:
            dist.all_reduce(smallest, dist.ReduceOp.MIN)
        return int(smallest)

    def barrier(self) -> None:
        if self.world_size > 1:
            dist.barrier()

    def any_rank(self, yes: bool) -> bool:
        """Whether it is so in any process; all get the same answer."""
        if self.world_size == 1:
            return yes  # without waiting for a GPU
        return bool(self.sum(torch.tensor(float(yes), device=self.device)).item())


@contextmanager
def init_distributed(config: TrainConfig) -> Iterator[World]:
    """Join the other processes, if `torchrun` has started any."""
    device = choose_device(config.device, local_rank())
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")  # what stays in float32 may use tensor cores
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1 and not (config.fsdp and "RANK" in os.environ):
        yield World(device)
        return
    rank = _join_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(device, rank, world_size)
    finally:
        dist.destroy_process_group()


def _join_process_group(backend: str) -> int:
    """Find the other processes, and return the rank of this one.

    The store in which they meet outlives them: when `torchrun` restarts them, addresses of dead
    ones are still there. So each attempt has its own prefix. (Several machines would not agree
    which attempt it is: each counts for itself.)
    """
    store, rank, world_size = next(rendezvous("env://"))
    if os.environ.get("LOCAL_WORLD_SIZE") == str(world_size):
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"attempt {attempt}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    return int(rank)


def prepare_module(
    loss_module: LossModule,
    world: World,
    config: TrainConfig,
    precision: str,
    length_range: tuple[int, int] = (0, 10**9),
) -> nn.Module:
    """Move a module to the device, parallelize it, and compile it if the config says so."""
    loss_module.to(world.device, torch.float64 if precision == "float64" else torch.float32)
    if world.device.type == "cpu" and not config.compile:
        use_fast_cpu_dropout(loss_module)
    checkpoint_layers(loss_module, config.activation_checkpointing)
    module = _parallelize(loss_module, world, config)
    if not config.compile:
        return module
    shortest, longest = length_range
    if longest <= SHORT and world.device.type == "cuda":
        use_explicit_attention(loss_module.model)
    dynamic = None if shortest == longest else True  # one graph for all lengths
    return cast(nn.Module, torch.compile(module, dynamic=dynamic, options=COMPILING))


def _parallelize(module: nn.Module, world: World, config: TrainConfig) -> nn.Module:
    if world.world_size == 1:
        return module
    if not config.fsdp:
        return DistributedDataParallel(module)
    for part in module.modules():
        if isinstance(part, Layer):
            fully_shard(part)
    return cast(nn.Module, fully_shard(module))


def grad_sync(module: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Exchange gradients only once a step, in the last of its backward passes."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    elif isinstance(module, DistributedDataParallel) and not last:
        return cast(AbstractContextManager[Any], module.no_sync())
    return nullcontext()


def reshard(module: nn.Module) -> None:
    """Free the weights that a forward pass has gathered, if the module is sharded."""
    if isinstance(module, FSDPModule):
        module.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor of one that may be sharded; every process must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def copy_into(target: Tensor, values: Tensor) -> None:
    """Fill a tensor that may be sharded from a full one."""
    with torch.no_grad():
        if isinstance(target, DTensor):
            values = distribute_tensor(
                values.to(target.device, target.dtype), target.device_mesh, target.placements
            )
        target.copy_(values)
