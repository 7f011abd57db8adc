"""A pytest that is already awake, for the copies of the project that have a planted fault.

One process imports torch and all else that comes from elsewhere, and nothing of Limelight or of its
tests. For every line on its standard input, a JSON object, it splits off a copy of itself, which
runs pytest in the named folder, on the package that it finds there; the exit code is printed.
"""

import json
import os
import sys
from importlib import import_module

FROM_ELSEWHERE = (
    "numpy",
    "torch",
    "hypothesis",
    "hypothesis.extra.numpy",
    "_hypothesis_pytestplugin",
    "pydantic",
    "pytest",
    "rich.console",
    "safetensors.torch",
    "tokenizers",
)


def serve() -> None:
    for name in FROM_ELSEWHERE:
        import_module(name)
    ours = [name for name in sys.modules if name.split(".")[0] in ("limelight", "tests")]
    assert not ours, f"a copy would test the original: {ours}"
    for line in sys.stdin:
        asked = json.loads(line)
        if (child := os.fork()) == 0:
            run(**asked)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run(folder: str, output: str, arguments: list[str]) -> None:
    """Become `python -m pytest` in that folder."""
    import pytest

    nothing = os.open(os.devnull, os.O_RDONLY)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream, new in enumerate((nothing, written, written)):
        os.dup2(new, stream)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = ["pytest", *arguments]
    code = 3
    try:
        code = int(pytest.main(arguments))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
