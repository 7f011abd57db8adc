"""Files become examples: text, .csv, .tsv, .json, .jsonl, .parquet; rejected lines are counted."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

from limelight.data.config import KEYS, DataConfig, files_of, num_columns
from limelight.data.input_files import (
    archive_of,
    check_utf8,
    ending_of,
    find_files,
    opened,
    raw_lines,
)
from limelight.data.lines import Example, Found, Fragment, LineStats, all_lines, usable_lines
from limelight.data.tables import FIRST, best_columns, other_delimiter, read_table, rows_of
from limelight.data.tokenizer import in_parts, valid_unicode
from limelight.errors import UserError

_Numbered = Iterator[tuple[int, Any]]  # rows or entries with their lines
_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
_NUMBER = re.compile(r"\S*\d\S*|")  # a number, a date, an identifier
_PIECE = 2**16  # characters of a long text that are tokenised together


def sides_of(data: DataConfig, split: str) -> list[list[Path]]:
    """The files of a split: one list, or for parallel texts two with as many files each.

    In valid and test, one file of sources may have several files of references.
    """
    named = [find_files([name]) for name in files_of(data, split)]
    files = list(chain.from_iterable(named))
    tables = [file for file in files if ending_of(file) in _TABLES]
    if num_columns(data) == 1 or tables == files:
        return [files]
    if tables:
        other = next(file for file in files if file not in tables)
        raise UserError(f"{tables[0]} holds both sides alone: {other} cannot stand beside it")
    ordered = sorted(files, key=ending_of)  # as a.en b.en a.de b.de, or all of them in a folder
    groups = {end: [*some] for end, some in groupby(ordered, ending_of)}
    ends = dict.fromkeys(map(ending_of, files))
    sides = named if len(named) == 2 else [groups[end] for end in ends]
    if len(sides) == 1 and (len(files) == 1 or (sides[0] == files and ".txt" in groups)):
        return [files]
    if len(sides) == 2 and len(sides[0]) == len(sides[1]):
        return sides
    if split != "train" and len(sides[0]) == 1:
        return [[file] for file in files]
    found = " and ".join(f"{len(side)} in {ending_of(side[0]) or side[0].name}" for side in sides)
    raise UserError(
        f"{data.kind} come from two parallel files or one, or from as many files on each side, but "
        f"{len(files)} are named ({found})"
    )


def read_files(data: DataConfig, split: str, tally: LineStats) -> Iterator[Found]:
    """Examples before they are judged; lines that give none are counted as rejected here."""
    sides = sides_of(data, split)
    if len(sides) > 1:
        for paths in zip(*sides, strict=True):
            yield from _read_parallel(paths, data, tally)
        return
    for path in sides[0]:
        tally.file, tally.line = str(path), 0
        yield from _read_file(path, data, split, tally)


def _read_file(path: Path, data: DataConfig, split: str, tally: LineStats) -> Iterator[Found]:
    ending = ending_of(path)
    if ending in (".json", ".jsonl"):
        return read_entries(data, _json_entries(path, data, tally), tally)
    if ending == ".parquet":
        return read_entries(data, _parquet_rows(path, data), tally)
    if data.kind == "dialogues":
        return _read_turns(path, data, tally)
    if ending in (".csv", ".tsv") or data.kind != "texts":
        return read_table(path, data, tally)
    if data.stream or data.valid_tail:
        return _read_stream(path, data, split, tally)
    return _read_documents(path, data, tally)


def kind_of(data: DataConfig, columns: Sequence[str] = ()) -> str:
    """What files seem to hold, in these columns: by number, names of columns, repeated labels."""
    sides = sides_of(data, "train")
    if len(sides) == 2:
        return "pairs"
    path = sides[0][0]
    names, rows = _first_rows(path, data)
    for kind in ("labelled", "pairs", "dialogues", "texts"):
        if {*KEYS[kind]} <= {*names} and not columns:
            return kind
    width = Counter(map(len, rows)).most_common(1)[0][0] if rows else len(names)
    cells = [*zip(*(row for row in rows if len(row) == width), strict=True)]
    numbered = dict(zip(map(str, range(1, width + 1)), cells, strict=False))
    named = {**numbered, **dict(zip(names, cells, strict=False))}
    cells = [named[column] for column in columns if column in named] or cells
    if len(cells) < 2 and not (ending_of(path) == ".csv" and other_delimiter(path, data)):
        return "texts"
    different = [len({*values}) for values in cells]
    many = (values for values, n in zip(cells, different, strict=True) if 2 * n > len(values))
    texts = [values for values in many if not all(map(_NUMBER.fullmatch, values))]
    few = min(different, default=len(rows)) <= min(10, len(rows) // 4)
    return "labelled" if few and len(texts) < 2 else "pairs"


def _first_rows(path: Path, data: DataConfig) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, or what would be a header, and the first rows as texts."""
    if ending_of(path) not in (".json", ".jsonl", ".parquet"):
        rows = [cells for _, cells in islice(rows_of(path, data, LineStats()), FIRST)]
        return [cell.strip() for cell in rows[0]] if rows else [], rows
    if ending_of(path) == ".parquet":
        with _parquet(path) as file:
            batch = next(file.iter_batches(FIRST, use_threads=False), None)
            entries = batch.to_pylist() if batch else []
    else:
        entries = [entry for _, entry in islice(_json_entries(path, data, LineStats()), FIRST)]
    found = [_flat(entry) for entry in entries if isinstance(entry, dict)]
    return list(found[0]) if found else [], [list(entry.values()) for entry in found]


