"""Limelight: the Transformer of "Attention Is All You Need", whole and in the open."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limelight.loading import load
    from limelight.tasks.translate import Constraints
    from limelight.workflows.train import train

__version__ = "0.1.0"

__all__ = ["Constraints", "load", "train"]


def __getattr__(name: str) -> Any:
    """Imports torch only when `load`, `train` or `Constraints` is used: it is slow."""
    if name == "load":
        from limelight.loading import load

        return load
    if name == "train":
        from limelight.workflows.train import train

        return train
    if name == "Constraints":
        from limelight.tasks.translate import Constraints

        return Constraints
    raise AttributeError(f"module 'limelight' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
