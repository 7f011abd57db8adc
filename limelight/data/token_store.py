"""A corpus as integers on disk: tokenised once, read in place ever after.

A store is a folder named after a hash of all it depends on: the files' contents, how they are read,
and the tokenizer. It is made under another name and renamed when it is whole. So a store that
exists is complete, an interrupted one leaves nothing that could be taken for one, and of two
processes that make the same one the first to finish wins.
"""

import json
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from hashlib import file_digest, sha256
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from limelight.data.config import DataConfig, corpora_for_split, files_of, hub_rows, num_columns
from limelight.data.corpora import read_split
from limelight.data.readers import Example, LineStats, check_regular_file
from limelight.data.tokenizer import Tokenizer
from limelight.errors import UserError, path_from_option
from limelight.files import atomic_write, sync, with_filename

_FORMAT = 3  # a store written by another version of this file has another name
AT_ONCE = 4096  # examples that are tokenised together: enough for all cores, little memory


class _Column:
    """All sequences of one side, end to end, and where each begins."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self.tokens = _read_array(folder / f"{name}.tokens", dtype)
        self.offsets = _read_array(folder / f"{name}.offsets", "<i8")
        self.lengths: NDArray[np.int64] = np.diff(self.offsets)

    def __getitem__(self, i: int) -> NDArray[Any]:
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    def gather(self, rows: NDArray[np.int64], width: int, pad: int) -> NDArray[np.int64]:
        """These rows side by side, B width, padded on the right. Nothing loops per token."""
        place = np.arange(width)
        inside = place < self.lengths[rows, None]
        index = np.where(inside, self.offsets[rows, None] + place, 0)
        return np.where(inside, self.tokens[index], pad).astype(np.int64)


def _read_array(path: Path, dtype: str) -> NDArray[Any]:
    """A file as an array that stays on disk; numpy cannot map an empty one."""
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)


class TokenStore:
    """One split of one corpus, tokenised."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta: dict[str, Any] = json.loads((folder / "facts.json").read_text("utf-8"))
        names = [str(i) for i in range(self.meta["columns"])]
        self.columns = [_Column(folder, name, self.meta["dtype"]) for name in names]

    def __len__(self) -> int:
        return int(self.meta["examples"])

    def __reduce__(self) -> tuple[type["TokenStore"], tuple[Path]]:
        return TokenStore, (
            self.folder,
        )  # another process opens the files itself: nothing is copied

    @property
    def tally(self) -> LineStats:
        """What became of the lines that were read."""
        told = self.meta["tally"]
        return LineStats(
            told["read"], told["used"], Counter(told["rejected"]), Counter(told["repaired"])
        )


