"""The experiments, by name."""

from limelight.errors import unknown_name
from limelight.lab import distance, gradient, induction, length, loop, parallel, scale, scaling
from limelight.lab.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "distance": distance,
    "gradient": gradient,
    "induction": induction,
    "length": length,
    "loop": loop,
    "parallel": parallel,
    "scale": scale,
    "scaling": scaling,
}


def find(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
