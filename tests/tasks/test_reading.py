"""Filling in, classifying, comparing, scoring: the numbers are probabilities, and depend on nothing
but the text; and whatever a model cannot do is refused with what it can."""

import math
import random

import pytest
import torch

from limelight.errors import UserError
from limelight.tasks.classify import classify
from limelight.tasks.embed import embed
from limelight.tasks.fill import HIDDEN, ranks_of_hidden
from limelight.tasks.score import score
from limelight.workflows.evaluate import compare_runs, score_run
from tests.tasks.conftest import LINES

ABILITIES = {
    "reverse": {"translate", "chat", "score", "embed"},
    "gpt": {"translate", "chat", "score", "embed"},
    "lstm": {"translate", "chat", "score", "embed"},
    "chat": {"translate", "chat", "score", "embed"},
    "writer": {"write", "score", "embed"},
    "rnn": {"write", "score", "embed"},
    "bert": {"fill", "embed"},
    "classifier": {"classify", "embed"},
}
ASK = {
    "translate": lambda model: model.translate("a"),
    "chat": lambda model: model.chat().reply("a"),
    "write": lambda model: model.write("a", max_tokens=3),
    "score": lambda model: model.score(*("a", "b")[: 1 if model.kind == "texts" else 2]),
    "embed": lambda model: model.embed("a"),
    "fill": lambda model: model.fill("a ___"),
    "classify": lambda model: model.classify("a"),
}


@pytest.mark.parametrize("name", ABILITIES)
def test_a_model_does_what_it_can_and_says_what_that_is(model, name):
    for ability, ask in ASK.items():
        if ability in ABILITIES[name]:
            assert ask(model(name)) is not None
        else:
            with pytest.raises(UserError, match=f"this model cannot {ability}: .* so it can") as no:
                ask(model(name))
            assert set(str(no.value).split("so it can ")[1].split(", ")) == ABILITIES[name]


# Filling in


@pytest.mark.parametrize(
    ("text", "blanks"),
    [
        ("the ___ sleeps here.", 1),
        ("___ cat sleeps ___", 2),
        ("___", 1),
        ("______", 2),
        ("the ___ ___ ___ here.", 3),
        ("the cat ___.", 1),
    ],
)
@pytest.mark.parametrize("name", ["bert", "spelling", "uncased"])
def test_every_blank_has_candidates_in_order(model, name, text, blanks):
    filled = model(name).fill(text, 7)
    assert len(filled.blanks) == blanks
    for candidates in filled.blanks:
        chances = [candidate.probability for candidate in candidates]
        assert len(candidates) == 7
        assert chances == sorted(chances, reverse=True)
        assert 0 <= chances[-1] <= sum(chances) <= 1 + 1e-6
    assert "___" not in filled.text
    assert "⟨" not in filled.text + "".join(c.text for blank in filled.blanks for c in blank)


def test_all_candidates_are_all_tokens_of_text(model):
    bert = model("bert")
    ((*candidates,),) = bert.fill("the ___", 1000).blanks
    assert len(candidates) == min(1000, len(bert.tokenizer) - bert.tokenizer.first_text_id)
    assert sum(c.probability for c in candidates) == pytest.approx(1, abs=1e-4)
    assert not any(c.text.startswith("⟨") for c in candidates)


def test_what_stands_around_a_blank_stays(model):
    bert = model("bert")
    best = bert.fill("the old man ___ here.").blanks[0][0].text
    assert bert.fill("the old man ___ here.").text.replace(" ", "") == f"theoldman{best}here."
    spelled = model("spelling").fill("the c___t sleeps ___ere.")
    first, second = (blank[0].text for blank in spelled.blanks)
    assert spelled.text == f"the c{first}t sleeps {second}ere."  # the space is a token of its own


def test_a_model_that_reads_small_letters_leaves_capitals_alone(model):
    uncased = model("uncased")
    filled = uncased.fill("The OLD man ___ here , ___!")
    first, second = (blank[0].text for blank in filled.blanks)
    assert filled.text == f"The OLD man {first} here , {second}!"
    assert uncased.fill("the old man ___ HERE, ___ !").blanks == filled.blanks
    assert uncased.embed("The cat.") == uncased.embed("the CAT .")


