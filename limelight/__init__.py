"""Limelight: the Transformer of "Attention Is All You Need", whole and in the open."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limelight.extensions import extend
    from limelight.loading import load, save_run
    from limelight.tasks.translate import Constraints
    from limelight.workflows.train import train

__version__ = "0.1.0"

__all__ = ["Constraints", "extend", "load", "save_run", "train"]


def __getattr__(name: str) -> Any:
    """Imports torch only when one of these is used: it is slow."""
    if name not in __all__:
        raise AttributeError(f"module 'limelight' has no attribute {name!r}")
    if name == "train":
        from limelight.workflows.train import train

        return train
    from limelight.extensions import extend
    from limelight.loading import load, save_run
    from limelight.tasks.translate import Constraints

    return {"Constraints": Constraints, "extend": extend, "load": load, "save_run": save_run}[name]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
