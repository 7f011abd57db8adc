"""Limelight: the Transformer of "Attention Is All You Need", whole and in the open."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limelight.loading import load
    from limelight.tasks.translate import Constraints
    from limelight.workflows.train import train

__version__ = "0.1.0"

__all__ = ["Constraints", "load", "train"]
_MODULES = {"Constraints": "tasks.translate", "load": "loading", "train": "workflows.train"}


def __getattr__(name: str) -> Any:
    """Imports torch only when `load`, `train` or `Constraints` is used: it is slow."""
    if name not in _MODULES:
        raise AttributeError(f"module 'limelight' has no attribute {name!r}")
    return getattr(import_module(f"limelight.{_MODULES[name]}"), name)
