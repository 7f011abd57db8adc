"""Config classes: frozen dataclasses whose every field has a type and bounds.

Whether values come from a file, the command line or Python, pydantic checks them, and an error is
one sentence with the value and the nearest right choice. The sentences about pydantic's errors are
made here for the service too.
"""

import inspect
import io
import json
import re
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, fields, replace
from functools import wraps
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
)

import pydantic
from pydantic.dataclasses import dataclass

from limelight.errors import RenamedWarning, UserError, unknown_name

_LARGEST = 2**40  # of any count: beyond every corpus and model, and far from overflow
Count = Annotated[int, pydantic.Field(ge=0, le=_LARGEST)]
Size = Annotated[int, pydantic.Field(ge=1, le=2**24)]  # of something that is held in memory
Fraction = Annotated[float, pydantic.Field(ge=0, lt=1, allow_inf_nan=False)]
Positive = Annotated[float, pydantic.Field(gt=0, le=1e12, allow_inf_nan=False)]
Finite = Annotated[float, pydantic.Field(allow_inf_nan=False)]

# What `limelight.extend` has loaded: files with their SHA-256, and by setting the names that each
# file added.
EXTENSION_FILES: dict[str, str] = {}
EXTENDED: dict[str, dict[str, str]] = {
    setting: {} for setting in ("activation", "norm", "positions", "objective")
}

