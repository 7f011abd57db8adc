"""A vocabulary of single characters: nanoGPT's for Shakespeare."""

from collections.abc import Sequence
from typing import ClassVar

from limelight.errors import UserError
from limelight.interop.coders import Coder, Files, by_id, parse_json


class CharacterCoder(Coder):
    """Every character is a token; others cannot be read."""

    kind: ClassVar[str] = "characters"
    lossy = False

    def __init__(self, files: Files) -> None:
        self.files = files
        ((name, data),) = files.items()
        self.ids = parse_json(data, name)
        good = isinstance(self.ids, dict) and all(type(i) is int for i in self.ids.values())
        if not good or not all(len(c) == 1 for c in self.ids):
            raise UserError(f"{name} is no table of characters and their ids")
        self.symbols = by_id(self.ids, name)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._id(character) for character in text] for text in texts]

    def _id(self, character: str) -> int:
        if character not in self.ids:
            raise UserError(f"this model has no character {character!a}")
        found: int = self.ids[character]
        return found

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.symbols[i] or "" for i in ids)

    def merge_steps(self, text: str) -> list[list[list[str]]]:
        return [[list(word)] for word in text.split(" ") if word]
