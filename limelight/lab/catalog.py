"""The experiments, by name."""

from limelight.errors import unknown_name
from limelight.lab import distance, gradient, induction, loop, parallel
from limelight.lab.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "distance": distance,
    "gradient": gradient,
    "induction": induction,
    "loop": loop,
    "parallel": parallel,
}


def find(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
