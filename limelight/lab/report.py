"""Results as Markdown, a self-contained page, figures and JSON."""

import html
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from limelight.files import atomic_write
from limelight.lab.experiment import Experiment
from limelight.run.plots import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _RED, _GREEN, _PINK, _ORANGE, _SKY, _BLACK = COLOURS
_STYLES = {  # markers differ as well, for print
    "transformer": (_BLUE, "o"),
    "lstm": (_RED, "s"),
    "lstm with attention": (_ORANGE, "D"),
    "gru": (_GREEN, "^"),
    "rnn": (_PINK, "v"),
    "2 layers": (_BLUE, "o"),
    "1 layer": (_RED, "s"),
    "KV cache": (_BLUE, "o"),
    "no cache": (_SKY, "x"),
    "ssru": (_SKY, "D"),
    "training": (_SKY, "o"),
    "validation": (_RED, "s"),
    "encoder self": (_BLUE, "o"),
    "decoder self": (_GREEN, "^"),
    "decoder cross": (_RED, "s"),
    "with scaling": (_BLUE, "o"),
    "without": (_RED, "s"),
    "sinusoidal": (_BLUE, "o"),
    "learned": (_BLACK, "x"),
    "rotary": (_GREEN, "^"),
    "none": (_RED, "s"),
    "ms to read": (_BLUE, "o"),
    "MB of KV cache": (_GREEN, "^"),
    "MB of weights": (_RED, "s"),
    "width 16": (_PINK, "v"),
    "width 32": (_RED, "s"),
    "width 64": (_GREEN, "^"),
    "width 128": (_BLUE, "o"),
}


def style_of(name: str) -> dict[str, Any]:
    """The colour and marker of a contestant, the same in every figure."""
    colour, marker = _STYLES[name]
    return {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.4}


def new_figure(columns: int, rows: int = 1) -> "tuple[Figure, list[Axes]]":
    """A figure with some axes side by side, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * columns + 1.2, 3.3 * rows + 0.3), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes:
        ax.grid(alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_spread(ax: "Axes", points: Mapping[Any, list[float]], name: str) -> None:
    """A contestant's mean over seeds, with bars from the lowest to the highest."""
    means = [sum(own) / len(own) for own in points.values()]
    pairs = list(zip(points.values(), means, strict=True))
    bars = [[m - min(own) for own, m in pairs], [max(own) - m for own, m in pairs]]
    ax.errorbar(list(points), means, yerr=bars, label=name, capsize=2, **style_of(name))


def by_length(values: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """Measurements called "lstm at 512" as numbers by length, for each contestant."""
    found: dict[str, dict[int, float]] = {}
    for name, value in values.items():
        contestant, _, length = name.rpartition(" at ")
        found.setdefault(contestant, {})[int(length)] = value
    return found


def draw_by_length(values: Mapping[str, Any], across: str, up: str) -> "Figure":
    """A line for each contestant, both axes logarithmic."""
    from matplotlib.ticker import LogLocator

    figure, (ax,) = new_figure(1)
    ax.set(xscale="log", yscale="log", xlabel=across, ylabel=up)
    for contestant, own in by_length(values).items():
        ax.plot(list(own), list(own.values()), label=contestant, **style_of(contestant))
        ax.set_xticks(list(own), [f"{n:,}" for n in own])
    ax.set_xticks([], minor=True)
    ax.yaxis.set_major_formatter("{x:,g}")
    ax.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))  # a range may lie within one decade
    ax.yaxis.set_minor_formatter("{x:,g}")
    ax.legend()
    return figure


def write(experiment: Experiment, results: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Write report.md, report.html and figure.svg beside the results."""
    path = Path(folder)
    svg = _svg(experiment.figure(results["values"]))
    files = {
        "figure.svg": svg,
        "report.md": _markdown(experiment, results),
        "report.html": _page(experiment, results, svg),
    }
    for name, text in files.items():
        atomic_write(path / name, text.encode())
    return [path / name for name in files]


def _svg(figure: "Figure") -> str:
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context({"svg.hashsalt": "limelight", "font.size": 9}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _command(results: Mapping[str, Any]) -> str:
    return " ".join(["limelight lab", results["experiment"], results.get("subject", "")]).strip()


def _setup(results: Mapping[str, Any]) -> str:
    """On what the numbers were measured."""
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    minutes = sum(results["seconds"].values()) / 60
    size = "quick" if results["quick"] else "full"
    machine = f"{results['device']}, {results['threads']} threads"
    return f"{size} run of {minutes:.1f} minutes on {machine}; {versions}"


def _markdown(experiment: Experiment, results: Mapping[str, Any]) -> str:
    header, *rows = experiment.table(results["values"])
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(
        [
            f"# {experiment.QUESTION}",
            "",
            experiment.SETTING,
            "",
            *lines,
            "",
            "![The measurements as curves](figure.svg)",
            "",
            *[f"- {sentence}" for sentence in results["conclusion"]],
            "",
            f"Measured by `{_command(results)}`: {_setup(results)}.",
            "",
        ]
    )


def _page(experiment: Experiment, results: Mapping[str, Any], svg: str) -> str:
    header, *rows = experiment.table(results["values"])
    cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    return _PAGE.format(
        question=html.escape(experiment.QUESTION),
        setting=html.escape(experiment.SETTING),
        header="".join(f"<th>{html.escape(cell)}</th>" for cell in header),
        rows="\n".join(f"<tr>{row}</tr>" for row in cells),
        figure=svg[svg.index("<svg") :],
        conclusion="\n".join(f"<li>{html.escape(text)}</li>" for text in results["conclusion"]),
        setup=html.escape(f"{_command(results)}: {_setup(results)}"),
    )


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{question}</title>
<style>
body {{ font: 16px/1.55 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto;
  padding: 0 1rem; color: #1d2733; background: #fff }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; font-size: .9rem }}
td, th {{ padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #d6dde4 }}
td:first-child, th:first-child {{ text-align: left; padding-left: 0 }}
svg {{ max-width: 100%; height: auto; margin: 1rem 0 }}
small {{ color: #566472 }}
</style>
<h1>{question}</h1>
<p>{setting}</p>
<table>
<thead><tr>{header}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
{figure}
<ul>
{conclusion}
</ul>
<small>{setup}</small>
</html>
"""


def show(experiment: Experiment, results: Mapping[str, Any], console: Console) -> None:
    """Print the table and the conclusion."""
    console.print(Text(experiment.QUESTION, "bold"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    header, *rows = experiment.table(results["values"])
    for i, name in enumerate(header):
        table.add_column(Text(name), justify="right" if i else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    for sentence in results["conclusion"]:
        console.print(Text(f"- {sentence}"))
