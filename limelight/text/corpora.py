"""Files become examples, and every line that does not is counted with its reason.

An example is a source and a target (`pairs`, `dialogues`), a text (`texts`), or a text and its
label (`labelled`). Plain, .tsv and .jsonl files are read, packed with gzip or xz or not. Nothing is
dropped in silence: lines read == examples used + lines refused, reason by reason.
"""

import gzip
import json
import lzma
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, Annotated, Any, Literal, cast

from pydantic import Field

from limelight.errors import UserError
from limelight.settings import Count, Fraction, Size, table
from limelight.text.tokenizer import valid_unicode

Kind = Literal["pairs", "texts", "labelled", "dialogues"]
Example = tuple[str, ...]  # (source, target), (text,) or (text, label)
Found = tuple[str, Example]  # an example, behind what decides its split when some are held out
PACKED = (".gz", ".xz")
KEYS = {"pairs": ("source", "target"), "texts": ("text",), "labelled": ("text", "label")}
END_OF_TURN = "__eou__"  # as in DailyDialog's files, one dialogue a line


@table
class Corpus:
    """One of several corpora that are learnt together."""

    train: tuple[str, ...] = ()


@table
class DataConfig:
    """Where examples come from: files of one kind, or a toy that makes its own."""

    kind: Kind = "pairs"
    name: str = ""  # a public corpus that `limelight.text.named` knows, instead of files
    train: tuple[str, ...] = ()  # pairs: two parallel files, or one .tsv or .jsonl; else one file
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    corpora: tuple[Corpus, ...] = ()  # instead of train: several of its kind
    toy: Literal["", "reverse", "copy", "sort"] = ""  # instead of files
    toy_examples: Count = 10_000  # for training; a tenth of it for each of valid and test
    toy_length: Annotated[int, Field(ge=2, le=1000)] = 10  # longest
    hold_out: Fraction = 0.0  # this share of the training sources becomes valid, as much test
    tail: Fraction = 0.0  # texts: the file is one text, and this share at its end becomes valid
    header: bool = False  # .tsv: the first line names the columns
    separator: str = ""  # texts: the line between two documents; without one each line is a text
    history: Size = 3  # dialogues: how many turns before an answer are its source
    longest: Size = 100_000  # characters; longer ones are refused

    def __post_init__(self) -> None:
        if self.toy and (self.train or self.valid or self.test):
            raise UserError(
                f"toy={self.toy!r} makes its own examples: leave train, valid, test out"
            )
        if self.toy and self.kind != "pairs":
            raise UserError(f"toy={self.toy!r} makes pairs, not kind={self.kind!r}")
        if self.name and (self.toy or self.train or self.valid or self.test):
            raise UserError(
                f"name={self.name!r} has its own files: leave toy, train, valid, test out"
            )
        if self.hold_out > 0.4:
            raise UserError(f"hold_out={self.hold_out} leaves little to train on: at most 0.4")
        if self.tail and (self.kind != "texts" or self.valid or self.hold_out):
            raise UserError(f"tail={self.tail} is for one file of texts, with no valid or hold_out")
        if self.hold_out and (self.valid or self.test):
            raise UserError(
                f"hold_out={self.hold_out} makes valid and test: name no files for them"
            )


@dataclass
class Tally:
    """What became of the lines of one split."""

    read: int = 0
    used: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    mended: Counter[str] = field(default_factory=Counter)  # used, after a harmless repair

    def check(self) -> None:
        """Nothing is lost: what was read was used or refused."""
        if self.read != self.used + self.refused.total():
            raise RuntimeError(f"{self.read} lines read, but {self.used} used and {self.refused}")


def read_split(data: DataConfig, split: str, tally: Tally) -> Iterator[Example]:
    """The examples of `train`, `valid` or `test` in order; at the end the tally is complete."""
    if data.toy:
        yield from make_toys(data, split, tally)
        return
    files = [Path(name) for name in files_of(data, split)]
    if not files:
        raise UserError(f"data.{split} names no file")
    for origin, example in read_files(data, files, split, tally):
        if data.hold_out and held_in(origin, data.hold_out) != split:
            tally.refused["in another split"] += 1
        elif refusal := refuse(example, data.longest):
            tally.refused[refusal] += 1
        else:
            tally.used += 1
            yield example
    tally.check()


