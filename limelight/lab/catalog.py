"""The experiments, by name."""

from typing import Any

from limelight.errors import UserError, unknown_name
from limelight.lab import (
    ablate,
    diagnose,
    distance,
    duel,
    gradient,
    heads,
    induction,
    length,
    loop,
    parallel,
    scale,
    scaling,
)
from limelight.lab.experiment import Experiment
from limelight.lab.subject import fingerprint

_MODULES: tuple[Any, ...] = (ablate, diagnose, distance, duel, gradient, heads)
_MODULES += (induction, length, loop, parallel, scale, scaling)
EXPERIMENTS: dict[str, Experiment] = {m.__name__.rpartition(".")[2]: m for m in _MODULES}
SUBJECTS = {  # what some of them examine, and what if nothing is named; "": it must be
    "heads": ("RUN", "en-de"),
    "diagnose": ("RECIPE", ""),
    "duel": ("RECIPE", "reverse"),
    "ablate": ("RECIPE", "reverse"),
}


def find(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def subject_of(name: str, subject: str) -> dict[str, str] | None:
    """What this experiment examines, as its results record it; None if nothing."""
    if name not in SUBJECTS:
        if subject:
            examining = ", ".join(SUBJECTS)
            raise UserError(f"lab {name} takes no run or recipe, as {subject!r}: {examining} do")
        return None
    kind, default = SUBJECTS[name]
    subject = subject or default
    if not subject:
        raise UserError(
            f"lab {name} examines a {kind}: name one, as in limelight lab {name} reverse"
        )
    return {"subject": subject, "fingerprint": fingerprint(kind, subject)}
