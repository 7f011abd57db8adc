"""The little chatbot's corpus: clean, consistent, and true of the model that learns it."""

import re

import pytest

from limelight.data.check import check
from limelight.data.corpora import read_split
from limelight.data.lines import LineStats
from limelight.data.registry import resolve
from limelight.model import build
from limelight.recipe import load_recipe

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
NUMBERS += ["eleven", "twelve"]
SUMS = {"plus": int.__add__, "minus": int.__sub__, "times": int.__mul__}


@pytest.fixture(scope="module")
def recipe():
    return load_recipe("greetings")


@pytest.fixture(scope="module")
def exchanges(recipe):
    """Both splits, read without LIMELIGHT_DATA, and nothing in them refused or mended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LIMELIGHT_DATA", raising=False)
        data = resolve(recipe.data)
    splits = {}
    for split in ("train", "valid"):
        tally = LineStats()
        splits[split] = list(read_split(data, split, tally))
        assert tally.read == tally.used == len(splits[split])
        assert not tally.repaired
    return splits


def plain(text):
    """Lower case and without punctuation, as many type."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower().replace("'", "")))


def test_there_is_enough_and_it_is_varied(exchanges):
    train = exchanges["train"]
    assert len({prompt for prompt, _ in train}) == len(train) >= 900
    assert len({plain(prompt) for prompt, _ in train}) >= 600
    assert len({answer for _, answer in train}) >= 300
    assert len(exchanges["valid"]) >= 60


def test_the_first_thing_that_people_say(exchanges):
    answers = dict(exchanges["train"])
    assert answers["Hi how are you"] == "I am fine"
    assert answers["Hi, how are you?"] == "I am fine."
    assert answers["What is your name?"] == "My name is Limelight."


def test_prompts_that_mean_the_same_have_one_answer(exchanges):
    """However a prompt is typed; but an answer may leave its full stop out where the prompt did."""
    answers = {}
    for prompt, answer in exchanges["train"]:
        answers.setdefault(plain(prompt), set()).add(answer.removesuffix("."))
    assert [prompt for prompt, several in answers.items() if len(several) > 1] == []


def test_validation_asks_what_was_learned_in_words_that_were_not(exchanges):
    learned = {plain(prompt) for prompt, _ in exchanges["train"]}
    reworded = [plain(prompt) for prompt, _ in exchanges["valid"]]
    assert len(set(reworded)) == len(reworded)
    assert learned.isdisjoint(reworded)
    assert {a for _, a in exchanges["valid"]} <= {a for _, a in exchanges["train"]}


def test_every_text_is_short_tidy_and_in_printable_ascii(exchanges):
    for text in (text for rows in exchanges.values() for pair in rows for text in pair):
        assert text.isascii()
        assert text.isprintable()
        assert text == " ".join(text.split())
        assert len(text.split()) <= 20


def test_the_sums_are_right(exchanges):
    pattern = re.compile(r"(\w+) (plus|minus|times) (\w+) is (\w+)\.")
    sums = [match for _, a in exchanges["train"] if (match := pattern.fullmatch(a.lower()))]
    assert len(sums) >= 40
    for left, operation, right, result in (match.groups() for match in sums):
        value = SUMS[operation](NUMBERS.index(left), NUMBERS.index(right))
        assert NUMBERS[value] == result


def test_what_it_says_of_itself_is_true(exchanges, recipe):
    answers, model = dict(exchanges["train"]), recipe.model
    assert answers["What are you?"].endswith("with an encoder and a decoder.")
    assert model.family == "encoder-decoder"
    layers = NUMBERS[model.layers]
    assert (
        f"{layers} layers in the encoder and {layers} in" in answers["How many layers do you have?"]
    )
    assert f"{NUMBERS[model.heads]} heads" in answers["How many heads do you have?"]
    assert f"{model.max_len} tokens" in answers["What is your favourite book?"]
    assert "about a million parameters" in answers["How big are you?"]
    assert 0.9e6 < sum(p.numel() for p in build(model).parameters()) < 1.2e6
    assert "about a thousand" in answers["How were you trained?"]
    assert 900 <= len(answers) <= 1200


def test_the_data_doctor_finds_it_whole(recipe):
    data = resolve(recipe.data)
    report = check(data, recipe.tokenizer, recipe.train.batch_tokens, recipe.model.max_len)
    assert [facts["duplicates"] for facts in report["splits"].values()] == [0, 0]
    assert set(report["leaks"].values()) == {0}
    assert report["tokens"]["over_max_len"] == report["tokens"]["not_round_trip"] == 0
    assert report["tokens"]["vocabulary"] == recipe.tokenizer.vocab
