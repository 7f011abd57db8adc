"""Programs that are already awake: `limelight` and `python`, without waiting for torch each time.

The pages of the docs have a hundred commands, and each would spend seconds on imports. So one
process imports everything once and computes nothing; for every command it splits off a copy of
itself, which takes over the caller's folder, environment and streams, and runs it as usual.

    python tests/warm_cli.py SOCKET               is that process
    python -IS tests/warm_cli.py SOCKET NAME ...  asks it to run a command, and leaves as that did
"""

import json
import os
import socket
import sys
from pathlib import Path

STREAMS = 3


def ask(address: str, arguments: list[str]) -> int:
    """Hand a command and our streams over; what it leaves with is what we leave with."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
        asked = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
        socket.send_fds(line, [json.dumps(asked).encode() + b"\n"], range(STREAMS))
        answer = line.recv(100)
    return int(answer) if answer else 1  # it died without a word


def serve(address: str) -> None:
    """Answer one caller after the other, each by a process of its own."""
    import signal

    prepare()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(address)
        door.listen(64)
        Path(f"{address}.ready").touch()
        while True:
            line, _ = door.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                door.close()
                answer(line)
            line.close()


def prepare() -> None:
    """Import what commands import."""
    import gc
    from importlib import import_module

    for name in ("evaluate", "train", "info", "demo"):
        import_module(f"limelight.workflows.{name}")
    for name in ("figures", "serialize", "terminal"):
        import_module(f"limelight.explain.render.{name}")
    for name in ("cli.generate", "data.check", "explain.explanation", "explain.stages"):
        import_module(f"limelight.{name}")
    import_module("torch._dynamo")  # the first optimizer imports it
    gc.collect()
    gc.freeze()


def answer(line: socket.socket) -> None:
    """Become the command that is asked for."""
    head, streams, _, _ = socket.recv_fds(line, 2**16, STREAMS)
    while not head.endswith(b"\n"):
        head += line.recv(2**16)
    asked = json.loads(head)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    for ours, theirs in enumerate(streams):
        os.dup2(theirs, ours)
        os.close(theirs)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, way, encoding="utf-8", closefd=False)  # noqa: SIM115
        for number, way in enumerate("rww")
    )
    code = become(asked["arguments"])
    line.sendall(str(code).encode())
    os._exit(0)


def become(arguments: list[str]) -> int:
    """Run it to its end, whatever that is."""
    import runpy
    import traceback

    program, *sys.argv[1:] = arguments
    try:
        if program == "python":
            sys.argv = sys.argv[1:]
            runpy.run_path(sys.argv[0], run_name="__main__")
        else:
            from limelight.cli import main

            main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    sys.exit(ask(sys.argv[1], sys.argv[2:]))
