"""Text, .tsv and .jsonl files, packed or not, become examples; rejected lines are counted."""

import gzip
import json
import lzma
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, cast

from limelight.data.config import KEYS, DataConfig, files_of, num_columns
from limelight.data.tokenizer import valid_unicode
from limelight.errors import UserError
from limelight.files import atomic_write, bounded_lines, cache_folder

Example = tuple[str, ...]  # (source, target), (text,) or (text, label)
_Found = tuple[str, Example]  # an example, behind what decides its split when some are held out
PACKED = (".gz", ".xz")
_LONGEST_LINE = 4 * 2**24 + 2  # bytes; no text may have more than 2**24 characters
_NO_FAULT = ("header", "in another split")  # why a line is not used although nothing is wrong


@dataclass
class LineStats:
    """What became of the lines of one split."""

    read: int = 0
    used: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)  # used, after a harmless repair

    @property
    def unusable(self) -> str:
        """`2 of 3 lines cannot be used (1 empty, 1 invalid UTF-8)`, or nothing if all can."""
        bad, wrong = sum(self.faults.values()), self.faults.items()
        reasons = ", ".join(f"{count:,} {why}" for why, count in wrong)
        return f"{bad:,} of {self.used + bad:,} lines cannot be used ({reasons})" if bad else ""

    @property
    def faults(self) -> dict[str, int]:
        """The reasons why lines are rejected although they were meant to be used."""
        return {why: n for why, n in self.rejected.items() if n and why not in _NO_FAULT}

    def check(self) -> None:
        """Every line that was read was used or rejected."""
        if self.read != self.used + self.rejected.total():
            raise RuntimeError(f"{self.read} lines read, but {self.used} used and {self.rejected}")


def read_files(data: DataConfig, split: str, tally: LineStats) -> Iterator[_Found]:
    """Examples before they are judged; lines that give none are counted as rejected here."""
    files = [Path(name) for name in files_of(data, split)]
    if num_columns(data) == 2 and len(files) == 2:
        if any({".tsv", ".jsonl"} & set(path.suffixes) for path in files):
            raise UserError(f"{files[0]} and {files[1]}: a .tsv or .jsonl holds both sides alone")
        return _read_parallel(files[0], files[1], tally)
    if len(files) != 1:
        wanted = "two parallel files, or one" if num_columns(data) == 2 else "one file"
        raise UserError(f"{data.kind} come from {wanted}, but {len(files)} are named")
    ending = [suffix for suffix in files[0].suffixes if suffix not in PACKED][-1:]
    if ending == [".jsonl"]:
        return read_entries(data, _json_lines(files[0], tally), tally)
    if ending == [".tsv"] and data.kind in ("pairs", "labelled"):
        return _read_tsv(files[0], data, tally)
    if data.kind == "texts" and data.valid_tail:
        return _read_cut(files[0], data, split, tally)
    if data.kind == "texts":
        return _read_documents(files[0], data.separator, tally)
    if data.kind == "dialogues":
        between = "\t" if ending == [".tsv"] else "__eou__"  # as in DailyDialog, one a line
        return _read_turn_lines(files[0], between, data.context_turns, tally)
    raise UserError(f"{files[0]} must end in .tsv or .jsonl to hold {data.kind}")


def _lines(path: Path, tally: LineStats) -> Iterator[str | None]:
    """The lines of a file, without byte-order mark and carriage returns; None: it is rejected."""
    for number, raw in enumerate(raw_lines(path)):
        if len(raw) > _LONGEST_LINE:
            tally.rejected["too long"] += 1
            yield None
            continue
        line = raw.removesuffix(b"\n")
        if number == 0 and line.startswith(b"\xef\xbb\xbf"):
            line = line[3:]
            tally.repaired["byte-order mark"] += 1
        if line.endswith(b"\r"):
            line = line[:-1]
            tally.repaired["carriage return"] += 1
        try:
            yield line.decode()
        except UnicodeDecodeError:
            tally.rejected["invalid UTF-8"] += 1
            yield None


def raw_lines(path: Path) -> Iterator[bytes]:
    """The bytes of a file line by line, unpacked if need be; of a huge line, the beginning."""
    with _opened(path) as file:
        yield from bounded_lines(file, _LONGEST_LINE)


def cached_sha256(path: Path, unpack: bool = True) -> tuple[str, int]:
    """SHA-256 and lines of a file, unpacked or as it is; unchanged files are not read again."""
    try:
        stat = path.stat()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    times = f"{stat.st_mtime_ns} {stat.st_ctime_ns}"  # anybody can set the first
    seen = f"{stat.st_dev} {stat.st_ino} {stat.st_size} {times} {unpack and path.suffix}"
    note = cache_folder() / "hashes" / sha256(seen.encode()).hexdigest()
    with suppress(OSError, ValueError):
        known, count = note.read_text("ascii").split()
        return known, int(count)
    digest, lines = sha256(), 0
    with _opened(path, unpack) as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
            lines += chunk.count(b"\n")
    with suppress(OSError):  # a folder that cannot be written to only costs the reading
        note.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(note, f"{digest.hexdigest()} {lines}".encode())
    return digest.hexdigest(), lines


@contextmanager
def _opened(path: Path, unpack: bool = True) -> Iterator[IO[bytes]]:
    try:
        with open_packed(path, unpack) as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    except UserError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}")


