"""What would fail on another system than the one that the tests run on, found by reading.

Windows has no `fcntl` and no `resource`, and reads text in another encoding unless it is told.
"""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "limelight"
UNIX = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}


def imported_always(source: str) -> set[str]:
    """What a module imports whatever the system is."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


def test_no_module_needs_unix_to_be_imported():
    needing = {
        path.name: imported_always(path.read_text()) & UNIX for path in PACKAGE.rglob("*.py")
    }
    assert {name: modules for name, modules in needing.items() if modules} == {}


def test_one_that_does_would_be_noticed():
    assert imported_always("import fcntl\n") & UNIX == {"fcntl"}
    assert not imported_always("if here:\n    import fcntl\n") & UNIX


def test_text_is_read_and_written_in_utf_8_everywhere():
    rule = ["check", "--preview", "--select", "PLW1514", "--isolated", "--output-format", "concise"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *rule, str(PACKAGE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
