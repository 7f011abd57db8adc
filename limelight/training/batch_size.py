"""How large may a batch be? `--train.batch-tokens auto` tries on a GPU, and estimates on a CPU.

A GPU reports when it is full, so there batches grow until it does. A CPU shares its memory with
everything else on the machine and gains little from large batches.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from limelight.data.batching import BatchPlan, EpochPlan
from limelight.data.datasets import Batch
from limelight.device import is_out_of_memory

SMALLEST, LARGEST = 256, 2**20  # tokens
LARGEST_ON_CPU = 16_384
_CONTAINER_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of cgroups, new and old


def find_max_batch_tokens(fits: Callable[[int], bool], most: int) -> int:
    """Double until it does not fit; then a fifth less than the last that did, as a reserve."""
    tokens = SMALLEST
    if not fits(tokens):
        return tokens // 2
    while 2 * tokens <= most and fits(2 * tokens):
        tokens *= 2
    return tokens if tokens * 2 > most else max(SMALLEST, int(tokens * 0.8))


def worst_case_batches(batches: BatchPlan, tokens: int) -> list[Batch]:
    """Of all batches of this size the one with the most tokens, and the one with the longest."""
    batches = replace(batches, batch_tokens=tokens, workers=0).in_epoch(0)
    plan = batches.plan(0)
    if not plan:
        return []  # that there is nothing to train on is reported later
    widths = [int(batches.examples.lengths[rows].max()) for rows in plan]
    sizes = [len(rows) * width for rows, width in zip(plan, widths, strict=True)]
    made = EpochPlan(batches, 0, plan)
    return [made[int(np.argmax(sizes))], made[int(np.argmax(widths))]]


def fits_on_gpu(forward_backward: Callable[..., object], batches: BatchPlan, tokens: int) -> bool:
    """Try a forward and a backward pass."""
    try:
        for batch in worst_case_batches(batches, tokens):
            forward_backward(batch)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that programs may still allocate, in this container; if unknown, a modest number."""
    try:
        meminfo = (root / "proc" / "meminfo").read_text("ascii")
        available = 1024 * int(re.findall(r"MemAvailable: *([0-9]+) kB", meminfo)[0])
    except (OSError, IndexError):
        return 4 * 10**9
    limits = [root / "sys/fs/cgroup" / name for name in _CONTAINER_LIMITS]
    texts = [limit.read_text("ascii").strip() for limit in limits if limit.is_file()]
    return min([available, *(int(text) for text in texts if text.isdigit())])
