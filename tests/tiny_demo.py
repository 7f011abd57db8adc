"""The tour in seconds: its chatbot is tiny, and learns next to nothing."""

import pytest

from limelight.workflows import demo
from limelight.workflows.train import train

SMALL = ["model.d_model=32", "model.d_ff=64", "train.batch_tokens=512", "train.warmup=1"]


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chatbot that is made in three steps, or in five; all else is as it is."""
    monkeypatch.setattr(demo, "STEPS_IF_QUICK", 3)
    monkeypatch.setattr(demo, "STEPS", 5)
    monkeypatch.setattr(demo, "train", lambda r, run, changes: train(r, run, [*changes, *SMALL]))