def _flat(entry: dict[str, Any]) -> dict[str, str]:
    """The values of an object as texts, those of an object inside as `a.b`."""
    inside = {f"{k}.{i}": str(v[i]) for k, v in entry.items() if isinstance(v, dict) for i in v}
    return {k: str(v) for k, v in entry.items() if not isinstance(v, dict)} | inside


def _read_parallel(paths: tuple[Path, ...], data: DataConfig, tally: LineStats) -> Iterator[Found]:
    m, *others = (sum(1 for _ in raw_lines(path, data.encoding)) for path in paths)
    for path, n in zip(paths[1:], others, strict=True):
        if m != n:
            raise UserError(f"{paths[0]} has {m} lines and {path} has {n}: they cannot be parallel")
    sides = [LineStats(file=str(path)) for path in paths]
    lines = (all_lines(path, data, side) for path, side in zip(paths, sides, strict=True))
    for number, texts in enumerate(zip(*lines, strict=True), 1):
        tally.read += 1
        tally.file, tally.line = str(paths[0]), number
        found = tuple(text for text in texts if text is not None)
        if len(found) == len(texts):
            yield found[0], found
        else:  # one pair, one reason: the first that was met
            wrong = next(side for side in sides if side.rejected)
            reason, tally.file = next(iter(wrong.rejected)), wrong.file
            tally.reject(reason, wrong.examples[reason][0]["text"])
            for side in sides:
                side.rejected.clear()
                side.examples.clear()
    tally.repaired += sum((side.repaired for side in sides), Counter())


# JSON and Parquet


def _json_entries(path: Path, data: DataConfig, tally: LineStats) -> _Numbered:
    if ending_of(path) == ".json":
        yield from _json_values(path, data)
        return
    for line in usable_lines(path, data, tally):
        try:
            yield tally.line, json.loads(line)
        except (ValueError, RecursionError):
            yield tally.line, None


def _json_values(path: Path, data: DataConfig) -> _Numbered:
    """The entries of a list, or one value after the other, from a file of any size."""
    if not data.encoding:
        check_utf8(path)
    decode, text, at, number, size = json.JSONDecoder().raw_decode, "", 0, 0, _PIECE
    with opened(path) as raw, TextIOWrapper(raw, data.encoding or "utf-8-sig") as file:
        while True:
            at = _JSON_GAP.match(text, at).end()  # type: ignore[union-attr]
            try:
                value, end = decode(text, at)
                if end == len(text) and not isinstance(value, dict | list | str):
                    raise ValueError  # a number may go on
            except (ValueError, RecursionError) as error:
                more = file.read(size)
                text, at, size = text[at:] + more, 0, 2 * size
                if not more and not text.strip("] \t\r\n"):
                    return
                if not more:
                    raise UserError(f"{path} is not JSON after entry {number}: {error}") from error
            else:
                number += 1
                yield number, value
                at, size = end, _PIECE


_JSON_GAP = re.compile(r"[\s\[,\]]*")  # between entries; a list of lists has no examples anyway


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(f"{path} needs pyarrow: pip install 'limelight[parquet]'") from error
    if archive_of(path) or path.suffix.lower() != ".parquet":
        raise UserError(f"{path}: unpack it first, a .parquet file is compressed inside")
    small = {"buffer_size": 2**20, "pre_buffer": False}  # else a row group of a million texts
    with opened(path) as raw, parquet.ParquetFile(raw, **small) as file:
        yield file


def _parquet_rows(path: Path, data: DataConfig) -> _Numbered:
    wanted = {key.split(".")[0] for key in data.columns or KEYS[data.kind]}
    with _parquet(path) as file:
        names = [name for name in file.schema_arrow.names if name in wanted]
        if len(names) < len(wanted):
            first = next(file.iter_batches(1), None)
            known = dict.fromkeys(file.schema_arrow.names, "")
            raise _other_keys(str(path), data, first.to_pylist()[0] if first else known)
        number = 0
        for batch in file.iter_batches(1024, columns=names, use_threads=False):
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                number += 1
                yield number, dict(zip(names, values, strict=True))


def read_entries(data: DataConfig, entries: _Numbered, tally: LineStats) -> Iterator[Found]:
    """JSON objects, or rows of a hub's dataset, with the keys of their kind."""
    keys = data.columns or KEYS[data.kind]
    first = list(islice(entries, FIRST))
    objects = [entry for _, entry in first if isinstance(entry, dict)]
    if objects and all(_value_at(o, key) is None for o in objects for key in keys):
        raise _other_keys(tally.file or data.hub, data, objects[0])
    for number, entry in chain(first, entries):
        tally.line = number
        found = [_value_at(entry, key) for key in keys]
        if data.kind == "dialogues":
            yield from _answers(found[0], data.context_turns, tally)
            continue
        tally.read += 1
        if data.kind == "pairs" and (len(found) > 2 or type(found[1]) is not str):
            found = _with_references(found)
        example = tuple([valid_unicode(str(value)) for value in found if type(value) in (str, int)])
        if not isinstance(entry, dict):
            tally.reject("not a JSON object", str(entry))
        elif len(example) == len(found) >= len(KEYS[data.kind]):
            yield example[0], example
        else:
            tally.reject("without " + " and ".join(keys), str(entry))