@pytest.mark.parametrize(
    ("text", "count", "sentence"),
    [
        ("no blank", 5, "there is no blank in the text: write ___"),
        ("___", 0, "count=0 is out of range: ask for 1 to 1000"),
        ("___", 1001, "count=1001 is out of range"),
        ("the " * 100 + "___", 5, "the text has 103 tokens, and the model reads 64"),
    ],
)
def test_what_cannot_be_filled_in_is_refused(model, text, count, sentence):
    with pytest.raises(UserError, match=sentence):
        model("bert").fill(text, count)


# Classes


def test_classes_are_probable_and_right(model):
    classifier = model("classifier")
    for line in LINES:
        chances = classifier.classify(line)
        assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
        assert list(chances.values()) == sorted(chances.values(), reverse=True)
        assert next(iter(chances)) == ("cat" if "cat" in line else "other")


def test_of_a_text_that_is_too_long_the_beginning_is_read(model):
    long = "the cat sleeps " * 100
    assert model("classifier").classify(long) == model("classifier").classify(long + "here.")


# Vectors, and all numbers: alone and among others

TEXTS = ["", "a", "the cat sleeps here.", "the " * 40, "dog", "🍌 \x00"]


@pytest.mark.parametrize("name", ABILITIES)
def test_vectors_have_length_one_whatever_stands_beside_them(model, name):
    loaded = model(name)
    texts = random.Random(1).choices(TEXTS, k=300)
    together = list(embed(loaded, texts))
    alone = {text: loaded.embed(text) for text in TEXTS}
    for text, vector in zip(texts, together, strict=True):
        assert math.hypot(*vector) == pytest.approx(1, abs=1e-5)
        assert vector == pytest.approx(alone[text], abs=1e-5)
    assert alone["a"] != pytest.approx(alone["dog"], abs=1e-3)


def test_classes_are_the_same_whatever_stands_beside_them(model):
    classifier = model("classifier")
    texts = random.Random(2).choices([*TEXTS, *LINES], k=300)
    for text, chances in zip(texts, classify(classifier, texts), strict=True):
        assert chances == pytest.approx(classifier.classify(text), abs=1e-5)


@pytest.mark.parametrize("name", ["writer", "rnn"])
def test_scores_are_the_same_whatever_stands_beside_them(model, name):
    texts = [(text,) for text in random.Random(3).choices(["", "a", "the cat", "the dog"], k=300)]
    for text, scored in zip(texts, score(model(name), texts), strict=True):
        assert scored.total == pytest.approx(model(name).score(*text).total, abs=1e-4)


@pytest.mark.parametrize("task", ["embed", "classify"])
def test_a_list_gives_a_list(model, task):
    ask, texts = getattr(model("classifier"), task), ["a b", "c"]
    numbers = [list(found.values()) if task == "classify" else found for found in ask(texts)]
    alone = [ask(text) for text in texts]
    alone = [list(found.values()) if task == "classify" else found for found in alone]
    assert numbers == [pytest.approx(each, abs=1e-6) for each in alone]
    assert ask([]) == []
    for wrong in (3, ["a", 3]):
        with pytest.raises(UserError, match="expected a text, got 3"):
            ask(wrong)


def test_answers_come_before_all_texts_are_there(model):
    """A stream is answered while it goes on."""

    def endless(thing):
        while True:
            yield thing

    for stream in (
        classify(model("classifier"), endless("a")),
        embed(model("bert"), endless("a")),
        score(model("writer"), endless(("a",))),
        model("reverse").translate_all(endless("a")),
    ):
        assert next(stream)


# Scores


@pytest.mark.parametrize("name", ["writer", "rnn"])
def test_a_score_is_made_of_the_probabilities_of_tokens(model, name):
    writer = model(name)
    scored = writer.score("the cat")
    assert "".join(scored.tokens) == "the cat⟨end⟩"
    assert scored.total == pytest.approx(sum(scored.logprobs))
    assert all(logprob <= 0 for logprob in scored.logprobs)
    every = [writer.tokenizer.decode([i]) for i in range(writer.tokenizer.first_text_id, 128)]
    chances = {piece: scored_first(writer, piece) for piece in every if piece != "�"}
    assert 0.5 < sum(chances.values()) <= 1 + 1e-5  # of the first token; the rest are bytes


