"""What is wrong with a request, in words: pydantic knows it, but says it for programmers."""

from collections.abc import Iterable, Sequence
from typing import Any

_WANTED = {  # where a value is of another kind: what it should be
    "string_type": "a text",
    "list_type": "a list",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "model_attributes_type": "an object",
}
_BROKEN = {  # where it is of the right kind: which rule it breaks
    "missing": "this is missing",
    "extra_forbidden": "there is no such field",
    "greater_than": "should be above {gt}",
    "greater_than_equal": "should be {ge} or more",
    "less_than": "should be below {lt}",
    "less_than_equal": "should be {le} at most",
    "string_too_short": "should have {min_length} or more characters",
    "string_too_long": "should have {max_length} characters at most",
    "too_short": "should have {min_length} or more entries",
    "too_long": "should have {max_length} entries at most",
    "finite_number": "should be a number that is not infinite",
    "int_parsing_size": "is too large",
    "literal_error": "should be {expected}",
    "string_pattern_mismatch": "should match {pattern}",
}


def validation_message(errors: Sequence[dict[str, Any]], body: Any) -> str:
    """One sentence: the first field that is wrong, and why, but not its value.

    Where a field may be of several kinds there is an error for each. The one that came furthest
    was meant: of a list with a wrong entry, nobody needs to hear that a list is no text.
    """
    places = [_place_of(error["loc"], body) for error in errors]
    depth = len(places[0])
    same = [(p, e) for p, e in zip(places, errors, strict=True) if p[:depth] == places[0]]
    furthest = max(len(place) for place, _ in same)
    deepest = [(place, error) for place, error in same if len(place) == furthest]
    broken = [(place, error) for place, error in deepest if error["type"] not in _WANTED]
    place, error = (broken or deepest)[0]
    words = (
        _broken_rule(error) if broken else _wanted(error for at, error in deepest if at == place)
    )
    return f"{'.'.join(place)[:100] or 'the body'}: {words[:200]}"


def _place_of(loc: Sequence[str | int], body: Any) -> list[str]:
    """Where in the request: pydantic's way there, without its names for kinds of values."""
    origin, *way = loc
    place, value = [], body if origin == "body" else dict.fromkeys(way)
    for part in way:
        if isinstance(part, str) and not (isinstance(value, dict) and _is_name(part, value)):
            continue  # a kind's
        place.append(str(part))
        value = value.get(part) if isinstance(part, str) else value[part]
    return place


def _is_name(part: str, value: dict[str, Any]) -> bool:
    """Whether this names a field of an object, there or missing: kinds are as list[str]."""
    return part in value or part.isidentifier()


def _broken_rule(error: dict[str, Any]) -> str:
    """Why a value will not do."""
    if error["type"] not in _BROKEN:
        return str(error["msg"])
    bounds = error.get("ctx", {}).items()
    plain = {name: f"{x:g}" if isinstance(x, float) else x for name, x in bounds}  # 2, not 2.0
    words = _BROKEN[error["type"]].format(**plain)
    return words.replace("False", "false")  # as JSON has it


def _wanted(errors: Iterable[dict[str, Any]]) -> str:
    """Which kinds of values would do, each once."""
    return "should be " + " or ".join(dict.fromkeys(_WANTED[error["type"]] for error in errors))
