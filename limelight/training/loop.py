"""The loop: batches in, better weights out, and nothing lost when it is interrupted.

`fit` is the whole of it. A step is a function of the weights, of Adam's averages, of the place in
the data and of the number of the step; all of these are in every checkpoint, so a run that resumes
from one does what it would have done.
"""

import math
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from limelight.errors import FailedError, UserError
from limelight.model.layers import Layer
from limelight.run.board import Board
from limelight.run.commit import (
    check_room,
    commit,
    damage,
    discard,
    newest,
    numbered,
    prune,
)
from limelight.run.folder import RunFolder
from limelight.run.log import Log, cut_log
from limelight.run.weights import WEIGHTS, name_of, read_tensors, step_of
from limelight.text.batches import Batches
from limelight.text.examples import Batch
from limelight.training.checkpoint import (
    OPTIMIZER,
    NotFiniteError,
    State,
    average_of,
    gather,
    restore,
    same_tensors,
    write,
    write_tensors,
)
from limelight.training.coins import toss_quickly
from limelight.training.config import TrainConfig
from limelight.training.device import COMPILING, is_out_of_memory, peak_memory
from limelight.training.loss import Score
from limelight.training.objective import (
    SHORT,
    Learner,
    fused_attention,
    to_device,
    tokens_in,
    write_out_attention,
)
from limelight.training.optimizer import gradient_norm, make_optimizer, move, move_unseen, set_rate
from limelight.training.repeater import Repeater
from limelight.training.report import Report
from limelight.training.schedule import learning_rate
from limelight.training.workers import Workers, gathering, share_out_again, spread

PATIENCE_WITH_NAN = 3  # steps in a row that may be skipped
LOOKING_BACK = 100  # steps, to know what loss is usual
FEW_TOKENS = 30  # whose mean loss says little of a step
MEASURED = ("loss", "perplexity", "accuracy")  # in every validation
Metrics = Callable[[nn.Module], dict[str, float]]
Samples = Callable[[nn.Module], list[str]]


@dataclass
class Trainer:
    """All that takes part in a training."""

    learner: Learner
    batches: Batches
    config: TrainConfig
    run: RunFolder
    workers: Workers
    report: Report
    valid: Batches | None = None
    metrics: Metrics = lambda _: {}  # the task's own, on top of loss and accuracy
    samples: Samples = lambda _: []
    d_model: int = 1
    widths: tuple[int, int] = (0, 10**9)  # tokens of the shortest and of the longest text
    precision: str = "float32"
    state: State = field(default_factory=State)
    written: set[str] = field(default_factory=set)  # checkpoints, by this process
    spiking: bool = False  # whether the last step had a loss far above the usual

    def __post_init__(self) -> None:
        kind = torch.float64 if self.precision == "float64" else torch.float32
        self.learner.to(self.workers.device, kind)
        if self.workers.device.type == "cpu" and not self.config.compile:
            toss_quickly(self.learner)
        self.module: Any = self.compiled(spread(self.learner, self.workers, self.config))
        repeated = can_be_repeated(self.learner, self.workers, self.config)
        self.optimizer = make_optimizer(self.learner.model, self.config, repeated)
        self.repeater = (
            Repeater(lambda batch: work(self, [batch]), self.workers.device) if repeated else None
        )
        named = self.learner.model.named_parameters()
        self.average = {n: p.detach().clone() for n, p in named} if self.config.ema else {}
        self.learned = [p for p in self.learner.parameters() if p.requires_grad]

    def compiled(self, module: nn.Module) -> Any:
        """The learner compiled, if that is wanted: once for all widths, or for the only one."""
        if not self.config.compile:
            return module
        shortest, longest = self.widths
        if longest <= SHORT and self.workers.device.type == "cuda":
            write_out_attention(self.learner.model)
        dynamic = None if shortest == longest else True
        return torch.compile(module, dynamic=dynamic, options=COMPILING)


