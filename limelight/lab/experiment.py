"""What an experiment is, and how one is run, interrupted and continued.

An experiment consists of measurements, each a function without arguments that returns plain data
and seeds itself. They are made one after the other and kept in `results.json`; a run that was
interrupted makes only those that are missing.
"""

import json
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from limelight.device import describe, is_out_of_memory
from limelight.errors import FailedError, UserError, path_from_option
from limelight.files import atomic_write, read_bounded
from limelight.lab.timing import best_device, milliseconds
from limelight.run.atomic import make_folder

Values = Mapping[str, Any]  # what was measured, by the name of the measurement
Measurements = dict[str, Callable[[], Any]]
_RESULTS = "results.json"
_LARGEST = 2**26  # bytes of a results file


@dataclass(frozen=True)
class Subject:
    """The run or recipe that is examined, and the folder that its experiment may write into."""

    name: str
    folder: Path


Curve = Mapping[Any, Sequence[float]]  # at each x the numbers of all seeds


@dataclass(frozen=True)
class Panel:
    """One picture and one table: a curve for each contestant, the mean of its seeds with bars."""

    across: str
    up: str
    curves: Mapping[str, Curve]
    log: str = ""  # the axes that are logarithmic: "x", "y" or "xy"
    form: str = ".2f"  # of the numbers in the table
    limits: tuple[float, float] | None = None  # of the vertical axis
    names: Sequence[str] = ()  # of x = 0, 1, 2, ...: then points instead of curves
    levels: Mapping[str, float] = field(default_factory=dict)  # horizontal lines
    marks: Mapping[str, float] = field(default_factory=dict)  # vertical lines


@dataclass(frozen=True)
class Findings:
    """The results as pictures, as sentences that are computed from them, and maybe as a table."""

    panels: list[Panel]
    conclusion: list[str]
    table: list[list[str]] = field(default_factory=list)  # in place of those of the panels


class Experiment(Protocol):
    """A module of this package.

    The first line of its docstring is its question, the rest its setting. `measurements` are
    functions by name: of `quick` and, where one is examined, of a `Subject`.
    """

    SECONDS: tuple[float, float]  # quick and full, on two cores of a server's CPU

    @property
    def measurements(self) -> Callable[..., Measurements]: ...
    def findings(self, values: Values) -> Findings: ...


def grid(name: str, measure: Callable[..., Any], *axes: Iterable[Any]) -> Measurements:
    """A measurement of each combination of arguments, called by them: "{}, seed {}"."""
    return {name.format(*own): partial(measure, *own) for own in product(*axes)}


def question_and_setting(experiment: Experiment) -> tuple[str, str]:
    """What an experiment asks, and how it is answered."""
    question, _, setting = (experiment.__doc__ or "").partition("\n")
    return question, " ".join(setting.split())


def run(
    name: str,
    experiment: Experiment,
    folder: str | Path,
    quick: bool,
    console: Console,
    subject: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Make the measurements that are missing; all results, as `results.json` holds them.

    `subject` names the run or recipe that is examined, with a fingerprint of its content.
    """
    path = Path(folder)
    examined = [Subject(subject["subject"], path)] if subject else []
    measurements = experiment.measurements(quick, *examined)
    with path_from_option("--run"):
        make_folder(path)
    results = _begin({"experiment": name, **(subject or {}), "quick": quick}, path)
    with _progress(console) as bar:
        task = bar.add_task("measuring", total=len(measurements), completed=len(results["values"]))
        for key, measure in measurements.items():
            if key not in results["values"]:
                bar.update(task, description=key)
                began = time.perf_counter()
                results["values"][key] = _measured(key, measure, quick)
                results["seconds"][key] = round(time.perf_counter() - began, 3)
                _write(path, results)
                bar.advance(task)
    results["conclusion"] = experiment.findings(results["values"]).conclusion
    _write(path, results)
    return results


def _measured(key: str, measure: Callable[[], Any], quick: bool) -> Any:
    try:
        return measure()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        smaller = "" if quick else "use --quick, which has smaller settings, or "
        raise FailedError(
            f"not enough memory for {key!r}: {smaller}close other programs; what was measured so "
            "far is kept"
        ) from error


def _begin(asked: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """New results, or those of an interrupted run of the same experiment."""
    versions = {"limelight": version("limelight"), "torch": torch.__version__}
    facts = {
        **asked,
        "versions": {**versions, "python": platform.python_version()},
        "device": describe(torch.device(best_device())),
        "threads": torch.get_num_threads(),
    }
    if not (path / _RESULTS).exists():
        return {**facts, "seconds": {}, "values": {}}
    before = _read(path / _RESULTS)
    for key, value in facts.items():
        if before.get(key) != value:
            raise UserError(
                f"{path / _RESULTS} has results with {key}={before.get(key)!r:.80}, and this would "
                f"be {value!r:.80}: choose another folder with --run, or remove it"
            )
    return before


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_bounded(path, _LARGEST))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    parts = [found.get(key) for key in ("values", "seconds")] if isinstance(found, dict) else [0]
    if not all(isinstance(part, dict) for part in parts):
        raise UserError(f"{path} is not what an experiment writes")
    return found


def _write(path: Path, results: Mapping[str, Any]) -> None:
    atomic_write(path / _RESULTS, (json.dumps(results, indent=1) + "\n").encode())


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(30), MofNCompleteColumn())
    shown = console.is_terminal and not console.quiet
    return Progress(*columns, TimeElapsedColumn(), console=console, disable=not shown)


def expected_seconds(experiment: Experiment, quick: bool) -> float:
    """How long an experiment takes on this machine, from the speed of a small matrix product."""
    return experiment.SECONDS[0 if quick else 1] * _slowness()


_REFERENCE = 1.5  # milliseconds of the product below on the machine of SECONDS


@cache
def _slowness() -> float:
    matrix = torch.ones(512, 512)
    return min(milliseconds(lambda: matrix @ matrix, 30, "cpu")) / _REFERENCE  # undisturbed ones