def files_of(data: DataConfig, split: str) -> tuple[str, ...]:
    """The files that a split is read from; parts of the training text have none of their own."""
    part = data.hold_out or (data.tail and split == "valid")
    return data.train if part else cast(tuple[str, ...], getattr(data, split))


def sides(data: DataConfig) -> int:
    """How many texts an example has: a source and a target, or one (a label is no text)."""
    return 2 if data.kind in ("pairs", "dialogues") else 1


def held_in(origin: str, share: float) -> str:
    """Which split an example belongs to: equal sources stay together, and so does a dialogue."""
    place = int.from_bytes(sha256(origin.encode()).digest()[:6]) / 2**48
    return "valid" if place < share else "test" if place < 2 * share else "train"


def refuse(example: Example, longest: int) -> str | None:
    """Why an example cannot be used, if so."""
    if any("\0" in text for text in example):
        return "NUL"
    if any(not text.strip() for text in example):
        return "empty"
    if any(len(text) > longest for text in example):
        return "too long"
    return None


def read_files(data: DataConfig, files: list[Path], split: str, tally: Tally) -> Iterator[Found]:
    """Examples before they are judged; lines that give none are counted as refused here."""
    if data.kind == "pairs" and len(files) == 2:
        if any({".tsv", ".jsonl"} & set(path.suffixes) for path in files):
            raise UserError(
                f"{files[0]} and {files[1]}: a .tsv or .jsonl file holds both sides alone"
            )
        return read_parallel(files[0], files[1], tally)
    if len(files) != 1:
        wanted = "two parallel files, or one" if data.kind == "pairs" else "one file"
        raise UserError(f"{data.kind} come from {wanted}, but {len(files)} are named")
    ending = [suffix for suffix in files[0].suffixes if suffix not in PACKED][-1:]
    if ending == [".jsonl"]:
        return read_jsonl(data, files[0], tally)
    if ending == [".tsv"] and data.kind in ("pairs", "labelled"):
        return read_tsv(files[0], data.header, tally)
    if data.kind == "texts" and data.tail:
        return read_part(files[0], data.tail, split, tally)
    if data.kind == "texts":
        return read_documents(files[0], data.separator, tally)
    if data.kind == "dialogues":
        return read_turn_lines(files[0], data.history, tally)
    raise UserError(f"{files[0]} must end in .tsv or .jsonl to hold {data.kind}")


def lines(path: Path, tally: Tally) -> Iterator[str | None]:
    """The lines of a file, mended where that is harmless; None where one cannot be text.

    A byte-order mark and a carriage return are taken off; invalid UTF-8 is refused.
    """
    for number, raw in enumerate(raw_lines(path)):
        line = raw.removesuffix(b"\n")
        if number == 0 and line.startswith(b"\xef\xbb\xbf"):
            line = line[3:]
            tally.mended["byte-order mark"] += 1
        if line.endswith(b"\r"):
            line = line[:-1]
            tally.mended["carriage return"] += 1
        try:
            text: str | None = line.decode()
        except UnicodeDecodeError:
            tally.refused["invalid UTF-8"] += 1
            text = None
        yield text


def raw_lines(path: Path) -> Iterator[bytes]:
    """The bytes of a file line by line, unpacked if need be."""
    try:
        with open_packed(path) as file:
            yield from file
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UserError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from error


def open_packed(path: Path) -> IO[Any]:
    """A file for reading bytes, unpacked by its ending."""
    if path.suffix == ".gz":
        return cast(IO[Any], gzip.open(path))
    return lzma.open(path) if path.suffix == ".xz" else path.open("rb")


def read_parallel(source: Path, target: Path, tally: Tally) -> Iterator[Found]:
    """Line n of the one is the translation of line n of the other; both must have as many."""
    counts = [sum(1 for _ in raw_lines(path)) for path in (source, target)]
    if counts[0] != counts[1]:
        raise UserError(
            f"{source} has {counts[0]} lines and {target} has {counts[1]}: they cannot be parallel"
        )
    faults = [Tally(), Tally()]
    both = zip(lines(source, faults[0]), lines(target, faults[1]), strict=True)
    for left, right in both:
        tally.read += 1
        if left is not None and right is not None:
            yield left, (left, right)
            continue
        reasons = [reason for fault in faults for reason in fault.refused.elements()]
        tally.refused[reasons[0]] += 1  # one line, one reason: the first that was met
        for fault in faults:
            fault.refused.clear()
    for fault in faults:
        tally.mended += fault.mended


