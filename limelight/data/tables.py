"""Tables of text, .csv and .tsv: which columns are the example, and what is wrong if none fit."""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from statistics import mean

from limelight.data.config import KEYS, DataConfig
from limelight.data.input_files import ending_of
from limelight.data.lines import Example, Found, LineStats, usable_lines
from limelight.errors import UserError

FIRST = 100  # rows that decide what columns a file has
_WORD = re.compile(r"[^\W\d][\w-]*")
_NAMES = re.compile(  # of columns, in the wild
    r"(?i)id|idx|index|text|label|class|category|sentiment|sentence\d?|source|target|src|tgt|trg|"
    r"input|output|question|answer|prompt|response|title|summary|document|score|lang|[a-z]{2}|"
    r"review|comment|message|content|body|tweet|headline|stars|rating|topic|intent|emotion"
)


def rows_of(path: Path, data: DataConfig, tally: LineStats) -> Iterator[tuple[int, list[str]]]:
    """The cells of every row, with the line where it begins; only a .csv has quotes."""
    lines, delimiter = usable_lines(path, data, tally), _delimiter(path, data)
    if ending_of(path) == ".csv":
        yield from _csv_rows(lines, delimiter, tally)
        return
    for line in lines:
        yield tally.line, line.split(delimiter)


def _delimiter(path: Path, data: DataConfig) -> str:
    usual = "," if ending_of(path) == ".csv" else "\t"
    return data.delimiter.replace("\\t", "\t") or usual


def _csv_rows(
    lines: Iterator[str], delimiter: str, tally: LineStats
) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(2**24)
    ended = (f"{line}\n" for line in lines)  # a cell in quotes may contain line breaks
    reader = csv.reader(ended, delimiter=delimiter)
    while True:
        begin = tally.line + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:  # a quote that nothing closes, for millions of characters
            tally.read += 1
            tally.reject(str(error))
            continue
        if cells:
            yield begin, cells
        else:
            tally.read += 1
            tally.reject("empty")


def read_table(path: Path, data: DataConfig, tally: LineStats) -> Iterator[Found]:
    """The examples of a table, in the columns that were chosen or that fit."""
    rows = rows_of(path, data, tally)
    first = list(islice(rows, FIRST))
    columns, header = _choose_columns(path, data, [cells for _, cells in first], tally)
    widest, exact = max(columns, default=0), 0 if data.columns or header else len(columns)
    cells_of: Callable[[list[str]], Example] = itemgetter(*columns)  # a tuple, if of several
    for number, cells in chain(first, rows):
        tally.read += 1
        tally.line = number
        if header:
            header = False
            tally.reject("header")
        elif exact and len(cells) != exact:
            tally.reject("not two columns" if exact == 2 else "not one column", " | ".join(cells))
        elif widest >= len(cells):
            tally.reject("too few columns", " | ".join(cells))
        else:
            example = cells_of(cells) if len(columns) > 1 else (cells[widest],)
            yield example[0], example


def _choose_columns(
    path: Path, data: DataConfig, rows: list[list[str]], tally: LineStats
) -> tuple[list[int], bool]:
    """Which cells of a row are the example, and whether the first row is a header."""
    keys, top = KEYS[data.kind], rows[0] if rows else []
    wanted = data.columns or keys
    names = [name.strip() for name in top]
    named = [column for column in wanted if column in names]
    numbers = all(column.isdecimal() for column in named)
    some = bool(data.columns and named and not numbers)  # a column that is missing is then named
    header = data.header or some or (bool(top) and len(named) == len(wanted))
    if not header and len(top) > 1 and _names_columns(rows):
        tally.line = 1
        tally.keep("looks like a header", " | ".join(top))
    if data.columns:
        return [_column_index(path, column, top, header) for column in wanted], header
    if header and {*keys} <= {*names}:
        return [names.index(key) for key in keys], header
    widths = Counter(map(len, rows))
    width = _usual_width(rows)
    alone = len(keys) == 1 or width or data.delimiter
    other = "" if alone else other_delimiter(path, data)
    if not rows or (len(keys) in widths and not other):  # others are rejected one by one
        return list(range(len(keys))), header
    raise _unfit(path, data, rows, width or widths.most_common(1)[0][0], other)


