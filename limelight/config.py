"""Tables of settings: frozen dataclasses whose every field has a type and bounds.

Whether the values come from a file, from the command line or from Python, pydantic checks them, and
what is wrong is told in one sentence with the value and the nearest right choice.
"""

import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Annotated, Any, TypeVar, cast, dataclass_transform, get_args

import pydantic
from pydantic.dataclasses import dataclass

from limelight.errors import RenamedWarning, UserError, unknown_name

_LARGEST = 2**40  # of any count: beyond every corpus and model, and far from overflow
Count = Annotated[int, pydantic.Field(ge=0, le=_LARGEST)]
Size = Annotated[int, pydantic.Field(ge=1, le=2**24)]  # of something that is held in memory
Fraction = Annotated[float, pydantic.Field(ge=0, lt=1, allow_inf_nan=False)]
Positive = Annotated[float, pydantic.Field(gt=0, le=1e12, allow_inf_nan=False)]

T = TypeVar("T")
_STRICT = pydantic.ConfigDict(extra="forbid", strict=True)
_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a number, and finite",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a table",
    "dataclass_type": "a table",
    "dataclass_exact_type": "a table",
}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config_class(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass that refuses wrong values with a `UserError`.

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


def current_name(cls: type, name: str) -> str:
    """A field's name of today, for one that may be an older one."""
    return str(getattr(cls, "RENAMED", {}).get(name, name))


def _with_current_names(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """Values under today's names; each old one is mentioned in a warning."""
    current: dict[str, Any] = {}
    for name, value in values.items():
        new = current_name(cls, name)
        if new in current or (new != name and new in values):
            raise UserError(f"{new} is given twice: {name} is its old name")
        if new != name:
            warnings.warn(f"{name} is now called {new}", RenamedWarning, stacklevel=4)
        current[new] = value
    return current


def _validation_message(problems: list[Any], cls: type) -> str:
    """What pydantic found first, told to a person."""
    kind = problems[0]["type"]
    if kind == "value_error":  # one of our own sentences
        return str(problems[0]["ctx"]["error"])
    name = str(problems[0]["loc"][0])
    if kind == "missing":
        return f"{name} is missing"
    value = problems[0]["input"]
    if kind == "literal_error":
        choices = get_args(cls.__dataclass_fields__[name].type)  # type: ignore[attr-defined]
        return str(unknown_name(name, value, map(str, choices)))
    same = [problem for problem in problems if problem["loc"][0] == name]
    if all(problem["type"] in (*_KINDS, "literal_error") for problem in same):
        wanted = [_KINDS.get(p["type"]) or p["ctx"]["expected"] for p in same]
        return f"{name}={_shown(value)} must be {' or '.join(wanted)}"
    return f"{name}={_shown(value)} is out of range: {problems[0]['msg'].removeprefix('Input ')}"


def _shown(value: object) -> str:
    """A value in a message: short, and never a failure of its own."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write out thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
