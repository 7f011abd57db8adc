"""Made questions: the answer is in the paragraph, and the test has other names and sentences."""

import re
from itertools import islice

import pytest

from limelight.data.config import DataConfig
from limelight.data.corpora import read_split
from limelight.data.lines import LineStats
from limelight.data.questions import _NAMES, _TOLD, QUESTIONS, make_questions

SPLITS = ("train", "valid", "test")
DROPS = re.compile(r"\b(dropped|put|left|laid|let|set|down)\b")
PLACE = re.compile(rf"({'|'.join(_TOLD['words']['places'].split())})\b")
THING = re.compile(rf"the ({'|'.join(_TOLD['words']['things'].split())})\b")
SIDES = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}


def names_in(text):
    known = {"Then", "After", "Later", "Next", "The", "To", "You", "Just", *map(str.title, SIDES)}
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
        elif DROPS.search(sentence):
            del has[thing[1]]
            at[thing[1]] = at.get(who)
        else:
            has[thing[1]] = who
    return at | {thing: at.get(who) for thing, who in has.items()}, has


def answer(task, question, told):
    """The answer of a reader that knows the verbs, and nothing of how the paragraph was made."""
    if task == "give":
        for sentence in told:
            first, second = names_in(sentence)
            swapped = f"from {second}" in sentence
            who, other = (second, first) if swapped else (first, second)
            thing, asked, people = (
                THING.search(sentence)[1],
                THING.search(question),
                names_in(question),
            )
            back = re.search(r"from \w+\?|given by", question)
            right = (other, who) if back else (who, other)
            if asked[1] == thing if asked else right == tuple(people):
                return f"{who} gave the {thing} to {other}."
    if task == "path":
        return way_to(*PLACE.findall(question), told)
    at, has = places_at_the_end(told)
    if task == "carry":
        thing = THING.search(question)[1]
        return thing, has.get(thing), at[thing]
    (who,) = names_in(question)
    if task == "count":
        own = [thing for thing, owner in has.items() if owner == who]
        listed = ", ".join(f"the {thing}" for thing in own) or "nothing"
        return f"{who} has {listed}: {_TOLD['words']['counts'].split()[len(own)]}."
    verdict = ", so yes" if at[who] in question else ", so no"
    return f"{who} is in the {at[who]}{verdict if task == 'yes-no' else ''}."


def way_to(start, end, told):
    where = {start: (0, 0)}
    for sentence in told * len(told):
        way = next(side for side in SIDES if side in sentence.lower())
        a, b = PLACE.findall(sentence)
        a, b = (a, b) if sentence.strip().startswith(("The", "You")) else (b, a)
        for known, other, sign in ((b, a, 1), (a, b, -1)):
            if known in where:
                step = (p + sign * d for p, d in zip(where[known], SIDES[way], strict=True))
                where.setdefault(other, tuple(step))
    return where[end]


def as_told(task, text):
    """A generated answer in the form of the reader's, where that has no words."""
    if task == "path":
        ways = re.match(r"Go (\w+), then (\w+)\.", text).groups()
        return tuple(map(sum, zip(*(SIDES[way] for way in ways), strict=True)))
    if task == "carry":
        who, verb, thing, place = re.match(
            r"(\w+) (has|left) the (\w+) in the (\w+)\.", text
        ).groups()
        return thing, who if verb == "has" else None, place
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
            elsewhere = last.replace(told.split()[-1].strip("."), "tower of the moon")
            wrong = "the tower" in told
            assert (answer("where", question, [*sentences, elsewhere]) != told) is not wrong


def test_validation_and_test_have_other_names_and_the_test_other_sentences():
    names = {split: set(_NAMES[split]) for split in SPLITS}
    assert not names["train"] & names["valid"] | names["train"] & names["test"]
    for task in QUESTIONS:
        for split in ("valid", "test"):
            for source, _ in islice(make_questions(task, split, 4), 50):
                assert set(names_in(source)) <= names[split]
    assert all(not set(seen) & set(held) for seen, held in _TOLD["sentences"].values())


def test_invented_verbs_are_in_training_and_validation_alone():
    for task in ("where", "carry", "give", "count"):
        told = {
            split: " ".join(s for s, _ in islice(make_questions(task, split, 5), 300))
            for split in SPLITS
        }
        known = {split: set(re.findall(r"[a-z]+ed\b", told[split])) for split in SPLITS}
        assert len(known["train"]) > 50
        assert len(known["test"]) < 10


def test_splits_are_apart_and_repeatable():
    data = DataConfig(toy="path", toy_examples=400, toy_length=2)
    rows = {split: list(read_split(data, split, LineStats())) for split in SPLITS}
    assert [len(each) for each in rows.values()] == [400, 40, 40]
    assert not {*rows["train"]} & {*rows["valid"]}
    assert list(read_split(data, "valid", LineStats())) == rows["valid"]
