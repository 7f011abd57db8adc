"""Figures for slides: all pictures of the course's notebooks, and attention maps, as SVG and PNG.

    python docs/figures.py [FOLDER]     `make figures` does, into build/figures

With LIMELIGHT_COURSE_QUICK in the environment the trainings of the notebooks are shorter.
"""

import base64
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

import limelight
from limelight.course.notebooks import bundled_notebooks
from limelight.explain.render.figures import save

TEXTS = {
    "en-de": "The children have already eaten the cake.",
    "writer": "The old man opened the",
    "fill": "The ___ was shining.",
}
FORMATS = "%config InlineBackend.figure_formats = ['svg', 'png']"


def write_pictures(path: Path, folder: Path) -> None:
    """Run a notebook and write its pictures, named after the notebook and the cell."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(1, nbformat.v4.new_code_cell(FORMATS))
    with tempfile.TemporaryDirectory() as place:
        where = {"metadata": {"path": place}}
        NotebookClient(notebook, timeout=900, kernel_name="python3", resources=where).execute()
    for cell in notebook.cells:
        drawn = [output.data for output in cell.get("outputs", ()) if "data" in output]
        for number, data in enumerate((d for d in drawn if "image/png" in d), start=1):
            name = f"{path.stem}-{cell.id}" + (f"-{number}" if number > 1 else "")
            (folder / f"{name}.png").write_bytes(base64.b64decode(data["image/png"]))
            if "image/svg+xml" in data:
                (folder / f"{name}.svg").write_text(data["image/svg+xml"], encoding="utf-8")
            print(folder / name, flush=True)


def main(folder: Path) -> None:
    """Write all figures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in TEXTS.items():
        seen = limelight.load(name, device="cpu").explain(text)
        for ending in ("svg", "png"):
            save(seen, folder / f"attention-{name}.{ending}")
    for path in bundled_notebooks():
        write_pictures(path, folder)


if __name__ == "__main__":
    main(Path(*sys.argv[1:2] or ["build/figures"]))
