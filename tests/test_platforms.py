"""What would break on another system, found without having one.

`make lint` checks the types as Windows and macOS have them; these look for what types do not tell.
"""

import ast
import re
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[1] / "limelight").rglob("*.py"))
UNIX_ONLY = {"fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
ENCODED = {"read_text": 1, "write_text": 2, "open": 3}  # at which place the encoding stands


def calls_without_encoding(tree):
    """Lines that read or write text in whatever encoding the machine takes for usual."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name not in ENCODED or {"encoding", "mode"} & {k.arg for k in node.keywords}:
            continue
        place = ENCODED[name]
        if name == "open":  # of a file: its mode is a text with no b in it
            modes = [a.value for a in node.args if isinstance(a, ast.Constant)]
            text = [m for m in modes if isinstance(m, str) and re.fullmatch(r"[rwax]\+?t?", m)]
            if not text:
                continue
        if len(node.args) < place:
            yield node.lineno


def imports_of_unix(tree):
    """Lines that import what only Unix has, where nothing has asked which system it is."""
    for node in tree.body:  # at the top: there it fails for everybody
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        if UNIX_ONLY & set(names):
            yield node.lineno


@pytest.mark.parametrize("look", [calls_without_encoding, imports_of_unix])
def test_nothing_depends_on_the_system(look):
    assert len(FILES) > 100
    trees = {file: ast.parse(file.read_text("utf-8")) for file in FILES}
    found = [f"{file}:{line}" for file, tree in trees.items() for line in look(tree)]
    assert found == []


@pytest.mark.parametrize(
    ("look", "line", "lines"),
    [
        (calls_without_encoding, "path.read_text()", [1]),
        (calls_without_encoding, "path.read_text('utf-8')", []),
        (calls_without_encoding, "path.write_text(x)", [1]),
        (calls_without_encoding, "path.write_text(x, encoding='utf-8')", []),
        (calls_without_encoding, "path.open('w')", [1]),
        (calls_without_encoding, "open(path, 'r+')", [1]),
        (calls_without_encoding, "path.open('rb')", []),
        (calls_without_encoding, "state.open()", []),
        (imports_of_unix, "import fcntl", [1]),
        (imports_of_unix, "from resource import getrusage", [1]),
        (imports_of_unix, "if unix:\n    import fcntl", []),
    ],
)
def test_it_would_be_found(look, line, lines):
    """The control."""
    assert list(look(ast.parse(line))) == lines
