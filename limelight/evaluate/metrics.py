"""What a score is: a number, which way is better, and how it was computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from limelight.errors import UserError

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Measure:
    """One score of one system.

    Where a score can be computed in several ways the signature tells which: only scores with the
    same signature can be compared.
    """

    name: str
    score: float
    better: Better = "higher"
    signature: str = ""


def check_lines(outputs: Sequence[str], wanted: Sequence[str], kind: str = "references") -> None:
    """Every output is held against its own line; a file that is shorter would shift them all."""
    if len(outputs) != len(wanted):
        raise UserError(
            f"there are {len(outputs):,} outputs and {len(wanted):,} {kind}: "
            "there must be one for each"
        )
    if not outputs:
        raise UserError(f"there is nothing to score: no outputs and no {kind}")
