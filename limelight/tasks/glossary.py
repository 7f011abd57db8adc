"""A glossary: how the terms of a source are to be translated."""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from limelight.data.input_files import ending_of, opened
from limelight.data.tokenizer import valid_unicode
from limelight.errors import UserError

# A letter that belongs to the word beside it: not those of Thai, Lao, Burmese, Khmer, Chinese and
# Japanese, which put no spaces between words.
_LETTER = r"[^\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"


@dataclass(frozen=True)
class Glossary:
    """Source terms and their translations."""

    terms: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.terms, Mapping):
            raise UserError(
                f"glossary={self.terms!r:.80} is neither a file nor {{term: translation}}"
            )
        terms = {_words(source): _words(target) for source, target in self.terms.items()}
        if "" in terms or "" in terms.values():
            raise UserError("the glossary has an empty term: is it a variable that is not set?")
        object.__setattr__(self, "terms", terms)

    def targets(self, text: str) -> tuple[str, ...]:
        """The translations of the terms that a text has; of terms that overlap, the longest.

        A term in small letters is found in any case, others as they are written.
        """
        text = _words(text)
        small = text.lower()
        there = sorted((term for term in self.terms if term.lower() in small), key=len)[::-1]
        pattern = "|".join(f"({_pattern(term)})" for term in there)
        found = re.finditer(pattern, text) if there else ()
        terms = (there[(match.lastindex or 1) - 1] for match in found)
        return tuple(dict.fromkeys(self.terms[term] for term in terms))


def _words(text: str) -> str:
    return " ".join(valid_unicode(text).split())


def _pattern(term: str) -> str:
    begin = rf"(?<!{_LETTER})" if re.match(_LETTER, term[0]) else ""
    end = rf"(?!{_LETTER})" if re.match(_LETTER, term[-1]) else ""
    same = re.escape(term)
    return begin + (f"(?i:{same})" if term == term.lower() else same) + end


def read_glossary(name: str | Path) -> Glossary:
    """A file with a source term, a tab and a target term on each line; .csv: with a comma."""
    path, terms = Path(name), dict[str, str]()
    with opened(path) as file:
        text = file.read().decode("utf-8-sig")
    comma = ending_of(path) == ".csv"
    between, lines = "," if comma else "\t", StringIO(text)
    rows = csv.reader(lines) if comma else (line.rstrip("\r\n").split("\t") for line in lines)
    for number, cells in enumerate(rows, 1):
        pair = [_words(cell) for cell in cells]
        if not any(pair):
            continue
        where = f"line {number} of {path}"
        if len(pair) != 2 or not all(pair):
            sign, shown = "a comma" if comma else "a tab", repr(between.join(cells))
            raise UserError(f"{where} is {shown:.80}: write a term, {sign} and its translation")
        if terms.setdefault(*pair) != pair[1]:
            both = f"{terms[pair[0]]!r} and {pair[1]!r}"
            raise UserError(f"{where}: {pair[0]!r} cannot be translated as {both}")
    return Glossary(terms)
