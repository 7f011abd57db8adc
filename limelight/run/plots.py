"""Logs as figures: the curves of one run, and those of many side by side."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from limelight.files import with_filename
from limelight.run.log import read_log


def figure_style(**settings: Any) -> AbstractContextManager[None]:
    """Equal figures are equal files, and `$` is a dollar sign, never the start of a formula."""
    from matplotlib import rc_context

    ours: dict[Any, Any] = {"svg.hashsalt": "limelight", "text.parse_math": False, "font.size": 9}
    return rc_context(ours | settings)


def draw_curves(log: Path, picture: Path) -> None:
    """Draw `curves.svg` from a log."""
    from matplotlib.figure import Figure  # not of pyplot: its backend is the caller's

    train, valid = [], []  # only numbers: a log may be long
    for entry in read_log(log):
        if "lr" in entry:
            train.append((entry["step"], entry["loss"], entry["lr"]))
            unit = "token" if "perplexity" in entry else "text"  # which a classifier judges
        elif "validation" in entry:
            valid.append((entry["step"], entry["loss"]))
    if not train:
        return
    steps, losses, rates = zip(*train, strict=True)
    with figure_style():
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.plot(steps, losses, color="#9bb4d0", label="training")
        if valid:
            style = {"color": "#c0392b", "marker": "o", "markersize": 3}
            left.plot(*zip(*valid, strict=True), **style, label="validation")
        left.set(xlabel="step", ylabel=f"loss per {unit} (nats, not smoothed)")
        left.legend()
        right.plot(steps, rates, color="#555555")
        right.set(xlabel="step", ylabel="learning rate")
        for axes in (left, right):
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        with with_filename(picture):
            figure.savefig(picture, metadata={"Date": None})


# Okabe and Ito's colours, which the colour-blind can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", ":", "-.")
_Curve = Sequence[tuple[float, float]]


def draw_comparison(groups: Mapping[str, Sequence[_Curve]], metric: str, file: IO[bytes]) -> None:
    """Draw a metric by tokens as SVG: a thin line for each run, a bold one for a group's mean."""
    from matplotlib.figure import Figure

    with figure_style():
        figure = Figure(figsize=(8, 4), layout="constrained")
        axes = figure.subplots()
        for i, (name, curves) in enumerate(groups.items()):
            colour, dash = COLOURS[i % 7], _DASHES[i // 7 % 4]
            for curve in curves:
                axes.plot(*zip(*curve, strict=True), dash, color=colour, alpha=0.35, linewidth=0.8)
            middle = _mean_curve(curves)
            axes.plot(*zip(*middle, strict=True), dash, color=colour, label=name, marker=".")
        axes.set(xlabel="training tokens", ylabel=f"{metric} (validation)")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend()
        figure.savefig(file, format="svg", metadata={"Date": None})


def _mean_curve(curves: Sequence[_Curve]) -> list[tuple[float, float]]:
    """The mean of all runs at each validation that all of them have reached."""
    mean = []
    for points in zip(*curves, strict=False):
        x, y = zip(*points, strict=True)
        mean.append((sum(x) / len(x), sum(y) / len(y)))
    return mean
