"""A stop of the walk, as data: one sentence, a formula with true numbers, pictures, and a check.

Terminal, page and figures only draw what is here. So a number that is shown is a number that is
here, and every one of them says which value of the model it is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

Cell = str | float | tuple[str, ...]  # a word, a number, or several things in a line
Scale = Literal["share", "signed", "size"]  # 0 to 1; around 0; from 0 up


@dataclass(frozen=True)
class Heatmap:
    """Numbers in rows and columns, each with a label.

    `names` has the value that all rows are from, or one for each row; `head` counts from 0, and
    `at` is the word whose row was taken, where a value has a row for each word.
    """

    title: str
    names: tuple[str, ...]
    values: Tensor  # R C
    rows: Sequence[str]
    columns: Sequence[str]
    axes: tuple[str, str] = ("", "number")
    scale: Scale = "signed"
    head: int | None = None
    at: int | None = None
    focus: tuple[int | None, int | None] = (None, None)
    sums: bool = False  # a last column that says what each row sums to


@dataclass(frozen=True)
class TableFigure:
    """Rows of words and numbers under headings. `share` is a column that is drawn as bars."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    share: int | None = None
    focus: int | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Formula:
    """An equation twice: in letters, and with this model's numbers, which `numbers` has in full."""

    letters: str
    filled: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """A value computed a second time, from what it is made of: how far apart the two are."""

    claim: str
    error: float
    within: float

    @property
    def passed(self) -> bool:
        """Whether they are the same, but for rounding; a NaN is not."""
        return self.error <= self.within


@dataclass(frozen=True)
class Stage:
    """One station: what happens here, with which numbers, and whether they are true."""

    name: str
    title: str
    what: str
    section: str  # of "Attention Is All You Need": where to read more
    formulas: Sequence[Formula] = ()
    figures: Sequence[Heatmap | TableFigure] = ()
    checks: Sequence[Check] = ()
    notes: Sequence[str] = ()
    place: str = ""  # layer and head, where that matters


def number(value: float, digits: int = 3) -> str:
    """A number as it is printed everywhere."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if abs(value) >= 10_000:
        return f"{value:.3g}"
    return f"{0.0 if abs(value) < 0.5 * 10**-digits else value:.{digits}f}"


def factor(value: float) -> str:
    """A number inside a product: negative ones in brackets."""
    return f"({number(value)})" if value < 0 else number(value)


def vector(values: Tensor, most: int = 4) -> str:
    """The first few numbers of many."""
    shown = " ".join(number(x) for x in values[:most].tolist())
    return f"[{shown}{' ...' if len(values) > most else ''}]"
