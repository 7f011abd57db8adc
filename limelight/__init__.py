"""Limelight: the Transformer of "Attention Is All You Need", whole and in the open."""

__version__ = "0.1.0"
