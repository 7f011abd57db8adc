"""A corpus as integers on disk: tokenised once, memory-mapped ever after.

A store is a folder named after a hash of all it depends on: the files' contents, how they are read,
and the tokenizer. It is written under a temporary name and renamed when it is complete. So a store
that exists is complete, an interrupted process leaves no store, and of two processes that make the
same one the first to finish wins.
"""

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path
from sys import intern
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from limelight.data.config import SPLITS, DataConfig, num_columns
from limelight.data.corpora import corpora_for_split, hub_rows, read_split
from limelight.data.input_files import cached_sha256
from limelight.data.lines import Example, Fragment, LineStats
from limelight.data.readers import sides_of
from limelight.data.tokenizer import Tokenizer
from limelight.errors import UserError, path_from_option
from limelight.files import atomic_folder, sync

_FORMAT = 2  # of the arrays: another one is another name
AT_ONCE = 4096  # examples that are tokenised together: enough for all cores, little memory
_CHARACTERS = 2**21  # of them, if they are long


class Column:
    """All sequences of one side, end to end, and the offset of each."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self.tokens = _read_array(folder / f"{name}.tokens", dtype)
        self.offsets = _read_array(folder / f"{name}.offsets", "<i8")

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """How many tokens each has: four bytes a text, and only for those who need all of them."""
        lengths = np.empty(len(self.offsets) - 1, np.int32)
        return np.subtract(self.offsets[1:], self.offsets[:-1], out=lengths, casting="same_kind")

    def __getitem__(self, i: int) -> NDArray[Any]:
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    def gather(self, rows: NDArray[np.int64], width: int, pad: int) -> NDArray[np.int64]:
        """These rows side by side, B width, padded on the right. Nothing loops per token."""
        position = np.arange(width)
        inside = position < self.lengths[rows, None]
        index = np.where(inside, self.offsets[rows, None] + position, 0)
        return np.where(inside, self.tokens[index], pad).astype(np.int64)


def _read_array(path: Path, dtype: str) -> NDArray[Any]:
    """Memory-map a file; numpy cannot map an empty one, and indexes plain arrays faster."""
    return np.asarray(np.memmap(path, dtype, "r")) if path.stat().st_size else np.empty(0, dtype)


class TokenStore:
    """One split of one corpus, tokenised."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta: dict[str, Any] = json.loads((folder / "facts.json").read_text("utf-8"))
        names = [str(i) for i in range(self.meta["columns"])]
        self.columns = [Column(folder, name, self.meta["dtype"]) for name in names]

    def __len__(self) -> int:
        return int(self.meta["examples"])

    def __reduce__(self) -> tuple[type["TokenStore"], tuple[Path]]:
        # Another process opens the files itself: nothing is copied.
        return TokenStore, (self.folder,)

    @property
    def tally(self) -> LineStats:
        tally = self.meta["tally"]
        rejected, repaired = Counter(tally["rejected"]), Counter(tally["repaired"])
        examples = tally.get("examples", {})  # 0.1.0 kept none
        return LineStats(tally["read"], tally["used"], rejected, repaired, examples)


def open_or_build(
    data: DataConfig,
    split: str,
    tokenizer: Tokenizer,
    stores: Path,
    progress: Callable[[int], object] = lambda _: None,
) -> TokenStore:
    """The store of this split, built now or found; `progress` is called with examples done."""
    with path_from_option("LIMELIGHT_CACHE"):
        stores.mkdir(parents=True, exist_ok=True)
    key = _cache_key(data, split, tokenizer)
    folder = stores / key
    if not _is_complete(folder):
        _remove_stale_temp(stores)
        try:
            with atomic_folder(folder) as unfinished:
                _write(data, split, tokenizer, unfinished, progress)
                if _cache_key(data, split, tokenizer) != key:
                    raise UserError(f"files of data.{split} changed while they were read: retry")
        except OSError:
            if not _is_complete(folder):  # else another process has just made the same one
                raise
    return TokenStore(folder)