def can_be_repeated(learner: Learner, workers: Workers, config: TrainConfig) -> bool:
    """Whether a step is the same to the GPU every time: see the `Repeater`.

    Recurrent networks look at the lengths of texts, a running average at whether the step counts.
    """
    wanted = (config.compile or config.repeat) and workers.device.type == "cuda"
    alone = workers.ranks == 1 and not config.shard and config.accumulate == 1 and not config.ema
    return wanted and alone and any(isinstance(part, Layer) for part in learner.modules())


def fit(trainer: Trainer) -> int:
    """Train to the last step: 0. Or until a signal asks to leave: its number, all being saved."""
    config, state = trainer.config, trainer.state
    resume(trainer)
    log = open_log(trainer)
    stream = batches_from(trainer.batches, state)
    clock = Clock()
    taken: deque[Taken] = deque()
    trainer.report.begin(state.step, config.steps)
    try:
        with interruption() as interrupted:
            while True:
                if due(config.validate_every, state, config) and state.validated < state.step:
                    while taken:
                        tell(trainer, log, clock, taken.popleft())
                    validate(trainer, log, clock, interrupted)
                stop = trainer.workers.agree(bool(interrupted))
                done = tired_out(state, config) or state.step == state.validated >= config.steps
                saving = done or stop or worth_saving(state, config)
                # A GPU takes the next step while this tells of the one before.
                behind = 0 if saving or trainer.workers.device.type != "cuda" else 1
                while len(taken) > behind:
                    tell(trainer, log, clock, taken.popleft())
                if saving:
                    save(trainer, log, must=done or stop)
                if done or stop:
                    break
                taken.append(take_step(trainer, list(islice(stream, config.accumulate))))
    finally:
        trainer.report.end()
        if log is not None:
            log.close()
    if not done:
        return interrupted[-1] if interrupted else signal.SIGTERM
    finish(trainer)
    return 0


def open_log(trainer: Trainer) -> Log | None:
    """The log, if this is the process that writes it."""
    if not trainer.workers.first:
        return None
    return Log(trainer.run.log, Board(trainer.run.path / "tensorboard", trainer.state.step))


def resume(trainer: Trainer) -> None:
    """Go on from the newest whole checkpoint, if there is any."""
    folder, passed_over = newest(trainer.run.checkpoints)
    for sentence in passed_over:
        trainer.report.warn(sentence)
    if folder is not None:
        restored = restore(folder, trainer.learner.model, trainer.optimizer, trainer.average)
        vars(trainer.state).update(vars(restored))
        trainer.report.say(f"resuming from step {trainer.state.step}")
    before, metric = trainer.state.metric, trainer.config.metric
    if trainer.state.judge_by(metric) and before:
        trainer.report.say(f"the best so far was by {before}, and is now looked for by {metric}")
    if trainer.workers.first:
        cut_log(trainer.run.log, trainer.state.step, trainer.state.validated)


@dataclass(frozen=True)
class Turn:
    """A batch, or None where this process has nothing to do, and the place in the data after it."""

    batch: Batch | None
    epoch: int
    position: int


def batches_from(batches: Batches, state: State) -> Iterator[Turn]:
    """Batches without end, from where the training stands."""
    epoch, position = state.epoch, state.position
    while True:
        for batch in batches.epoch(epoch, position):
            position += batches.ranks
            yield Turn(batch, epoch, position)
        if position == 0:
            raise UserError("there is nothing to train on: no example fits the model")
        epoch, position = epoch + 1, 0


def due(every: int, state: State, config: TrainConfig) -> bool:
    """Whether something that happens every so many steps happens now; at the end it does."""
    return state.step > 0 and (state.step % every == 0 or state.step >= config.steps)


def worth_saving(state: State, config: TrainConfig) -> bool:
    """Every so many steps a checkpoint, and of the best so far if that is what will be wanted."""
    best = config.patience > 0 and state.best_step == state.step > 0
    return best or due(config.checkpoint_every, state, config)


