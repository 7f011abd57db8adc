"""Memory in large pages: a processor finds its way in them faster than in many small ones."""

import math
import mmap
import sys
from contextlib import suppress
from threading import Lock

import torch
from torch import Tensor

LARGE = 2**21  # bytes of a page
AT_ONCE = 2**22  # numbers for which pages are taken together


def in_large_pages(like: Tensor, count: int) -> Tensor:
    """New memory for so many numbers, in large pages where the system has them."""
    size = count * like.element_size()
    if sys.platform == "win32" or size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_empty(count)
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system without them
        room.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(room, dtype=like.dtype)


class Shelf:
    """Large pages that many small matrices share; pages that nobody writes to take no memory."""

    def __init__(self) -> None:
        self.free = torch.empty(0)
        self.lock = Lock()

    def place(self, like: Tensor, *shape: int) -> Tensor:
        """Room for a matrix of the same kind of numbers."""
        count = math.prod(shape)
        # What is made in inference mode could not be written to outside of it.
        with self.lock, torch.inference_mode(mode=False):
            if self.free.dtype != like.dtype or self.free.numel() < count:
                self.free = in_large_pages(like, max(count, AT_ONCE))
            room, self.free = self.free[:count], self.free[-(-count // 16) * 16 :]
            return room.view(shape)


SHELF = Shelf()
