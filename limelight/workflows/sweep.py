"""`limelight sweep`: many trainings of one recipe, for all combinations of some settings.

    limelight sweep reverse --train.seed 1..3 --model.layers 2,4 --run runs/layers

Each run is a process of its own, `limelight train`, in a folder of its own: one that fails does not
stop the others. The same command again skips what has finished and resumes the rest.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from limelight.errors import END_SIGNALS, FailedError, UserError, path_from_option
from limelight.recipe import Recipe, load_recipe, parse_overrides, toml
from limelight.run.atomic import latest_valid, lock, make_folder
from limelight.run.folder import RunFolder
from limelight.run.log import read_log
from limelight.run.weights import step_of
from limelight.training.console import Report

_Grid = Mapping[str, Sequence[Any]]  # {"train.seed": [1, 2, 3], "train.steps": [500]}
SWEEP = "sweep.json"
_MOST = 1000  # runs: more are a mistake in a range
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_PAUSE = 0.2  # seconds between two checks of the processes


@dataclass(frozen=True, eq=False)
class _Run:
    name: str
    path: Path
    overrides: dict[str, Any]
    recipe: Recipe

    @property
    def output(self) -> Path:
        return self.path.with_name(f"{self.name}.log")

    @property
    def is_finished(self) -> bool:
        found, _ = latest_valid(RunFolder(self.path).finished)
        return found is not None and step_of(found) >= self.recipe.train.steps

    @property
    def is_locked(self) -> bool:
        """Whether another process trains there: one that outlived an earlier sweep."""
        try:
            with lock(self.path):
                return False
        except UserError:
            return True

    def step(self) -> int:
        """The last step in its log."""
        last = deque(read_log(RunFolder(self.path).log), maxlen=1)
        return int(last[0].get("step", 0)) if last else 0

    def reason(self) -> str:
        """The last line that its process printed."""
        lines = self.output.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
        return last.removeprefix("limelight: ")


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Settings as typed: `train.seed=1..3` and `model.layers=2,4` are several values.

    A list of files stays one value.
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, _, raw = text.partition("=")
        ((key, value),) = parse_overrides([text]).items()
        if isinstance(value, tuple):
            before = grid.get(key, [()])[0]
            grid[key] = [(*before, *value)]
        elif found := _RANGE.fullmatch(raw):
            first, last = map(int, found.groups())
            grid[key] = [*range(first, last + 1)] or [*range(first, last - 1, -1)]
        elif "," in raw and not raw.startswith("["):
            grid[key] = [parse_overrides([f"{name}={one}"])[key] for one in raw.split(",")]
        else:
            grid[key] = [value]
    return grid


def sweep(
    recipe: str,
    folder: str | Path,
    grid: _Grid,
    jobs: int = 1,
    start_from: str = "",
    silent: bool = False,
) -> int:
    """Train every combination. Returns 0 when all have finished, or the signal that stopped it.

    Raises a `FailedError` at the end if some runs failed; the others are complete then.
    """
    if not 1 <= jobs <= 256:
        raise UserError(f"--jobs {jobs} is out of range: 1 to 256")
    path = Path(folder)
    runs = _combinations(recipe, path, grid)
    with path_from_option("--run"):
        make_folder(path)
    _write_index(path, recipe, runs)
    waiting = [run for run in runs if not run.is_finished]
    report = Report(silent)
    if len(waiting) < len(runs):
        report.say(f"{len(runs) - len(waiting)} of {len(runs)} runs have finished already")
    for run in waiting:
        if run.is_locked:
            report.say(f"{run.name}: another process is training it; waiting for its end")
    pool = _Pool(recipe, start_from, jobs, report)
    with _progress(report.console, runs, len(waiting)) as show, _catch_signals(pool) as received:
        while (waiting and not received) or pool.active:
            free = (run for run in waiting if not received and not run.is_locked)
            for run in [*islice(free, jobs - len(pool.active))]:
                waiting.remove(run)
                pool.start(run)
            time.sleep(_PAUSE)
            pool.collect()
            show(pool)
    if received:
        return received[0]
    if pool.failed:
        reasons = [f"\n  {run.path}: {run.reason()}" for run in pool.failed]
        raise FailedError(f"{len(pool.failed)} of {len(runs)} runs failed:{''.join(reasons)}")
    return 0


def _combinations(recipe: str, folder: Path, grid: _Grid) -> list[_Run]:
    """All runs, each of which has been checked: a wrong value is known before the first starts."""
    several = [name for name, values in grid.items() if len(values) > 1]
    if not several:
        raise UserError(
            "a sweep needs a setting with several values: --train.seed 1..3, or --model.layers 2,4"
        )
    runs: dict[str, _Run] = {}
    for values in product(*grid.values()):
        overrides = dict(zip(grid, values, strict=True))
        name = ",".join(f"{key}={_in_a_path(overrides[key])}" for key in several)
        if name in runs:
            raise UserError(f"two runs would be called {name}: name each value once")
        runs[name] = _Run(name, folder / name, overrides, load_recipe(recipe, overrides))
        if len(runs) > _MOST:
            raise UserError(f"these are more than {_MOST:,} runs: choose fewer values")
    return list(runs.values())


def _in_a_path(value: Any) -> str:
    return re.sub(r"[^\w.+-]", "_", str(value))


def _write_index(folder: Path, recipe: str, runs: Sequence[_Run]) -> None:
    """Write which runs belong to the sweep, with those of an earlier one in this folder."""
    index = RunFolder(folder)
    if index.exists:
        raise UserError(f"{folder} is a run folder: choose another one for a sweep")
    before = read_index(folder) if (folder / SWEEP).is_file() else {}
    names = {**before, **{run.name: run.overrides for run in runs}}
    index.write_json(SWEEP, {"recipe": recipe, "runs": names})


def read_index(folder: Path) -> dict[str, Any]:
    """The runs of a sweep, by the names of their folders, with their settings."""
    found = RunFolder(folder).read_json(SWEEP)
    runs = found.get("runs") if isinstance(found, dict) else None
    if not isinstance(runs, dict) or not all(_is_name(name) for name in runs):
        raise UserError(f"{folder / SWEEP} is not what a sweep writes")
    return runs


def _is_name(name: str) -> bool:
    return re.fullmatch(r"[\w.+=,-]+", name) is not None and name not in (".", "..")


class _Pool:
    """The trainings that run now, at most `jobs` at a time."""

    def __init__(self, recipe: str, start_from: str, jobs: int, report: Report) -> None:
        self.recipe, self.start_from, self.report = recipe, start_from, report
        # Processes that share the cores are slower than one thread each.
        threads = str(max(1, (os.cpu_count() or 1) // jobs))
        self.environment = {"OMP_NUM_THREADS": threads, **os.environ} if jobs > 1 else None
        self.active: dict[_Run, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
        self.failed: list[_Run] = []
        self.done = 0

    def start(self, run: _Run) -> None:
        if run.is_finished:  # by a process that outlived an earlier sweep
            self.done += 1
            return
        words = ["train", self.recipe, "--run", str(run.path)]
        words += ["--from", self.start_from] if self.start_from else []
        for name, value in run.overrides.items():
            for one in value if isinstance(value, tuple) else [value]:
                words += ["--set", f"{name}={one if isinstance(one, str) else toml(one)}"]
        output = run.output.open("wb")
        command = [sys.executable, "-m", "limelight", *words]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,  # Ctrl-C is for the sweep, which passes it on once
        )
        self.active[run] = process, output

    def collect(self) -> None:
        """Close the processes that have ended."""
        for run, (process, output) in list(self.active.items()):
            if (code := process.poll()) is None:
                continue
            output.close()
            del self.active[run]
            self.done += 1
            if code - 128 in END_SIGNALS:
                self.report.say(f"{run.name}: saved at step {run.step()}")
            elif code:
                self.failed.append(run)
                self.report.warn(f"{run.name} failed: {run.reason()}")
            else:
                self.report.say(f"{run.name}: done, step {run.step()}")

    def stop(self, number: int) -> None:
        for process, _ in self.active.values():
            process.send_signal(number)


@contextmanager
def _catch_signals(pool: _Pool) -> Iterator[list[int]]:
    """Pass signals that ask to end on to the trainings, which save and end."""
    received: list[int] = []

    def stop(number: int, _: object) -> None:
        received.append(number)
        pool.stop(number)

    caught = [number for number in END_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in caught}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(console: Console, runs: Sequence[_Run], waiting: int) -> Iterator[Any]:
    """A bar for the sweep and one for each training; on a terminal only."""
    if not console.is_terminal or console.quiet:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(30), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        total = bar.add_task("runs", total=len(runs), completed=len(runs) - waiting)
        tasks: dict[_Run, Any] = {}

        def show(pool: _Pool) -> None:
            bar.update(total, completed=len(runs) - waiting + pool.done)
            for run in [run for run in tasks if run not in pool.active]:
                bar.remove_task(tasks.pop(run))
            for run in pool.active:
                if run not in tasks:
                    tasks[run] = bar.add_task(f"  {run.name}", total=run.recipe.train.steps)
                bar.update(tasks[run], completed=run.step())

        yield show
