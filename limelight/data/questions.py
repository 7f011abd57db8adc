"""Paragraphs with a question and its answer, made in the manner of the bAbI tasks.

Weston et al. 2015, "Towards AI-Complete Question Answering". A paragraph tells what people do; each
task asks for one thing: where somebody or something is, who gave what to whom, how many things
somebody has, the way between two places, or yes and no. An answer is a sentence that says first
what it is derived from, since a model writes it word by word: who has the ball, then where.

Validation and test have names that no training paragraph has, and the test says everything in other
sentences too (`questions.toml`). Some training sentences have a verb that nobody knows (*Mary
greeped over to the garden*), so that a new one is understood by the words around it.
"""

import re
import tomllib
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random

_TOLD = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_NAMES = {key: words.split() for key, words in _TOLD["names"].items()}
_PLACES, _THINGS, _COUNTS = (words.split() for words in _TOLD["words"].values())
_WORDS = {*re.findall("[a-z]+", str(_TOLD["sentences"]).lower()), "then", "after", "later", "next"}
_BEFORE = ("", "", "", "", "Then ", "After that ", "Later ", "Next ")
_OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
_Found = tuple[list[str], str, str]  # sentences, a question, its answer


class _Story:
    """Draws names and sentences of one split."""

    def __init__(self, draw: Random, split: str) -> None:
        self.draw, self.split = draw, split

    def say(self, kind: str, before: str = "", **words: str) -> str:
        said = self.draw.choice(_TOLD["sentences"][kind][self.split == "test"])
        if "{verb}" in said:
            words["verb"] = f"{self._invented().lower()}ed"
        sentence = said.format(**words)
        return before + sentence if before else sentence[0].upper() + sentence[1:]

    def sentence(self, kind: str, **words: str) -> str:
        return self.say(kind, self.draw.choice(_BEFORE), **words)

    def names(self, number: int) -> list[str]:
        """Different people; in training, most of them have names that nobody has."""
        known = self.draw.sample(_NAMES[self.split], number)
        if self.split != "train":
            return known
        return [self._invented() if self.draw.random() < 0.7 else name for name in known]

    def _invented(self) -> str:
        """A name of any letters, so that names are learned to be copied, and not by heart."""
        kinds = ("starts", "vowels", "ends") * self.draw.randint(1, 2)
        name = "".join(self.draw.choice(_NAMES[kind]) for kind in kinds).replace("-", "")
        return name.capitalize() if len(name) > 2 and name not in _WORDS else self._invented()


def _moves(story: _Story, length: int) -> tuple[list[str], dict[str, str]]:
    """Sentences in which people go to places, and where each of them is in the end."""
    people, told, at = story.names(3), list[str](), dict[str, str]()
    for _ in range(length):
        who, place = story.draw.choice(people), story.draw.choice(_PLACES)
        told.append(story.sentence("move", who=who, place=place))
        at[who] = place
    return told, at


def _where(story: _Story, length: int) -> _Found:
    """One supporting fact: the last place of a person."""
    told, at = _moves(story, length)
    who = story.draw.choice(list(at))
    return told, story.say("where?", who=who), f"{who} is in the {at[who]}."


def _yes_no(story: _Story, length: int) -> _Found:
    told, at = _moves(story, length)
    who, right = story.draw.choice(list(at)), story.draw.random() < 0.5
    others = [place for place in {*at.values(), story.draw.choice(_PLACES)} if place != at[who]]
    place = at[who] if right or not others else story.draw.choice(sorted(others))
    verdict = "yes" if place == at[who] else "no"
    answer = f"{who} is in the {at[who]}, so {verdict}."
    return told, story.say("in?", who=who, place=place), answer


