"""What models answered, beside sources and references, as a file; and confusions as a picture."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limelight.files import atomic_write, with_filename
from limelight.run.plots import figure_style

ENDINGS = (".tsv", ".csv", ".jsonl")  # of files that are written


def write_outputs(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns by their names; in .tsv, tabs and line breaks of a text become spaces."""
    rows = zip(*columns.values(), strict=True)
    if path.suffix.lower() == ".jsonl":
        entries = (dict(zip(columns, row, strict=True)) for row in rows)
        text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    elif path.suffix.lower() == ".csv":
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])
        text = file.getvalue()
    else:
        cells = ([" ".join(str(cell).split()) for cell in row] for row in (columns, *rows))
        text = "".join("\t".join(row) + "\n" for row in cells)
    with with_filename(path):
        atomic_write(path, text.encode())


def draw_confusion(matrices: Mapping[str, dict[str, Any]], path: Path) -> None:
    """Draw the confusion matrix of each run: shares of a row, with the counts in its cells."""
    from matplotlib.figure import Figure

    size = max(len(matrix["classes"]) for matrix in matrices.values())
    side = min(12, 2 + 0.5 * size)
    with figure_style():
        figure = Figure(figsize=(len(matrices) * (side + 0.5), side), layout="constrained")
        for axes, (run, matrix) in zip(
            figure.subplots(1, len(matrices), squeeze=False)[0], matrices.items(), strict=True
        ):
            classes, counts = matrix["classes"], matrix["counts"]
            shares = [[n / max(1, sum(row)) for n in row] for row in counts]
            axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
            names = [name if len(name) <= 20 else f"{name[:19]}…" for name in classes]
            axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
            axes.set_yticks(range(len(names)), names)
            axes.set(xlabel="predicted", ylabel="label", title=run)
            for i, row in enumerate(counts if size <= 30 else ()):
                for j, count in enumerate(row):
                    colour = "white" if shares[i][j] > 0.5 else "black"
                    axes.text(j, i, count, ha="center", va="center", color=colour)
        with with_filename(path):
            figure.savefig(path, format="svg", metadata={"Date": None})
