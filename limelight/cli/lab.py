"""The command that measures: lab."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from limelight.cli import io
from limelight.cli import parser as arg

if TYPE_CHECKING:
    from rich.console import Console


def lab(
    experiment: Annotated[str, arg.Argument("NAME", positional=True)] = "",
    subject: Annotated[str, arg.Argument("RUN|RECIPE", positional=True)] = "",
    run: Annotated[str, arg.Argument("FOLDER", fallback="runs/lab-NAME")] = "",
    quick: arg.Switch = False,
    json: arg.Json = False,
) -> None:
    """Measure a claim about attention, or list the experiments.

    Writes report.md, report.html, figure.svg and results.json. After an interruption, run the same
    command again to continue.

    Args:
        experiment: an experiment by name; without it, list them
        subject: the run or the recipe that it examines, for those that do
        run: the folder for everything that the experiment writes
        quick: fewer seeds and shorter texts
    """
    from rich.console import Console

    from limelight.lab import report
    from limelight.lab.catalog import EXPERIMENTS, SUBJECTS, find, subject_of
    from limelight.lab.experiment import expected_seconds, question_and_setting
    from limelight.lab.experiment import run as measure

    if not experiment:
        facts = []
        for name, found in EXPERIMENTS.items():
            seconds = [round(expected_seconds(found, short)) for short in (True, False)]
            takes, question = SUBJECTS.get(name, ("",))[0], question_and_setting(found)[0]
            about = {"name": name, "subject": takes, "question": question}
            facts.append({**about, "seconds": seconds})
        io.print_report({"experiments": facts}, _show_list, json)
        return
    chosen = find(experiment)
    examined = subject_of(experiment, subject)
    own = f"-{Path(examined['subject']).stem}" if examined else ""
    folder = run or f"runs/lab-{experiment}{own}{'-quick' * quick}"
    results = measure(experiment, chosen, folder, quick, Console(stderr=True), examined)
    written = report.write(chosen, results, folder)
    io.print_report(results, partial(report.show, chosen), json)
    if not json:
        io.note(f"written: {', '.join(map(str, written))}")


def _show_list(facts: dict[str, Any], console: "Console") -> None:
    lines = {}
    for one in facts["experiments"]:
        quick, full = (f"{s} s" if s < 90 else f"{s / 60:.0f} min" for s in one["seconds"])
        lines[f"{one['name']} {one['subject']}".strip()] = (
            f"{one['question']} (about {full} here, {quick} with --quick)"
        )
    io.print_columns(lines, console)
    console.print("\nlimelight lab NAME runs one.")
