"""The command that opens the course."""

from pathlib import Path
from typing import Annotated

from limelight.cli import io
from limelight.cli import parser as arg


def course(
    folder: Annotated[str, arg.Argument("FOLDER", positional=True)] = "limelight-course",
    no_start: arg.Switch = False,
) -> None:
    """Learn with eight notebooks: copy them into a folder, and start Jupyter there.

    They lead from raw text to a trained and explained translator, then to GPT, BERT, recurrent
    networks, the lab, imported models and drawing. A notebook that you have changed stays as it is.
    Prints the folder.

    Args:
        folder: where your copies of the notebooks are
        no_start: only copy them
    """
    from limelight.course.notebooks import copy_notebooks, start_jupyter

    path = Path(folder)
    for name in copy_notebooks(path):
        io.note(f"kept {path / name}, which has changed: delete it to get the original again")
    print(path, flush=True)
    if not no_start:
        start_jupyter(path)
