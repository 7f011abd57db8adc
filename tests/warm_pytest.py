"""A pytest that is already awake, for the copies of the project that have a planted fault.

One process imports torch and all else that comes from elsewhere, and nothing of Limelight or of its
tests. For every line on its standard input, a JSON object, it splits off a copy of itself, which
runs pytest in the named folder, on the package that it finds there; the exit code is printed.
"""

import json
import os
import sys
from importlib import import_module
from typing import Any

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
    "sympy",
    "torch._dynamo",  # the first optimizer imports it
    "torch.distributed.fsdp",
    "torch.utils.flop_counter",
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


class FirstCases:
    """A plugin: of a test with many parameters only the first case is run."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
        items[:] = [item for item in items if item in first.values()]


def run(folder: str, output: str, arguments: list[str], first_cases: bool) -> None:
    """Become `python -m pytest` in that folder."""
    import pytest

    nothing = os.open(os.devnull, os.O_RDONLY)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream, new in enumerate((nothing, written, written)):
        os.dup2(new, stream)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # some of them import for a second
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = ["pytest", *arguments]
    sys.dont_write_bytecode = False  # the next run need not compile again
    code = 3
    try:
        code = int(pytest.main(arguments, plugins=[FirstCases()] if first_cases else []))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
