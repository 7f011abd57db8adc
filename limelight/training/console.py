"""What people see on stderr while a model trains: a bar on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from limelight.errors import escape_controls
from limelight.files import discard_output

_WIDE = 132  # columns of a terminal in which all numbers fit beside the bar


class _LastingConsole(Console):
    """Stderr whose reader may leave: a closed terminal or pipe must not end a training.

    From then on nothing is printed; the run's log has all of it.
    """

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end the process

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)  # here all is written
        except OSError:
            self.quiet = True
            discard_output(sys.stderr)


class Report:
    """Prints the progress of a training. All processes but the first have a silent one."""

    def __init__(self, silent: bool = False, console: Console | None = None) -> None:
        self.console = console or _LastingConsole(stderr=True, quiet=silent, highlight=False)
        self.bar: Progress | None = None
        self.begun_at = 0

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(escape_controls(text), style), soft_wrap=True)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}", "yellow")

    def begin(self, step: int, steps: int) -> None:
        """Start the bar; a resumed run begins at a later step."""
        self.begun_at = step
        if not self.console.is_terminal:
            return
        self.bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(40 if self.console.width >= _WIDE else 16),
            TextColumn("{task.fields[numbers]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.task = self.bar.add_task("", total=steps, completed=step, numbers="")
        self.bar.start()

    def step(self, step: int) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=step)

    def train(self, entry: dict[str, Any], steps: int) -> None:
        loss, speed = f"loss {entry['loss']:.4f}", f"{entry['tokens_per_second']:,.0f} tokens/s"
        memory = f"peak memory {entry['peak_memory'] / 1e9:.1f} GB"
        numbers = f"{loss}  lr {entry['lr']:.2e}  {speed}  {memory}"
        if self.bar is not None:
            numbers = numbers if self.console.width >= _WIDE else f"{loss}  {speed}"
            self.bar.update(self.task, completed=entry["step"], numbers=numbers)
        else:
            pace = entry["seconds"] / max(1, entry["step"] - self.begun_at)
            left = (steps - entry["step"]) * pace
            self.say(f"step {entry['step']}/{steps}  {numbers}  {clock(left)} left")

    def validation(self, entry: dict[str, Any], better: bool) -> None:
        scores = {k: v for k, v in entry.items() if isinstance(v, float) and k != "seconds"}
        numbers = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
        mark = " (the best so far)" if better else ""
        self.say(f"step {entry['step']}  validation: {numbers}{mark}", "bold" if better else "")

    def samples(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.say(f"    {line}")

    def end(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def clock(seconds: float) -> str:
    """Seconds as 1:02:03, or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
