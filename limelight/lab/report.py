"""Results as Markdown, a self-contained page, figures and JSON."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from limelight.evaluate.tables import markdown_table, page, plain, print_table
from limelight.files import atomic_write
from limelight.lab.experiment import Curve, Experiment, Findings, Panel, question_and_setting
from limelight.run.plots import COLOURS, figure_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NETWORKS = ("transformer", "lstm", "gru", "rnn", "lstm with attention", "ssru")
_MARKERS = ("o", "s", "^", "v", "D", "x", "P")  # as well as colours, for print
_FEW = 8  # points of a curve that each have a tick
_SHORT = 5  # characters of their labels on average: longer ones would touch
_GREY: Any = {"color": "0.5", "linewidth": 1}


def by_seed(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Measurements like "gru, seed 2 at 16", as "gru at 16" with those of all seeds."""
    found: dict[str, list[Any]] = {}
    for name, value in values.items():
        found.setdefault(re.sub(r", seed \d+", "", name), []).append(value)
    return found


def by_length(values: Mapping[str, Any]) -> dict[str, dict[int, Any]]:
    """Measurements called "lstm at 512" by length, for each contestant."""
    found: dict[str, dict[int, Any]] = {}
    for name, value in values.items():
        contestant, _, length = name.rpartition(" at ")
        found.setdefault(contestant, {})[int(length)] = value
    return found


def columns(runs: Iterable[Mapping[str, Any]]) -> dict[int, list[Any]]:
    """The numbers of all runs by length, where each run has them, or why it has none, by length."""
    found: dict[int, list[Any]] = {}
    for run in runs:
        for length, number in run.items():
            if not isinstance(number, str):
                found.setdefault(int(length), []).append(number)
    return found


def spread(numbers: Sequence[float], form: str = ".3f") -> str:
    """The mean over seeds, with the standard deviation if there are several."""
    several = f" ± {stdev(numbers):{form}}" if len(numbers) > 1 else ""
    return f"{fmean(numbers):{form}}{several}"


def _tables(found: Findings) -> list[list[list[str]]]:
    return [found.table] if found.table else list(map(_table, found.panels))


def _ticks(panel: Panel) -> list[float]:
    seen = sorted({x for curve in panel.curves.values() for x in curve})
    return list(range(len(panel.names))) or seen


def _table(panel: Panel) -> list[list[str]]:
    """A row for each contestant and a column for each x; of long curves the end."""
    ticks, about = _ticks(panel), f"{panel.up}, by {panel.across}"
    header = [about, *(panel.names or [f"{x:,g}" for x in ticks])]
    rows = []
    for name, curve in panel.curves.items():
        cells = [spread(curve[x], panel.form) if x in curve else "-" for x in ticks]
        if len(ticks) > _FEW and not panel.names:
            header, cells = [about, "at the end"], [spread(curve[max(curve)], panel.form)]
        rows.append([name, *cells])
    table = [header, *rows]
    return [list(row) for row in zip(*table, strict=True)] if panel.names else table


def draw(panels: Sequence[Panel]) -> "Figure":
    """The panels side by side; four are two rows."""
    from matplotlib.figure import Figure

    across = 2 if len(panels) == 4 else len(panels)
    rows = len(panels) // across
    figure = Figure(figsize=(4.4 * across + 1.2, 3.3 * rows + 0.3), layout="constrained")
    explained: list[str] = []
    for ax, panel in zip(figure.subplots(rows, across, squeeze=False).flat, panels, strict=True):
        _draw_panel(ax, panel)
        labels = ax.get_legend_handles_labels()[1]
        if len(labels) > 1 and labels != explained:
            ax.legend(fontsize=8)
            explained = labels
    return figure


