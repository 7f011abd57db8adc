"""Memory in huge pages: a processor translates their addresses faster than those of small ones."""

import math
import mmap
import sys
import weakref
from contextlib import suppress
from threading import Lock

import torch
from torch import Tensor

_HUGE_PAGE = 2**21  # bytes
ARENA_SIZE = 2**22  # numbers that an arena allocates at once
KEPT = 2**28  # bytes of free pages that are kept for reuse


def alloc_huge_pages(like: Tensor, count: int) -> Tensor:
    """Memory for `count` numbers, in huge pages where the system has them."""
    size = count * like.element_size()
    if sys.platform != "linux" or size < _HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_empty(count)
    pages = POOL.acquire(size)
    held = memoryview(pages)
    weakref.finalize(held, POOL.release, pages).atexit = False  # once no tensor uses them
    return torch.frombuffer(held, dtype=like.dtype, count=count)


class PagePool:
    """Reuses pages: the system clears new ones first, which took a tenth of a beam search."""

    def __init__(self) -> None:
        self.free: list[mmap.mmap] = []
        self.lock = Lock()

    def acquire(self, size: int) -> mmap.mmap:
        with self.lock:
            fitting = [pages for pages in self.free if size <= len(pages) <= 4 * size]
            if fitting:
                pages = min(fitting, key=len)
                self.free.remove(pages)
                return pages
            del self.free[:1]  # or pages that never fit would stay for ever
        try:
            return new_pages(size)
        except MemoryError:
            self.free.clear()
            return new_pages(size)

    def release(self, pages: mmap.mmap) -> None:
        """Keep pages for reuse. A finalizer may run at any moment, so this waits for no lock."""
        if sum(map(len, self.free)) + len(pages) <= KEPT:
            self.free.append(pages)


def new_pages(size: int) -> mmap.mmap:
    """This many bytes from the system."""
    if sys.platform != "linux":  # for the type checker: `alloc_huge_pages` has asked already
        raise AssertionError("only Linux has these pages")
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no {size:,} bytes are left") from error
    with suppress(OSError):  # a system without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


POOL = PagePool()


class Arena:
    """Huge pages that many small matrices share; pages that were never written need no memory."""

    def __init__(self) -> None:
        self.free = torch.empty(0)
        self.lock = Lock()

    def empty(self, like: Tensor, *shape: int) -> Tensor:
        """An uninitialized matrix of the dtype of `like`."""
        count = math.prod(shape)
        # A tensor made in inference mode could not be written to outside of it.
        with self.lock, torch.inference_mode(mode=False):
            if self.free.dtype != like.dtype or self.free.numel() < count:
                self.free = alloc_huge_pages(like, max(count, ARENA_SIZE))
            matrix, self.free = self.free[:count], self.free[-(-count // 16) * 16 :]
            return matrix.view(shape)


WEIGHTS = Arena()
