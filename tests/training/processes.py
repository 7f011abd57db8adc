"""Trainings as processes of their own, to be killed, signalled and watched.

To import torch takes seconds. A server does so once and forks whenever a process is wanted; what it
forks has its own signals, locks and exit code, like one that a shell has started.
"""

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from limelight.run.atomic import MANIFEST
from limelight.run.log import read_log, without_timing

ROOT = Path(__file__).parents[2]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [__name__, "limelight.workflows.train", "torch._dynamo", "typeguard", "matplotlib.pyplot"]
)
SECONDS = 60  # more than anything here takes, even on a busy machine

TINY = [  # a model and a corpus to be learned from in a second
    "--data.toy-examples=60",
    "--model.d-model=16",
    "--model.heads=2",
    "--model.d-ff=32",
    "--model.layers=1",
    "--model.dropout=0.1",
    "--train.batch-tokens=100",
    "--train.schedule=paper",
    "--train.learning-rate=0.5",
    "--train.warmup=5",
    "--train.clip-grad-norm=0",
    "--train.label-smoothing=0.1",
    "--train.grad-accumulation=1",
    "--train.log-every=1",
]


@contextmanager
def process(
    work: Callable[..., None], *given: Any, said: Path, **environment: str
) -> Iterator[BaseProcess]:
    """A process that does this work; at the end of the block it is no more."""
    said.unlink(missing_ok=True)
    with chdir(ROOT):  # where the server finds the package
        forkserver.ensure_running()
    child = FORKS.Process(target=begin, args=(work, said, environment, *given), daemon=True)
    child.start()
    try:
        yield child
    finally:
        child.kill()
        child.join()


def begin(work: Callable[..., None], said: Path, environment: dict[str, str], *given: Any) -> None:
    """In the new process: one thread, and all that is said goes into a file."""
    import torch

    torch.set_num_threads(1)
    os.environ.update(environment)
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    work(*given)


def command(arguments: list[str]) -> None:
    """What `limelight` does with these arguments."""
    from limelight import cli

    assert Path(cli.__file__).is_relative_to(ROOT)
    sys.argv = ["limelight", *arguments]
    cli.main()


def train_command(run: Path, settings: list[str]) -> list[str]:
    return ["train", "reverse", f"--run={run}", *TINY, *settings]


@contextmanager
def training(run: Path, settings: list[str], **environment: str) -> Iterator[BaseProcess]:
    """`limelight train reverse` with a cache of its own; what it says is beside the run."""
    arguments = train_command(run, settings)
    environment = {"LIMELIGHT_CACHE": str(run.parent / "cache"), **environment}
    with process(command, arguments, said=said_of(run), **environment) as child:
        yield child


@contextmanager
def many(
    work: Callable[..., None], *given: Any, folder: Path, count: int = 2
) -> Iterator[list[BaseProcess]]:
    """Some processes that do this work together, as `torchrun` would start them."""
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    together = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    together["LIMELIGHT_CACHE"] = str(folder.parent / "cache")
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                process(work, *given, said=said_of(folder, rank), RANK=rank, **together)
            )
            for rank in map(str, range(count))
        ]


def speaks(run: Path) -> bool:
    """Whether a training has begun to say something."""
    return said_of(run).exists() and said_of(run).stat().st_size > 0


def said_of(run: Path, rank: str = "0") -> Path:
    return run.with_name(f"{run.name}.said-{rank}")


def train(run: Path, settings: list[str]) -> str:
    """Train to the end, and give back what was said."""
    with training(run, settings) as child:
        child.join(SECONDS)
        assert child.exitcode == 0, said_of(run).read_text()
    return said_of(run).read_text()


def wait_until(happened: Callable[[], object], child: BaseProcess) -> bool:
    """Wait for something that a process does; False if it has ended without."""
    end = time.monotonic() + SECONDS
    while not happened():
        if child.exitcode is not None:
            return False
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.001)
    return True


def steps_logged(run: Path) -> int:
    return max((entry["step"] for entry in read_log(run / "log.jsonl")), default=0)


def result(run: Path) -> dict[str, Any]:
    """All that comes of a run and does not depend on time: each file, and the log's entries."""
    files: dict[str, Any] = {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name != ".lock" and path.parent.name != "tensorboard"
    }
    for name in [name for name in files if "/shard-" in name]:  # their headers have any order
        files[name] = {key: x.tolist() for key, x in load_file(run / name).items()}
        files.pop(str(Path(name).with_name(MANIFEST)), None)  # has hashes of them
    log = [without_timing(entry) for entry in read_log(run / "log.jsonl")]
    return files | {"log.jsonl": log}


if __name__ == "__main__":  # under `torchrun`: tell who this is, and train
    place, *arguments = sys.argv[1:]
    Path(place, f"process-{os.environ['RANK']}").write_text(str(os.getpid()))
    command(arguments)