def scored_first(writer, text):
    return math.exp(writer.score(text).logprobs[0])


def test_what_was_learned_is_likelier(model):
    writer = model("writer")
    assert writer.score("the cat sleeps here.").total > writer.score("ereh speels tac eht.").total


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("reverse", ("a",), "this model scores a source and a target, got 1 text"),
        ("reverse", ("a", "b", "c"), "got 3 texts"),
        ("writer", ("a", "b"), "this model scores one text, got 2 texts"),
        ("reverse", ("a " * 50, "a"), "101 tokens are too many: the model reads 64"),
        ("writer", ("a" * 32,), "33 tokens are too many: the model reads 32"),
        ("gpt", ("a" * 30, "b" * 33), "65 tokens are too many"),
    ],
)
def test_what_cannot_be_scored_is_refused_and_stops_nothing(model, name, text, sentence):
    with pytest.raises(UserError, match=sentence):
        model(name).score(*text)
    fine = ("a",) if name == "writer" else ("a", "b")
    one, two, three = score(model(name), [fine, text, fine])
    assert sentence in two.problem
    assert one == three
    assert not one.problem


@pytest.mark.parametrize(("name", "text"), [("writer", ("a" * 31,)), ("gpt", ("a" * 30, "b" * 32))])
def test_what_just_fits_is_scored(model, name, text):
    assert model(name).score(*text).total < 0


def test_ranks_of_hidden_tokens_are_counted_in_the_models_own_scores(model):
    bert, draw = model("bert"), torch.Generator().manual_seed(3)
    texts = [" ".join(LINES), LINES[0], ""]
    tokens = [bert.tokenizer.encode(text) for text in texts]
    assert len(tokens[0]) > bert.max_len  # it is read in stretches
    wanted = [[] for _ in texts]
    for owner, whole in enumerate(tokens):
        for begin in range(0, len(whole), bert.max_len - 1):
            stretch = whole[begin : begin + bert.max_len - 1]
            hidden = torch.rand(len(stretch), generator=draw) < HIDDEN
            read = torch.where(hidden, bert.tokenizer.mask, torch.tensor(stretch))
            with torch.inference_mode():
                logits = bert.model(torch.cat([torch.tensor([bert.tokenizer.start]), read])[None])
            for place in hidden.nonzero()[:, 0].tolist():
                row = logits[0, place + 1].tolist()
                wanted[owner].append(sum(other > row[stretch[place]] for other in row))
    assert ranks_of_hidden(bert, texts, seed=3) == wanted
    assert len(wanted[0]) > 5
    assert ranks_of_hidden(bert, texts, seed=4) != wanted  # others are hidden


def test_blanks_are_scored_by_their_first_five_choices(run):
    told = score_run(run("bert"), "valid", silent=True)["scores"]
    assert 0 < told["top-1"]["score"] <= told["top-5"]["score"] <= 1
    assert told["top-1"]["signature"] == "hidden:0.15|context:64|seed:1"
    same = compare_runs((run("bert"), run("bert")), "valid", silent=True)["comparisons"]["top-1"]
    assert same["first"]["score"] == same["second"]["score"] == told["top-1"]["score"]
    assert same["p_value"] == 1


def test_each_word_is_left_out_once(model):
    classifier, text = model("classifier"), "the cat, the cat's house"
    whole = classifier.classify(text)
    best = next(iter(whole))
    without = ["", "the ", "the cat, ", "the cat, the ", "the cat, the cat's "]
    rest = [" cat, the cat's house", ", the cat's house", " cat's house", " house", ""]
    texts = [a + b for a, b in zip(without, rest, strict=True)]
    wanted = [whole[best] - classifier.classify(one)[best] for one in texts]
    words, effects = zip(*classifier.word_effects(text), strict=True)
    assert words == ("the", "cat", "the", "cat's", "house")
    assert effects == pytest.approx(wanted, abs=1e-5)
    assert classifier.word_effects("...") == []
