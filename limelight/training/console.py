"""What people see while a model learns: a bar on a terminal, plain lines elsewhere.

Everything goes to standard error; numbers for programs are in the log.
"""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

_ROOMY = 120  # columns of a terminal in which the bar has room for all that is known


class Report:
    """Tells how training goes. A silent one is for all processes but the first."""

    def __init__(self, silent: bool = False, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, quiet=silent, highlight=False)
        self.bar: Progress | None = None
        self.begun_at = 0
        self.task = TaskID(0)

    def say(self, text: str, style: str = "") -> None:
        """A line."""
        self.console.print(Text(text, style), soft_wrap=True)

    def warn(self, text: str) -> None:
        """A line that should be noticed."""
        self.say(f"warning: {text}", "yellow")

    def begin(self, step: int, steps: int) -> None:
        """Training begins, or goes on from a step."""
        self.begun_at = step
        if not self.console.is_terminal:
            return
        self.bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(40 if self.console.width >= _ROOMY else 16),
            TextColumn("{task.fields[told]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.task = self.bar.add_task("", total=steps, completed=step, told="")
        self.bar.start()

    def step(self, step: int) -> None:
        """One step further."""
        if self.bar is not None:
            self.bar.update(self.task, completed=step)

    def train(self, entry: dict[str, Any], steps: int) -> None:
        """What was logged."""
        loss, speed = f"loss {entry['loss']:.4f}", f"{entry['tokens_per_second']:,.0f} tokens/s"
        told = f"{loss}  lr {entry['lr']:.2e}  {speed}  {entry['peak_memory'] / 1e9:.1f} GB"
        if self.bar is not None:
            shown = told if self.console.width >= _ROOMY else f"{loss}  {speed}"
            self.bar.update(self.task, completed=entry["step"], told=shown)
        else:
            pace = entry["seconds"] / max(1, entry["step"] - self.begun_at)
            left = (steps - entry["step"]) * pace
            self.say(f"step {entry['step']}/{steps}  {told}  {clock(left)} left")

    def validation(self, entry: dict[str, Any], better: bool) -> None:
        """How the model does on texts that it does not learn from."""
        scores = {k: v for k, v in entry.items() if isinstance(v, float) and k != "seconds"}
        told = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
        mark = " (the best so far)" if better else ""
        self.say(f"step {entry['step']}  validation: {told}{mark}", "bold" if better else "")

    def samples(self, lines: Iterable[str]) -> None:
        """What the model writes by now."""
        for line in lines:
            self.say(f"    {line}")

    def end(self) -> None:
        """No more steps."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def clock(seconds: float) -> str:
    """A time as people say it."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
