"""Limelight: the Transformer of "Attention Is All You Need", whole and in the open."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limelight.loading import load
    from limelight.workflows.train import train

__version__ = "0.1.0"

__all__ = ["load", "train"]


def __getattr__(name: str) -> Any:
    """`limelight.train` and `limelight.load`, imported when they are asked for: torch is slow."""
    if name == "load":
        from limelight.loading import load

        return load
    if name == "train":
        from limelight.workflows.train import train

        return train
    raise AttributeError(f"module 'limelight' has no attribute {name!r}")