def _draw_panel(ax: "Axes", panel: Panel) -> None:
    ax.set(xlabel=panel.across, ylabel=panel.up)
    ax.set(**{f"{axis}scale": "log" for axis in panel.log})
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    for i, (name, curve) in enumerate(panel.curves.items()):
        order = _NETWORKS if set(panel.curves) <= set(_NETWORKS) else list(panel.curves)
        colour, marker = COLOURS[order.index(name)], _MARKERS[order.index(name)]
        style: Any = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.4}
        aside = i - (len(panel.curves) - 1) / 2  # where they would cover each other
        if panel.names:
            for j, (x, numbers) in enumerate(curve.items()):
                where = [x + 0.15 * aside] * len(numbers)
                ax.plot(where, numbers, label=None if j else name, alpha=0.7, **style)
        else:
            _draw_curve(ax, curve, 1.03**aside if "x" in panel.log else 1.0, name, style)
    for name, y in panel.levels.items():
        ax.axhline(y, label=name, linestyle=":", **_GREY)
    for (name, x), dash in zip(panel.marks.items(), ("-", "--", ":"), strict=False):
        ax.axvline(x, label=name, linestyle=dash, **_GREY)
    if panel.limits:
        ax.set_ylim(panel.limits)
    _draw_ticks(ax, panel)


def _draw_curve(ax: "Axes", curve: Curve, aside: float, name: str, style: dict[str, Any]) -> None:
    if len(curve) > 5 * _FEW:
        style = {**style, "marker": ""}
    means = [fmean(own) for own in curve.values()]
    both = list(zip(curve.values(), means, strict=True))
    bars = [[mean - min(own) for own, mean in both], [max(own) - mean for own, mean in both]]
    ax.errorbar([x * aside for x in curve], means, yerr=bars, label=name, capsize=2, **style)


def _draw_ticks(ax: "Axes", panel: Panel) -> None:
    from matplotlib.ticker import LogLocator

    ticks = _ticks(panel)
    if panel.names:
        steep: Any = {"rotation": 90 if len(panel.names) > 2 * _FEW else 40, "ha": "right"}
        ax.set_xticks(ticks, panel.names, fontsize=8, **steep)
    elif len(ticks) <= _FEW and sum(len(f"{x:,g}") for x in ticks) <= _FEW * _SHORT:
        ax.set_xticks(ticks, [f"{x:,g}" for x in ticks])
        ax.set_xticks([], minor=True)
    low, high = ax.get_ylim()
    if "y" in panel.log and high < 1e4 * low:  # it may lie within one decade
        ax.yaxis.set_major_formatter("{x:,g}")
        ax.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        ax.yaxis.set_minor_formatter("{x:,g}")


def write(experiment: Experiment, results: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Write report.md, report.html and figure.svg beside the results."""
    path, found = Path(folder), experiment.findings(results["values"])
    svg, markdown = _svg(draw(found.panels)), _markdown(experiment, results, found)
    files = {"figure.svg": svg, "report.md": markdown, "report.html": page(markdown, svg)}
    for name, text in files.items():
        atomic_write(path / name, text.encode())
    return [path / name for name in files]


def _svg(figure: "Figure") -> str:
    file = io.StringIO()
    with figure_style():
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _markdown(experiment: Experiment, results: Mapping[str, Any], found: Findings) -> str:
    question, setting = question_and_setting(experiment)
    tables = [markdown_table(header, rows) for header, *rows in _tables(found)]
    conclusion = "\n".join(f"- {plain(sentence)}" for sentence in results["conclusion"])
    parts = [f"# {question}", setting, *tables, "![The measurements as curves](figure.svg)"]
    return "\n\n".join([*parts, conclusion, _measured_by(results)])


def _measured_by(results: Mapping[str, Any]) -> str:
    """The command, and on what it measured the numbers."""
    command = f"limelight lab {results['experiment']} {results.get('subject', '')}".strip()
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    seconds, size = sum(results["seconds"].values()), "quick" if results["quick"] else "full"
    time = f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.1f} seconds"
    about = f"{size} run of {time} on {results['device']}; {versions}"
    return f"Measured by `{command}`: {about}.\n"


def show(experiment: Experiment, results: Mapping[str, Any], console: Console) -> None:
    """Print the tables and the conclusion."""
    console.print(Text(question_and_setting(experiment)[0], "bold"))
    found = experiment.findings(results["values"])
    for (first, *others), *rows in _tables(found):
        if not found.table:  # a long title would make a narrow column
            console.print(Text(f"\n{first}"))
        print_table(console, [first if found.table else "", *others], rows)
    for sentence in results["conclusion"]:
        console.print(Text(f"- {sentence}"))
