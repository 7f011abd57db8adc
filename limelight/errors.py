"""A user's mistake is answered with a sentence: what was wrong, with the value, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Something impossible was asked for; the message is for a person. Exit code 2."""


def unknown(kind: str, name: object, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest one that does."""
    choices = sorted(filter(None, known))  # an empty choice, "none of these", helps nobody
    near = get_close_matches(str(name), choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "choose one of: " + ", ".join(choices)
    return UserError(f"there is no {kind} {name!r}: {hint}")
