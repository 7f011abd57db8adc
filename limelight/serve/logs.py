"""The log: one JSON object a line, on standard error.

It says what happened, never what was said: no prompt, no answer, no key. Everything that is not a
plain letter is escaped, so no request can forge a line or drive a terminal.
"""

import json
import logging
import os
import sys
import traceback
from datetime import UTC, datetime

_LONGEST = 300  # characters of a value


def log_event(event: str, **facts: object) -> None:
    """Write a line, whole: lines of several processes do not mix."""
    when = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"time": when, "event": event, **{name: _short(fact) for name, fact in facts.items()}}
    try:
        os.write(sys.stderr.fileno(), json.dumps(line).encode() + b"\n")
    except OSError:  # whoever read it has gone; the service goes on
        return


def _short(fact: object) -> object:
    """A value that leaves room for others."""
    if isinstance(fact, str) and len(fact) > _LONGEST:
        return fact[: _LONGEST - 3] + "..."
    return fact


def note_error(error: BaseException, **facts: object) -> None:
    """Something that should not have happened: where, but not with which words."""
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    where = [f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in frames]
    log_event("error", kind=type(error).__name__, where=" ".join(where), **facts)


def install() -> None:
    """From now on, what any library has to say is a line of ours."""
    logging.captureWarnings(True)
    logging.basicConfig(handlers=[_Handler(logging.WARNING)], force=True)


class _Handler(logging.Handler):
    """What libraries log becomes lines of ours, without their arguments."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line; an exception says where, and not with which words."""
        if record.exc_info and record.exc_info[1] is not None:
            note_error(record.exc_info[1], source=record.name)
            return
        warned = record.name == "py.warnings"  # a library's own words, and nobody else's
        message = record.getMessage() if warned else str(record.msg)
        log_event("library", source=record.name, level=record.levelname, message=message)