def open_or_build(
    data: DataConfig,
    split: str,
    tokenizer: Tokenizer,
    stores: Path,
    progress: Callable[[int], object] = lambda _: None,
) -> TokenStore:
    """The store of this split, made now or found from before; `progress` hears of examples done."""
    with path_from_option("LIMELIGHT_CACHE"):
        stores.mkdir(parents=True, exist_ok=True)
    name = _cache_key(data, split, tokenizer, stores)
    folder = stores / name
    if not _is_complete(folder):
        _sweep(stores)
        unfinished = stores / f"{name}.tmp-{secrets.token_hex(4)}"
        unfinished.mkdir()
        try:
            with with_filename(folder):
                _write(data, split, tokenizer, unfinished, progress)
            if _cache_key(data, split, tokenizer, stores) != name:
                raise UserError(
                    f"the files of data.{split} changed while they were read: try again"
                )
            _commit(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return TokenStore(folder)


def _is_complete(folder: Path) -> bool:
    """Whether this is a store with all its bytes; a damaged one is taken away, to be made anew."""
    if not folder.is_dir():
        return False
    try:
        facts = json.loads((folder / "facts.json").read_text("utf-8"))
        if all((folder / name).stat().st_size == size for name, size in facts["sizes"].items()):
            return True
    except (OSError, ValueError, KeyError):
        pass
    shutil.rmtree(folder)
    return False


def _sweep(stores: Path) -> None:
    """Take away what killed processes left unfinished more than a day ago."""
    for path in stores.glob("*.tmp-*"):
        if time.time() - path.stat().st_mtime > 86_400:
            shutil.rmtree(path, ignore_errors=True)


def _commit(unfinished: Path, folder: Path) -> None:
    """Give a finished store its name, unless another process has just made the same one."""
    sync(unfinished)
    try:
        unfinished.rename(folder)
    except OSError:
        if not _is_complete(folder):
            raise
    sync(folder.parent)


def _write(
    data: DataConfig,
    split: str,
    tokenizer: Tokenizer,
    folder: Path,
    progress: Callable[[int], object],
) -> None:
    """Tokenise a split into a folder, a few thousand examples at a time."""
    dtype = "<u2" if len(tokenizer) <= 2**16 else "<u4"
    columns = num_columns(data)
    tally = LineStats()
    labels: list[str] = []
    writers = [_ColumnWriter(folder, str(i), dtype) for i in range(columns)]
    counts = []
    for part in corpora_for_split(data, split) or (
        data,
    ):  # read_split says what is wrong with none
        before = tally.used
        for chunk in chunks(read_split(part, split, tally)):
            for i, writer in enumerate(writers):
                tag = [tokenizer.tag(part.tag)] if part.tag and i == 0 else []
                writer.add(tokenizer.encode_many([example[i] for example in chunk]), tag)
            if data.kind == "labelled":
                labels += [example[1] for example in chunk]
            progress(len(chunk))
        counts.append(tally.used - before)
    for writer in writers:
        writer.close()
    facts = {
        "examples": tally.used,
        "parts": counts,
        "columns": columns,
        "dtype": dtype,
        "sizes": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
        "labels": labels,
        "tally": vars(tally),
    }
    (folder / "facts.json").write_text(json.dumps(facts), "utf-8")
    for path in folder.iterdir():
        sync(path)


class _ColumnWriter:
    """Appends sequences to the two files of a column."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self.tokens: BinaryIO = (folder / f"{name}.tokens").open("wb")
        self.offsets: BinaryIO = (folder / f"{name}.offsets").open("wb")
        self.dtype = dtype
        self.end = 0
        self.offsets.write(np.zeros(1, "<i8").tobytes())

    def add(self, sequences: list[list[int]], tag: list[int]) -> None:
        """Write these behind the others, each with its tag in front if there is one."""
        if tag:
            sequences = [tag + sequence for sequence in sequences]
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        ends = self.end + np.cumsum(lengths)
        self.offsets.write(ends.astype("<i8").tobytes())
        flat = np.fromiter(chain.from_iterable(sequences), self.dtype, int(lengths.sum()))
        self.tokens.write(flat.tobytes())
        self.end = int(ends[-1])

    def close(self) -> None:
        """Nothing more will come."""
        self.tokens.close()
        self.offsets.close()


def chunks(examples: Iterator[Example]) -> Iterator[list[Example]]:
    """Examples in lists of at most AT_ONCE."""
    while chunk := list(islice(examples, AT_ONCE)):
        yield chunk


def _cache_key(data: DataConfig, split: str, tokenizer: Tokenizer, stores: Path) -> str:
    """A name for exactly this content, read this way, by this tokenizer."""
    parts = [_content_of(part, split, stores) for part in corpora_for_split(data, split)]
    made_of = [_FORMAT, data.kind, parts, tokenizer.hash]
    return sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:32]


def _content_of(data: DataConfig, split: str, stores: Path) -> list[Any]:
    """What the examples of one corpus depend on: its files' contents, and how they are read."""
    elsewhere = ("train", "valid", "test", "corpora", "weight")
    settings = {k: v for k, v in asdict(data).items() if k not in elsewhere}
    names = [Path(name) for name in files_of(data, split)]
    files: list[Any] = [[name.suffixes, _content_hash(name, stores)] for name in names]
    if data.hub:
        files = [hub_rows(data, split)._fingerprint]  # the library's own hash of the content
    part = split if data.toy or data.hold_out or data.valid_tail else ""
    return [settings, part, files]


def _content_hash(path: Path, stores: Path) -> str:
    """SHA-256 of a file. A file whose size and time have not changed since is not read again."""
    try:
        check_regular_file(path)
        stat = path.stat()
        seen = sha256(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()
        note = stores / "hashes" / seen
        if note.is_file() and len(known := note.read_text("ascii")) == 64:
            return known
        with path.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    with suppress(OSError):  # a folder that cannot be written to only costs the reading
        note.parent.mkdir(exist_ok=True)
        atomic_write(note, digest.encode())
    return digest
