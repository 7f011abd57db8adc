"""Own activations, norms, positions and objectives, from a Python file of the user's.

The file adds to the dictionaries that the package itself reads: `ACTIVATIONS["mine"] = ...`. A run
that uses it stores the file's name and hash, never the file: code comes from the command line
(`--extend FILE`) or from Python (`limelight.extend`), and from nowhere else.
"""

import os
import sys
from hashlib import sha256
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from limelight.config import EXTENDED, EXTENSION_FILES
from limelight.errors import UserError, describe_os_error
from limelight.model.layers import ACTIVATIONS, NORMS
from limelight.model.positions import ADDED, BIASES

_VARIABLE = "LIMELIGHT_EXTEND"  # in the environment: the files, for processes of a command


def _tables() -> tuple[tuple[str, dict[str, Any]], ...]:
    """What can be extended, by setting."""
    from limelight.training.objectives import OBJECTIVES  # takes a second with torch's compiler

    return (
        *(("activation", ACTIVATIONS), ("norm", NORMS), ("objective", OBJECTIVES)),
        *(("positions", ADDED), ("positions", BIASES)),
    )


def extend(file: str | Path) -> None:
    """Run a Python file that adds activations, norms, positions or objectives (docs/extend.md)."""
    path = Path(file)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the extension: {describe_os_error(error)}") from error
    name, digest = path.name, sha256(source).hexdigest()
    if EXTENSION_FILES.get(name) == digest:
        return
    if name in EXTENSION_FILES:
        raise UserError(f"another {name} is loaded already: start Python anew, or rename one")
    before = [dict(table) for _, table in _tables()]
    try:
        _run(path, source)
        added = _added(path, before)
    except UserError:
        for (_, table), old in zip(_tables(), before, strict=True):
            table.clear()
            table.update(old)
        raise
    EXTENSION_FILES[name] = digest
    for setting, new in added:
        EXTENDED[setting][new] = name


def extend_from_environment() -> None:
    """Load the files that the command which started this process was given."""
    for file in filter(None, os.environ.get(_VARIABLE, "").split(os.pathsep)):
        extend(file)


def _run(path: Path, source: bytes) -> None:
    module = ModuleType(f"limelight_extension_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # so that what it defines can be pickled
    try:  # safe: whoever runs limelight has named this file; none comes from a run folder
        exec(compile(source, str(path), "exec"), vars(module))
    except Exception as error:
        lines = [one.lineno for one in extract_tb(error.__traceback__) if one.filename == str(path)]
        line = getattr(error, "lineno", None) or (lines or [0])[-1]
        del sys.modules[module.__name__]
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"{path}, line {line}: {why:.300}") from error


def _added(path: Path, before: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The new names of each setting; those that were there before must mean the same."""
    added = []
    for (setting, table), old in zip(_tables(), before, strict=True):
        for name in table.keys() | old.keys():
            if name not in old:
                taken = name in EXTENDED[setting] or (setting == "positions" and name in _OWN)
                if taken or not isinstance(name, str) or not name:
                    raise UserError(f"{path}: {setting} {name!r} is taken: choose another name")
                added.append((setting, name))
            elif table.get(name) is not old[name]:
                raise UserError(f"{path} changes the {setting} {name!r}: add another name instead")
    if not added:
        raise UserError(f"{path} adds nothing: it should add to ACTIVATIONS, NORMS, ... by name")
    return added


_OWN = ("sinusoidal", "learned", "rotary", "none")  # positions that are in one table or in none
