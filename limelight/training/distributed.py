"""One process or many: started by `torchrun`, each with a device and a share of every step.

Data parallelism (DDP) keeps the whole model in every process; full sharding (FSDP2) shares it out,
for models that fit on no device. Both are torch's own, and put around the learner from outside.
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

from limelight.device import choose_device, local_rank
from limelight.model.layers import Layer
from limelight.training.config import TrainConfig


@dataclass(frozen=True)
class World:
    """This process among all of them."""

    device: torch.device
    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the one that writes and prints."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add up what every process has."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def all_reduce_min(self, value: int) -> int:
        """The smallest that any process has."""
        held = torch.tensor(value, device=self.device)
        if self.world_size > 1:
            dist.all_reduce(held, dist.ReduceOp.MIN)
        return int(held)

    def barrier(self) -> None:
        """Go on when all have come here."""
        if self.world_size > 1:
            dist.barrier()

    def any_rank(self, yes: bool) -> bool:
        """Whether any process says yes: then all do."""
        if self.world_size == 1:
            return yes  # without waiting for a GPU
        return bool(self.sum(torch.tensor(float(yes), device=self.device)).item())


@contextmanager
def init_distributed(config: TrainConfig) -> Iterator[World]:
    """Meet the other processes, if `torchrun` has started any."""
    device = choose_device(config.device, local_rank())
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")  # what stays in float32 may use tensor cores
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks == 1 and not (config.fsdp and "RANK" in os.environ):
        yield World(device)
        return
    rank = _join_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(device, rank, ranks)
    finally:
        dist.destroy_process_group()


def _join_process_group(backend: str) -> int:
    """Find the other processes, and give back which of them this one is.

    The place where they meet outlives them: when `torchrun` starts them again, addresses of dead
    ones are still there. So each attempt has a corner of its own. (Over several machines they would
    not agree which attempt it is: each counts for itself.)
    """
    store, rank, ranks = next(rendezvous("env://"))
    if os.environ.get("LOCAL_WORLD_SIZE") == str(ranks):
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"attempt {attempt}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)
    return int(rank)


def parallelize(learner: nn.Module, workers: World, config: TrainConfig) -> nn.Module:
    """The learner as all processes together train it."""
    if workers.world_size == 1:
        return learner
    if not config.fsdp:
        return DistributedDataParallel(learner)
    for part in learner.modules():
        if isinstance(part, Layer):
            fully_shard(part)
    return cast(nn.Module, fully_shard(learner))


def grad_sync(module: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Gradients are exchanged only once a step, in the last of its backward passes."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    elif isinstance(module, DistributedDataParallel) and not last:
        return cast(AbstractContextManager[Any], module.no_sync())
    return nullcontext()


def reshard(module: nn.Module) -> None:
    """Give up what a forward pass has put together, of a module that is shared out."""
    if isinstance(module, FSDPModule):
        module.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor that may be shared out, put together; every process must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def copy_into(target: Tensor, values: Tensor) -> None:
    """Fill a tensor that may be shared out from one that is whole."""
    with torch.no_grad():
        if isinstance(target, DTensor):
            values = distribute_tensor(
                values.to(target.device, target.dtype), target.device_mesh, target.placements
            )
        target.copy_(values)
