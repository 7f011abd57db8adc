"""Untrusted binary files: every size is compared with what the file holds before it is used."""

import mmap
import struct
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from limelight.errors import UserError
from limelight.files import open_plain


class BinaryReader:
    """Reads a memory-mapped file from front to back, and nothing beyond its end."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0
        try:
            with open_plain(path) as file:  # a private copy: nobody can write into the file
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except ValueError as error:
            raise UserError(f"{path} is empty") from error
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}") from error

    def __len__(self) -> int:
        return len(self.data)

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def error(self, what: str) -> UserError:
        return UserError(f"{self.path}: {what}; it is damaged, or of another format")

    def skip(self, count: int) -> int:
        """Go on by `count` bytes, and return where these begin."""
        if not 0 <= count <= self.left:
            raise self.error(f"{count} bytes are expected at byte {self.at}, and {self.left} left")
        self.at += count
        return self.at - count

    def bytes(self, count: int) -> bytes:
        start = self.skip(count)
        return self.data[start : start + count]

    def text(self, count: int) -> str:
        start = self.at
        try:
            return self.bytes(count).decode()
        except UnicodeDecodeError as error:
            raise self.error(f"the name at byte {start} is not text in UTF-8") from error

    def numbers(self, layout: str) -> tuple[int, ...]:
        """Little-endian integers, as `struct` spells them: "QQ" are two of 64 bits."""
        return struct.unpack(f"<{layout}", self.bytes(struct.calcsize(f"<{layout}")))

    def number(self, layout: str, most: int, what: str) -> int:
        """An integer from 0 to `most`."""
        (value,) = self.numbers(layout)
        if not 0 <= value <= most:
            raise self.error(f"{what} is {value}, and may be from 0 to {most}")
        return value

    def array(self, kind: DTypeLike, *shape: int) -> NDArray[np.generic]:
        """An array of the file's own memory, not a copy."""
        dtype = np.dtype(kind)
        if min(shape, default=0) < 0:
            raise self.error(f"an array has the shape {shape}")
        count = prod(shape)
        start = self.skip(count * dtype.itemsize)
        return np.frombuffer(self.data, dtype, count, start).reshape(shape)