def tired_out(state: State, config: TrainConfig) -> bool:
    """Whether to stop early, because nothing improves any more; with more patience it goes on."""
    return 0 < config.patience <= state.tired


@dataclass(frozen=True)
class Taken:
    """A step that was taken; its numbers may still be on their way from the GPU."""

    step: int
    rate: float
    turn: list[Turn]
    numbers: Callable[[], list[float]]  # loss, surprise, right, asked; norm, and 1 if finite


def take_step(trainer: Trainer, turn: list[Turn]) -> Taken:
    """One step of the optimizer: the gradients of all batches of all processes, added up.

    The loss of every token counts the same, so the sum is divided once, by all tokens. A step whose
    loss or gradient is not finite changes nothing but the count.
    """
    config, state, workers = trainer.config, trainer.state, trainer.workers
    state.step += 1
    state.epoch, state.position = turn[-1].epoch, turn[-1].position
    rate = learning_rate(config, trainer.d_model, state.step)
    set_rate(trainer.optimizer, rate)
    trainer.module.train()
    seed_dropout(workers.device, config.seed, state.step, workers.rank)
    batches = [part.batch for part in turn]
    if trainer.repeater is not None and batches[0] is not None:
        numbers = trainer.repeater(batches[0])
    else:
        numbers = work(trainer, batches)
    return Taken(state.step, rate, turn, read_later(numbers))


def work(trainer: Trainer, batches: Sequence[Batch | None]) -> Tensor:
    """All that a step computes; the numbers that tell of it stay where they are computed."""
    config, workers = trainer.config, trainer.workers
    sums = torch.zeros(4, device=workers.device, dtype=torch.float64)
    for i, batch in enumerate(batches):
        if i > 0:
            share = i * workers.ranks + workers.rank
            seed_dropout(workers.device, config.seed, trainer.state.step, share)
        with gathering(trainer.module, last=i == len(batches) - 1):
            score = learn_from(trainer, batch)
        sums += torch.stack([value.detach().double() for value in score])
    loss, _, _, asked = workers.sum(sums)
    mean = workers.ranks / asked.clamp(min=1)  # processes give the mean of their gradients
    norm = gradient_norm(trainer.learned).double() * mean
    clip = (config.clip / norm).clamp(max=1) if config.clip else 1.0
    finite = torch.isfinite(loss) & torch.isfinite(norm)
    moving = finite & (asked > 0)  # a few short texts may have no blank to fill in
    unseen = workers.device.type == "cuda" and not config.shard
    step = move_unseen if unseen else move
    step(trainer.optimizer, trainer.learned, mean * clip, moving)
    update_average(trainer, moving)
    trainer.optimizer.zero_grad(set_to_none=True)
    return torch.cat([sums, torch.stack([norm, finite.double()])])


def read_later(numbers: Tensor) -> Callable[[], list[float]]:
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


def learn_from(trainer: Trainer, batch: Batch | None) -> Score:
    """Forward and backward. Who has no batch goes along with any, and counts it as nothing."""
    device, count = trainer.workers.device, 0.0 if batch is None else 1.0
    batch = to_device(batch or trainer.batches.any(), device)
    try:
        half = torch.autocast(device.type, torch.bfloat16, trainer.precision == "bfloat16")
        with half, fused_attention(batch):
            score: Score = trainer.module(batch)
        torch.autograd.backward(score.loss * count)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        shape = " + ".join(str(tuple(x.shape)) for x in batch[2:4] if isinstance(x, Tensor))
        raise FailedError(
            f"out of memory at step {trainer.state.step}, on a batch of {shape} tokens: halve "
            f"--train.batch-tokens {trainer.batches.batch_tokens} and double --train.accumulate "
            f"{trainer.config.accumulate}; that is the same step in less memory"
        ) from error
    return Score(*(value * count for value in score))


