"""What a training tells while it goes: the log, the terminal, and warnings in time."""

import math
import time

from limelight.device import peak_memory
from limelight.errors import FailedError
from limelight.run.log import Log
from limelight.training.objectives import count_tokens
from limelight.training.trainer import StepResult, Trainer

_MAX_NAN_STEPS = 3  # steps in a row that may be skipped
_LOOKING_BACK = 100  # steps, to know what loss is usual
_FEW_TOKENS = 30  # whose mean loss says little of a step


class Throughput:
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


def log_step(trainer: Trainer, log: Log | None, clock: Throughput, taken: StepResult) -> None:
    """Remember what a step did, and write it down every few steps, or at once if it failed."""
    config, state = trainer.config, trainer.state
    *sums, norm, finite = taken.numbers()
    mine = sum(count_tokens(part.batch) for part in taken.turn if part.batch is not None)
    clock.tokens += mine * trainer.workers.world_size
    trainer.report.step(taken.step)
    state.skipped = 0 if finite else state.skipped + 1
    if finite:
        state.tokens += int(sums[3])
        state.window = [a + b for a, b in zip(state.window, sums, strict=True)]
        if sums[3] >= _FEW_TOKENS:
            _watch_for_spikes(trainer, log, taken, sums[0] / sums[3])
    else:
        _log_skipped_step(trainer, log, taken)
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
            "lr": taken.rate,
            "grad_norm": norm,
            "tokens": state.tokens,
            **clock.read(),
            "peak_memory": peak_memory(trainer.workers.device),
        }
        trainer.report.train(line, config.steps)
        if log is not None:
            log.add(line)


def _watch_for_spikes(trainer: Trainer, log: Log | None, taken: StepResult, loss: float) -> None:
    """Say when the loss jumps to twice what is usual: bad texts, or the weights running away."""
    state = trainer.state
    spike = taken.step > _LOOKING_BACK and loss > max(
        2 * state.smoothed_loss, state.smoothed_loss + 1
    )
    if spike and log is not None:
        entry = {"loss": loss, "usual": state.smoothed_loss, "examples": _example_ids(taken)}
        log.add({"step": taken.step, "spike": True, **entry})
    if spike and not trainer.spiking:  # of several in a row the first is told
        trainer.report.warn(
            f"step {taken.step} has a loss of {loss:.2f}, and {state.smoothed_loss:.2f} is usual: "
            "bad texts (its examples are in the log), or too large a --train.learning-rate"
        )
    trainer.spiking = spike
    state.smoothed_loss += (loss - state.smoothed_loss) / min(taken.step, _LOOKING_BACK)


def _log_skipped_step(trainer: Trainer, log: Log | None, taken: StepResult) -> None:
    """A step that was not finite: say which examples it met; three in a row are too many."""
    examples = _example_ids(taken)
    if log is not None:
        log.add({"step": taken.step, "skipped": True, "examples": examples})
    trainer.report.warn(
        f"step {taken.step} was skipped: its loss or gradient is not finite "
        f"(examples {', '.join(map(str, examples[:5]))}, ... are in the log)"
    )
    if trainer.state.skipped >= _MAX_NAN_STEPS:
        raise FailedError(
            f"{trainer.state.skipped} steps in a row were not finite, so training stops; the last "
            "good checkpoint, if there is one, is kept. Begin again in another folder, with a "
            "smaller --train.learning-rate or --train.clip-grad-norm 1"
        )


def _example_ids(taken: StepResult) -> list[int]:
    """The examples that a step has learned from in this process."""
    batches = [part.batch for part in taken.turn if part.batch is not None]
    return [i for batch in batches for i in batch.examples.tolist() if i >= 0]


def perplexity(surprise: float) -> float:
    """How many tokens the model hesitates between, on average."""
    return math.exp(min(surprise, 700.0))
