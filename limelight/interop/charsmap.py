"""SentencePiece's normalization rules: the "precompiled charsmap" that its models carry.

The `tokenizers` library reads the same rules, but applies them to user-perceived characters and
keeps only the shortest match, so "E" with two accents loses one. Ids must be equal to the origin's,
so this applies them as SentencePiece does: at every position the longest rule.
"""

import re
import struct
import sys
from array import array

from limelight.errors import UserError

_LONGEST = 256  # bytes of a replacement; the longest of SentencePiece's own has 33
# What may begin a rule: all but printable ASCII, and that too if something else follows.
_CANDIDATE = re.compile(r"[^ -~]|[ -~](?=[^ -~])")
_ANY = re.compile(r"(?s:.)")


class Charsmap:
    """A double-array trie of UTF-8 keys, then their replacements, each ending in a zero byte."""

    def __init__(self, data: bytes) -> None:
        size = struct.unpack("<I", data[:4])[0] if len(data) >= 4 else 0
        if not 4 <= size <= len(data) - 4 or size % 4:
            raise _damaged("its size is wrong")
        self.units = array("I", data[4 : 4 + size])
        if sys.byteorder == "big":
            self.units.byteswap()
        self.texts = data[4 + size :]
        plain = (
            self.match(a + b, 0) for a in map(chr, range(32, 127)) for b in ("", "a", "~", " ")
        )
        self.candidate = _ANY if any(plain) else _CANDIDATE  # such as rules that lowercase

    def normalize(self, text: str) -> str:
        parts, done = [], 0
        for found in self.candidate.finditer(text):
            start = found.start()
            if start >= done and (rule := self.match(text, start)):
                length, replacement = rule
                parts += [text[done:start], replacement]
                done = start + length
        return "".join([*parts, text[done:]]) if done else text

    def match(self, text: str, start: int) -> tuple[int, str] | None:
        """The longest rule at this character: how many it reads, and what it writes."""
        units, at, best = self.units, 0, None
        for end in range(start, len(text)):
            for byte in text[end].encode():
                at ^= _offset(units[at]) ^ byte
                if at >= len(units) or units[at] & 0x800000FF != byte:
                    return best
            if units[at] & 0x100:  # a rule ends here
                leaf = at ^ _offset(units[at])
                value = units[leaf] & 0x7FFFFFFF if leaf < len(units) else -1
                best = end + 1 - start, self.replacement(value)
        return best

    def replacement(self, start: int) -> str:
        end = self.texts.find(b"\0", start, start + _LONGEST) if start >= 0 else -1
        if end < 0:
            raise _damaged("a replacement is missing or too long")
        return self.texts[start:end].decode(errors="replace")


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 0x200) >> 6)


def _damaged(why: str) -> UserError:
    return UserError(f"the tokenizer's table of characters is damaged: {why}")