def seed_dropout(device: torch.device, seed: int, step: int, share: int) -> None:
    """Random numbers that depend on nothing but the place in the training: nothing to save."""
    digest = sha256(f"{seed} {step} {share}".encode()).digest()
    number = int.from_bytes(digest[:7])
    if device.type == "cpu":  # torch.manual_seed would look for all other devices every time
        torch.default_generator.manual_seed(number)
    else:
        torch.get_device_module(device).manual_seed(number)


def update_average(trainer: Trainer, finite: Tensor) -> None:
    """Move the running average of the weights a little towards them."""
    if trainer.average and finite:
        weights = [p.detach() for p in trainer.learner.model.parameters()]
        torch._foreach_lerp_(list(trainer.average.values()), weights, 1 - trainer.config.ema)


@contextmanager
def weights_as_kept(trainer: Trainer) -> Iterator[None]:
    """The model as it would be kept now: with `ema` its running average takes its place."""
    exchange_average(trainer)
    try:
        yield
    finally:
        exchange_average(trainer)


def exchange_average(trainer: Trainer) -> None:
    """Weights and their running average change places, tensor by tensor, to the last bit."""
    share_out_again(trainer.learner)
    named = dict(trainer.learner.model.named_parameters())
    with torch.no_grad():
        for name, average in trainer.average.items():
            held = named[name].detach().clone()
            named[name].copy_(average)
            average.copy_(held)


class Clock:
    """Seconds since training began here, and tokens since the last line of the log."""

    def __init__(self) -> None:
        self.began = self.last = time.monotonic()
        self.tokens = 0

    def read(self) -> dict[str, float]:
        """The time, and how fast it went since this was asked last."""
        now = time.monotonic()
        speed = self.tokens / max(1e-9, now - self.last)
        self.last, self.tokens = now, 0
        return {"seconds": round(now - self.began, 3), "tokens_per_second": round(speed, 1)}


def tell(trainer: Trainer, log: Log | None, clock: Clock, taken: Taken) -> None:
    """Remember what a step did, and write it down every few steps, or at once if it failed."""
    config, state = trainer.config, trainer.state
    *sums, norm, finite = taken.numbers()
    mine = sum(tokens_in(part.batch) for part in taken.turn if part.batch is not None)
    clock.tokens += mine * trainer.workers.ranks
    trainer.report.step(taken.step)
    state.skipped = 0 if finite else state.skipped + 1
    if finite:
        state.tokens += int(sums[3])
        state.window = [a + b for a, b in zip(state.window, sums, strict=True)]
        if sums[3] >= FEW_TOKENS:
            watch_for_spikes(trainer, log, taken, sums[0] / sums[3])
    else:
        tell_skipped(trainer, log, taken)
    asked = state.window[3]
    if asked and (taken.step % config.log_every == 0 or taken.step >= config.steps):
        loss, surprise, right, _ = (value / asked for value in state.window)
        state.window = [0.0] * 4
        line = {
            "step": taken.step,
            "epoch": taken.turn[-1].epoch,
            "loss": loss,
            "perplexity": perplexity(surprise),
            "accuracy": right,
            "rate": taken.rate,
            "norm": norm,
            "tokens": state.tokens,
            **clock.read(),
            "memory": peak_memory(trainer.workers.device),
        }
        trainer.report.train(line, config.steps)
        if log is not None:
            log.add(line)


def watch_for_spikes(trainer: Trainer, log: Log | None, taken: Taken, loss: float) -> None:
    """Say when the loss jumps to twice what is usual: bad texts, or the weights running away."""
    state = trainer.state
    spike = taken.step > LOOKING_BACK and loss > max(2 * state.usual, state.usual + 1)
    if spike and log is not None:
        entry = {"loss": loss, "usual": state.usual, "examples": examples_met(taken)}
        log.add({"step": taken.step, "spike": True, **entry})
    if spike and not trainer.spiking:  # of several in a row the first is told
        trainer.report.warn(
            f"step {taken.step} has a loss of {loss:.2f}, and {state.usual:.2f} is usual: bad "
            "texts (its examples are in the log), or too large a --train.learning-rate"
        )
    trainer.spiking = spike
    state.usual += (loss - state.usual) / min(taken.step, LOOKING_BACK)


