"""Lines in the wrong language are found without knowing any language."""

import random

from limelight.data.check import LanguageMixups, find_mixups

# Two made-up languages: words of the one end in vowels, of the other in consonants.
ONE = ["tako", "mira", "solu", "kena", "vipo", "lira", "donu", "feka", "rati", "gomu"]
OTHER = ["brant", "skelm", "troft", "plisk", "grond", "smelt", "krist", "drulf", "stamp", "flenk"]


def sentence(words, draw):
    return " ".join(draw.choices(words, k=draw.randint(5, 12)))


def corpus(count=2000):
    draw = random.Random(0)
    return [(sentence(ONE, draw), sentence(OTHER, draw)) for _ in range(count)]


def test_a_clean_corpus_has_none():
    assert find_mixups(corpus) == LanguageMixups(0, 0, 0, 0)


def test_planted_ones_are_counted_exactly():
    pairs = corpus()
    for i in range(30):
        pairs[i] = pairs[i][::-1]
    for i in range(100, 120):
        pairs[i] = (pairs[i][0], pairs[i][0])
    for i in range(200, 210):
        pairs[i] = (pairs[i][0], pairs[i + 50][0])
    for i in range(300, 305):
        pairs[i] = (pairs[i + 50][1], pairs[i][1])
    assert find_mixups(lambda: pairs) == LanguageMixups(copied=20, swapped=30, source=5, target=10)


def test_two_sides_of_one_language_are_not_suspected():
    draw = random.Random(1)
    pairs = [(sentence(ONE, draw), sentence(ONE, draw)) for _ in range(2000)]
    assert find_mixups(lambda: pairs) == LanguageMixups(0, 0, 0, 0)


def test_questions_and_answers_are_one_language():
    """Each side has words of its own, and most that both share."""
    draw = random.Random(2)
    questions = [*ONE, "whato", "wheru"]
    answers = [*ONE, "yesa", "nota"]
    pairs = [(sentence(questions, draw), sentence(answers, draw)) for _ in range(500)]
    pairs += [(f"{a} yesa yesa nota nota", b) for a, b in pairs[:20]]
    assert find_mixups(lambda: pairs) == LanguageMixups(0, 0, 0, 0)


def test_names_and_numbers_may_be_in_any_language():
    pairs = [*corpus(), ("Brant", "Brant"), ("tako", "mira"), ("7", "7"), ("", "")]
    assert find_mixups(lambda: pairs) == LanguageMixups(0, 0, 0, 0)
