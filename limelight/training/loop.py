"""The loop: batches in, better weights out, and nothing lost when it is interrupted.

`fit` is the whole of it. A step is a function of the weights, of Adam's averages, of the place in
the data and of the number of the step; all of these are in every checkpoint, so a run that resumes
from one does what it would have done.
"""

import signal
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import torch

from limelight.data.batching import BatchPlan
from limelight.errors import UserError
from limelight.run.atomic import latest_valid
from limelight.run.log import Log, cut_log, read_log
from limelight.run.tensorboard import TensorBoardSink
from limelight.training.checkpoint import TrainState, restore
from limelight.training.checkpointing import save_checkpoint, write_final_weights
from limelight.training.config import TrainConfig
from limelight.training.metrics import Throughput, log_step, perplexity
from limelight.training.objectives import to_device
from limelight.training.trainer import MicroBatch, StepResult, Trainer, train_step, use_ema_weights

VALIDATION_METRICS = ("loss", "perplexity", "accuracy")  # in every validation


def fit(trainer: Trainer) -> int:
    """Train to the last step: 0. Or until a signal asks to leave: its number, all being saved."""
    config, state = trainer.config, trainer.state
    _resume(trainer)
    log = _open_log(trainer)
    stream = _batch_stream(trainer.batches, state)
    clock = Throughput()
    taken: deque[StepResult] = deque()
    trainer.report.begin(state.step, config.steps)
    try:
        with _catch_signals() as interrupted:
            while True:
                if _is_due(config.validate_every, state, config) and state.validated < state.step:
                    while taken:
                        log_step(trainer, log, clock, taken.popleft())
                    _validate(trainer, log, clock, interrupted)
                stop = trainer.workers.any_rank(bool(interrupted))
                done = (
                    _should_stop_early(state, config)
                    or state.step == state.validated >= config.steps
                )
                saving = done or stop or _should_save(state, config)
                # A GPU takes the next step while this tells of the one before.
                behind = 0 if saving or trainer.workers.device.type != "cuda" else 1
                while len(taken) > behind:
                    log_step(trainer, log, clock, taken.popleft())
                if saving:
                    save_checkpoint(trainer, log, must=done or stop)
                if done or stop:
                    break
                taken.append(train_step(trainer, list(islice(stream, config.grad_accumulation))))
    finally:
        trainer.report.end()
        if log is not None:
            log.close()
    if not done:
        return interrupted[-1] if interrupted else signal.SIGTERM
    write_final_weights(trainer)
    return 0


def _open_log(trainer: Trainer) -> Log | None:
    """The log, if this is the process that writes it."""
    if not trainer.workers.is_main:
        return None
    return Log(
        trainer.run.log, TensorBoardSink(trainer.run.path / "tensorboard", trainer.state.step)
    )


def _resume(trainer: Trainer) -> None:
    """Go on from the newest whole checkpoint, if there is any."""
    folder, passed_over = latest_valid(trainer.run.checkpoints)
    for sentence in passed_over:
        trainer.report.warn(sentence)
    if folder is None and (passed_over or any(read_log(trainer.run.log))):
        trainer.report.warn("no checkpoint is left to go on from: beginning again")
    if folder is not None:
        restored = restore(folder, trainer.learner.model, trainer.optimizer, trainer.ema)
        vars(trainer.state).update(vars(restored))
        done = trainer.state.step >= trainer.config.steps
        trainer.report.say(f"resuming from step {trainer.state.step}{', the last' if done else ''}")
    before, metric = trainer.state.metric, trainer.config.metric
    if trainer.state.set_metric(metric) and before:
        trainer.report.say(f"the best so far was by {before}, and is now looked for by {metric}")
    if trainer.workers.is_main:
        cut_log(trainer.run.log, trainer.state.step, trainer.state.validated)


def _batch_stream(batches: BatchPlan, state: TrainState) -> Iterator[MicroBatch]:
    """Batches without end, from where the training stands."""
    epoch, position = state.epoch, state.position
    while True:
        for batch in batches.epoch(epoch, position):
            position += batches.ranks
            yield MicroBatch(batch, epoch, position)
        if position == 0:
            raise UserError("there is nothing to train on: no example fits the model")
        epoch, position = epoch + 1, 0


def _is_due(every: int, state: TrainState, config: TrainConfig) -> bool:
    """Whether something that happens every so many steps happens now; at the end it does."""
    return state.step > 0 and (state.step % every == 0 or state.step >= config.steps)


def _should_save(state: TrainState, config: TrainConfig) -> bool:
    """Every so many steps a checkpoint, and of the best so far if that is what will be wanted."""
    best = config.patience > 0 and state.best_step == state.step > 0
    return best or _is_due(config.checkpoint_every, state, config)


def _should_stop_early(state: TrainState, config: TrainConfig) -> bool:
    """Whether to stop early, because nothing improves any more; with more patience it goes on."""
    return 0 < config.patience <= state.validations_without_improvement


def _validate(trainer: Trainer, log: Log | None, clock: Throughput, stop: list[int]) -> None:
    """See how the model does on the validation texts, and whether it still improves."""
    state = trainer.state
    if trainer.valid is None:
        state.validated = state.step
        return
    with use_ema_weights(trainer):
        scores = evaluate(trainer, trainer.valid, stop)
        if not scores and stop:
            return  # interrupted: it is done again after resuming
        state.validated = state.step
        if not scores:
            trainer.report.warn("the validation texts asked for nothing, so nothing is measured")
            return
        scores |= trainer.metrics(trainer.learner.model.eval())
        _record_validation(trainer, log, clock, scores)


def evaluate(trainer: Trainer, batches: BatchPlan, stop: list[int]) -> dict[str, float]:
    """Loss, perplexity and accuracy on texts that are not learned from; empty if interrupted."""
    workers = trainer.workers
    trainer.module.eval()
    sums = torch.zeros(4, device=workers.device, dtype=torch.float64)
    with torch.no_grad():
        for batch in batches.epoch(0):
            if workers.world_size == 1 and stop:
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
    return dict(zip(VALIDATION_METRICS, (mean, perplexity(mean), right / count), strict=True))


def _record_validation(
    trainer: Trainer, log: Log | None, clock: Throughput, scores: dict[str, float]
) -> None:
    """Is this the best so far? What comes of it is remembered, written down and shown."""
    state, config = trainer.state, trainer.config
    value = scores[config.metric]
    value = value if config.metric in ("loss", "perplexity") else -value
    better = value < state.best
    state.best, state.best_step = (value, state.step) if better else (state.best, state.best_step)
    state.validations_without_improvement = (
        0 if better else state.validations_without_improvement + 1
    )
    entry = {"step": state.step, "validation": True, **scores, "seconds": clock.read()["seconds"]}
    samples = trainer.samples(trainer.learner.model.eval()) if better and not config.fsdp else []
    if log is not None:
        log.add(entry | ({"samples": samples} if samples else {}))
    trainer.report.validation(entry, better)
    trainer.report.samples(samples)
    if _should_stop_early(state, config):
        trainer.report.say(
            f"{config.metric} has not improved "
            f"{state.validations_without_improvement} times: stopping early"
        )


@contextmanager
def _catch_signals() -> Iterator[list[int]]:
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
