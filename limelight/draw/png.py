"""Pictures as PNG files, and as a preview in terminals."""

import base64
import io
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from limelight.files import atomic_write

if TYPE_CHECKING:
    from rich.text import Text

Pixels = NDArray[np.uint8]  # N S S 3
_SHOWN = 256  # pixels: small pictures are enlarged to this
_GAP = 1  # pixel of a small picture, between two of a grid


def to_pixels(pictures: Tensor) -> Pixels:
    """Pictures (B 3 S S, from 0 to 1) as bytes, B S S 3."""
    values = (pictures.float().clamp(0, 1) * 255).round().byte()
    return values.movedim(1, -1).cpu().numpy()


def as_grid(pixels: Pixels, columns: int = 0) -> Pixels:
    """Pictures side by side, as square as it can be."""
    count, size = len(pixels), pixels.shape[1]
    columns = columns or math.ceil(math.sqrt(count))
    rows, step = -(-count // columns), size + _GAP
    around = ((0, rows * columns - count), (0, _GAP), (0, _GAP), (0, 0))
    padded = np.pad(pixels, around, constant_values=128)
    grid = padded.reshape(rows, columns, step, step, 3).swapaxes(1, 2)
    return grid.reshape(rows * step, columns * step, 3)[:-_GAP, :-_GAP]


def png_bytes(pixels: Pixels, factor: int = 1) -> bytes:
    """A picture (H W 3) as a PNG, each pixel `factor` wide."""
    from PIL import Image

    large = pixels.repeat(factor, axis=0).repeat(factor, axis=1)
    buffer = io.BytesIO()
    Image.fromarray(large).save(buffer, "PNG")
    return buffer.getvalue()


def base64_pngs(pixels: Pixels) -> list[str]:
    """Pictures (N H W 3) as texts."""
    return [base64.b64encode(png_bytes(one)).decode() for one in pixels]


def write_png(path: Path, pixels: Pixels, columns: int = 0) -> None:
    """Write pictures (N S S 3) as one file: a grid if there are several."""
    factor = max(1, _SHOWN // pixels.shape[1])
    atomic_write(path, png_bytes(as_grid(pixels, columns), factor))


def preview(pixels: Pixels) -> "Text":
    """A picture (H W 3) as coloured half blocks: two pixels in each character."""
    from rich.text import Text

    text = Text()
    for upper, lower in zip(pixels[0:-1:2], pixels[1::2], strict=False):
        for a, b in zip(upper.tolist(), lower.tolist(), strict=True):
            text.append("▀", f"rgb({a[0]},{a[1]},{a[2]}) on rgb({b[0]},{b[1]},{b[2]})")
        text.append("\n")
    return text
