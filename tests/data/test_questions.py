"""Made questions: the answer is in the paragraph, and the test has other names and sentences."""

import re
from itertools import islice

import pytest

from limelight.data.config import DataConfig
from limelight.data.corpora import read_split
from limelight.data.questions import _NAMES, _TOLD, QUESTIONS, make_questions
from limelight.data.readers import LineStats

SPLITS = ("train", "valid", "test")
DROPS = ("dropped", "put", "left", "laid")
FROM = ("got", "took", "received")
PLACE = re.compile(rf"({'|'.join(_TOLD['words']['places'].split())})\b")
THING = re.compile(rf"the ({'|'.join(_TOLD['words']['things'].split())})\b")
SIDES = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}


def names_in(text):
    known = {"Then", "After", "Later", "Next", "The", "To", *map(str.title, SIDES)}
    known |= {question.split()[0] for both in _TOLD["sentences"].values() for question in both[0]}
    words = re.findall(r"\b[A-Z][a-z]+\b", text)
    others = ["Where", "In", "Do", "Who", "What", "How", "Is", "Can", "Which", "I"]
    return [word for word in words if word not in {*known, *others}]


def places_at_the_end(told):
    """Where every person and thing is, read sentence by sentence."""
    at, has = {}, {}
    for sentence in told:
        (who,), thing, place = names_in(sentence), THING.search(sentence), PLACE.search(sentence)
        if place:
            at[who] = place[1]
        elif any(word in sentence for word in DROPS):
            del has[thing[1]]
            at[thing[1]] = at.get(who)
        else:
            has[thing[1]] = who
    return at | {thing: at.get(who) for thing, who in has.items()}, has


def answer(task, question, told):
    """The answer of a reader that knows the verbs, and nothing of how the paragraph was made."""
    if task == "give":
        gifts = []
        for sentence in told:
            first, second = names_in(sentence)
            swapped = any(f" {verb} " in sentence for verb in FROM)
            gifts.append((second, first) if swapped else (first, second))
        things = [THING.search(sentence)[1] for sentence in told]
        asked, people = THING.search(question), names_in(question)
        if asked:
            pair = gifts[things.index(asked[1])]
            return next(name for name in pair if name not in people)
        wanted = (people[1], people[0]) if " get from " in question else tuple(people)
        return f"the {things[gifts.index(wanted)]}"
    if task == "path":
        x, y = PLACE.findall(question)
        where = {x: (0, 0)}
        for _ in told:
            for sentence in told:
                way = next(side for side in SIDES if side in sentence.lower())
                a, b = PLACE.findall(sentence)
                a, b = (a, b) if sentence.strip().startswith("The") else (b, a)
                for known, other, sign in ((b, a, 1), (a, b, -1)):
                    if known in where:
                        step = (p + sign * d for p, d in zip(where[known], SIDES[way], strict=True))
                        where.setdefault(other, tuple(step))
        return where[y]
    at, has = places_at_the_end(told)
    if task == "count":
        return sum(owner == names_in(question)[0] for owner in has.values())
    if task == "carry":
        return f"the {at[THING.search(question)[1]]}"
    place = at[names_in(question)[0]]
    return f"the {place}" if task == "where" else "yes" if place in question else "no"


def as_told(task, text):
    """A model's answer in the form of the reader's."""
    if task == "count":
        return _TOLD["words"]["counts"].split().index(text)
    if task == "path":
        return tuple(map(sum, zip(*(SIDES[way] for way in text.split(", then ")), strict=True)))
    return text


@pytest.mark.parametrize("task", QUESTIONS)
@pytest.mark.parametrize("split", SPLITS)
def test_a_reader_finds_every_answer(task, split):
    answers = set()
    for source, told in islice(make_questions(task, split, 6), 200):
        question, paragraph = re.match(r"(.*?\?) (.*)", source).groups()
        sentences = re.findall(r"[^.]+\.", paragraph)
        assert 2 <= len(sentences) <= 6
        assert answer(task, question, sentences) == as_told(task, told), source
        answers.add(told)
    assert len(answers) >= (2 if task == "yes-no" else 3)


def test_the_reader_notices_a_wrong_answer():
    """The control: without its last sentence, a paragraph has another answer, or none."""
    for source, told in islice(make_questions("where", "test", 6), 50):
        question, paragraph = re.match(r"(.*?\?) (.*)", source).groups()
        *sentences, last = re.findall(r"[^.]+\.", paragraph)
        if names_in(question)[0] in last:
            elsewhere = last.replace(told.removeprefix("the "), "tower of the moon")
            wrong = told == "the tower"
            assert (answer("where", question, [*sentences, elsewhere]) != told) is not wrong


def test_validation_and_test_have_other_names_and_the_test_other_sentences():
    names = {split: set(_NAMES[split]) for split in SPLITS}
    assert not names["train"] & names["valid"] | names["train"] & names["test"]
    for task in QUESTIONS:
        for split in ("valid", "test"):
            for source, _ in islice(make_questions(task, split, 4), 50):
                assert set(names_in(source)) <= names[split]
    assert all(not set(seen) & set(held) for seen, held in _TOLD["sentences"].values())


def test_splits_are_apart_and_repeatable():
    data = DataConfig(toy="path", toy_examples=400, toy_length=2)
    rows = {split: list(read_split(data, split, LineStats())) for split in SPLITS}
    assert [len(each) for each in rows.values()] == [400, 40, 40]
    assert not {*rows["train"]} & {*rows["valid"]}
    assert list(read_split(data, "valid", LineStats())) == rows["valid"]
