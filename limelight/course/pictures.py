"""Matrices and attention weights as pictures, in one line of a notebook."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_READABLE = 14  # rows and columns: with more, cells have no numbers
# Replacements for characters that the font lacks.
_PLAIN = str.maketrans({"⟨": "<", "⟩": ">", "⏎": "\\"})


def show_matrix(
    matrix: Tensor,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    title: str = "",
    signed: bool = False,
    ax: "Axes | None" = None,
) -> None:
    """Draw a matrix of numbers from 0 up, or of signed ones, with labels and, if small, numbers."""
    import matplotlib.pyplot as plt

    height, width = matrix.shape
    if ax is None:
        size = (min(11, 1.6 + 0.42 * width), min(9, 1.2 + 0.36 * height))
        _, ax = plt.subplots(figsize=size, layout="constrained")
    most = float(matrix[matrix.isfinite()].abs().max())
    colours, least = ("RdBu_r", -most) if signed else ("Blues", 0.0)
    ax.imshow(matrix.detach(), cmap=colours, vmin=least, vmax=most, aspect="auto")
    ax.set_title(title)
    labels = [label.translate(_PLAIN) for label in columns]
    ax.set_xticks(range(len(labels)), labels, rotation=60, ha="left", rotation_mode="anchor")
    ax.set_yticks(range(len(rows)), [label.translate(_PLAIN) for label in rows])
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    for i, row in enumerate(matrix.tolist() if max(height, width) <= _READABLE else ()):
        for j, x in enumerate(row):
            colour = "white" if abs(x) > 0.5 * most else "#445566"
            ax.text(j, i, f"{x:.2f}", ha="center", va="center", fontsize=7, color=colour)
