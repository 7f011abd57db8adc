"""Errors for people: what was wrong, with the value, and what to do."""

import errno
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

# Control characters (C0, DEL, C1), separators of lines, what turns the direction of a line around
# (bidirectional embeddings, overrides and isolates), and halves of characters.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_controls(text: str, keep: str = "") -> str:
    """Show control characters as in JSON, \\u001b: no file and no client controls a terminal."""

    def escape(found: re.Match[str]) -> str:
        return found[0] if found[0] in keep else f"\\u{ord(found[0]):04x}"

    return _CONTROLS.sub(escape, text)


class UserError(ValueError):
    """The request is impossible; the message is for a person. Exit status 2."""

    def __init__(self, message: str) -> None:
        super().__init__(escape_controls(message))


class FailedError(Exception):
    """The request is possible, but the work failed. Exit status 1."""

    def __init__(self, message: str) -> None:
        super().__init__(escape_controls(message))


class RenamedWarning(FutureWarning):
    """A setting, an option or a name is still accepted under its old spelling."""


class AdjustedWarning(FutureWarning):
    """A setting was fitted to another one that the user has changed."""


class OlderWeightsWarning(UserWarning):
    """The newest weights of a run are damaged, and older ones are used."""


class EngineWarning(UserWarning):
    """What was asked for is computed in another way, which is slower and at least as exact."""


END_SIGNALS = tuple(  # Ctrl-C, `kill`, and a terminal that is closed, which Windows does not signal
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_WHAT_TO_DO = {
    errno.ENOSPC: "free some space on this disk, or choose a folder on another one",
    errno.EDQUOT: "free some space on this disk, or choose a folder on another one",
    errno.EACCES: "choose a place that you may use, or ask for permission",
    errno.EPERM: "choose a place that you may use, or ask for permission",
    errno.EROFS: "choose a place that can be written to",
    errno.ENOENT: "is the name right?",
    errno.ENOTDIR: "a file is where a folder should be; choose another place",
    errno.EEXIST: "a file is where a folder should be; choose another place",
    errno.EISDIR: "a folder is where a file should be; choose another name",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "close some programs, or raise the limit with: ulimit -n 4096",
}


def describe_os_error(error: OSError) -> str:
    """What the system rejected, why, and what to do about it."""
    why = error.strerror or str(error)
    what = f"{error.filename}: {why}" if error.filename is not None else why
    advice = _WHAT_TO_DO.get(error.errno or 0)
    return f"{what}; {advice}" if advice else what


@contextmanager
def path_from_option(setting: str) -> Iterator[None]:
    """If a folder cannot be created in this block, name the option that chose its path."""
    try:
        yield
    except OSError as error:
        message = describe_os_error(error)
        if error.errno == errno.ENOENT:  # not a wrong name: folders above it are made as well
            message = f"{error.filename}: no folder can be made there; choose another place"
        raise FailedError(f"{message} ({setting} says where)") from error


def check_count(name: str, value: object, most: int) -> None:
    """Reject anything but a whole number from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise UserError(f"{name}={value!r} is out of range: ask for 1 to {most}")


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest one that does."""
    choices = sorted(filter(None, known))  # an empty choice, "none of these", helps nobody
    hint = did_you_mean(name, choices) or "choose one of: " + ", ".join(choices)
    return UserError(f"there is no {kind} {name!r}: {hint}")


def did_you_mean(name: object, known: Iterable[str], cutoff: float = 0.5) -> str:
    """A question with the nearest name that exists; empty if none is near."""
    near = get_close_matches(str(name), known, n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else ""
