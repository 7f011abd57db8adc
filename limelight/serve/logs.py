"""The log: one JSON object per line, on standard error.

It records events, never content: no prompt, no answer, no key. Non-ASCII characters are escaped, so
that no request can forge a line or control a terminal.
"""

import json
import logging
import os
import sys
import traceback
from datetime import UTC, datetime

_LONGEST = 300  # characters of a value


def log_event(event: str, **facts: object) -> None:
    """Write a line in one system call: lines of several processes do not mix."""
    when = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"time": when, "event": event, **facts}
    for name, fact in facts.items():
        if isinstance(fact, str) and len(fact) > _LONGEST:
            line[name] = fact[: _LONGEST - 3] + "..."
    try:
        os.write(sys.stderr.fileno(), json.dumps(line).encode() + b"\n")
    except OSError:  # whoever read it is gone; the service continues
        return


def log_error(error: BaseException, **facts: object) -> None:
    """An unexpected exception: its type and where, without its message, which may quote a user."""
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    where = [f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in frames]
    log_event("error", kind=type(error).__name__, where=" ".join(where), **facts)


def install() -> None:
    """Route warnings and other libraries' log records into this log."""
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
