"""Attention maps as SVG, PNG or PDF, drawn with matplotlib."""

import io
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from limelight.explain.focus import focus_on
from limelight.explain.trace import Trace, Which
from limelight.files import check_ending, with_filename
from limelight.model.taps import attends, sides
from limelight.run.plots import figure_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = (".svg", ".png", ".pdf")
_READABLE = 14  # tokens: with more, cells have no numbers
_TITLES: dict[Which, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention: decoder queries, encoder keys",
}
# Replacements for characters that the font lacks.
_PLAIN = str.maketrans({"⟨": "<", "⟩": ">", "⏎": "\\"})


def save(trace: Trace, path: Path, layer: int | None = None, head: int | None = None) -> None:
    """Draw into a file: one head, or the mean over the layers and heads that were not chosen."""
    check_ending(path, KINDS)
    # Equal figures are equal files: no date in an SVG.
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    with file_style(), with_filename(path):
        _draw(trace, layer, head).savefig(path, metadata=metadata, dpi=160)


def png_of(trace: Trace) -> bytes:
    """All attention maps as a PNG, for a notebook."""
    file = io.BytesIO()
    with file_style():
        _draw(trace, None, None).savefig(file, format="png", dpi=110)
    return file.getvalue()


def file_style() -> AbstractContextManager[None]:
    """`figure_style` with small titles."""
    return figure_style(**{"axes.titlesize": 9})


def _draw(trace: Trace, layer: int | None, head: int | None) -> "Figure":
    from matplotlib.figure import Figure

    there = sides(trace.config)
    shown = [which for which in _TITLES if which in there or len(there) == 2]
    if trace.recurrent:
        shown = ["cross"]
    elif not attends(trace.config, "decoder", "self"):
        shown.remove("decoder")
    maps = [trace.mean_attention(which, layer, head) for which in shown]
    widths = [max(2.2, 0.34 * m.size(1) + 1.2) for m in maps]
    height = max(2.4, max(0.30 * m.size(0) for m in maps) + 1.6)
    figure = Figure(figsize=(min(24, sum(widths)), min(16, height)), layout="constrained")
    axes = figure.subplots(1, len(maps), squeeze=False, width_ratios=widths)
    focus = focus_on(trace, None, None, None)
    for ax, which, weights in zip(axes[0], shown, maps, strict=True):
        block = focus.block(*(("decoder", "cross") if which == "cross" else (which,)))
        _draw_map(ax, weights, block.rows, block.key_tokens.labels, which)
    layers = "all layers" if layer is None else f"layer {layer}"
    heads = "mean of all heads" if head is None else f"head {head}"
    title = [] if trace.recurrent else [f"attention weights: {layers}, {heads}"]
    title += [f"changed: {'  '.join(trace.changes)}"] if trace.changes else []
    if title:
        figure.suptitle("\n".join(title), fontsize=10)
    return figure


def _draw_map(
    ax: "Axes", weights: Tensor, queries: Sequence[str], keys: Sequence[str], which: Which
) -> None:
    rows, columns = weights.shape
    later = torch.ones_like(weights, dtype=torch.bool).triu(diagonal=1) & (which == "decoder")
    shown = np.ma.masked_array(weights.numpy(), later.numpy())
    ax.set_facecolor("#e4e4e4")  # masked cells show the background
    ax.imshow(shown, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    ax.set_title(_TITLES[which])
    labels = list(map(_label, keys))
    ax.set_xticks(range(columns), labels, rotation=60, ha="left", rotation_mode="anchor")
    ax.set_yticks(range(rows), list(map(_label, queries)))
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    for i, j in (~later).nonzero().tolist() if max(rows, columns) <= _READABLE else ():
        x = weights[i, j].item()
        text = "NaN" if math.isnan(x) else f"{x:.2f}".removeprefix("0")
        colour = "white" if x > 0.55 else "#445566"
        ax.text(j, i, text, ha="center", va="center", fontsize=7, color=colour)


def _label(text: str) -> str:
    return (text if len(text) <= 20 else text[:19] + "…").translate(_PLAIN)
