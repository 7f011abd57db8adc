"""The lines of files, and what became of them: counted by reason, with a few examples."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from limelight.data.config import DataConfig
from limelight.data.input_files import LONGEST_LINE, check_utf8, ending_of, raw_lines

Example = tuple[str, ...]  # (source, target, more references ...), (text,) or (text, label)
Found = tuple[str, Example]  # an example, behind what decides its split when some are held out
_NO_FAULT = ("header", "in another split")  # why a line is not used although nothing is wrong
_SHOWN = 5  # examples of each fault


class Fragment(Example):
    """A part of a text that is too large for memory: the next example continues it."""


@dataclass
class LineStats:
    """What became of the lines of one split."""

    read: int = 0
    used: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)  # used, after a harmless repair
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict, compare=False)
    file: str = field(default="", compare=False)  # where the last example was read
    line: int = field(default=0, compare=False)

    def reject(self, reason: str, text: str = "") -> None:
        """Count a line that is not used, and keep the first few of every reason."""
        self.rejected[reason] += 1
        if reason not in _NO_FAULT:
            self.keep(reason, text)

    def keep(self, reason: str, text: str) -> None:
        """Keep a line as an example of what is wrong."""
        kept = self.examples.setdefault(reason, [])
        if len(kept) < _SHOWN:
            kept.append({"file": self.file, "line": self.line, "text": text[:80]})

    @property
    def unusable(self) -> str:
        """`2 of 3 lines cannot be used (1 empty, 1 invalid UTF-8)`, or nothing if all can."""
        bad, wrong = sum(self.faults.values()), self.faults.items()
        reasons = ", ".join(f"{count:,} {why}" for why, count in wrong)
        return f"{bad:,} of {self.used + bad:,} lines cannot be used ({reasons})" if bad else ""

    @property
    def headers(self) -> list[str]:
        """What to say of first lines that are used, and look as if they named the columns."""
        return [
            f"line {one['line']} of {Path(one['file']).name} looks like a header ({one['text']}): "
            "if it is, add --data.header"
            for one in self.examples.get("looks like a header", ())
        ]

    @property
    def first_fault(self) -> str:
        """`: line 7 of a.tsv` for the first line that cannot be used, if it is known."""
        kept = [one for why in self.faults for one in self.examples.get(why, ())]
        return f": line {kept[0]['line']} of {Path(kept[0]['file']).name}" if kept else ""

    @property
    def faults(self) -> dict[str, int]:
        """The reasons why lines are rejected although they were meant to be used."""
        return {why: n for why, n in self.rejected.items() if n and why not in _NO_FAULT}

    @property
    def counts(self) -> dict[str, Any]:
        """The numbers alone, as plain data."""
        many = {"rejected": dict(self.rejected), "repaired": dict(self.repaired)}
        return {"read": self.read, "used": self.used, **many}

    def check(self) -> None:
        """Every line that was read was used or rejected."""
        if self.read != self.used + self.rejected.total():
            raise RuntimeError(f"{self.read} lines read, but {self.used} used and {self.rejected}")


def usable_lines(path: Path, data: DataConfig, tally: LineStats) -> Iterator[str]:
    """The lines of a file that can be read; the others are counted."""
    for line in all_lines(path, data, tally):
        if line is None:
            tally.read += 1
        else:
            yield line


def all_lines(path: Path, data: DataConfig, tally: LineStats) -> Iterator[str | None]:
    """The lines of a file, without byte-order mark and carriage returns; None: it is rejected."""
    if not data.encoding:
        check_utf8(path)
    recoded = "" if data.encoding.lower() in ("utf-8", "utf8") else data.encoding
    for number, raw in enumerate(raw_lines(path, recoded), 1):
        tally.line = number
        if len(raw) > LONGEST_LINE:
            tally.reject("too long")
            yield None
            continue
        line = raw.removesuffix(b"\n")
        if number == 1 and line.startswith(b"\xef\xbb\xbf"):
            line = line[3:]
            tally.repaired["byte-order mark"] += 1
        if line.endswith(b"\r"):
            line = line[:-1]
            if ending_of(path) != ".csv":  # whose lines end so by its standard
                tally.repaired["carriage return"] += 1
        try:
            text = line.decode()
        except UnicodeDecodeError:
            tally.reject("invalid UTF-8", line.decode("utf-8", "backslashreplace"))
            yield None
            continue
        if recoded and "\ufffd" in text:
            tally.reject(f"invalid {recoded}", text)
            yield None
        else:
            yield text


def merge_fragments(examples: Iterable[Example]) -> Iterator[Example]:
    """Examples with the fragments of a text put together, for those who have the memory."""
    parts: list[str] = []
    for example in examples:
        parts.append(example[0])
        if not isinstance(example, Fragment):
            yield ("".join(parts), *example[1:])
            parts.clear()
