"""The loop: batches in, better weights out, and nothing lost when it is interrupted.

A step is a function of the weights, of Adam's moments, of the position in the data and of the
number of the step; all of these are in every checkpoint, so a resumed run ends with the same bits.
"""

import signal
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from limelight.errors import END_SIGNALS, UserError
from limelight.run.atomic import latest_valid
from limelight.run.log import Log, cut_log, read_log
from limelight.run.loggers import GuardedLoggers
from limelight.training.checkpoint import restore, save_checkpoint, write_final_weights
from limelight.training.evaluate import loss_on
from limelight.training.metrics import Throughput, log_step
from limelight.training.trainer import MicroBatch, StepResult, Trainer, train_step, use_ema_weights


def fit(trainer: Trainer) -> int:
    """Train to the last step and return 0; or save when a signal arrives, and return its number."""
    config, state = trainer.config, trainer.state
    _resume(trainer)
    log = None
    if trainer.world.is_main:
        also = GuardedLoggers(config.log_to, trainer.run.path, state.step, trainer.report.warn)
        log = Log(trainer.run.log, also)
    stream, clock = _batch_stream(trainer), Throughput()
    launched: deque[StepResult] = deque()
    trainer.report.begin(state.step, config.steps)
    try:
        with _catch_signals() as interrupted:
            while True:
                if _is_due(trainer, config.validate_every) and state.validated < state.step:
                    while launched:
                        log_step(trainer, log, clock, launched.popleft())
                    _validate(trainer, log, clock, interrupted)
                stop = trainer.world.any_rank(bool(interrupted) or trainer.stopping)
                complete = state.step == state.validated >= config.steps
                done = complete or _should_stop_early(trainer)
                saving = done or stop or _should_save(trainer)
                # A GPU runs the next step while the one before is logged.
                behind = 0 if saving or trainer.world.device.type != "cuda" else 1
                while len(launched) > behind:
                    log_step(trainer, log, clock, launched.popleft())
                if saving:
                    save_checkpoint(trainer, log, must=done or stop)
                if done or stop:
                    break
                launched.append(train_step(trainer, [*islice(stream, config.grad_accumulation)]))
    finally:
        trainer.report.end()
        if log is not None:
            log.close()
    if not done:
        return interrupted[-1] if interrupted else signal.SIGTERM
    write_final_weights(trainer)
    return 0


def _resume(trainer: Trainer) -> None:
    newest: Path | None = None
    passed_over: list[str] = []
    if trainer.world.is_main:  # it reads and hashes all of them, and the others need not
        newest, passed_over = latest_valid(trainer.run.checkpoints)
    name = trainer.world.from_main(newest.name if newest else "")
    folder = trainer.run.checkpoints / name if name else None
    for sentence in passed_over:
        trainer.report.warn(sentence)
    if folder is None and (passed_over or any(read_log(trainer.run.log))):
        trainer.report.warn("no checkpoint is left to resume from: beginning again")
    if folder is not None:
        restore(trainer, folder)
        done = trainer.state.step >= trainer.config.steps
        trainer.report.say(f"resuming from step {trainer.state.step}{', the last' if done else ''}")
    before, metric = trainer.state.metric, trainer.config.metric
    if trainer.state.set_metric(metric) and before:
        trainer.report.say(f"the best so far was by {before}; from now on it is by {metric}")
    if trainer.world.is_main:
        cut_log(trainer.run.log, trainer.state.step, trainer.state.validated)


def _batch_stream(trainer: Trainer) -> Iterator[MicroBatch]:
    batches, epoch, position = trainer.batches, trainer.state.epoch, trainer.state.position
    while True:
        for batch in batches.epoch(epoch, position):
            position += batches.ranks
            yield MicroBatch(batch, epoch, position)
        if position == 0:
            raise UserError("there is nothing to train on: no example fits the model")
        epoch, position = epoch + 1, 0


def _is_due(trainer: Trainer, every: int) -> bool:
    step = trainer.state.step
    return step > 0 and (step % every == 0 or step >= trainer.config.steps)


def _should_save(trainer: Trainer) -> bool:
    best = trainer.config.patience > 0 and trainer.state.best_step == trainer.state.step > 0
    return best or _is_due(trainer, trainer.config.checkpoint_every)


def _should_stop_early(trainer: Trainer) -> bool:
    return 0 < trainer.config.patience <= trainer.state.validations_without_improvement


def _validate(trainer: Trainer, log: Log | None, clock: Throughput, interrupted: list[int]) -> None:
    state, valid = trainer.state, trainer.valid
    if valid is None:
        state.validated = state.step
        return
    with use_ema_weights(trainer):
        scores = loss_on(trainer.module, valid, trainer.world, trainer.precision, interrupted)
        if not scores and interrupted:
            return  # it is done again after resuming
        state.validated = state.step
        if not scores:
            trainer.report.warn("the validation texts have no token to predict: nothing measured")
            return
        scores |= trainer.metrics(trainer.loss_module.model.eval())
        _record_validation(trainer, log, clock, scores)


def _record_validation(
    trainer: Trainer, log: Log | None, clock: Throughput, scores: dict[str, float]
) -> None:
    state, config = trainer.state, trainer.config
    value = scores[config.metric]
    value = value if config.metric in ("loss", "perplexity") else -value
    better = value < state.best
    if better:
        state.best, state.best_step, state.validations_without_improvement = value, state.step, 0
    else:
        state.validations_without_improvement += 1
    entry = {"step": state.step, "validation": True, **scores, "seconds": clock.read()["seconds"]}
    model = trainer.loss_module.model.eval()
    samples = trainer.samples(model) if better and not config.sharded else []
    if log is not None:
        log.add(entry | ({"samples": samples} if samples else {}))
    trainer.report.validation(entry, better)
    trainer.report.samples(samples)
    trainer.notify(entry)
    if _should_stop_early(trainer):
        count = state.validations_without_improvement
        trainer.report.say(f"{config.metric} has not improved {count} times: stopping early")


@contextmanager
def _catch_signals() -> Iterator[list[int]]:
    """Collect the signals that ask the process to end, so that the step is finished first.

    Those that were ignored before, as SIGHUP is under nohup, stay so.
    """
    received: list[int] = []
    before = {}
    with suppress(ValueError):  # not the main thread: whoever trains there stops it otherwise
        for number in END_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, lambda number, _: received.append(number))
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
