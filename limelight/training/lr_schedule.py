"""The learning rate by the step (from 1) alone. All schedules begin with a linear warm-up."""

import math

from limelight.training.config import TrainConfig


def learning_rate(config: TrainConfig, d_model: int, step: int) -> float:
    """The learning rate of a step."""
    peak, warmup = config.learning_rate, config.warmup
    if config.schedule == "paper":  # equation 3; `learning_rate` is a factor
        rising = step * warmup**-1.5 if warmup else math.inf
        return float(peak * d_model**-0.5 * min(step**-0.5, rising))
    if step < warmup:
        return peak * step / warmup
    if config.schedule == "inverse-sqrt":
        return peak * math.sqrt(max(1, warmup) / step)
    done = min(1.0, (step - warmup) / max(1, config.steps - warmup))
    if config.schedule == "cosine":  # down to a tenth
        return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))
    if config.schedule == "linear":
        return peak * (1 - done) + peak * done / 1000  # not to 0: the last step should count too
    return peak * min(1.0, 5 * (1 - done) + 1e-3)  # wsd: stable, and down in the last fifth