def _other_keys(where: str, data: DataConfig, entry: dict[str, Any]) -> UserError:
    """The error for entries that have none of the keys, with the option that would fit."""
    flat = _flat(entry)
    keys, best = data.columns or KEYS[data.kind], list(flat)
    if len(flat) >= len(keys) and data.kind != "dialogues":
        best = [best[i] for i in best_columns([[value] for value in flat.values()], data)]
    return UserError(
        f"{where} has no {' and '.join(keys)} but {', '.join(flat) or 'nothing'}: say where to "
        f"find {' and '.join(KEYS[data.kind])}, as with --data.columns {' '.join(best)}"
    )


def _value_at(entry: object, key: str) -> object:
    if not isinstance(entry, dict):
        return None
    if key in entry or "." not in key:
        return entry.get(key)
    first, rest = key.split(".", 1)
    return _value_at(entry.get(first), rest)


def _with_references(found: list[object]) -> list[object]:
    """A source and its target, which may be a list of references."""
    source, *rest = found
    flat = chain.from_iterable(one if isinstance(one, list) else [one] for one in rest)
    return [source, *(one for i, one in enumerate(flat) if i == 0 or one is not None)]


# Texts and dialogues


def _read_documents(path: Path, data: DataConfig, tally: LineStats) -> Iterator[Found]:
    document: list[str] = []
    for line in usable_lines(path, data, tally):
        if not data.separator:
            tally.read += 1
            yield line, (line,)
        elif line == data.separator:
            yield from _finish(document, tally)
        else:
            document.append(line)
    yield from _finish(document, tally)


def _finish(document: list[str], tally: LineStats) -> Iterator[Found]:
    if document:
        tally.read += 1
        text = "\n".join(document)
        yield text, (text,)
        document.clear()


def _read_stream(path: Path, data: DataConfig, split: str, tally: LineStats) -> Iterator[Found]:
    """A file as one text, or the part before or after the cut, in fragments: of any size."""
    begin, end = 0, 2**62
    if data.valid_tail:
        lines = _clean_lines(path, data, LineStats())
        total = sum(len(line) + 1 for line in lines) - 1  # without the last line break
        cut = round(max(0, total) * (1 - data.valid_tail))
        begin, end = (cut, total) if split == "valid" else (0, cut)

    def stretch() -> Iterator[str]:
        at = 0
        for number, line in enumerate(_clean_lines(path, data, tally)):
            text = f"\n{line}" if number else line
            yield text[max(0, begin - at) : max(0, end - at)]
            at += len(text)

    for text in _fragments(stretch()):
        tally.read += not isinstance(text, Fragment)
        yield "", text


def _clean_lines(path: Path, data: DataConfig, tally: LineStats) -> Iterator[str]:
    """Lines that can be part of a text; the others are counted."""
    for line in usable_lines(path, data, tally):
        if "\0" in line:
            tally.read += 1
            tally.reject("NUL", line)
        else:
            yield line


def _fragments(stretch: Iterable[str]) -> Iterator[Example]:
    """Parts that are tokenised like the whole text: no word reaches over a cut."""
    buffer: list[str] = []
    size = 0
    for text in stretch:
        buffer.append(text)
        size += len(text)
        if size > 2 * _PIECE:
            *parts, rest = in_parts("".join(buffer), _PIECE)
            if rest.strip():  # else the last example would count as empty
                yield from (Fragment((part,)) for part in parts)
                buffer, size = [rest], len(rest)
    yield ("".join(buffer),)


def _read_turns(path: Path, data: DataConfig, tally: LineStats) -> Iterator[Found]:
    """One dialogue a line: turns in columns, or with __eou__ behind each, as in DailyDialog."""
    if ending_of(path) in (".csv", ".tsv"):
        rows = (cells for _, cells in rows_of(path, data, tally))
    else:
        rows = (line.split("__eou__") for line in usable_lines(path, data, tally))
    for cells in rows:
        turns = [turn.strip() for turn in cells]
        yield from _answers([turn for turn in turns if turn], data.context_turns, tally)


def _answers(turns: object, history: int, tally: LineStats) -> Iterator[Found]:
    """Each turn but the first is an answer; its source is the turns before it, one a line."""
    if not isinstance(turns, list) or len(turns) < 2 or not all(isinstance(t, str) for t in turns):
        tally.read += 1
        tally.reject("no dialogue of two turns", str(turns))
        return
    turns = [valid_unicode(turn) for turn in turns]
    for i in range(1, len(turns)):
        tally.read += 1
        yield "\n".join(turns), ("\n".join(turns[max(0, i - history) : i]), turns[i])
