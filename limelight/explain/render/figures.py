"""Attention as a picture for a paper: SVG, PNG or PDF through matplotlib."""

import io
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from limelight.errors import UserError
from limelight.explain.trace import Trace, in_range
from limelight.files import with_filename
from limelight.model.taps import parts_of, sides

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KINDS = (".svg", ".png", ".pdf")
_READABLE = 14  # words: with more, the numbers in the cells are left out
_TITLES = {
    "encoder.self": "encoder",
    "decoder.self": "decoder, looking back",
    "decoder.cross": "decoder asks, encoder answers",
}
# What a tag may look like in a font that has no signs for these.
_PLAIN = str.maketrans({"⟨": "<", "⟩": ">", "⏎": "\\"})


def save(trace: Trace, path: Path, layer: int | None = None, head: int | None = None) -> None:
    """Draw into a file: one head, or a mean over all of those that were not chosen."""
    if path.suffix.lower() not in _KINDS:
        raise UserError(f"cannot draw into {path.name!r}: it should end in {' or '.join(_KINDS)}")
    # The same picture is the same file: an SVG would have the date in it.
    facts = {"Date": None} if path.suffix.lower() == ".svg" else None
    with _look(), with_filename(path):
        _draw(trace, layer, head).savefig(path, metadata=facts, dpi=160)


def picture_of(trace: Trace) -> bytes:
    """The same as a PNG, for a notebook."""
    file = io.BytesIO()
    with _look():
        _draw(trace, None, None).savefig(file, format="png", dpi=110)
    return file.getvalue()


def _look() -> AbstractContextManager[None]:
    """Our look; and a dollar sign is a dollar sign, not the beginning of a formula."""
    from matplotlib import rc_context

    changes: dict[Any, Any] = {
        "svg.hashsalt": "limelight",
        "font.size": 9,
        "axes.titlesize": 9,
        "text.parse_math": False,
    }
    return rc_context(changes)


def _draw(trace: Trace, layer: int | None, head: int | None) -> "Figure":
    """A map for each attention that the family has, side by side."""
    from matplotlib.figure import Figure

    blocks = [
        f"{side}.{part}"
        for side in sides(trace.config)
        for part in parts_of(trace.config, side)
        if part != "feed_forward"
    ]
    maps = [weights_of(trace, block, layer, head) for block in blocks]
    widths = [max(2.2, 0.34 * m.size(1) + 1.2) for m in maps]
    height = max(2.4, max(0.30 * m.size(0) for m in maps) + 1.6)
    figure = Figure(figsize=(min(24, sum(widths)), min(16, height)), layout="constrained")
    axes = figure.subplots(1, len(maps), squeeze=False, width_ratios=widths)
    for ax, block, weights in zip(axes[0], blocks, maps, strict=True):
        side, part = block.split(".")
        asking = trace.source if side == "encoder" else trace.target
        answering = trace.source if part == "cross" else asking
        rows = [f"{a} → {b}" for a, b in zip(asking.labels, trace.answers.labels, strict=False)]
        named = asking.labels if side == "encoder" else [*rows, *asking.labels[len(rows) :]]
        _draw_map(ax, weights, named, answering.labels, _TITLES[block])
    where = f"{'all layers' if layer is None else f'layer {layer}'}, " + (
        "mean of all heads" if head is None else f"head {head}"
    )
    figure.suptitle(f"attention weights: {where}", fontsize=10)
    return figure


def weights_of(trace: Trace, block: str, layer: int | None, head: int | None) -> Tensor:
    """Rows that ask and columns that answer; a mean over what was not chosen."""
    config = trace.config
    side, part = block.split(".")
    layers = range(config.layers) if layer is None else [in_range("layer", layer, config.layers)]
    every = torch.stack([trace.tensor(f"{side}.{n}.{part}.weights").float() for n in layers])
    if head is not None:
        return every[:, in_range("head", head, config.heads)].mean(dim=0)
    return every.mean(dim=(0, 1))


def _draw_map(
    ax: "Axes", weights: Tensor, query_tokens: Sequence[str], key_tokens: Sequence[str], title: str
) -> None:
    """One map: a row for each word that asks, a column for each that answers."""
    rows, columns = weights.shape
    hidden = title == _TITLES["decoder.self"]
    later = torch.ones_like(weights, dtype=torch.bool).triu(diagonal=1) & hidden
    shown = np.ma.masked_array(weights.numpy(), later.numpy())
    ax.set_facecolor("#e4e4e4")  # what is hidden shows the ground
    ax.imshow(shown, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    ax.set_title(title)
    ax.set_xticks(
        range(columns),
        list(map(_label, key_tokens)),
        rotation=60,
        ha="left",
        rotation_mode="anchor",
    )
    ax.set_yticks(range(rows), list(map(_label, query_tokens)))
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if max(rows, columns) <= _READABLE:
        _write_numbers(ax, weights, later)


def _write_numbers(ax: "Axes", weights: Tensor, hidden: Tensor) -> None:
    """The weights in their cells, but not where nothing can be."""
    for i, row in enumerate(weights.tolist()):
        for j, x in enumerate(row):
            if not hidden[i, j]:
                told = "NaN" if math.isnan(x) else f"{x:.2f}".removeprefix("0")
                colour = "white" if x > 0.55 else "#445566"
                ax.text(j, i, told, ha="center", va="center", fontsize=7, color=colour)


def _label(text: str) -> str:
    """A word for an axis: shortened, and as text whatever is in it."""
    return (text if len(text) <= 20 else text[:19] + "…").translate(_PLAIN)
