"""Scenes in plain English, with varied wording: words as numbers, for a batch at once.

A caption is put together from phrases of fixed width in which 0 is no word; at the end the words
move together. So all captions of a batch are a few table look-ups, on any device.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from limelight.draw.scenes import GROUPS, RELATIONS, SPOTS, Draw, Scenes

_SIZES = (("small", "little", "tiny"), ("large", "big", "huge"))
_NUMBERS = ("a", "an", "one", "two", "three")
_OPENINGS = ("", "", "", "", "a picture of", "an image of", "draw", "please draw")
_WAYS = {
    "left of": ("left of", "to the left of", "on the left of"),
    "right of": ("right of", "to the right of", "on the right of"),
    "above": ("above", "over", "on top of"),
    "below": ("below", "under", "beneath"),
}
_AT = {name: (f"in the {name} corner", f"at the {name}") for name in SPOTS if " " in name} | {
    "top": ("at the top", "near the top"),
    "bottom": ("at the bottom", "near the bottom"),
    "left": ("on the left", "at the left edge"),
    "right": ("on the right", "at the right edge"),
    "middle": ("in the middle", "in the center"),
}
_SIZED = 0.9  # of the phrases say the size
_TURNED = 0.2  # of the pairs are said the other way around: "above B is A"


def normalize(caption: str) -> str:
    """Lower case, no punctuation, single spaces: as captions are learned."""
    return " ".join(re.findall(r"[^\W_]+(?:['-][^\W_]+)*", caption.lower()))


def _plural(name: str) -> str:
    """Of an English name, by rule: enough to be told from one."""
    if name.endswith("s"):
        return name
    if name.endswith(("x", "ch", "sh")):
        return name + "es"
    if name.endswith("y") and name[-2:-1] not in {*"aeiou"}:
        return name[:-1] + "ies"
    return name + "s"


@dataclass(frozen=True)
class Captions:
    """Captions of a batch as numbers of words, and what they leave open."""

    words: Tensor  # B W, 0 behind the last
    sized: Tensor  # B 3: whether the size of a group is said


class Wording:
    """The words for kinds of objects: for each its names, as one object is called."""

    def __init__(
        self,
        names: Sequence[Sequence[str]],
        groups: int,
        device: torch.device,
        backgrounds: Sequence[str] = ("",),
    ) -> None:
        several = [[_plural(name) for name in each] for each in names]
        on = [f"on a {name} background" if name else "" for name in backgrounds]
        fixed = [*_SIZES, _NUMBERS, _OPENINGS, *_WAYS.values(), *_AT.values(), on, ["is are and"]]
        tables = (*fixed, *names, *several)
        used = {word for table in tables for text in table for word in text.split()}
        self.words = ["", *sorted(used)]
        self.number = {word: i for i, word in enumerate(self.words)}
        self.device = device
        self.nouns = torch.stack([self.table(names), self.table(several)])  # 2 K N W
        self.sizes, self.ways = self.table(_SIZES), self.table([_WAYS[name] for name in RELATIONS])
        self.at = self.table([_AT[name] for name in SPOTS])
        self.openings, self.on = (self.table([each])[0] for each in (_OPENINGS, on))
        related, phrase = self.ways.size(2), 2 + self.nouns.size(3)
        relations = [0, related + phrase, 2 * (related + phrase) + 1][groups - 1]
        most = self.openings.size(1) + phrase + max(self.at.size(2), relations)
        self.longest = most + (self.on.size(1) if len(on) > 1 else 0)  # words of a caption
        self.vowel = torch.tensor([w[:1] in {*"aeiou"} for w in self.words], device=device)

    def table(self, texts: Iterable[Sequence[str]]) -> Tensor:
        """Numbers of the words of texts, padded to one width: rows, variants, W."""
        split = [[text.split() for text in row] for row in texts]
        most = max(len(row) for row in split)
        width = max((len(text) for row in split for text in row), default=0) or 1
        found = torch.zeros(len(split), most, width, dtype=torch.long)
        for i, row in enumerate(split):
            for j in range(most):  # a kind with fewer names has them more often
                text = row[j % len(row)]
                for k, word in enumerate(text):
                    found[i, j, k] = self.number[word]
        return found.to(self.device)

    def text(self, words: Tensor) -> list[str]:
        """Captions as people read them."""
        return [" ".join(self.words[i] for i in row if i) for row in words.tolist()]

    def describe(self, scenes: Scenes, generator: torch.Generator) -> Captions:
        """A caption for each scene."""
        draw = Draw(len(scenes.kind), generator)
        below, sized = draw.below, draw.uniform(GROUPS) < _SIZED
        phrases = [self._phrase(scenes, g, sized[:, g], below) for g in range(GROUPS)]
        way, other = (self.ways[scenes.relation[:, i], below(3)] for i in (0, 1))
        at = self.at[scenes.spot, below(2)] * (scenes.spot >= 0)[:, None]
        two, three = scenes.count[:, 1:2] > 0, scenes.count[:, 2:] > 0
        way, other = way * two, other * three
        turned = (draw.uniform(1) < _TURNED) & two & ~three
        opening = self.openings[below(len(_OPENINGS))] * ~turned
        joined = self.number["and"] * three
        verb = torch.where(scenes.count[:, :1] > 1, self.number["are"], self.number["is"])
        on = self.on[scenes.background]
        straight = [opening, phrases[0], at, way, phrases[1], joined, other, phrases[2], on]
        inverse = [way, phrases[1], verb, phrases[0], on]
        said, other_way = torch.cat(straight, 1), torch.cat(inverse, 1)
        words = torch.where(turned, pad(other_way, (0, said.size(1) - other_way.size(1))), said)
        order = (words == 0).long().argsort(dim=1, stable=True)
        return Captions(words.gather(1, order)[:, : self.longest], sized)

    def _phrase(
        self, scenes: Scenes, group: int, sized: Tensor, below: Callable[[int], Tensor]
    ) -> Tensor:
        """Number, size and name of a group, B W; no words if it is not there."""
        count, kind = scenes.count[:, group], scenes.kind[:, group]
        name = self.nouns[(count > 1).long(), kind, below(self.nouns.size(2))]
        size = self.sizes[scenes.large[:, group].long(), below(3), 0] * sized
        vowel = self.vowel[torch.where(sized, size, name[:, 0])]
        a, an, one, two, three = (self.number[word] for word in _NUMBERS)
        single = torch.where(below(10) == 0, one, torch.where(vowel, an, a))
        number = torch.where(count == 1, single, torch.where(count == 2, two, three))
        return torch.cat([number[:, None], size[:, None], name], dim=1) * (count > 0)[:, None]
