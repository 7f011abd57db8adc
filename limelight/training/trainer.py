"""One step: the gradients of some batches, and the weights moved by them.

It is a function of the weights, of the optimizer's averages, of the batches and of the number of
the step, and of nothing else: what is random in it is drawn anew from that number.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from limelight.data.batching import BatchPlan
from limelight.data.datasets import Batch
from limelight.device import COMPILING, is_out_of_memory
from limelight.errors import FailedError
from limelight.model.layers import Layer
from limelight.run.folder import RunFolder
from limelight.training.checkpoint import TrainState
from limelight.training.config import TrainConfig
from limelight.training.console import Report
from limelight.training.cuda_graph import CudaGraphStep
from limelight.training.distributed import World, grad_sync, parallelize, reshard
from limelight.training.dropout import use_fast_cpu_dropout
from limelight.training.loss import LossSums
from limelight.training.lr_schedule import learning_rate
from limelight.training.objectives import (
    SHORT,
    LossModule,
    prefer_cudnn_attention,
    to_device,
    use_explicit_attention,
)
from limelight.training.optimizer import (
    gradient_norm,
    make_optimizer,
    optimizer_step,
    optimizer_step_no_sync,
    set_lr,
)

_Metrics = Callable[[nn.Module], dict[str, float]]
_Samples = Callable[[nn.Module], list[str]]


@dataclass
class Trainer:
    """All that takes part in a training."""

    learner: LossModule
    batches: BatchPlan
    config: TrainConfig
    run: RunFolder
    workers: World
    report: Report
    valid: BatchPlan | None = None
    metrics: _Metrics = lambda _: {}  # the task's own, on top of loss and accuracy
    samples: _Samples = lambda _: []
    d_model: int = 1
    length_range: tuple[int, int] = (0, 10**9)  # tokens of the shortest and of the longest text
    precision: str = "float32"
    state: TrainState = field(default_factory=TrainState)
    written: set[str] = field(default_factory=set)  # checkpoints, by this process
    spiking: bool = False  # whether the last step had a loss far above the usual

    def __post_init__(self) -> None:
        kind = torch.float64 if self.precision == "float64" else torch.float32
        self.learner.to(self.workers.device, kind)
        if self.workers.device.type == "cpu" and not self.config.compile:
            use_fast_cpu_dropout(self.learner)
        self.module: Any = self.compiled(parallelize(self.learner, self.workers, self.config))
        repeated = can_capture(self.learner, self.workers, self.config)
        self.optimizer = make_optimizer(self.learner.model, self.config, repeated)
        self.repeater = (
            CudaGraphStep(
                lambda batch: _forward_backward_update(self, [batch]), self.workers.device
            )
            if repeated
            else None
        )
        named = self.learner.model.named_parameters()
        self.ema = {n: p.detach().clone() for n, p in named} if self.config.ema else {}
        self.trainable = [p for p in self.learner.parameters() if p.requires_grad]

    def compiled(self, module: nn.Module) -> Any:
        """The learner compiled, if that is wanted: once for all widths, or for the only one."""
        if not self.config.compile:
            return module
        shortest, longest = self.length_range
        if longest <= SHORT and self.workers.device.type == "cuda":
            use_explicit_attention(self.learner.model)
        dynamic = None if shortest == longest else True
        return torch.compile(module, dynamic=dynamic, options=COMPILING)


def can_capture(learner: LossModule, workers: World, config: TrainConfig) -> bool:
    """Whether a step is the same to the GPU every time: see the `Repeater`.

    Recurrent networks look at the lengths of texts, a running average at whether the step counts.
    """
    wanted = (config.compile or config.cuda_graphs) and workers.device.type == "cuda"
    alone = (
        workers.world_size == 1
        and not config.fsdp
        and config.grad_accumulation == 1
        and not config.ema
    )
    return wanted and alone and any(isinstance(part, Layer) for part in learner.modules())


@dataclass(frozen=True)
class MicroBatch:
    """A batch, or None where this process has nothing to do, and the place in the data after it."""

    batch: Batch | None
    epoch: int
    position: int


@dataclass(frozen=True)
class StepResult:
    """A step that was taken; its numbers may still be on their way from the GPU."""

    step: int
    rate: float
    turn: list[MicroBatch]
    numbers: Callable[[], list[float]]  # loss, surprise, right, asked; norm, and 1 if finite


def train_step(trainer: Trainer, turn: list[MicroBatch]) -> StepResult:
    """One step of the optimizer: the gradients of all batches of all processes, added up.

    The loss of every token counts the same, so the sum is divided once, by all tokens. A step whose
    loss or gradient is not finite changes nothing but the count.
    """
    config, state, workers = trainer.config, trainer.state, trainer.workers
    state.step += 1
    state.epoch, state.position = turn[-1].epoch, turn[-1].position
    rate = learning_rate(config, trainer.d_model, state.step)
    set_lr(trainer.optimizer, rate)
    trainer.module.train()
    seed_dropout(workers.device, config.seed, state.step, workers.rank)
    batches = [part.batch for part in turn]
    if trainer.repeater is not None and batches[0] is not None:
        numbers = trainer.repeater(batches[0])
    else:
        numbers = _forward_backward_update(trainer, batches)
    return StepResult(state.step, rate, turn, _copy_to_host_async(numbers))


def _forward_backward_update(trainer: Trainer, batches: Sequence[Batch | None]) -> Tensor:
    """All that a step computes; the numbers that tell of it stay where they are computed."""
    config, workers = trainer.config, trainer.workers
    sums = torch.zeros(4, device=workers.device, dtype=torch.float64)
    for i, batch in enumerate(batches):
        if i > 0:
            share = i * workers.world_size + workers.rank
            seed_dropout(workers.device, config.seed, trainer.state.step, share)
        with grad_sync(trainer.module, last=i == len(batches) - 1):
            score = _forward_backward(trainer, batch)
        sums += torch.stack([value.detach().double() for value in score])
    loss, _, _, asked = workers.sum(sums)
    mean = workers.world_size / asked.clamp(min=1)  # processes give the mean of their gradients
    norm = gradient_norm(trainer.trainable).double() * mean
    clip = (config.clip_grad_norm / norm).clamp(max=1) if config.clip_grad_norm else 1.0
    finite = torch.isfinite(loss) & torch.isfinite(norm)
    moving = finite & (asked > 0)  # a few short texts may have no blank to fill in
    unseen = workers.device.type == "cuda" and not config.fsdp
    step = optimizer_step_no_sync if unseen else optimizer_step
    step(trainer.optimizer, trainer.trainable, mean * clip, moving)
    _update_ema(trainer, moving)
    trainer.optimizer.zero_grad(set_to_none=True)
    return torch.cat([sums, torch.stack([norm, finite.double()])])


def _copy_to_host_async(numbers: Tensor) -> Callable[[], list[float]]:
    """Numbers to be read when they are needed; from a GPU they come while it works on."""
    if numbers.device.type != "cuda":
        return numbers.tolist
    copy = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    copy.copy_(numbers, non_blocking=True)
    arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def read() -> list[float]:
        arrived.synchronize()
        return copy.tolist()

    return read


def _forward_backward(trainer: Trainer, batch: Batch | None) -> LossSums:
    """Forward and backward. Who has no batch goes along with any, and counts it as nothing."""
    device, count = trainer.workers.device, 0.0 if batch is None else 1.0
    batch = to_device(batch or trainer.batches.any(), device)
    try:
        half = torch.autocast(device.type, torch.bfloat16, trainer.precision == "bfloat16")
        with half, prefer_cudnn_attention(batch):
            score: LossSums = trainer.module(batch)
        torch.autograd.backward(score.loss * count)
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
    return LossSums(*(value * count for value in score))


def seed_dropout(device: torch.device, seed: int, step: int, share: int) -> None:
    """Random numbers that depend on nothing but the place in the training: nothing to save."""
    digest = sha256(f"{seed} {step} {share}".encode()).digest()
    number = int.from_bytes(digest[:7])
    if device.type == "cpu":  # torch.manual_seed would look for all other devices every time
        torch.default_generator.manual_seed(number)
    else:
        torch.get_device_module(device).manual_seed(number)


def _update_ema(trainer: Trainer, finite: Tensor) -> None:
    """Move the running average of the weights a little towards them."""
    if trainer.ema and finite:
        weights = [p.detach() for p in trainer.learner.model.parameters()]
        torch._foreach_lerp_(list(trainer.ema.values()), weights, 1 - trainer.config.ema)


@contextmanager
def use_ema_weights(trainer: Trainer) -> Iterator[None]:
    """The model as it would be kept now: with `ema` its running average takes its place."""
    _swap_ema(trainer)
    try:
        yield
    finally:
        _swap_ema(trainer)


def _swap_ema(trainer: Trainer) -> None:
    """Weights and their running average change places, tensor by tensor, to the last bit."""
    reshard(trainer.learner)
    named = dict(trainer.learner.model.named_parameters())
    with torch.no_grad():
        for name, average in trainer.ema.items():
            held = named[name].detach().clone()
            named[name].copy_(average)
            average.copy_(held)