def examples_met(taken: Taken) -> list[int]:
    """The examples that a step has learned from in this process."""
    batches = [part.batch for part in taken.turn if part.batch is not None]
    return [i for batch in batches for i in batch.examples.tolist() if i >= 0]


def tell_skipped(trainer: Trainer, log: Log | None, taken: Taken) -> None:
    """A step that was not finite: say which examples it met; three in a row are too many."""
    examples = examples_met(taken)
    if log is not None:
        log.add({"step": taken.step, "skipped": True, "examples": examples})
    trainer.report.warn(
        f"step {taken.step} was skipped: its loss or gradient is not finite "
        f"(examples {', '.join(map(str, examples[:5]))}, ... are in the log)"
    )
    if trainer.state.skipped >= PATIENCE_WITH_NAN:
        raise FailedError(
            f"{trainer.state.skipped} steps in a row were not finite, so training stops; the last "
            "good checkpoint is kept. A smaller --train.learning-rate or --train.clip 1 may help"
        )


def perplexity(surprise: float) -> float:
    """How many tokens the model hesitates between, on average."""
    return math.exp(min(surprise, 700.0))


def evaluate(trainer: Trainer, batches: Batches, stop: list[int]) -> dict[str, float]:
    """Loss, perplexity and accuracy on texts that are not learned from; empty if interrupted."""
    workers = trainer.workers
    trainer.module.eval()
    sums = torch.zeros(4, device=workers.device, dtype=torch.float64)
    with torch.no_grad():
        for batch in batches.epoch(0):
            if workers.ranks == 1 and stop:
                return {}
            with torch.autocast(
                workers.device.type, torch.bfloat16, trainer.precision == "bfloat16"
            ):
                score = trainer.module(to_device(batch or batches.any(), workers.device))
            if batch is not None:
                sums += torch.stack([value.double() for value in score])
    _, surprise, right, count = workers.sum(sums).tolist()
    if not count:
        return {}
    mean = surprise / count
    return dict(zip(MEASURED, (mean, perplexity(mean), right / count), strict=True))


def validate(trainer: Trainer, log: Log | None, clock: Clock, stop: list[int]) -> None:
    """See how the model does on the validation texts, and whether it still improves."""
    state = trainer.state
    if trainer.valid is None:
        state.validated = state.step
        return
    with weights_as_kept(trainer):
        scores = evaluate(trainer, trainer.valid, stop)
        if not scores and stop:
            return  # interrupted: it is done again after resuming
        state.validated = state.step
        if not scores:
            trainer.report.warn("the validation texts asked for nothing, so nothing is measured")
            return
        scores |= trainer.metrics(trainer.learner.model.eval())
        judge(trainer, log, clock, scores)


def judge(trainer: Trainer, log: Log | None, clock: Clock, scores: dict[str, float]) -> None:
    """Is this the best so far? What comes of it is remembered, written down and shown."""
    state, config = trainer.state, trainer.config
    value = scores[config.metric]
    value = value if config.metric in ("loss", "perplexity") else -value
    better = value < state.best
    state.best, state.best_step = (value, state.step) if better else (state.best, state.best_step)
    state.tired = 0 if better else state.tired + 1
    entry = {"step": state.step, "validation": True, **scores, "seconds": clock.read()["seconds"]}
    samples = trainer.samples(trainer.learner.model.eval()) if better and not config.shard else []
    if log is not None:
        log.add(entry | ({"samples": samples} if samples else {}))
    trainer.report.validation(entry, better)
    trainer.report.samples(samples)
    if tired_out(state, config):
        trainer.report.say(f"{config.metric} has not improved {state.tired} times: stopping early")