def _names_columns(rows: list[list[str]]) -> bool:
    """Whether the first row seems to be a header: usual names, or words above sentences."""
    names = [cell.strip() for cell in rows[0]]
    if all(map(_NAMES.fullmatch, names)):
        return True
    below = [*zip(*(cells for cells in rows[1:] if len(cells) == len(names)), strict=True)]
    words = max((mean(len(cell.split()) for cell in column) for column in below), default=0)
    return words >= 3 and all(map(_WORD.fullmatch, names))


def _column_index(path: Path, column: str, first: list[str], header: bool) -> int:
    names = [name.strip() for name in first]
    if header and column in names:
        return names.index(column)
    if column.isdecimal() and int(column) >= 1:
        return int(column) - 1
    if header:
        raise UserError(f"{path} has no column {column!r}: its header names {', '.join(names)}")
    shown = ", ".join(repr(cell[:30]) for cell in first)
    raise UserError(
        f"{path} has no column {column!r}, and its first line is {shown}: give numbers, as with "
        "--data.columns 1 2, or say --data.header if this line names the columns"
    )


def _unfit(
    path: Path, data: DataConfig, rows: list[list[str]], width: int, delimiter: str
) -> UserError:
    """The error for a table of other columns, with the option that would fit."""
    keys = KEYS[data.kind]
    needs = f"and {data.kind} need {len(keys)} ({' and '.join(keys)})"
    if width < len(keys):
        delimiter = delimiter or other_delimiter(path, data)
        fits = f"say --data.delimiter {delimiter!r}" if delimiter else "separate them with a tab"
        return UserError(f"{path} has one column, as in {rows[0][0][:60]!r}, {needs}: {fits}")
    if delimiter:
        return UserError(
            f"{path} has lines of different numbers of columns, {needs}; with {delimiter!r} "
            f"between them the number is the same: say --data.delimiter {delimiter!r}"
        )
    named = data.header or _names_columns(rows)
    same = [cells for cells in rows[named:] if len(cells) == width] or rows
    best = best_columns(
        [[cells[i] for cells in same] for i in range(min(width, len(same[0])))], data
    )
    choice = " ".join(rows[0][i] if named else str(i + 1) for i in best)
    shown = ", ".join(repr(cell[:30]) for cell in rows[0])
    return UserError(
        f"{path} has {width} columns ({shown}), {needs}: choose them, as with "
        f"--data.columns {choice}"
    )


def other_delimiter(path: Path, data: DataConfig) -> str:
    """Another delimiter with which nearly all lines have as many columns, two or more; or ""."""
    for delimiter in ",;\t|":
        if delimiter != _delimiter(path, data):
            other = replace(data, delimiter=delimiter)
            rows = [cells for _, cells in islice(rows_of(path, other, LineStats()), FIRST)]
            if _usual_width(rows) > 1:
                return delimiter
    return ""


def _usual_width(rows: list[list[str]]) -> int:
    """The columns that more than nine rows in ten have; or 0."""
    width, count = max(Counter(map(len, rows)).items(), key=itemgetter(1), default=(0, 0))
    return width if count > 0.9 * len(rows) else 0


def best_columns(columns: list[list[str]], data: DataConfig) -> list[int]:
    """The columns with the longest texts; a label has few different values instead."""
    sizes = [sum(map(len, column)) for column in columns]
    longest = sorted(range(len(columns)), key=lambda i: -sizes[i])
    if data.kind != "labelled":
        return sorted(longest[: len(KEYS[data.kind])])
    return [longest[0], min(longest[1:], key=lambda i: len({*columns[i]}))]
