"""Notebooks of the course: how they are stored, and how they are run.

python -m tests.course.notebooks        strips outputs and counters from all of them
"""

import copy
import json
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from limelight.course.notebooks import bundled_notebooks

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
METADATA = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
LONGEST = 900  # seconds that a cell may take


def tags_of(cell):
    return cell["metadata"].get("tags", [])


def tagged(notebook, tag):
    return [cell for cell in notebook["cells"] if tag in tags_of(cell)]


def normal(text):
    """A notebook as git has it: no outputs, no counters, nothing of the editor that saved it."""
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        cell["metadata"] = {k: v for k, v in cell["metadata"].items() if k in ("tags", "jupyter")}
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    notebook = {**notebook, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def answered(notebook):
    """With each check once more behind its solution, where it must pass."""
    found = copy.deepcopy(notebook)
    found.cells = []
    for cell in copy.deepcopy(notebook.cells):
        found.cells.append(cell)
        if "solution" in tags_of(cell):
            check = copy.deepcopy(tagged(found, "check")[-1])
            check.id, check.metadata["tags"] = f"{check.id}-again", ["checked"]
            found.cells.append(check)
    return found


def execute(notebook, folder):
    """Run all cells in a kernel of its own; a cell that raises is an error, unless it may."""
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=LONGEST, kernel_name="python3", resources=where).execute()
    return notebook


def read(path: Path):
    return nbformat.read(path, as_version=4)


if __name__ == "__main__":
    for path in bundled_notebooks():
        path.write_text(normal(path.read_text("utf-8")), "utf-8")
