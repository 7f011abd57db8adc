"""The log: one JSON object per line, on standard error.

It records events, never content: no prompt, no answer, no key. Non-ASCII characters are escaped, so
that no request can forge a line or control a terminal. A thread writes it: if nobody reads a pipe,
lines are dropped and counted, and nobody waits.
"""

import atexit
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from queue import Full, Queue
from threading import Lock, Thread

_LONGEST = 300  # characters of a value
_MOST_WAITING = 1000  # lines
_FLUSH_SECONDS = 1.0
_GATHER_SECONDS = 0.01  # before a write: each makes the threads exchange the GIL
_ATOMIC = 4096  # bytes that a pipe takes as one piece, on Linux


class _Writer:
    """Writes lines at once, or, once `start` was called, by a thread of its own."""

    def __init__(self) -> None:
        self.lines, self.dropped, self.lock = Queue[bytes](_MOST_WAITING), 0, Lock()
        self.put: Callable[[bytes], None] = self.write

    def start(self) -> None:
        Thread(target=self.run, daemon=True).start()
        self.put = self.enqueue

    def run(self) -> None:
        while True:
            first = self.lines.get()
            time.sleep(_GATHER_SECONDS)
            together = self.gather(first)
            self.write(b"".join(together), len(together))
            for _ in together:
                self.lines.task_done()

    def gather(self, first: bytes) -> list[bytes]:
        """A line, and those behind it that fit into the same write."""
        together, size, waiting = [first], len(first), self.lines.queue
        while waiting and (size := size + len(waiting[0])) <= _ATOMIC:
            together.append(self.lines.get())
        return together

    def write(self, lines: bytes, count: int = 1) -> None:
        try:  # one system call: lines of several processes do not mix
            os.write(sys.stderr.fileno(), lines)
        except (OSError, ValueError, AttributeError):  # whoever read it is gone
            self.drop(count)

    def enqueue(self, line: bytes) -> None:
        try:
            self.lines.put_nowait(line)
        except Full:
            self.drop()

    def drop(self, count: int = 1) -> None:
        with self.lock:
            self.dropped += count


_writer = _Writer()


def log_event(event: str, **facts: object) -> None:
    """Have a line written, without waiting for it."""
    when = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"time": when, "event": event, **facts}
    for name, fact in facts.items():
        if isinstance(fact, str) and len(fact) > _LONGEST:
            line[name] = fact[: _LONGEST - 3] + "..."
    _writer.put(json.dumps(line).encode() + b"\n")


def pop_dropped() -> int:
    """Lines that were dropped since the last call."""
    with _writer.lock:
        count, _writer.dropped = _writer.dropped, 0
    return count


def flush() -> None:
    """Wait until all lines are written, but not for long: nobody may be reading them."""
    lines = _writer.lines
    with lines.all_tasks_done:
        lines.all_tasks_done.wait_for(lambda: not lines.unfinished_tasks, _FLUSH_SECONDS)


def log_error(error: BaseException, **facts: object) -> None:
    """An unexpected exception: its type and where, without its message, which may quote a user."""
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    where = [f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in frames]
    log_event("error", kind=type(error).__name__, where=" ".join(where), **facts)


def install() -> None:
    """Route warnings and other libraries' log records into this log, which a thread writes now."""
    _writer.start()
    atexit.register(flush)
    logging.captureWarnings(True)
    logging.basicConfig(handlers=[_Handler(logging.WARNING)], force=True)


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            log_error(record.exc_info[1], source=record.name)
            return
        warned = record.name == "py.warnings"  # its message is the library's own
        message = record.getMessage() if warned else str(record.msg)  # without arguments
        log_event("library", source=record.name, level=record.levelname, message=message)
