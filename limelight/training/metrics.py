"""The log of a training, and warnings in time: loss spikes, and steps that are not finite."""

import time

from limelight.data.datasets import Batch, ClassificationBatch, PictureBatch
from limelight.device import peak_memory
from limelight.errors import FailedError
from limelight.run.log import Log
from limelight.training.evaluate import perplexity
from limelight.training.objectives import count_tokens
from limelight.training.trainer import StepResult, Trainer

_SMOOTHING = 100  # steps that the usual loss is averaged over


class Throughput:
    """Seconds since training began here, and tokens since the last line of the log."""

    def __init__(self) -> None:
        self.began = self.last = time.monotonic()
        self.tokens = 0

    def read(self) -> dict[str, float]:
        """The time, and the speed since the last call."""
        now = time.monotonic()
        speed = self.tokens / max(1e-9, now - self.last)
        self.last, self.tokens = now, 0
        return {"seconds": round(now - self.began, 3), "tokens_per_second": round(speed, 1)}


def log_step(trainer: Trainer, log: Log | None, clock: Throughput, result: StepResult) -> None:
    """Add up what a step computed; log it every few steps, or at once if it failed."""
    config, state = trainer.config, trainer.state
    *sums, norm, finite = result.numbers()
    mine = sum(count_tokens(part.batch) for part in result.micro_batches if part.batch is not None)
    clock.tokens += mine * trainer.world.data_ranks
    trainer.report.step(result.step)
    state.skipped = 0 if finite else state.skipped + 1
    if finite:
        state.tokens += int(sums[3])
        state.window = [a + b for a, b in zip(state.window, sums, strict=True)]
        if sums[3] >= 30:  # the mean loss of fewer tokens says little of a step
            _watch_for_spikes(trainer, log, result, sums[0] / sums[3])
    else:
        _log_skipped_step(trainer, log, result)
    total = state.window[3]
    if total and (result.step % config.log_every == 0 or result.step >= config.steps):
        means = _means(result.micro_batches[-1].batch, state.window)
        state.window = [0.0] * 4
        entry = {
            "step": result.step,
            "epoch": result.micro_batches[-1].epoch,
            **means,
            "lr": result.lr,
            "grad_norm": norm,
            "tokens": state.tokens,
            **clock.read(),
            "peak_memory": peak_memory(trainer.world.device),
        }
        trainer.report.train(entry, config.steps)
        if log is not None:
            log.add(entry)
        trainer.notify(entry)


def _means(batch: Batch | None, sums: list[float]) -> dict[str, float]:
    """Means over all tokens or texts: `loss` as in a validation, `objective` what is minimized.

    The objective has label smoothing, R-Drop and the weights of classes too.
    """
    objective, nll, correct = (value / sums[3] for value in sums[:3])
    if isinstance(batch, ClassificationBatch):
        return {"loss": nll, "objective": objective, "accuracy": correct}
    loss = objective if isinstance(batch, PictureBatch) else nll  # theirs is the tokens' entropy
    scores = {"perplexity": perplexity(nll), "accuracy": correct}
    return {"loss": loss, "objective": objective, **scores}


def _watch_for_spikes(trainer: Trainer, log: Log | None, result: StepResult, loss: float) -> None:
    state, usual = trainer.state, trainer.state.smoothed_loss
    spike = result.step > _SMOOTHING and loss > max(2 * usual, usual + 1)
    if spike and log is not None:
        entry = {"loss": loss, "usual": usual, "examples": _example_ids(result)}
        log.add({"step": result.step, "spike": True, **entry})
    if spike and not trainer.spiking:  # only the first of several in a row
        trainer.report.warn(
            f"step {result.step} has a loss of {loss:.2f}, and {usual:.2f} is usual: "
            "bad texts (its examples are in the log), or too large a --train.learning-rate"
        )
    trainer.spiking = spike
    state.smoothed_loss += (loss - usual) / min(result.step, _SMOOTHING)


def _log_skipped_step(trainer: Trainer, log: Log | None, result: StepResult) -> None:
    examples = _example_ids(result)
    if log is not None:
        log.add({"step": result.step, "skipped": True, "examples": examples})
    trainer.report.warn(
        f"step {result.step} was skipped: its loss or gradient is not finite "
        f"(examples {', '.join(map(str, examples[:5]))}, ... are in the log)"
    )
    if trainer.state.skipped >= 3:
        raise FailedError(
            f"{trainer.state.skipped} steps in a row were not finite, so training stops; the last "
            "good checkpoint, if there is one, is kept. Begin again in another folder, with a "
            "smaller --train.learning-rate or --train.clip-grad-norm 1"
        )


def _example_ids(result: StepResult) -> list[int]:
    batches = [part.batch for part in result.micro_batches if part.batch is not None]
    return [i for batch in batches for i in batch.examples.tolist() if i >= 0]