def save(trainer: Trainer, log: Log | None, must: bool) -> None:
    """Commit a checkpoint, then delete old ones. A full disk does not end a run before it must."""
    state, config, run = trainer.state, trainer.config, trainer.run
    weights, kept = gather(trainer.learner.model, trainer.optimizer, trainer.average)
    if trainer.workers.first and log is not None:
        try:
            log.sync()
            needed = sum(t.nbytes for t in (*weights.values(), *kept.values()))
            check_room(run.path, needed)
            last = run.checkpoints / name_of(state.step)
            commit(last, lambda f: write(f, weights, kept, state))
            trainer.written.add(last.name)
            best = [name_of(state.best_step)] if config.patience else []
            spare = [*best, *(folder.name for folder in to_average(trainer))]
            prune(run.checkpoints, config.keep, spare, trainer.written)
        except NotFiniteError as error:
            raise FailedError(f"{error}; the last good checkpoint is kept") from error
        except OSError as error:
            why = f"{run.path}: {error.strerror or error}"
            sentence = f"step {state.step} could not be saved: {why}"
            if must:
                raise FailedError(f"{sentence}; free some space, and say the same again") from error
            trainer.report.warn(f"{sentence}. Training goes on; free some space")
    trainer.workers.wait()


def to_average(trainer: Trainer) -> list[Path]:
    """The last of the regular checkpoints; those that an interruption adds must change nothing."""
    config, last = trainer.config, trainer.run.checkpoints / name_of(trainer.state.step)
    made = numbered(trainer.run.checkpoints)
    regular = [f for f in made if f == last or step_of(f) % config.checkpoint_every == 0]
    return regular[: config.average]


def finish(trainer: Trainer) -> None:
    """Write the weights to be used, as the recipe says: an average, the best, or the last."""
    run, last = trainer.run, trainer.run.finished / name_of(trainer.state.step)
    weights, kept = gather(trainer.learner.model, trainer.optimizer, trainer.average)
    if trainer.workers.first:
        weights = weights_to_keep(trainer, weights, kept)
        try:
            if damage(last) is None and not same_tensors(read_tensors(last / WEIGHTS), weights):
                discard(last)  # it was made when the recipe asked for something else
            commit(last, lambda f: write_tensors(f / WEIGHTS, weights))
            prune(run.finished, keep=1, written=[last.name])
        except OSError as error:
            raise FailedError(
                f"training is done, but its weights could not be written: {run.path}: "
                f"{error.strerror or error}. Free some space, and say the same again"
            ) from error
    trainer.workers.wait()


def weights_to_keep(
    trainer: Trainer, last: dict[str, Tensor], kept: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The best weights if they are asked for, or the last; with `ema` their running average."""
    config, state, checkpoints = trainer.config, trainer.state, trainer.run.checkpoints
    if config.average and not config.ema:
        found = to_average(trainer)
        wanted = min(config.average, math.ceil(state.step / config.checkpoint_every))
        if len(found) < wanted:
            trainer.report.warn(f"of {wanted} checkpoints to average only {len(found)} are left")
        return average_of(sound(trainer, found)) or last
    if config.patience and state.best_step:
        for best in sound(trainer, [checkpoints / name_of(state.best_step)]):
            last, kept = read_tensors(best / WEIGHTS), read_tensors(best / OPTIMIZER)
    return {name: kept[f"ema.{name}"] for name in last} if config.ema else last


def sound(trainer: Trainer, folders: list[Path]) -> list[Path]:
    """Those of the checkpoints that are whole; what is wrong with the others is told."""
    whole = []
    for folder in folders:
        why = damage(folder)
        if why is None:
            whole.append(folder)
        else:
            trainer.report.warn(f"{folder.name} is left out of the finished weights: {why}")
    return whole


@contextmanager
def interruption() -> Iterator[list[int]]:
    """Signals that ask the process to end are noted, and the step is finished first."""
    received: list[int] = []

    def note(number: int, _: object) -> None:
        received.append(number)

    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, note)
    except ValueError:
        pass  # not the main thread: whoever trains there stops it in another way
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
