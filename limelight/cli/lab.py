"""The command that measures: lab."""

from typing import TYPE_CHECKING, Annotated, Any

from limelight.cli import io
from limelight.cli import parser as arg

if TYPE_CHECKING:
    from rich.console import Console


def lab(
    experiment: Annotated[str, arg.Argument("NAME", positional=True)] = "",
    run: Annotated[str, arg.Argument("FOLDER", fallback="runs/lab-NAME")] = "",
    quick: arg.Switch = False,
    json: arg.Json = False,
) -> None:
    """Measure a claim about attention, or list the experiments.

    Writes report.md, report.html, figure.svg and results.json. After an interruption, run the same
    command again to continue.

    Args:
        experiment: an experiment by name; without it, list them
        run: the folder for everything that the experiment writes
        quick: fewer seeds and shorter texts
    """
    from rich.console import Console

    from limelight.lab import report
    from limelight.lab.experiment import NAMES, expected_seconds, find
    from limelight.lab.experiment import run as measure

    if not experiment:
        facts = []
        for name in NAMES:
            found = find(name)
            seconds = [round(expected_seconds(found, short)) for short in (True, False)]
            facts.append({"name": name, "question": found.QUESTION, "seconds": seconds})
        io.print_report({"experiments": facts}, _show_list, json)
        return
    find(experiment)
    folder = run or f"runs/lab-{experiment}{'-quick' * quick}"
    results = measure(experiment, folder, quick, Console(stderr=True))
    written = report.write(results, folder)
    io.print_report(results, report.show, json)
    if not json:
        io.note(f"written: {', '.join(map(str, written))}")


def _show_list(facts: dict[str, Any], console: "Console") -> None:
    lines = {}
    for one in facts["experiments"]:
        quick, full = (f"{s} s" if s < 90 else f"{s / 60:.0f} min" for s in one["seconds"])
        lines[one["name"]] = f"{one['question']} (about {full} here, {quick} with --quick)"
    io.print_columns(lines, console)
    console.print("\nlimelight lab NAME runs one.")