def _carry(story: _Story, length: int) -> _Found:
    """Two supporting facts: who has a thing, and where that person is."""
    people, things = story.names(2), story.draw.sample(_THINGS, 2)
    at: dict[str, str] = {}
    has: dict[str, str] = {}
    lies: dict[str, tuple[str, str]] = {}  # who dropped it, and where
    told = []
    for _ in range(length):
        who = story.draw.choice(people)
        free = [thing for thing in things if thing not in has]
        own = [thing for thing in things if has.get(thing) == who]
        if who not in at or (action := story.draw.random()) < 0.5 or not (free or own):
            at[who] = story.draw.choice(_PLACES)
            told.append(story.sentence("move", who=who, place=at[who]))
        elif free and (action < 0.85 or not own):
            has[thing := story.draw.choice(free)] = who
            told.append(story.sentence("take", who=who, thing=thing))
        else:
            del has[thing := story.draw.choice(own)]
            lies[thing] = who, at[who]
            told.append(story.sentence("drop", who=who, thing=thing))
    known = [thing for thing in things if thing in has or thing in lies]
    if not known:
        return _carry(story, max(2, length))
    thing = story.draw.choice(known)
    who, place = (has[thing], at[has[thing]]) if thing in has else lies[thing]
    answer = f"{who} {'has' if thing in has else 'left'} the {thing} in the {place}."
    return told, story.say("where thing?", thing=thing), answer


def _give(story: _Story, length: int) -> _Found:
    """Three places in one fact: who, what, to whom."""
    people, things = story.names(4), story.draw.sample(_THINGS, min(length, len(_THINGS)))
    pairs = [(a, b) for a in people for b in people if a != b]
    gifts = list(zip(story.draw.sample(pairs, min(length, len(pairs))), things, strict=False))
    told = [story.sentence("give", who=a, other=b, thing=thing) for (a, b), thing in gifts]
    (who, other), thing = story.draw.choice(gifts)
    question = story.draw.choice(["giver?", "receiver?", "gift?"])
    answer = f"{who} gave the {thing} to {other}."
    return told, story.say(question, who=who, other=other, thing=thing), answer


def _count(story: _Story, length: int) -> _Found:
    people, told = story.names(2), []
    has: dict[str, list[str]] = {who: [] for who in people}
    for _ in range(length):
        who = story.draw.choice(people)
        free = [thing for thing in _THINGS if not any(thing in own for own in has.values())]
        if has[who] and story.draw.random() < 0.35:
            thing = has[who].pop(story.draw.randrange(len(has[who])))
            told.append(story.sentence("drop", who=who, thing=thing))
        else:
            has[who].append(thing := story.draw.choice(free))
            told.append(story.sentence("take", who=who, thing=thing))
    who = story.draw.choice(people)
    listed = ", ".join(f"the {thing}" for thing in has[who]) or "nothing"
    number = _COUNTS[min(len(has[who]), len(_COUNTS) - 1)]
    return told, story.say("many?", who=who), f"{who} has {listed}: {number}."


def _path(story: _Story, length: int) -> _Found:
    """Two steps through three places; the other sentences are of other places."""
    places = story.draw.sample(_PLACES, 3 + 2 * max(0, min(length, 6) - 2))
    ways = [story.draw.choice(list(_OPPOSITE)) for _ in places]
    while ways[1] == _OPPOSITE[ways[0]]:
        ways[1] = story.draw.choice(list(_OPPOSITE))
    facts = [(places[0], places[1], ways[0]), (places[1], places[2], ways[1])]
    rest = zip(places[3::2], places[4::2], ways[3::2], strict=True)
    told = []
    for start, end, way in story.draw.sample([*facts, *rest], len(places) // 2 + 1):
        said = {"place": end, "other": start, "way": way}
        back = {"place": start, "other": end, "way": _OPPOSITE[way]}
        told.append(story.say("beside", **(said if story.draw.random() < 0.5 else back)))
    question = story.say("way?", other=places[0], place=places[2])
    return told, question, f"Go {ways[0]}, then {ways[1]}."


QUESTIONS: dict[str, Callable[[_Story, int], _Found]] = {
    "where": _where,
    "carry": _carry,
    "give": _give,
    "count": _count,
    "path": _path,
    "yes-no": _yes_no,
}


def make_questions(task: str, split: str, longest: int) -> Iterator[tuple[str, str]]:
    """Questions with their paragraphs, and answers, without end; the same ones every time."""
    draw = Random(f"{task} {split}")
    story = _Story(draw, split)
    for _ in count():
        told, question, answer = QUESTIONS[task](story, draw.randint(2, longest))
        yield ask_source(question, " ".join(told)), answer


def ask_source(question: str, context: str) -> str:
    """What a model reads that answers a question about a paragraph."""
    return f"{question} {context}"
