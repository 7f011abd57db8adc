"""`limelight course`: copies of the notebooks in a folder of the reader, and Jupyter on them."""

import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from limelight.errors import FailedError, UserError, path_from_option
from limelight.files import atomic_write

_JUPYTERS = ("jupyterlab", "notebook")


def bundled_notebooks() -> list[Path]:
    """The notebooks of the package, in the order of the course."""
    return sorted(Path(__file__).parent.glob("*.ipynb"))


def copy_notebooks(folder: Path) -> list[str]:
    """Copy the notebooks that are not in the folder yet; the names of those that have changed."""
    changed = []
    with path_from_option("FOLDER"):
        folder.mkdir(parents=True, exist_ok=True)
        for notebook in bundled_notebooks():
            own, content = folder / notebook.name, notebook.read_bytes()
            if not own.exists():
                atomic_write(own, content)
            elif own.read_bytes() != content:
                changed.append(own.name)
    return changed


def start_jupyter(folder: Path) -> None:
    """Run Jupyter on a folder until it ends. Ctrl-C is Jupyter's, which asks before it ends."""
    installed = [name for name in _JUPYTERS if find_spec(name)]
    if not installed:
        raise UserError(
            "Jupyter is not installed: pip install 'limelight[course]' installs it, or open the "
            f"notebooks in {folder} with another program"
        )
    process = subprocess.Popen([sys.executable, "-m", installed[0], str(folder)])
    while process.poll() is None:
        with suppress(KeyboardInterrupt):
            process.wait()
    if process.returncode:
        raise FailedError(f"Jupyter ended with status {process.returncode}")
