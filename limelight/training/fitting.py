"""How large may a batch be? `--train.batch-tokens auto` tries, where trying does no harm.

A GPU says when it is full, so there batches grow until it does. A CPU shares its memory with
everything else on the machine and gains little from large batches: there the size is estimated.
"""

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from limelight.text.batches import Batches, EpochPlan
from limelight.text.examples import Batch
from limelight.training.device import is_out_of_memory

SMALLEST, LARGEST = 256, 2**20  # tokens
LARGEST_ON_CPU = 16_384


def largest_that_fits(fits: Callable[[int], bool], most: int) -> int:
    """Double until it does not fit; then a fifth less than what did, for what still may come."""
    tokens = SMALLEST
    if not fits(tokens):
        return tokens // 2
    while 2 * tokens <= most and fits(2 * tokens):
        tokens *= 2
    return tokens if tokens * 2 > most else int(tokens * 0.8)


def hardest(batches: Batches, tokens: int) -> list[Batch]:
    """Of all batches with so many tokens the one with the most, and the one with the longest."""
    batches = replace(batches, batch_tokens=tokens, workers=0)
    plan = batches.plan(0)
    widths = [int(batches.examples.lengths[rows].max()) for rows in plan]
    sizes = [len(rows) * width for rows, width in zip(plan, widths, strict=True)]
    made = EpochPlan(batches, 0, plan)
    return [made[int(np.argmax(sizes))], made[int(np.argmax(widths))]]


def fits_on_gpu(learn: Callable[[Batch], object], batches: Batches, tokens: int) -> bool:
    """Try a forward and a backward pass."""
    try:
        for batch in hardest(batches, tokens):
            learn(batch)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def memory_of_machine() -> int:
    """Bytes that are free for programs; where the system does not say, a modest machine's."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 4 * 10**9
