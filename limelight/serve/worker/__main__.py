"""The child process that holds a model: `python -m limelight.serve.worker RUN LIMITS`.

It reads messages from its standard input and answers on its standard output, framed (`ipc`). It
can be killed at any time: it keeps nothing that somebody else needs.
"""

import json
import os
import sys
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread

from limelight.device import is_out_of_memory
from limelight.errors import UserError
from limelight.loading import load
from limelight.serve import logs as journal
from limelight.serve.ipc import Message, packed, receive, send
from limelight.serve.worker.scheduler import NO_MEMORY, Scheduler, facts_of, trace_of


def listen(pipe: int, inbox: "SimpleQueue[Message | None]") -> None:
    """Put what comes into the inbox. When the service has gone, nothing is left to do."""
    try:
        while (message := receive(pipe)) is not None:
            inbox.put(message)
    finally:
        inbox.put(None)


def work(worker: Scheduler, inbox: "SimpleQueue[Message | None]") -> None:
    """Until the service has gone."""
    while True:
        while not worker.busy or not inbox.empty():
            message = inbox.get()
            if message is None:
                return
            worker.on_message(message)
            worker.flush()
        worker.step()


def main() -> None:
    """Load the model, say that it is ready, and work."""
    run, limits = sys.argv[1], json.loads(sys.argv[2])
    journal.install()
    ears, mouth = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # what a library prints must not come between messages
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    try:
        loaded = load(run)
        say = partial(send, mouth)
        worker = Scheduler(loaded, limits["batch"], limits["texts"], limits["traced"], say)
    except (UserError, OSError, RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            error = UserError(NO_MEMORY)
        elif isinstance(error, RuntimeError):
            raise
        send(mouth, packed({"failed": str(error)}))
        sys.exit(2)
    facts = facts_of(loaded)
    worker.tell({"ready": facts})
    worker.flush()
    if not loaded.model.config.family.startswith("recurrent"):
        worker.on_message(
            {"id": 0, "do": "trace", **trace_of(facts["example"])}
        )  # nobody's, but ready
    inbox: SimpleQueue[Message | None] = SimpleQueue()
    Thread(target=listen, args=(ears, inbox), daemon=True).start()
    with suppress(BrokenPipeError):
        work(worker, inbox)
    os._exit(0)  # at once: nobody listens, and there is nothing to save


if __name__ == "__main__":
    main()
