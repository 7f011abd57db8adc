"""Limelight: the Transformer of "Attention Is All You Need", whole and in the open."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

__all__ = ["load", "train"]


def __getattr__(name: str) -> Any:
    """`limelight.train` and `limelight.load`, imported when they are asked for: torch is slow."""
    if name in __all__:
        module = {"load": "loaded", "train": "experiment"}[name]
        return getattr(import_module(f"limelight.{module}"), name)
    raise AttributeError(f"module 'limelight' has no attribute {name!r}")
