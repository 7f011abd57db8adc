"""What must survive: all that the rest of a training depends on, and nothing else.

Dropout is not in it: every step draws from a seed made of the run's seed, the step and the rank.
Nor is the learning rate, a function of the step. What remains are tensors (weights, Adam's
averages, the running average of weights) and a few numbers.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from limelight.errors import UserError
from limelight.run.weights import WEIGHTS, read_tensors
from limelight.training.distributed import copy_into, full_tensor

OPTIMIZER, STATE = "optimizer.safetensors", "state.json"


@dataclass
class TrainState:
    """Where a training stands."""

    step: int = 0
    epoch: int = 0
    position: int = 0  # in the plan of the epoch
    tokens: int = 0  # learned from so far
    skipped: int = 0  # steps in a row that were not finite
    smoothed_loss: float = 0.0  # loss of a token, over the last hundred steps or so
    validated: int = 0  # the last step after which the model was validated
    metric: str = ""  # what the next three are about
    best: float = math.inf  # of the metric, lower is better
    best_step: int = 0
    validations_without_improvement: int = 0  # validations since then
    window: list[float] = field(default_factory=lambda: [0.0] * 4)  # scores since the last log line

    def set_metric(self, metric: str) -> bool:
        """Look for the best by this metric. If it was another before, that best counts no more.

        The last validation is done again, so that where the training stands can be the best.
        """
        if metric == self.metric:
            return False
        self.metric, self.best, self.best_step, self.validations_without_improvement = (
            metric,
            math.inf,
            0,
            0,
        )
        self.validated = min(self.validated, max(0, self.step - 1))
        return True


class NotFiniteError(Exception):
    """A tensor that must not be saved."""


def collect_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, average: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """All tensors by name, whole and on the CPU: the weights, and what the optimizer keeps."""
    weights, kept = {}, {}
    for name, parameter in model.named_parameters():
        weights[name] = full_tensor(parameter.detach()).cpu().contiguous()
        for key, value in optimizer.state.get(parameter, {}).items():
            kept[f"{key}.{name}"] = full_tensor(value.detach()).cpu().contiguous()
        if name in average:
            kept[f"ema.{name}"] = full_tensor(average[name]).cpu().contiguous()
    return weights, kept


def write(
    folder: Path, weights: dict[str, Tensor], kept: dict[str, Tensor], state: TrainState
) -> None:
    """The files of a checkpoint. A number that is none is never written."""
    for name, tensor in (*weights.items(), *kept.items()):
        if not torch.isfinite(tensor).all():
            raise NotFiniteError(f"{name} has numbers that are not finite: it is not saved")
    write_tensors(folder / WEIGHTS, weights)
    write_tensors(folder / OPTIMIZER, kept)
    (folder / STATE).write_text(json.dumps(asdict(state), indent=1), "utf-8")


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Tensors as a file of safetensors; what is wrong with the disk is told as by other files."""
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def restore(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor],
) -> TrainState:
    """Put everything back as it was."""
    weights, kept = read_tensors(folder / WEIGHTS), read_tensors(folder / OPTIMIZER)
    _load_weights(model, weights)
    for name, parameter in model.named_parameters():
        if name in average:
            copy_into(average[name], kept[f"ema.{name}"])
        if f"step.{name}" not in kept:
            continue  # it was never moved: it is frozen, or no step was finite yet
        held = optimizer.state[parameter]
        for key in ("step", "exp_avg", "exp_avg_sq"):
            saved = kept[f"{key}.{name}"]
            if key == "step":
                held[key] = saved.to(parameter.device)
            else:
                held[key] = torch.zeros_like(parameter)
                copy_into(held[key], saved)
    return read_state(folder / STATE)


_RENAMED = {"usual": "smoothed_loss", "tired": "validations_without_improvement"}  # since 0.1.0


def read_state(path: Path) -> TrainState:
    """The numbers of a checkpoint; unknown or missing ones are refused."""
    try:
        told: dict[str, Any] = json.loads(path.read_text("utf-8"))
        told = {_RENAMED.get(name, name): value for name, value in told.items()}
        if set(told) != {f.name for f in fields(TrainState)}:
            raise ValueError("it has other entries than it should")
        return TrainState(**told)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a model these weights; names and shapes must be the same on both sides."""
    parameters = dict(model.named_parameters())
    missing = sorted(parameters.keys() ^ weights.keys())
    if missing:
        side = "the model" if missing[0] in parameters else "the file"
        raise UserError(f"only {side} has {missing[0]}: these weights are of another model")
    for name, parameter in parameters.items():
        if parameter.shape != weights[name].shape:
            raise UserError(
                f"{name} is {tuple(parameter.shape)} in the model and "
                f"{tuple(weights[name].shape)} in the file"
            )
        copy_into(parameter, weights[name])


def same_tensors(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two files of tensors would be the same."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def average_checkpoints(folders: Iterable[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints (section 6.1); of none, nothing."""
    total: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    count = 0
    for folder in folders:
        for name, tensor in read_tensors(folder / WEIGHTS).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
            kinds[name] = tensor.dtype
        count += 1
    return {name: (tensor / count).to(kinds[name]) for name, tensor in total.items()}
