"""Tiny trained models, those of the tasks' tests."""

from tests.tasks.conftest import run  # noqa: F401  (a fixture)