def open_packed(path: Path, unpack: bool = True) -> IO[bytes]:
    """A file's bytes, unpacked by its ending; a pipe is rejected: data is read more than once."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UserError(f"{path} is a pipe or a device, and is read twice: write it into a file")
    unpackers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open} if unpack else {}
    return cast(IO[bytes], unpackers.get(path.suffix, open)(path, "rb"))


def _read_parallel(source: Path, target: Path, tally: LineStats) -> Iterator[_Found]:
    m, n = (sum(1 for _ in raw_lines(path)) for path in (source, target))
    if m != n:
        raise UserError(f"{source} has {m} lines and {target} has {n}: they cannot be parallel")
    sides = LineStats(), LineStats()
    for left, right in zip(_lines(source, sides[0]), _lines(target, sides[1]), strict=True):
        tally.read += 1
        if left is not None and right is not None:
            yield left, (left, right)
        else:  # one pair, one reason: the first that was met
            tally.rejected[next(iter(sides[0].rejected + sides[1].rejected))] += 1
            for side in sides:
                side.rejected.clear()
    tally.repaired += sides[0].repaired + sides[1].repaired


def _read_tsv(path: Path, data: DataConfig, tally: LineStats) -> Iterator[_Found]:
    names: list[str] = []
    for number, line in enumerate(_lines(path, tally)):
        tally.read += 1
        if line is None:
            continue
        cells = line.split("\t")
        if data.header and number == 0:
            names = cells
            tally.rejected["header"] += 1
        elif data.columns:
            first, second = (_column_index(path, column, names) for column in data.columns)
            if max(first, second) < len(cells):
                yield cells[first], (cells[first], cells[second])
            else:
                tally.rejected["too few columns"] += 1
        elif len(cells) == 2:
            yield cells[0], (cells[0], cells[1])
        else:
            tally.rejected["not two columns"] += 1


def _column_index(path: Path, column: str, names: list[str]) -> int:
    if column in names:
        return names.index(column)
    if column.isdecimal() and int(column) >= 1:
        return int(column) - 1
    hint = f"its header names {', '.join(names)}" if names else "say header = true, or a number"
    raise UserError(f"{path} has no column {column!r}: {hint}")


def _json_lines(path: Path, tally: LineStats) -> Iterator[object]:
    for line in _lines(path, tally):
        if line is None:
            tally.read += 1
            continue
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            yield None


def read_entries(data: DataConfig, entries: Iterator[object], tally: LineStats) -> Iterator[_Found]:
    """JSON objects, or rows of a hub's dataset, with the keys of their kind."""
    keys = data.columns or KEYS[data.kind]
    for entry in entries:
        found = [_value_at(entry, key) for key in keys]
        if data.kind == "dialogues":
            yield from _answers(found[0], data.context_turns, tally)
            continue
        tally.read += 1
        if not isinstance(entry, dict):
            tally.rejected["not a JSON object"] += 1
        elif all(type(value) in (str, int) for value in found):
            example = tuple(valid_unicode(str(value)) for value in found)
            yield example[0], example
        else:
            tally.rejected["without " + " and ".join(keys)] += 1


def _value_at(entry: object, key: str) -> object:
    if not isinstance(entry, dict):
        return None
    if key in entry or "." not in key:
        return entry.get(key)
    first, rest = key.split(".", 1)
    return _value_at(entry.get(first), rest)


def _read_documents(path: Path, separator: str, tally: LineStats) -> Iterator[_Found]:
    document: list[str] = []
    for line in _lines(path, tally):
        if line is None:
            tally.read += 1
        elif not separator:
            tally.read += 1
            yield line, (line,)
        elif line == separator:
            yield from _finish(document, tally)
        else:
            document.append(line)
    yield from _finish(document, tally)


def _read_cut(path: Path, data: DataConfig, split: str, tally: LineStats) -> Iterator[_Found]:
    """One part of a text, from a file that may be far larger: it is read twice, line by line."""
    lines = (line for line in _lines(path, LineStats()) if line is not None)
    total = sum(len(line) + 1 for line in lines) - 1  # without the last line break
    cut = round(max(0, total) * (1 - data.valid_tail))
    begin, end = (cut, total) if split == "valid" else (0, cut)
    end = min(end, begin + data.max_chars + 1)  # all of a longer one is rejected anyway
    part, at = [], 0
    for line in _lines(path, tally):
        if line is not None:
            if at < end and at + len(line) >= begin:
                part.append(f"{line}\n"[max(0, begin - at) : end - at])
            at += len(line) + 1
    tally.read += tally.rejected.total()
    yield from _finish(["".join(part)], tally)


def _finish(document: list[str], tally: LineStats) -> Iterator[_Found]:
    if document:
        tally.read += 1
        text = "\n".join(document)
        yield text, (text,)
        document.clear()


def _read_turn_lines(path: Path, between: str, history: int, tally: LineStats) -> Iterator[_Found]:
    for line in _lines(path, tally):
        if line is None:
            tally.read += 1
        else:
            turns = [turn.strip() for turn in line.split(between)]
            yield from _answers([turn for turn in turns if turn], history, tally)


def _answers(turns: object, history: int, tally: LineStats) -> Iterator[_Found]:
    """Each turn but the first is an answer; its source is the turns before it, one a line."""
    if not isinstance(turns, list) or len(turns) < 2 or not all(isinstance(t, str) for t in turns):
        tally.read += 1
        tally.rejected["no dialogue of two turns"] += 1
        return
    turns = [valid_unicode(turn) for turn in turns]
    for i in range(1, len(turns)):
        tally.read += 1
        yield "\n".join(turns), ("\n".join(turns[max(0, i - history) : i]), turns[i])
