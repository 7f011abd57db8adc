"""Pictures with captions from files: what cannot be used is counted and named, and nothing is lost.

A folder has captions in `captions.jsonl` ({"image": "a.png", "caption": "..."} a line), or beside
each picture in a .txt file of its name. A .jsonl file alone names pictures relative to itself. The
archive of the npm package emoji-datasource-twitter (`npm pack` writes it) has its own list.
"""

import json
import os
import tarfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from limelight.errors import UserError
from limelight.files import bounded_lines, open_plain, read_bounded
from limelight.training.console import Report

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # no format that runs other programs
_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
_MODES = ("RGB", "RGBA", "L", "LA", "P", "PA", "1")  # that become RGB without guessing
_LARGEST_FILE, _LARGEST_SIDE, _LARGEST_AREA = 2**26, 2**14, 2**25  # bytes, pixels, pixels
_LONGEST_LINE = 2**16
_NAMED = 3  # files of each fault
_EMOJI = ("Animals & Nature", "Food & Drink", "Travel & Places", "Activities", "Objects")
_NO_SCENE = ("sky & weather", "time", "place-map", "hotel")  # no things, or all alike

_Found = tuple[str, str, Callable[[], IO[bytes]]]  # name, caption, and how to open the picture


@dataclass
class ImageStats:
    """What became of the pictures: `1 truncated (a.png), 2 too large (b.png, c.png)`."""

    used: int = 0
    rejected: dict[str, list[str]] = field(default_factory=dict)  # names by reason

    def reject(self, why: str, name: str) -> None:
        self.rejected.setdefault(why, []).append(name)

    def __str__(self) -> str:
        return ", ".join(
            f"{len(names):,} {why} ({', '.join(names[:_NAMED])}{', ...' * (len(names) > _NAMED)})"
            for why, names in self.rejected.items()
        )

    def check(self, most: float, report: Report) -> None:
        """Warn of what cannot be used; refuse if it is more than this share of all."""
        bad = sum(map(len, self.rejected.values()))
        if bad:
            said = f"{bad:,} of {self.used + bad:,} pictures cannot be used: {self}"
            if bad > most * (self.used + bad):
                raise UserError(f"{said}. Repair them, or allow more with --train.max-unusable")
            report.warn(said)


def captioned(path: Path, stats: ImageStats) -> Iterator[_Found]:
    """All pictures that have a caption; what lacks one, or its picture, is counted."""
    if not path.exists():
        raise UserError(f"there is no {path}: name a folder of pictures with captions, or a .jsonl")
    if path.suffix == ".tgz":
        return _from_package(path)
    if path.suffix == ".jsonl":
        return _from_jsonl(path, stats)
    if not path.is_dir():
        raise UserError(f"{path} is neither a folder of pictures nor a .jsonl with their captions")
    listed = path / "captions.jsonl"
    return _from_jsonl(listed, stats) if listed.is_file() else _from_texts(path, stats)


def _from_jsonl(path: Path, stats: ImageStats) -> Iterator[_Found]:
    with open_plain(path) as file:
        for number, line in enumerate(bounded_lines(file, _LONGEST_LINE), start=1):
            where = f"{path.name}:{number}"
            try:
                values = json.loads(line)
                name, caption = values["image"], values["caption"]
                if not isinstance(name, str) or not isinstance(caption, str):
                    raise ValueError
            except (ValueError, KeyError, TypeError, RecursionError):
                stats.reject('not {"image": ..., "caption": ...}', where)
                continue
            if Path(name).is_absolute() or ".." in Path(name).parts:
                stats.reject("outside of the folder", name)
            elif not os.path.isfile(path.parent / name):  # unlike Path's, never an error
                stats.reject("with no file of that name", name)
            else:
                yield name, caption, partial(open_plain, path.parent / name)


def _from_texts(path: Path, stats: ImageStats) -> Iterator[_Found]:
    files = sorted(path.rglob("*"))
    pictures = [file for file in files if file.suffix.lower() in _ENDINGS]
    texts = {file for file in files if file.suffix == ".txt"}
    for file in sorted(texts - {file.with_suffix(".txt") for file in pictures}):
        stats.reject("captions without a picture", file.name)
    for file in pictures:
        name, text = str(file.relative_to(path)), file.with_suffix(".txt")
        try:
            caption = read_bounded(text, _LONGEST_LINE) if text in texts else None
        except UserError:
            stats.reject("with an unreadable .txt", name)
            continue
        if caption is None:
            stats.reject("without a .txt", name)
        else:
            yield name, caption, partial(open_plain, file)


def _from_package(path: Path) -> Iterator[_Found]:
    """Animals, food, things and vehicles of emoji-datasource-twitter, by their short names."""
    try:
        with tarfile.open(path) as archive:
            listed = archive.extractfile("package/emoji.json")
            entries: list[dict[str, Any]] = json.load(listed) if listed else []
            members = {m.name: m for m in archive.getmembers() if m.name.endswith(".png")}
            for entry in entries:
                name = entry["name"].lower()
                member = members.get(f"package/img/twitter/64/{entry['image']}")
                known = entry["category"] in _EMOJI and entry["subcategory"] not in _NO_SCENE
                if (
                    member is None
                    or not known
                    or len(name.split()) > 2
                    or not name.replace(" ", "").isalpha()
                ):
                    continue
                data = archive.extractfile(member)
                content = data.read(_LARGEST_FILE) if data else b""
                yield name, name, partial(BytesIO, content)
    except (tarfile.TarError, KeyError, ValueError, OSError, EOFError) as error:
        raise UserError(
            f"{path} is not the archive of emoji-datasource-twitter: {error!s:.100}"
        ) from error


def read_picture(
    found: _Found, size: int, stats: ImageStats, crop: bool = True
) -> NDArray[np.uint8] | None:
    """RGBA, size x size, or None. The declared size is checked before anything is decoded.

    `crop` fills the square with the middle of the picture; else all of it is inside the square.
    """
    from PIL import Image, ImageOps

    name, _, opened = found
    try:
        with warnings.catch_warnings(), opened() as file:
            warnings.simplefilter("error")  # Pillow only warns of some bombs
            if file.seek(0, os.SEEK_END) > _LARGEST_FILE:
                raise Image.DecompressionBombError
            with Image.open(file, formats=_FORMATS) as image:
                width, height = image.size
                if max(width, height) > _LARGEST_SIDE or width * height > _LARGEST_AREA:
                    stats.reject("too large", f"{name}, {width} x {height}")
                    return None
                if image.mode not in _MODES:
                    stats.reject("not RGB", f"{name}, {image.mode}")
                    return None
                full = image.convert("RGBA")
        fit = ImageOps.fit if crop else ImageOps.pad
        return np.asarray(fit(full, (size, size), Image.Resampling.LANCZOS))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        stats.reject("too large", name)
    except UserError:
        stats.reject("not a plain file", name)
    except (OSError, SyntaxError, ValueError, EOFError, Warning) as error:
        cut = "truncated" in str(error)
        stats.reject("truncated" if cut else "not readable as a picture", name)
    return None


def on_white(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """RGBA becomes RGB."""
    colour, alpha = pixels[..., :3].astype(np.float32), pixels[..., 3:] / np.float32(255)
    return (colour * alpha + 255 * (1 - alpha)).round().astype(np.uint8)
