"""Scenes without end: what stands where, drawn at random for a batch at once, on any device.

A scene has up to three groups of equal objects. The second and the third are related to the first:
first RELATION second, first RELATION third. What an object looks like is only a number here, its
kind; `shapes` and `emoji` give the kinds pictures and words. Two kinds that occur in one scene are
a combination. A hash assigns every combination to a split, so that the combinations of valid and
test never occur together in a training picture.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import torch
from torch import Tensor

from limelight.errors import UserError

RELATIONS = ("left of", "right of", "above", "below")
SPOTS = (  # row by row
    *("top left", "top", "top right"),
    *("left", "middle", "right"),
    *("bottom left", "bottom", "bottom right"),
)
GROUPS = 3
_DIRECTIONS = ((-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))  # where the first stands
_TEST, _VALID = 0.10, 0.05  # shares of the combinations
_CENTRE, _APART, _CLOSE = 16.0, 8.0, 10.2  # in a picture of 32 x 32
_COUNTS = ((2, 1), (1, 2), (3, 1), (1, 3), (2, 2))


@dataclass(frozen=True)
class Layout:
    """How a kind of scenes is composed: the shares of five forms, and the room of an object."""

    single: float  # one object
    counted: float  # one group of several
    pair: float  # two objects and their relation
    counted_pair: float  # two groups, of which at least one has several
    triple: float  # three objects
    spacing: float = 10.6  # of the members of a group
    members: tuple[int, int, int] = (3, 3, 1)  # objects of each group, at most
    forward: float = 1.5  # how far groups move towards each other, at most

    @property
    def shares(self) -> tuple[float, ...]:
        return (self.single, self.counted, self.pair, self.counted_pair, self.triple)

    @property
    def group_of(self) -> list[int]:
        """The group of each object."""
        return [group for group, count in enumerate(self.members) for _ in range(count)]


@dataclass(frozen=True)
class Scenes:
    """A batch of scenes. Groups that are not there have the count 0, relations then are -1."""

    kind: Tensor  # B 3
    count: Tensor  # B 3
    large: Tensor  # B 3, bool
    relation: Tensor  # B 2: of the first group to the second, and to the third
    spot: Tensor  # B: where a single object stands, or -1 for anywhere
    background: Tensor  # B
    group_of: Tensor  # M: of each object that the layout allows
    x: Tensor  # B M: centres of the objects, in units of a picture 32 wide
    y: Tensor  # B M
    there: Tensor  # B M, bool

    @property
    def object_kind(self) -> Tensor:
        return self.kind[:, self.group_of]

    @property
    def object_large(self) -> Tensor:
        return self.large[:, self.group_of]


class SceneSampler:
    """Samples scenes. All its tables are on the device, so that no batch waits for a copy."""

    def __init__(
        self, names: Sequence[str], layout: Layout, device: torch.device, backgrounds: int = 1
    ) -> None:
        self.layout, self.backgrounds = layout, backgrounds
        self.group_of = torch.tensor(layout.group_of, device=device)
        self.member = torch.cat([torch.arange(n, device=device) for n in layout.members])
        self.directions = torch.tensor(_DIRECTIONS, device=device)
        few = [pair for pair in _COUNTS if max(pair) <= max(layout.members)]
        self.pair_counts = torch.tensor(few or [(1, 1)], device=device)
        self._combine(names, device)

    def _combine(self, names: Sequence[str], device: torch.device) -> None:
        """Which kinds may meet in the scenes of each split, and which forms these have."""
        share = torch.tensor([[_share(a, b) for b in names] for a in names], device=device)
        other = ~torch.eye(len(names), dtype=torch.bool, device=device)
        test, valid = share < _TEST, share >= 1 - _VALID
        train = other & ~test & ~valid
        splits = {"train": train, "valid": other & valid, "test": other & test}
        self.first_two = {split: pairs.nonzero() for split, pairs in splits.items()}
        # A third kind must not bring a combination of a split that is measured later.
        self.third = {"train": train, "valid": other & ~test, "test": other}
        for split, pairs in self.first_two.items():
            if not len(pairs):
                raise UserError(f"{len(names)} kinds leave no combination for {split}: use more")
        shares = torch.tensor(self.layout.shares, device=device)
        self.forms = {}  # by split: a uniform number that reaches the nth of these is of form n + 1
        for split in splits:
            alone = 0 if split == "train" else 2  # alone, a kind is in every split
            reached = shares * (torch.arange(len(shares), device=device) >= alone)
            self.forms[split] = reached.cumsum(dim=0)[:-1] / reached.sum()

    def sample(self, split: str, rows: int, generator: torch.Generator) -> Scenes:
        """Scenes of a split. Those of valid and test have two groups or more."""
        draw = Draw(rows, generator)
        form = (draw.uniform(1) >= self.forms[split]).sum(dim=1)
        kind = self._kinds(split, draw)
        count = self._counts(form, draw)
        first = draw.below(len(RELATIONS))
        second = (first + 1 + draw.below(len(RELATIONS) - 1)) % len(RELATIONS)
        relation = torch.stack([first, second], dim=1).masked_fill(count[:, 1:] == 0, -1)
        spot = torch.where((form == 0) & (draw.uniform() < 0.5), draw.below(len(SPOTS)), -1)
        x, y = self._positions(relation, count, spot, draw)
        return Scenes(
            kind=kind,
            count=count,
            large=draw.uniform(GROUPS) < 0.5,
            relation=relation,
            spot=spot,
            background=draw.below(self.backgrounds),
            group_of=self.group_of,
            x=x,
            y=y,
            there=self.member < count[:, self.group_of],
        )

    def _kinds(self, split: str, draw: "Draw") -> Tensor:
        """Three kinds for each row, B 3; both orders of a combination are equally likely."""
        two = self.first_two[split][draw.below(len(self.first_two[split]))]
        fits = self.third[split][two[:, 0]] & self.third[split][two[:, 1]]
        # Not torch.multinomial, which waits for the GPU to check its weights.
        third = (draw.uniform(fits.size(1)) + fits).argmax(dim=1, keepdim=True)
        return torch.cat([two, third], dim=1)

    def _counts(self, form: Tensor, draw: "Draw") -> Tensor:
        """Objects in each group, B 3."""
        both = self.pair_counts[draw.below(len(self.pair_counts))]
        ones = torch.ones_like(form)
        several = 2 + draw.below(max(1, max(self.layout.members) - 1))
        first = torch.where(form == 1, several, torch.where(form == 3, both[:, 0], ones))
        second = torch.where(form == 3, both[:, 1], (form >= 2).long())
        return torch.stack([first, second, (form == 4).long()], dim=1)

    def _positions(
        self, relation: Tensor, count: Tensor, spot: Tensor, draw: "Draw"
    ) -> tuple[Tensor, Tensor]:
        """Centres of all objects, B M and B M, so that relations are clear and nothing overlaps."""
        two, three = (relation[:, :1] >= 0), (relation[:, 1:] >= 0)
        to_second = self.directions[relation[:, 0]] * two  # B 2
        to_third = self.directions[relation[:, 1]] * three
        line = three & ((to_second * to_third).sum(dim=1, keepdim=True) != 0)  # all three
        corner = three & ~line
        apart = torch.where(line, _CLOSE, _APART)
        first = to_second * torch.where(line, 0.0, _APART)
        first = first + to_third * torch.where(corner, _APART, 0.0)
        steps = torch.where(line, apart, 2 * apart)
        second, third = first - to_second * steps, first - to_third * steps
        centres = _CENTRE + torch.stack([first, second, third], dim=1)  # B 3 2
        # A line of objects goes across the relation, or anywhere if there is none.
        anyhow = self.directions[draw.below(4)].abs()
        across = torch.where(two, to_second.abs().flip(1), anyhow)  # B 2
        centres = centres + self._jitter(across, count, two, line, corner, draw)
        if_single = torch.stack([spot % 3, spot // 3], dim=1) * 10.0 + 6.0 + draw.within(1.0, 2)
        free = torch.where(count[:, :1] > 1, self._free(across, count), 9.0)
        anywhere = _CENTRE + draw.within(free, 2)
        alone = torch.where(spot[:, None] >= 0, if_single, anywhere)
        centres[:, 0] = torch.where(two, centres[:, 0], alone)
        along = (self.member - (count[:, self.group_of] - 1) / 2) * self.layout.spacing  # B M
        at = centres[:, self.group_of] + along[..., None] * across[:, None]
        return at[..., 0], at[..., 1]

    def _free(self, across: Tensor, count: Tensor) -> Tensor:
        """How far a group without relations may move, B 2: less in the direction of its line."""
        along = torch.where(count[:, :1] == 2, max(0.3, 8.5 - self.layout.spacing / 2), 0.3)
        return torch.where(across > 0, along, 9.0)

    def _jitter(
        self,
        across: Tensor,
        count: Tensor,
        two: Tensor,
        line: Tensor,
        corner: Tensor,
        draw: "Draw",
    ) -> Tensor:
        """How far each group is moved from its exact position, B 3 2."""
        sideways = torch.where(count == 1, 5.0, torch.where(count == 2, 3.0, 0.3))  # B 3
        sideways = torch.where(line, 3.5, torch.where(corner, 1.5, sideways))
        forward = torch.where(line, 0.3, self.layout.forward)
        most = across[:, None] * sideways[..., None] + (1 - across[:, None]) * forward[..., None]
        return draw.within(most, GROUPS, 2) * two[..., None]


class Draw:
    """Random numbers for the rows of a batch."""

    def __init__(self, rows: int, generator: torch.Generator) -> None:
        self.rows, self.generator, self.device = rows, generator, generator.device

    def uniform(self, *shape: int) -> Tensor:
        size = (self.rows, *shape)
        return torch.rand(size, generator=self.generator, device=self.device)

    def below(self, most: int, *shape: int) -> Tensor:
        size = (self.rows, *shape)
        return torch.randint(most, size, generator=self.generator, device=self.device)

    def within(self, most: Tensor | float, *shape: int) -> Tensor:
        """From -most to most."""
        return (2 * self.uniform(*shape) - 1) * most


def _share(a: str, b: str) -> float:
    """A number from 0 to 1 for an unordered pair of names, the same on every machine."""
    text = "+".join(sorted((a, b)))
    return int.from_bytes(sha256(text.encode()).digest()[:6]) / 2**48