T = TypeVar("T")
_OLD_NAMES_ALLOWED: ContextVar[bool] = ContextVar("old names allowed", default=False)
_STRICT = pydantic.ConfigDict(extra="forbid", strict=True)
_TYPES = {  # pydantic's errors about the type of a value: the type that it should have
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a table",
    "dataclass_type": "a table",
    "dataclass_exact_type": "a table",
    "model_attributes_type": "an object",
}
_RULES = {  # its other errors: the rule that the value breaks
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
    "int_parsing_size": "is too large",
    "literal_error": "should be {expected}",
    "string_pattern_mismatch": "should match {pattern}",
}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config_class(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass that rejects wrong values with a `UserError`.

    Its `RENAMED`, if there is one, maps old names of fields to new ones; both are accepted.
    """
    checked = dataclass(cls, frozen=True, kw_only=True, config=_STRICT)
    build: Callable[..., None] = checked.__init__

    @wraps(build)
    def __init__(self: T, /, *positional: Any, **values: Any) -> None:  # noqa: N807
        names = [field.name for field in fields(checked)]
        values = _with_current_names(cls, values)
        for name in values.keys() - set(names):
            raise unknown_name("setting", name, names)
        try:
            build(self, *positional, **values)
        except pydantic.ValidationError as error:
            raise UserError(_validation_message(error.errors(), cls)) from None

    cast(Any, checked).__init__ = __init__
    return cast(type[T], checked)


def check_extended(config: Any, setting: str, own: Iterable[str]) -> None:
    """Reject a value that is neither one of limelight's own nor one that an extension added."""
    known, value = (*own, *EXTENDED[setting]), getattr(config, setting)
    if value not in known:
        error = unknown_name(setting, value, known)
        raise UserError(f"{error} (another one comes from a Python file: --extend FILE)")


def extensions_of(*configs: Any) -> dict[str, str]:
    """The extensions that these configs use: their files, with SHA-256."""
    values = [(setting, getattr(one, setting, "")) for one in configs for setting in EXTENDED]
    names = [EXTENDED[setting][value] for setting, value in values if value in EXTENDED[setting]]
    return {name: EXTENSION_FILES[name] for name in sorted(names)}


def from_json(cls: type[T], text: str) -> T:
    """A plain dataclass from JSON, checked as a config class is."""
    try:
        return pydantic.TypeAdapter(cls).validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        raise UserError(_validation_message(error.errors(), cls)) from None


def with_settings(config: T, values: Mapping[str, Any]) -> T:
    """A copy with other values; unlike `dataclasses.replace` it accepts old names of fields."""
    return cast(T, replace(cast(Any, config), **_with_current_names(type(config), values)))


def current_name(cls: type, name: str) -> str:
    """A field's name of today, for one that may be an older one."""
    return str(getattr(cls, "RENAMED", {}).get(name, name))


@contextmanager
def allow_old_names() -> Iterator[None]:
    """No warning about old names in this block: nobody should edit a run folder.

    A filter of `warnings` would also make Python forget which other warnings it has shown.
    """
    token = _OLD_NAMES_ALLOWED.set(True)
    try:
        yield
    finally:
        _OLD_NAMES_ALLOWED.reset(token)


def _with_current_names(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values under today's names; one warning mentions the old ones."""
    renamed: dict[str, str] = getattr(cls, "RENAMED", {})
    old = {name: renamed[name] for name in renamed if name in values}
    for name, new in old.items():
        if new in values:
            raise UserError(f"{new} is given twice: {name} is its old name")
    if old and not _OLD_NAMES_ALLOWED.get():
        mentioned = ", ".join(f"{name} is now called {new}" for name, new in old.items())
        warnings.warn(mentioned, RenamedWarning, stacklevel=4)
    return {renamed.get(name, name): value for name, value in values.items()}


def _validation_message(problems: list[Any], cls: type) -> str:
    """One sentence about the first field that is wrong."""
    first = problems[0]
    if first["type"] == "value_error":  # one of our own sentences
        return str(first["ctx"]["error"])
    name, value = str(first["loc"][0]), first["input"]
    if first["type"] == "missing":
        return f"{name} is missing"
    kind = {field.name: field.type for field in fields(cast(Any, cls))}.get(name)
    if first["type"] == "literal_error" and get_origin(kind) is Literal:
        choices = get_args(kind)
        return str(unknown_name(name, value, map(str, choices)))
    same = [problem for problem in problems if problem["loc"][0] == name]
    if all(problem["type"] in (*_TYPES, "literal_error") for problem in same):
        return f"{name}={_shown(value)} must be {expected_types(same)}"
    return f"{name}={_shown(value)} is out of range: {broken_rule(first)}"


def is_type_error(error: Mapping[str, Any]) -> bool:
    """Whether pydantic complains of a value's type, and not of a rule that it breaks."""
    return error["type"] in _TYPES


def expected_types(errors: Iterable[Mapping[str, Any]]) -> str:
    """The types or choices that would do, each once: "a whole number or 'auto'"."""
    expected = (_TYPES.get(e["type"]) or e["ctx"]["expected"] for e in errors)
    return " or ".join(dict.fromkeys(expected))


def broken_rule(error: Mapping[str, Any]) -> str:
    """What a value of the right type should be: "should be 2 or more"."""
    if error["type"] not in _RULES:
        return str(error["msg"]).removeprefix("Input ")
    bounds = error.get("ctx", {}).items()
    plain = {name: f"{x:g}" if isinstance(x, float) else x for name, x in bounds}  # 2, not 2.0
    return _RULES[error["type"]].format(**plain).replace("False", "false")  # as JSON has it


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write out thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."


class Setting(NamedTuple):
    """A setting for people to read: its name, the values it accepts, its default, its meaning."""

    name: str
    values: str
    default: str
    meaning: str


def settings_of_class(cls: type) -> list[Setting]:
    """The settings of a config class; the comment behind a field says what it means."""
    said: dict[str, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(cls)).readline):
        if token.type == tokenize.COMMENT and (name := re.match(r"\s*(\w+): ", token.line)):
            said[name[1]] = token.string.removeprefix("#").strip()
    return [
        Setting(f.name, _values_of(f.type), _default_of(f.default), said.get(f.name, ""))
        for f in fields(cls)
    ]


def _default_of(value: Any) -> str:
    if value is MISSING:
        return "required"
    plain = {True: "true", False: "false"}
    return plain[value] if isinstance(value, bool) else json.dumps(value) if value != () else "[]"


def _values_of(kind: Any) -> str:
    """The values that a setting accepts, in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        rules = [rule for part in parts[1:] for rule in getattr(part, "metadata", ())]
        return " ".join([_values_of(parts[0]), *_bounds_of(rules)])
    if origin is Literal:
        return ", ".join(f"'{choice}'" if choice else "nothing" for choice in parts)
    if origin in (Union, UnionType):
        if parts[-1] is str:
            return f"{_values_of(parts[0])}, or one that --extend adds"
        return " or ".join(map(_values_of, parts))
    if origin is tuple:
        return "a list of texts" if parts[0] is str else "tables like this one"
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}[kind]


def _bounds_of(rules: list[Any]) -> Iterator[str]:
    powers = {2**n: f"2^{n}" for n in range(14, 64)} | {10**n: f"10^{n}" for n in range(6, 20)}
    for name, word in {"ge": "from", "gt": "above", "le": "to", "lt": "below"}.items():
        for rule in rules:
            if (bound := getattr(rule, name, None)) is not None:
                yield f"{word} {powers.get(int(bound), f'{bound:,}')}"
