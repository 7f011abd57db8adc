"""Memory in large pages: a processor finds its way in them faster than in many small ones."""

import math
import mmap
import sys
import weakref
from contextlib import suppress
from threading import Lock

import torch
from torch import Tensor

_LARGE = 2**21  # bytes of a page
AT_ONCE = 2**22  # numbers for which pages are taken together
KEPT = 2**28  # bytes of used pages that are kept for the next who needs some


def alloc_huge_pages(like: Tensor, count: int) -> Tensor:
    """Memory for so many numbers, in large pages where the system has them."""
    size = count * like.element_size()
    if sys.platform != "linux" or size < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_empty(count)
    room = ROOMS.take(size)
    held = memoryview(room)
    weakref.finalize(held, ROOMS.give_back, room).atexit = False  # once no tensor lies there
    return torch.frombuffer(held, dtype=like.dtype, count=count)


class PagePool:
    """Pages that are used again: a system empties new ones first, a tenth of a beam search."""

    def __init__(self) -> None:
        self.free: list[mmap.mmap] = []
        self.lock = Lock()

    def take(self, size: int) -> mmap.mmap:
        """So many bytes, or more."""
        with self.lock:
            fitting = [room for room in self.free if size <= len(room) <= 4 * size]
            if fitting:
                room = min(fitting, key=len)
                self.free.remove(room)
                return room
            del self.free[:1]  # what fits nobody must not stay for ever
        try:
            return new_pages(size)
        except MemoryError:
            self.free.clear()
            return new_pages(size)

    def give_back(self, room: mmap.mmap) -> None:
        """Nobody uses it any more. This may be called at any moment, so it waits for no lock."""
        if sum(map(len, self.free)) + len(room) <= KEPT:
            self.free.append(room)


def new_pages(size: int) -> mmap.mmap:
    """So many bytes from the system."""
    if sys.platform != "linux":  # a type checker does not know that nobody asks there
        raise AssertionError("no other system has such pages")
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no {size:,} bytes are left") from error
    with suppress(OSError):  # a system without large ones
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


ROOMS = PagePool()


class Arena:
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
                self.free = alloc_huge_pages(like, max(count, AT_ONCE))
            room, self.free = self.free[:count], self.free[-(-count // 16) * 16 :]
            return room.view(shape)


SHELF = Arena()
