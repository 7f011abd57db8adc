"""One step: the gradients of some batches, and the weights moved by them.

It is a function of the weights, of the optimizer's state, of the batches and of the number of the
step, and of nothing else: its random numbers are seeded from that number.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from limelight.config import Count, Finite
from limelight.data.batching import BatchPlan
from limelight.data.datasets import Batch
from limelight.device import copy_to_host_async, is_out_of_memory
from limelight.errors import FailedError
from limelight.model.layers import Layer
from limelight.run.folder import RunFolder
from limelight.run.weights import ADAPTERS, WEIGHTS
from limelight.training import optimizer as optim
from limelight.training.config import TrainConfig
from limelight.training.console import Report
from limelight.training.cuda_graph import CudaGraphStep
from limelight.training.distributed import World, grad_norm, grad_sync, prepare_module, reshard
from limelight.training.loss import LossSums, kernels_run
from limelight.training.lr_schedule import learning_rate
from limelight.training.objectives import LossModule, prefer_cudnn_attention, to_device
from limelight.training.optimizer import group_by_mesh

_Sums = Annotated[list[Finite], Field(min_length=4, max_length=4)]  # of the loss


@dataclass
class TrainState:
    """The progress of a training."""

    step: Count = 0
    epoch: Count = 0
    position: Count = 0  # in the plan of the epoch
    tokens: Count = 0  # trained on so far
    skipped: Count = 0  # steps in a row that were not finite
    smoothed_loss: Finite = 0.0  # loss of a token, over the last hundred steps or so
    validated: Count = 0  # the last step after which the model was validated
    metric: Annotated[str, Field(max_length=40)] = ""  # of the next three
    best: Annotated[float, Field(ge=-1e12)] = math.inf  # of the metric, lower is better
    best_step: Count = 0
    validations_without_improvement: Count = 0
    window: _Sums = field(default_factory=lambda: [0.0] * 4)  # since the last log line

    def set_metric(self, metric: str) -> bool:
        """Find the best by this metric; if it was another, forget that best and validate again."""
        if metric == self.metric:
            return False
        self.metric, self.best, self.best_step = metric, math.inf, 0
        self.validations_without_improvement = 0
        self.validated = min(self.validated, max(0, self.step - 1))
        return True


# Called with each line of the log, also of validations, and the model; True stops the training.
Callback = Callable[[dict[str, Any], nn.Module], bool | None]


@dataclass
class Trainer:
    """Everything that takes part in a training."""

    loss_module: LossModule
    batches: BatchPlan
    config: TrainConfig
    run: RunFolder
    world: World
    report: Report
    valid: BatchPlan | None = None
    metrics: Callable[[nn.Module], dict[str, float]] = lambda _: {}  # the task's own, beside loss
    samples: Callable[[nn.Module], list[str]] = lambda _: []
    d_model: int = 1
    length_range: tuple[int, int] = (0, 10**9)  # tokens of the shortest and of the longest text
    precision: str = "float32"
    state: TrainState = field(default_factory=TrainState)
    written: set[str] = field(default_factory=set)  # checkpoints, by this process
    spiking: bool = False  # whether the last step had a loss far above the usual
    callbacks: Sequence[Callback] = ()
    stopping: bool = False  # a callback has asked for it

    def __post_init__(self) -> None:
        self.masters = optim.make_masters(
            self.loss_module.model, self.config, self.world.device, self.precision
        )
        self.module: Any = prepare_module(
            self.loss_module, self.world, self.config, self.precision, self.length_range
        )
        captured = can_capture(self.loss_module, self.world, self.config)
        self.optimizer = optim.make_optimizer(
            self.loss_module.model, self.config, captured, self.masters
        )
        self.cuda_graph: CudaGraphStep | None = None
        self.fused_adamw = None
        if captured and kernels_run(self.world.device):
            self.fused_adamw = optim.fused_adamw(self.optimizer, self.masters)
        if captured:
            step = partial(_forward_backward_update, self)
            self.cuda_graph = CudaGraphStep(lambda batch: step([batch]), self.world.device)
        _warn_of_uncaptured(self)
        saved = self.saved.items()
        self.ema = {n: p.detach().clone() for n, p in saved} if self.config.ema else {}
        trainable = (p for p in self.loss_module.parameters() if p.requires_grad)
        self.trainable = [self.masters.get(p, p) for p in trainable]

    @property
    def saved(self) -> dict[str, nn.Parameter]:
        """What a checkpoint holds: all weights, or with LoRA those that are trained."""
        named, moved = self.loss_module.model.named_parameters(), self.masters
        kept = {n: p for n, p in named if p.requires_grad or not self.config.lora_rank}
        return {n: moved.get(p, p) for n, p in kept.items()}

    def notify(self, entry: dict[str, Any]) -> None:
        """Call all callbacks; dropout is seeded anew in each step, so they may draw numbers."""
        for callback in self.callbacks:
            self.stopping |= callback(dict(entry), self.loss_module.model) is True

    @property
    def is_sharded(self) -> bool:
        """Whether every process saves its own shards of the weights."""
        return self.world.world_size > 1 and self.config.sharded

    @property
    def weights_file(self) -> str:
        return ADAPTERS if self.config.lora_rank else WEIGHTS


def can_capture(loss_module: LossModule, world: World, config: TrainConfig) -> bool:
    """Whether steps are captured: on a GPU, where every one launches the same kernels."""
    wanted = (config.compile or config.cuda_graphs) and world.device.type == "cuda"
    return wanted and not _uncapturable(loss_module, world, config)


def _warn_of_uncaptured(trainer: Trainer) -> None:
    """On a GPU, where `cuda_graphs` was asked for in vain."""
    config, world = trainer.config, trainer.world
    if config.cuda_graphs and world.device.type == "cuda" and trainer.cuda_graph is None:
        why = _uncapturable(trainer.loss_module, world, config)
        trainer.report.warn(f"cuda_graphs=true captures no steps with {why}: they are slower")


def _uncapturable(loss_module: LossModule, world: World, config: TrainConfig) -> str:
    """The setting with which steps cannot be captured, in words; "" if there is none."""
    how = config.activation_checkpointing
    reasons = {
        f"{world.world_size} processes": world.world_size > 1,
        "fsdp=true": config.fsdp,
        f"tensor_parallel={config.tensor_parallel}": config.tensor_parallel > 1,
        f"grad_accumulation={config.grad_accumulation}": config.grad_accumulation > 1,
        f"ema={config.ema}": config.ema > 0,
        "offload_optimizer=true": config.offload_optimizer,
        f"activation_checkpointing={how!r}": how != "off",  # it restores random states
        "a recurrent model": not any(isinstance(part, Layer) for part in loss_module.modules()),
    }
    return next((name for name, holds in reasons.items() if holds), "")


@dataclass(frozen=True)
class MicroBatch:
    """A batch, or None where this process has nothing to do, and the position after it."""

    batch: Batch | None
    epoch: int
    position: int


@dataclass(frozen=True)
class StepResult:
    """A step that was launched; its numbers may still be on their way from the GPU."""

    step: int
    lr: float
    micro_batches: list[MicroBatch]
    read: Callable[[], list[Tensor]]

    def numbers(self) -> list[float]:
        """The four sums of the loss, the gradient norm, and 1 if finite; waits for the GPU."""
        values: list[float] = self.read()[0].tolist()
        return values


def train_step(trainer: Trainer, micro_batches: list[MicroBatch]) -> StepResult:
    """One optimizer step: the gradients of all batches of all processes, added up.

    The loss of every token counts the same, so the sum is divided once, by all tokens. A step whose
    loss or gradient is not finite changes nothing but the count.
    """
    config, state, world = trainer.config, trainer.state, trainer.world
    state.step += 1
    state.epoch, state.position = micro_batches[-1].epoch, micro_batches[-1].position
    lr = learning_rate(config, trainer.d_model, state.step)
    optim.set_lr(trainer.optimizer, lr)
    trainer.module.train()
    seed_dropout(world.device, config.seed, state.step, world.data_rank)
    batches = [part.batch for part in micro_batches]
    if trainer.cuda_graph is not None and batches[0] is not None:
        numbers = trainer.cuda_graph(batches[0])
    else:
        numbers = _forward_backward_update(trainer, batches)
    return StepResult(state.step, lr, micro_batches, copy_to_host_async(numbers))


def _forward_backward_update(trainer: Trainer, batches: Sequence[Batch | None]) -> Tensor:
    config, world = trainer.config, trainer.world
    sums = torch.zeros(4, device=world.device, dtype=torch.float64)
    for i, batch in enumerate(batches):
        if i > 0:
            share = i * world.data_ranks + world.data_rank
            seed_dropout(world.device, config.seed, trainer.state.step, share)
        last = i == len(batches) - 1
        with grad_sync(trainer.module, last):
            batch_sums = _forward_backward(trainer, batch)
        if trainer.fused_adamw is None and (last or world.data_ranks == 1):
            optim.move_grads(trainer.masters)  # DDP exchanges what is left in the model
        sums += torch.stack([value.detach().double() for value in batch_sums])
    loss, _, _, total = world.sum(sums)
    mean = world.data_ranks / total.clamp(min=1)  # gradients are averaged over processes
    moved = trainer.trainable if trainer.fused_adamw is None else list(trainer.masters)
    grads = [p.grad for p in moved if p.grad is not None]
    norm = grad_norm(grads).to(world.device).double() * mean
    clip = (config.clip_grad_norm / norm).clamp(max=1) if config.clip_grad_norm else 1.0
    finite = torch.isfinite(loss) & torch.isfinite(norm)
    moving = finite & (total > 0)  # a few short texts may have no masked token
    if trainer.fused_adamw is not None:
        trainer.fused_adamw.step(mean * clip, moving)
    else:
        no_sync = world.device.type == "cuda" and not (config.sharded or config.offload_optimizer)
        step = optim.optimizer_step_no_sync if no_sync else optim.optimizer_step
        step(trainer.optimizer, trainer.trainable, mean * clip, moving)
        optim.copy_masters(trainer.masters)
    if trainer.ema and moving:
        weights = group_by_mesh(p.detach() for p in trainer.saved.values())
        for means, now in zip(group_by_mesh(trainer.ema.values()), weights, strict=True):
            torch._foreach_lerp_(means, now, 1 - config.ema)
    for p in moved:
        p.grad = None
    return torch.cat([sums, torch.stack([norm, finite.double()])])


def _forward_backward(trainer: Trainer, batch: Batch | None) -> LossSums:
    """A process without a batch takes part with any, which counts nothing."""
    device, count = trainer.world.device, 0.0 if batch is None else 1.0
    batch = to_device(batch or trainer.batches.any(), device)
    try:
        mixed = trainer.precision == "bfloat16" and not trainer.config.master_weights
        autocast = torch.autocast(device.type, torch.bfloat16, mixed)
        # The backward pass too: activation checkpointing computes layers again, with equal kernels.
        with prefer_cudnn_attention(batch):
            with autocast:
                sums: LossSums = trainer.module(batch)
            torch.autograd.backward(sums.loss * count)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        shape = " + ".join(str(tuple(x.shape)) for x in batch[2:4] if isinstance(x, Tensor))
        raise FailedError(
            f"out of memory at step {trainer.state.step}, on a batch of {shape} tokens: halve "
            f"--train.batch-tokens {trainer.batches.batch_tokens} and double "
            f"--train.grad-accumulation {trainer.config.grad_accumulation}; "
            "that is the same step in less memory"
        ) from error
    return LossSums(*(value * count for value in sums))


def seed_dropout(device: torch.device, seed: int, step: int, share: int) -> None:
    """Seed the random numbers of a step by its number alone, so that none need to be saved."""
    number = int.from_bytes(sha256(f"{seed} {step} {share}".encode()).digest()[:7])
    if device.type == "cpu":  # torch.manual_seed would search for all other devices every time
        torch.default_generator.manual_seed(number)
    else:
        torch.get_device_module(device).manual_seed(number)


@contextmanager
def use_ema_weights(trainer: Trainer) -> Iterator[None]:
    """The model as it would be kept now: with `ema`, its averaged weights."""
    _swap_ema(trainer)
    try:
        yield
    finally:
        if trainer.masters:
            optim.copy_masters(trainer.masters)
        else:
            _swap_ema(trainer)


def _swap_ema(trainer: Trainer) -> None:
    """Exchange the model's weights and their averages; masters stay as they are."""
    reshard(trainer.loss_module)
    named = dict(trainer.loss_module.model.named_parameters())
    with torch.no_grad():
        for name, average in trainer.ema.items():
            before = named[name].detach().clone()
            named[name].copy_(average)
            if not trainer.masters:
                average.copy_(before)
