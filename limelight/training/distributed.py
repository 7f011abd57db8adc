"""One process or many: started by `torchrun`, each with a device and a share of every step.

Data parallelism (DDP) keeps a full model in every process; full sharding (FSDP2) spreads it over
all of them, for models that fit on no device. Tensor parallelism divides every layer among a few
neighbours, which work on the same batch. All are torch's own, and applied from outside.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from limelight.device import COMPILING, choose_device, local_rank
from limelight.errors import UserError
from limelight.model.layers import Layer
from limelight.training.activation_checkpointing import checkpoint_layers
from limelight.training.config import TrainConfig
from limelight.training.dropout import use_fast_cpu_dropout
from limelight.training.fast_layers import longest_for_kernels, use_kernels
from limelight.training.fp8 import use_fp8_products
from limelight.training.loss import kernels_run
from limelight.training.objectives import LossModule
from limelight.training.optimizer import group_by_mesh
from limelight.training.tensor_parallel import divide_layers


@dataclass(frozen=True)
class World:
    """This process and the group it belongs to."""

    device: torch.device
    rank: int = 0
    world_size: int = 1
    mesh: DeviceMesh | None = None  # "data" x "tensor", if there are many

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def data_ranks(self) -> int:
        """How many batches are worked on at a time: neighbours that divide layers share theirs."""
        return self.world_size if self.mesh is None else self.mesh["data"].size()

    @property
    def data_rank(self) -> int:
        return self.rank // (self.world_size // self.data_ranks)

    def sum(self, values: Tensor) -> Tensor:
        """Add up the values of all batches, in place."""
        if self.world_size > 1:
            group = None if self.mesh is None else self.mesh["data"].get_group()
            dist.all_reduce(values, group=group)
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
        return self.all_reduce_min(int(not yes)) == 0

    def from_main(self, text: str) -> str:
        """The value that the main process passed."""
        said = [text]
        if self.world_size > 1:
            dist.broadcast_object_list(said, 0)
        return said[0]


@contextmanager
def init_distributed(config: TrainConfig) -> Iterator[World]:
    """Join the other processes, if `torchrun` has started any."""
    device = choose_device(config.device, local_rank())
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")  # what stays in float32 may use tensor cores
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    _check_world_size(config, world_size)
    if world_size == 1 and not (config.fsdp and "RANK" in os.environ):
        yield World(device)
        return
    rank = _join_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        tensor = config.tensor_parallel
        shape, names = (world_size // tensor, tensor), ("data", "tensor")
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=names) if tensor > 1 else None
        yield World(device, rank, world_size, mesh)
    finally:
        dist.destroy_process_group()


def _check_world_size(config: TrainConfig, world_size: int) -> None:
    asked = f"tensor_parallel={config.tensor_parallel}"
    if world_size % config.tensor_parallel:
        raise UserError(
            f"{asked} must divide the number of processes, which is {world_size}: start more with "
            f"torchrun --nproc-per-node {config.tensor_parallel}"
        )
    if 1 < config.tensor_parallel < world_size and not config.fsdp:
        raise UserError(f"{asked} with {world_size} processes needs --train.fsdp too")


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
    dtype = torch.bfloat16 if config.master_weights else torch.float32
    loss_module.to(world.device, torch.float64 if precision == "float64" else dtype)
    if world.device.type == "cpu" and not config.compile:
        use_fast_cpu_dropout(loss_module)
    if config.precision == "fp8" and config.tensor_parallel == 1:
        use_fp8_products(loss_module.model)
    shortest, longest = length_range
    recorded = (config.compile or config.cuda_graphs) and not config.sharded
    half_on_gpu = world.device.type == "cuda" and precision == "bfloat16"
    if recorded and half_on_gpu and kernels_run(world.device):
        most = longest_for_kernels(world.device)
        use_kernels(loss_module.model, config.pack or longest, most)
    checkpoint_layers(loss_module, config.activation_checkpointing)
    module = _parallelize(loss_module, world, config, precision)
    if not config.compile:
        return module
    dynamic = None if shortest == longest else True  # one graph for all lengths
    return cast(nn.Module, torch.compile(module, dynamic=dynamic, options=COMPILING))


def _parallelize(module: nn.Module, world: World, config: TrainConfig, precision: str) -> nn.Module:
    if world.mesh is not None:
        divide_layers(module, world.mesh["tensor"])
    if world.data_ranks == 1:
        return module
    if not config.fsdp:
        return DistributedDataParallel(module)
    # Weights are sent as they are used, in half of the bytes, and gradients summed precisely.
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    settings: dict[str, Any] = {"mp_policy": half} if precision == "bfloat16" else {}
    if world.mesh is not None:
        settings["mesh"] = world.mesh["data"]
    for part in module.modules():
        if isinstance(part, Layer):
            fully_shard(part, **settings)
    return cast(nn.Module, fully_shard(module, **settings))


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


def local_tensor(tensor: Tensor) -> Tensor:
    """What this process has of a tensor that may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def grad_norm(grads: list[Tensor]) -> Tensor:
    """The norm of all gradients together, of all shards."""
    norms = [full_tensor(_norm(group)) for group in group_by_mesh(grads)]
    return norms[0] if len(norms) == 1 else torch.stack(norms).norm()


def _norm(grads: list[Tensor]) -> Tensor:
    """As torch's, but precise: of bfloat16 it would round the norm of each tensor."""
    if grads and grads[0].dtype == torch.bfloat16:
        return torch.stack(torch._foreach_norm(grads, 2, torch.float32)).norm()
    return nn.utils.get_total_norm(grads)


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor of one that may be sharded; every process must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def copy_into(target: Tensor, values: Tensor) -> None:
    """Fill a tensor that may be sharded from a full one, or from one that is sharded alike."""
    with torch.no_grad():
        if isinstance(target, DTensor) and not isinstance(values, DTensor):
            values = distribute_tensor(
                values.to(target.device, target.dtype), target.device_mesh, target.placements
            )
        target.copy_(values)