def _is_complete(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    try:
        meta = json.loads((folder / "facts.json").read_text("utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in meta["sizes"]}
        if sizes == meta["sizes"] and "rejected" in meta["tally"]:  # 0.1.0 had another word
            return True
    except (OSError, ValueError, KeyError):
        pass
    shutil.rmtree(folder)
    return False


def _remove_stale_temp(stores: Path) -> None:
    for path in stores.glob("*.tmp-*"):
        if time.time() - path.stat().st_mtime > 86_400:  # younger ones may be at work
            shutil.rmtree(path, ignore_errors=True)


def _write(
    data: DataConfig, split: str, tokenizer: Tokenizer, folder: Path, progress: Callable[[int], Any]
) -> None:
    columns = num_columns(data)
    sides = (tokenizer.source if columns == 2 else tokenizer, tokenizer)
    dtype = "<u2" if max(map(len, sides)) <= 2**16 else "<u4"
    tally = LineStats()
    labels: list[str] = []
    writers = [_ColumnWriter(folder, str(i), dtype) for i in range(columns)]
    counts = []
    for part in corpora_for_split(data, split) or (data,):  # read_split rejects the last
        before = tally.used
        for chunk in chunks(read_split(part, split, tally)):
            ends = [not isinstance(example, Fragment) for example in chunk]
            for i, (writer, own) in enumerate(zip(writers, sides, strict=False)):
                tag = [own.tag(part.tag)] if part.tag and i == 0 else []
                writer.add(own.encode_many([example[i] for example in chunk]), tag, ends)
            if data.kind == "labelled":
                labels += [intern(example[1]) for example in chunk]  # one string for each class
            progress(len(chunk))
        counts.append(tally.used - before)
    for writer in writers:
        writer.close()
    meta = {
        "examples": tally.used,
        "parts": counts,
        "columns": columns,
        "dtype": dtype,
        "sizes": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
        "labels": labels,
        "tally": {**tally.counts, "examples": tally.examples},
    }
    (folder / "facts.json").write_text(json.dumps(meta), "utf-8")
    for path in folder.iterdir():
        sync(path)


class _ColumnWriter:
    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self.tokens: BinaryIO = (folder / f"{name}.tokens").open("wb")
        self.offsets: BinaryIO = (folder / f"{name}.offsets").open("wb")
        self.dtype = dtype
        self.end = 0
        self.ended = True  # whether the last sequence is complete
        self.offsets.write(np.zeros(1, "<i8").tobytes())

    def add(self, sequences: list[list[int]], tag: list[int], ends: list[bool]) -> None:
        """Write sequences; one that does not end is continued by the next."""
        if tag:
            begins = [self.ended, *ends[:-1]]
            sequences = [tag + s if new else s for new, s in zip(begins, sequences, strict=True)]
        self.ended = ends[-1]
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        offsets = self.end + np.cumsum(lengths)
        self.offsets.write(offsets[np.array(ends)].astype("<i8").tobytes())
        flat = np.fromiter(chain.from_iterable(sequences), self.dtype, int(lengths.sum()))
        self.tokens.write(flat.tobytes())
        self.end = int(offsets[-1])

    def close(self) -> None:
        self.tokens.close()
        self.offsets.close()


def chunks(examples: Iterator[Example]) -> Iterator[list[Example]]:
    """Examples in lists of at most AT_ONCE, or fewer long ones: in fragments, a file is one."""
    chunk: list[Example] = []
    size = 0
    for example in examples:
        chunk.append(example)
        size += sum(map(len, example))
        if len(chunk) == AT_ONCE or size > _CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _cache_key(data: DataConfig, split: str, tokenizer: Tokenizer) -> str:
    # Run folders keep it, to know their data again when they resume: it must not change.
    parts = [_content_of(part, split) for part in corpora_for_split(data, split)]
    made_of = [_FORMAT, data.kind, parts, tokenizer.hash]
    return sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:32]


def _content_of(data: DataConfig, split: str) -> list[Any]:
    pictures = ("scenes", "scene_objects")  # are not stored as tokens
    elsewhere = (*SPLITS, "corpora", "weight", *pictures)
    first = {new: old for old, new in DataConfig.RENAMED.items()}  # settings by their first names
    settings = {first.get(k, k): v for k, v in asdict(data).items() if k not in elsewhere}
    for added in ("stream", "encoding", "delimiter"):  # since 0.1.0, whose runs had the defaults
        if not settings[added]:
            del settings[added]
    names = [file for side in sides_of(data, split) for file in side]
    files: list[Any] = [[name.suffixes, cached_sha256(name, unpack=False)[0]] for name in names]
    if data.hub:
        files = [hub_rows(data, split)._fingerprint]  # the library's own hash of the content
    part = split if data.toy or data.hold_out or data.valid_tail else ""
    return [settings, part, files]
