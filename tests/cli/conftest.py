"""Tiny trained models, those of the tasks' tests."""

from tests.tasks.conftest import model, run  # noqa: F401
