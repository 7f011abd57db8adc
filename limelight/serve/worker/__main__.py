"""The process: `python -m limelight.serve.worker RUN OPTIONS`.

It reads messages from standard input and answers on standard output, framed (`ipc`). It may be
killed at any time: it holds nothing that anybody else needs.
"""

import gc
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from queue import SimpleQueue
from threading import Lock, Thread
from typing import BinaryIO

import torch

from limelight.device import is_out_of_memory
from limelight.errors import UserError
from limelight.explain.traced_text import traced_text_in_steps
from limelight.extensions import extend_from_environment
from limelight.loading import LoadedModel, load
from limelight.serve import logs
from limelight.serve.ipc import Message, packed, receive, send
from limelight.serve.worker.scheduler import Scheduler, describe

_Inbox = SimpleQueue[Message | None]
_NO_MEMORY = (
    "there is not enough memory to load it: close other programs that use it, or serve fewer or "
    "smaller models"
)


def load_for(run: str, device: str) -> tuple[LoadedModel, LoadedModel]:
    """The model in the recipe's precision, and one for traces, which need float32 or better."""
    loaded = load(run, device=device)
    return loaded, loaded.full_precision


def _read_messages(stream: BinaryIO, inbox: _Inbox, write: Callable[[bytes], None]) -> None:
    """Answer pings, whatever else is computed, and fill the inbox; None: the service is gone."""
    try:
        while (message := receive(stream)) is not None:
            if message["op"] == "ping":
                write(packed({"pong": logs.pop_dropped()}))
            else:
                inbox.put(message)
    finally:
        inbox.put(None)


def _writer(pipe: int) -> Callable[[bytes], None]:
    """Sends for two threads, one at a time."""
    lock = Lock()

    def write(frames: bytes) -> None:
        with lock:
            send(pipe, frames)

    return write


def lay_out_weights(loaded: LoadedModel, example: Message) -> None:
    """Generate two tokens: a first reader would wait while the engine lays out its weights.

    What fails here will fail again when somebody asks, and is answered then.
    """
    with suppress(Exception), torch.inference_mode():
        steps = traced_text_in_steps(
            loaded, example["text"], None, loaded.decode, example.get("tag", "")
        )
        for _ in islice(steps, 2):
            pass


def work(scheduler: Scheduler, inbox: _Inbox) -> None:
    """Until the service is gone."""
    while True:
        while not scheduler.busy or not inbox.empty():
            message = inbox.get()
            if message is None:
                return
            scheduler.on_message(message)
            if not scheduler.busy:  # it failed, and nothing else will send that
                scheduler.flush()
        scheduler.step()


def main() -> None:
    """Load the model, report that it is ready, and work."""
    run, options = sys.argv[1], json.loads(sys.argv[2])
    logs.install()
    # Buffered, so that many messages cost one read: each makes the threads exchange the GIL.
    incoming, write = os.fdopen(os.dup(0), "rb"), _writer(os.dup(1))
    os.dup2(2, 1)  # output of libraries must not mix with messages
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        extend_from_environment()
        loaded, exact = load_for(run, options.get("device", "auto"))
        limits = (options["batch"], options["texts"], options["traced"])
        scheduler = Scheduler(loaded, *limits, write, exact, run)
    except (UserError, OSError, RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            error = UserError(_NO_MEMORY)
        elif isinstance(error, RuntimeError):
            raise
        write(packed({"failed": str(error)}))
        sys.exit(2)
    facts = describe(loaded)
    if "draw" not in loaded.tasks:
        lay_out_weights(exact, facts["example"])
    scheduler.post({"ready": facts})
    scheduler.flush()
    if "draw" not in loaded.tasks:  # the page will ask for it first
        trace: Message = {"target": None, "settings": {}, "print": "", "what": "manifest"}
        scheduler.on_message({"id": 0, "op": "trace", **facts["example"], **trace})
    gc.freeze()  # the model and libraries stay: a collection need not visit them, for 0.1 s
    inbox: _Inbox = SimpleQueue()
    Thread(target=_read_messages, args=(incoming, inbox, write), daemon=True).start()
    with suppress(BrokenPipeError):
        work(scheduler, inbox)
    logs.flush()
    os._exit(0)  # at once: nobody listens, and there is nothing to save


if __name__ == "__main__":
    main()
