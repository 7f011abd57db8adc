"""One stage of the walk as data: a sentence, formulas with true numbers, figures, and checks.

Terminal, page and figures only render it, so every number they show is here, with the name of the
value of the model that it belongs to.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

Cell = str | float | tuple[str, ...]  # a word, a number, or several things in a line
_Scale = Literal["share", "signed", "size"]  # 0 to 1; around 0; from 0 up


@dataclass(frozen=True)
class Heatmap:
    """Numbers in rows and columns, each with a label.

    `names` holds the value that all rows are from, or one value per row; `head` counts from 0, and
    `at` is the token whose row is shown, where a value has a row per token.
    """

    title: str
    names: tuple[str, ...]
    values: Tensor  # R C
    rows: Sequence[str]
    columns: Sequence[str]
    axes: tuple[str, str] = ("", "number")
    scale: _Scale = "signed"
    head: int | None = None
    at: int | None = None
    focus: tuple[int | None, int | None] = (None, None)
    sums: bool = False  # add a last column with the sum of each row


@dataclass(frozen=True)
class TableFigure:
    """Rows of words and numbers under headings. `share` is the column that is drawn as bars."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    share: int | None = None
    focus: int | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Formula:
    """An equation in letters and with this model's numbers; `numbers` holds them unrounded."""

    letters: str
    filled: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """The difference between a value and the same value recomputed from its inputs."""

    claim: str
    error: float
    within: float

    @property
    def passed(self) -> bool:
        """Whether the two agree up to rounding; NaN never does."""
        return self.error <= self.within


@dataclass(frozen=True)
class Stage:
    """What happens at one stage, with which numbers, and whether they are true."""

    title: str
    what: str
    formulas: Sequence[Formula] = ()
    figures: Sequence[Heatmap | TableFigure] = ()
    checks: Sequence[Check] = ()
    notes: Sequence[str] = ()
    location: str = ""  # layer and head, where they matter
    name: str = ""  # as in `stage_table`
    section: str = ""  # of "Attention Is All You Need"


def number(value: float, digits: int = 3) -> str:
    """A number in the format used by all renderers."""
    if math.isnan(value):
        return "NaN"
    if abs(value) >= 10_000:  # or infinite
        return f"{value:.3g}"
    return f"{0.0 if abs(value) < 0.5 * 10**-digits else value:.{digits}f}"


def significant(value: float) -> str:
    """A number that may be far below 1: three significant digits there."""
    return f"{value:.3g}" if 0 < abs(value) < 1 else number(value)


def factor(value: float, shown: Callable[[float], str] = number) -> str:
    """A number inside a formula: negative ones in brackets."""
    text = shown(value)
    return f"({text})" if text.startswith("-") else text


def vector(values: Tensor, most: int = 4) -> str:
    """The first `most` numbers of a vector."""
    shown = " ".join(number(x) for x in values[:most].tolist())
    return f"[{shown}{' ...' if len(values) > most else ''}]"
