"""The pages of the docs, taken apart: their blocks, what runs them, and what they say comes out.

    python -m tests.doc_pages      runs all pages, and writes down what comes out (`make docs` does)

A block is run by what follows its three backticks: `sh` line by line, `python` from the top of the
page to its bottom, `toml` is read as a recipe, `bash` and `py` are asked of a running service. A
second word names what it needs and tests have not, and it is not run. A `text` block that follows
directly is what comes out.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ELSEWHERE = ("cluster", "container", "gpu", "hours", "network", "windows")
BLOCK = re.compile(
    r"^( *)```(\w+)(?: (\w+))?\n(.*?)^\1```$(?:\n+^```text\n(.*?)^```$)?", re.M | re.S
)
CELL = re.compile(r"^\| [^|]* \| `(limelight [^`]*)` \|$", re.M)  # of a table, run too
DECIMAL = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
MARK = "\x02"  # between the outputs of two blocks


@dataclass(frozen=True)
class Block:
    """What stands between two rows of backticks, and what comes out if the page says so."""

    page: Path
    language: str
    needs: str
    text: str
    shown: str | None

    @property
    def location(self) -> str:
        """The file and the line, for a message."""
        before = self.page.read_text(encoding="utf-8").split(self.text)[0]
        return f"{self.page.relative_to(ROOT)}:{before.count(chr(10)) + 1}"


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    blocks = [(m.start(), m.groups()[1:]) for m in BLOCK.finditer(text)]
    blocks += [(m.start(), ("sh", "", m[1], None)) for m in CELL.finditer(text)]
    return [
        Block(page, language, needs or "", *rest) for _, (language, needs, *rest) in sorted(blocks)
    ]


def runnable(page: Path, language: str) -> list[Block]:
    """Those that are run here."""
    return [b for b in blocks_of(page) if b.language == language and not b.needs]


def elsewhere() -> list[Block]:
    """Those that need a machine which tests do not have."""
    return [block for page in PAGES for block in blocks_of(page) if block.needs]


def commands_of(block: Block) -> list[str]:
    """The commands of a shell block, one a line, without what is said about them."""
    lines = block.text.replace("\\\n", " ").splitlines()
    bare = [re.sub(r"(^|\s)#.*", "", line).strip() for line in lines]
    return [line for line in bare if line]


@dataclass(frozen=True)
class Shell:
    """A folder with programs that are awake on its PATH."""

    folder: Path
    programs: Path

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """A line as a person types it."""
        own = {"PATH": f"{self.programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env={**os.environ, "COLUMNS": "80", **own},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


@contextmanager
def awake() -> Iterator[Path]:
    """A folder with `limelight` and `python`, both awake."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/socket"
        script = ROOT / "tests" / "warm_cli.py"
        for program in ("limelight", "python"):
            path = Path(folder) / program
            ask = shlex.join([sys.executable, "-IS", str(script), address, program])
            path.write_text(f'#!/bin/sh\nexec {ask} "$@"\n', encoding="utf-8")
            path.chmod(0o755)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        server = subprocess.Popen([sys.executable, script, address], env=environment)
        try:
            while not Path(f"{address}.ready").exists():
                if server.poll() is not None:
                    raise RuntimeError("the programs did not wake up")
                time.sleep(0.05)
            yield Path(folder)
        finally:
            server.terminate()
            server.wait()


def run_shell(page: Path, shell: Shell) -> Iterator[tuple[Block, str, Any]]:
    """Each command of a page: its block, itself, and what came of it."""
    for block in runnable(page, "sh"):
        for command in commands_of(block):
            if not command.startswith("make "):  # what `make` does is tested on its own
                yield block, command, shell.run(command)


def run_python(page: Path, shell: Shell) -> tuple[list[tuple[Block, str]], str]:
    """What each Python block of a page prints, and what went wrong."""
    blocks = runnable(page, "python")
    parts = [f"print({MARK!r}, end='', flush=True)\n{block.text}" for block in blocks]
    (shell.folder / "page.py").write_text("\n".join(parts), encoding="utf-8")
    done = shell.run("python page.py")
    outputs = done.stdout.split(MARK)[1:]
    return list(zip(blocks, outputs, strict=False)), done.stderr if done.returncode else ""


def agree(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed: the words exactly, and numbers as one rounds them.

    A line of three dots stands for any number of lines.
    """
    wanted, found = shown.rstrip().splitlines(), printed.rstrip().splitlines()
    if not wanted:
        return not found
    if wanted[0].strip() == "...":
        rest = "\n".join(wanted[1:])
        return any(agree(rest, "\n".join(found[i:])) for i in range(len(found) + 1))
    if not found or not alike(wanted[0], found[0]):
        return False
    return agree("\n".join(wanted[1:]), "\n".join(found[1:]))


def alike(shown: str, printed: str) -> bool:
    """The same line, but for the last digits of decimals and the room that they take."""
    one, other = DECIMAL.findall(shown), DECIMAL.findall(printed)
    words = [" ".join(DECIMAL.sub("#", line).split()) for line in (shown, printed)]
    both = [(float(a), float(b)) for a, b in zip(one, other, strict=False)]
    close = [abs(a - b) <= 0.02 + 0.02 * abs(a) for a, b in both]
    return words[0] == words[1] and len(one) == len(other) and all(close)


def rewrite(page: Path, shell: Shell) -> None:
    """Put what comes out now where the page shows something else."""
    printed = dict.fromkeys(runnable(page, "sh"), "")
    for block, _, done in run_shell(page, shell):
        printed[block] += done.stdout
    outputs, problem = run_python(page, shell)
    print(problem, end="")
    for block, output in [*printed.items(), *outputs]:
        if block.shown is not None and not agree(block.shown, output):
            print(f"{block.location}: written anew")
            before = page.read_text(encoding="utf-8")
            head, tail = before.split(f"{block.text}```\n", 1)
            tail = tail.replace(f"```text\n{block.shown}```", f"```text\n{tidy(output)}```", 1)
            page.write_text(f"{head}{block.text}```\n{tail}", encoding="utf-8")


def tidy(output: str) -> str:
    """Without the spaces at the ends of lines, which nobody sees."""
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


if __name__ == "__main__":
    with awake() as programs:
        for page in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
            if any(block.shown is not None for block in blocks_of(page)):
                with tempfile.TemporaryDirectory() as folder:
                    rewrite(page, Shell(Path(folder), programs))
