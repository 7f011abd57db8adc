"""The log for other programs too: TensorBoard, Weights & Biases, MLflow, or one of your own.

A logger receives every line of the log while it is written. `LOGGERS` has them by the name that
`train.log_to` asks for; their packages are imported only then.
"""

import json
import os
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from limelight.errors import UserError
from limelight.files import atomic_write, read_bounded
from limelight.run.log import Entry

_IDS = "loggers.json"  # under which ids other programs know this run, to go on with it


class Logger(Protocol):
    """Receives every line of a log; an error ends this logger, and not the training."""

    def add(self, entry: Entry) -> None: ...

    def close(self) -> None: ...


class _TensorBoard:
    """Writes events into the run folder."""

    def __init__(self, run: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Events after the checkpoint that the run resumes from are removed.
        self.writer = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def add(self, entry: Entry) -> None:
        for name, value in _numbers(entry).items():
            self.writer.add_scalar(name, value, entry["step"])

    def close(self) -> None:
        self.writer.close()


class _WeightsAndBiases:
    """Logs to the project `limelight`, or to that of WANDB_PROJECT."""

    def __init__(self, run: Path, step: int) -> None:
        import wandb

        known = _read_ids(run)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "limelight"),
            name=run.name,
            dir=str(run),
            config=_recipe_of(run),
            id=known.get("wandb"),
            resume="allow",
        )
        _write_ids(run, {**known, "wandb": self.run.id})

    def add(self, entry: Entry) -> None:
        self.run.log(_numbers(entry), step=entry["step"])

    def close(self) -> None:
        self.run.finish()


class _MLflow:
    """Logs to MLflow; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say where."""

    def __init__(self, run: Path, step: int) -> None:
        import mlflow

        self.mlflow, known = mlflow, _read_ids(run)
        begun = mlflow.start_run(run_id=known.get("mlflow"), run_name=run.name)
        if "mlflow" not in known:
            tables = ((key, t) for key, t in _recipe_of(run).items() if isinstance(t, dict))
            mlflow.log_params({f"{key}.{k}": v for key, table in tables for k, v in table.items()})
        _write_ids(run, {**known, "mlflow": begun.info.run_id})

    def add(self, entry: Entry) -> None:
        self.mlflow.log_metrics(_numbers(entry), step=entry["step"])

    def close(self) -> None:
        self.mlflow.end_run()


LOGGERS: dict[str, Callable[[Path, int], Logger]] = {  # each is given the run folder and the step
    "tensorboard": _TensorBoard,
    "wandb": _WeightsAndBiases,
    "mlflow": _MLflow,
}


def check_loggers(names: Iterable[str]) -> None:
    """Reject loggers whose package is not installed."""
    for name in names:
        try:
            if name == "tensorboard":
                import torch.utils.tensorboard  # noqa: F401
            elif name == "wandb":
                import wandb  # noqa: F401
            elif name == "mlflow":
                import mlflow  # noqa: F401
        except ImportError as error:
            raise UserError(
                f"log_to={name!r} needs a package that is not here: pip install 'limelight[{name}]'"
            ) from error


class GuardedLoggers:
    """All loggers of a run: those of `train.log_to`, and TensorBoard where it is installed.

    One that fails, as without a network or on a full disk, is left out from then on.
    """

    def __init__(
        self, names: Sequence[str], run: Path, step: int, warn: Callable[[str], None]
    ) -> None:
        self.warn, self.loggers = warn, dict[str, Logger]()
        for name in dict.fromkeys(("tensorboard", *names)):
            try:
                self.loggers[name] = LOGGERS[name](run, step)
            except Exception as error:  # each package has errors of its own
                if name in names or not isinstance(error, ImportError):
                    warn(f"{name} is not logged to: {error}")

    def add(self, entry: Entry) -> None:
        self._each(lambda logger: logger.add(entry))

    def close(self) -> None:
        self._each(lambda logger: logger.close())

    def _each(self, act: Callable[[Logger], None]) -> None:
        for name, logger in list(self.loggers.items()):
            try:
                act(logger)
            except Exception as error:
                del self.loggers[name]
                self.warn(f"logging to {name} has stopped: {error}")


def _numbers(entry: Entry) -> dict[str, float]:
    """The numbers of a line, as `training/loss` or `validation/loss`."""
    kind = "validation" if entry.get("validation") else "training"
    return {f"{kind}/{name}": value for name, value in entry.items() if isinstance(value, float)}


def _recipe_of(run: Path) -> dict[str, Any]:
    path = run / "recipe.toml"  # an image tokenizer has none of its own
    return tomllib.loads(read_bounded(path)) if path.is_file() else {}


def _read_ids(run: Path) -> dict[str, str]:
    found = json.loads(read_bounded(run / _IDS)) if (run / _IDS).is_file() else {}
    return found if isinstance(found, dict) else {}


def _write_ids(run: Path, ids: dict[str, str]) -> None:
    atomic_write(run / _IDS, json.dumps(ids).encode())
