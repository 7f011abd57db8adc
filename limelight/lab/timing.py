"""How long something takes on the best device there is."""

import time
from collections.abc import Callable
from typing import Any

import torch


def best_device() -> str:
    """A GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def milliseconds(work: Callable[[], Any], repeats: int, device: str) -> list[float]:
    """How long some work takes, each time."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
    return times
