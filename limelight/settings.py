"""Tables of settings: frozen dataclasses whose every field has a type and bounds.

Whether the values come from a file, from the command line or from Python, pydantic checks them, and
what is wrong is told in one sentence with the value and the nearest right choice.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Annotated, Any, TypeVar, cast, dataclass_transform, get_args

import pydantic
from pydantic.dataclasses import dataclass

from limelight.errors import UserError, unknown

LARGEST = 2**40  # of any count: beyond every corpus and model, and far from overflow
Count = Annotated[int, pydantic.Field(ge=0, le=LARGEST)]
Size = Annotated[int, pydantic.Field(ge=1, le=2**24)]  # of a part of a model: it will be allocated
Fraction = Annotated[float, pydantic.Field(ge=0, lt=1, allow_inf_nan=False)]
Positive = Annotated[float, pydantic.Field(gt=0, le=1e12, allow_inf_nan=False)]

T = TypeVar("T")
STRICT = pydantic.ConfigDict(extra="forbid", strict=True)
KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a number, and finite",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a table",
    "dataclass_type": "a table",
}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def table(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass that refuses wrong values with a `UserError`."""
    checked = dataclass(cls, frozen=True, kw_only=True, config=STRICT)
    build: Callable[..., None] = checked.__init__

    @wraps(build)
    def __init__(self: T, *positional: Any, **values: Any) -> None:  # noqa: N807
        try:
            build(self, *positional, **values)
        except pydantic.ValidationError as error:
            problems = error.errors()
            problems.sort(key=lambda problem: problem["type"] != "unexpected_keyword_argument")
            raise UserError(sentence(problems[0], cls)) from None  # a misspelt name comes first

    cast(Any, checked).__init__ = __init__
    return cast(type[T], checked)


def sentence(problem: Any, cls: type) -> str:
    """What pydantic found, told to a person."""
    kind, value = problem["type"], problem["input"]
    place = [str(part) for part in problem["loc"]]
    name = ".".join(place)
    if kind == "value_error":  # one of our own sentences
        return str(problem["ctx"]["error"])
    if kind == "unexpected_keyword_argument":
        return str(unknown("setting", name, [field.name for field in fields(cls)]))
    if kind == "missing":
        return f"{name} is missing"
    if kind == "literal_error":
        choices = get_args(cls.__dataclass_fields__[place[0]].type)  # type: ignore[attr-defined]
        return str(unknown(name, value, map(str, choices)))
    if kind in KINDS:
        return f"{name}={value!r} must be {KINDS[kind]}"
    return f"{name}={value!r} is out of range: {problem['msg'].removeprefix('Input ')}"