def read_tsv(path: Path, header: bool, tally: Tally) -> Iterator[Found]:
    """Two columns with a tab between them."""
    for number, line in enumerate(lines(path, tally)):
        tally.read += 1
        if line is None:
            continue
        if header and number == 0:
            tally.refused["header"] += 1
            continue
        columns = line.split("\t")
        if len(columns) == 2:
            yield columns[0], (columns[0], columns[1])
        else:
            tally.refused["not two columns"] += 1


def read_jsonl(data: DataConfig, path: Path, tally: Tally) -> Iterator[Found]:
    """One JSON object a line, with the keys of its kind: source and target, text, label, turns."""
    for line in lines(path, tally):
        if line is None:
            tally.read += 1
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if data.kind == "dialogues":
            turns = entry.get("turns") if isinstance(entry, dict) else None
            yield from answers(turns, data.history, tally)
            continue
        tally.read += 1
        keys = KEYS[data.kind]
        if not isinstance(entry, dict):
            tally.refused["not a JSON object"] += 1
        elif all(type(entry.get(key)) in (str, int) for key in keys):
            example = tuple(valid_unicode(str(entry[key])) for key in keys)
            yield example[0], example
        else:
            tally.refused["without " + " and ".join(keys)] += 1


def read_documents(path: Path, separator: str, tally: Tally) -> Iterator[Found]:
    """Documents between separator lines, or without a separator one text a line."""
    document: list[str] = []
    for line in lines(path, tally):
        if line is None:
            tally.read += 1
        elif not separator:
            tally.read += 1
            yield line, (line,)
        elif line == separator:
            yield from finish(document, tally)
        else:
            document.append(line)
    yield from finish(document, tally)


def read_part(path: Path, tail: float, split: str, tally: Tally) -> Iterator[Found]:
    """The whole file as one text, and of it the beginning or, for `valid`, the end."""
    found = [line for line in lines(path, tally) if line is not None]
    tally.read += tally.refused.total()
    text = "\n".join(found)
    cut = round(len(text) * (1 - tail))
    yield from finish([text[cut:] if split == "valid" else text[:cut]], tally)


def finish(document: list[str], tally: Tally) -> Iterator[Found]:
    """The document collected so far, if there is one."""
    if document:
        tally.read += 1
        text = "\n".join(document)
        yield text, (text,)
        document.clear()


def read_turn_lines(path: Path, history: int, tally: Tally) -> Iterator[Found]:
    """One dialogue a line, its turns ended by `__eou__`."""
    for line in lines(path, tally):
        if line is None:
            tally.read += 1
        else:
            turns = [turn.strip() for turn in line.split(END_OF_TURN)]
            yield from answers([turn for turn in turns if turn], history, tally)


def answers(turns: object, history: int, tally: Tally) -> Iterator[Found]:
    """Each turn but the first is an answer; its source is the turns before it, one a line."""
    if not isinstance(turns, list) or len(turns) < 2 or not all(isinstance(t, str) for t in turns):
        tally.read += 1
        tally.refused["no dialogue of two turns"] += 1
        return
    turns = [valid_unicode(turn) for turn in turns]
    for i in range(1, len(turns)):
        tally.read += 1
        yield "\n".join(turns), ("\n".join(turns[max(0, i - history) : i]), turns[i])


TOYS: dict[str, Callable[[list[str]], list[str]]] = {
    "reverse": lambda words: words[::-1],
    "copy": lambda words: words,
    "sort": sorted,
}


def make_toys(data: DataConfig, split: str, tally: Tally) -> Iterator[Example]:
    """Random letters and what a toy makes of them. No row of one split occurs in another."""
    number = {"train": 0, "valid": 1, "test": 2}[split]
    wanted = data.toy_examples if split == "train" else max(1, data.toy_examples // 10)
    draw = random.Random(f"{data.toy} {split}")
    for _ in range(wanted):
        letters = next(row for row in rows_of_letters(draw, data.toy_length) if deal(row) == number)
        tally.read += 1
        tally.used += 1
        yield " ".join(letters), " ".join(TOYS[data.toy](letters))


def rows_of_letters(draw: random.Random, longest: int) -> Iterator[list[str]]:
    """Rows of 1 to `longest` letters, without end."""
    while True:
        yield draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(1, longest))


def deal(row: list[str]) -> int:
    """Which split a row belongs to: eight in ten to train, one each to valid and test."""
    place = random.Random("".join(row)).randrange(10)
    return max(0, place - 7)
