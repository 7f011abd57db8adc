"""Datasets of the Hugging Face hub, through its own library `datasets` where that is installed."""

from functools import lru_cache
from typing import Any

from limelight.errors import UserError


@lru_cache
def hub_splits(hub: str) -> dict[str, Any]:
    """What a dataset, "name" or "name:configuration", has: our names of splits and their rows.

    The library downloads and caches it; a validation split has several names in the wild.
    """
    try:
        import datasets
    except ImportError as error:
        raise UserError(f"hub={hub!r} needs the library datasets: pip install datasets") from error
    name, _, configuration = hub.partition(":")
    try:
        found = datasets.load_dataset(name, configuration or None)
    except Exception as error:  # the library raises many kinds, none of them its own
        raise UserError(f"the hub gave no dataset {hub}: {error}") from error
    ours = {"validation": "valid", "dev": "valid"}
    return {ours.get(split, split): rows for split, rows in found.items()}
