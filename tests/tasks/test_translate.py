"""Translations: the same alone, in any batch and in parts, with honest scores and kept wishes."""

import random
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import limelight
from limelight.cli import run_command
from limelight.decode.config import DecodeConfig
from limelight.decode.engine import MAX_BATCH_POSITIONS, ROWS, batches_of
from limelight.decode.request import Hypothesis, Request
from limelight.errors import UserError
from limelight.serve.worker.jobs import _GENERATING
from limelight.tasks.glossary import Glossary
from limelight.tasks.translate import (
    Constraints,
    InvalidLine,
    alternative_choices,
    alternative_tokens,
    requests_for,
    translate,
    translation_of,
)
from tests.tasks.conftest import LONG

FAMILIES = ("reverse", "gpt", "lstm")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def sources(count, longest=4, seed=0):
    dice = random.Random(seed)
    return [" ".join(dice.choices(LETTERS, k=dice.randint(1, longest))) for _ in range(count)]


def test_a_trained_model_does_what_it_learned(model):
    learned = model("reverse")
    assert [learned.translate(text).text for text in ("a", "a b", "x y z")] == ["a", "b a", "z y x"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("settings", [{}, {"beam": 4}, {"temperature": 1.0, "seed": 3}])
def test_a_text_is_translated_the_same_alone_and_among_others(model, name, settings):
    texts = sources(40)
    together = list(model(name).translate_all(texts, **settings))
    assert [done.source for done in together] == texts
    for text, done in list(zip(texts, together, strict=True))[::5]:
        alone = model(name).translate(text, **settings)
        assert alone.text == done.text
        assert alone.outputs[0].score == pytest.approx(done.outputs[0].score, abs=1e-4)
    shuffled = random.Random(1).sample(texts, len(texts))
    again = dict(zip(shuffled, model(name).translate_all(shuffled, **settings), strict=True))
    assert [again[text].text for text in texts] == [done.text for done in together]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_translations_score_is_that_of_its_tokens_and_what_score_says(model, name):
    compared = 0
    for text in sources(12):
        (output,) = model(name).translate(text, beam=1, max_extra_tokens=20).outputs
        assert output.score == pytest.approx(sum(output.logprobs))
        whole = "".join(output.tokens) == output.text and len(output.logprobs) > len(output.tokens)
        if whole:  # no space was taken off, and it came to its end
            told = model(name).score(text, output.text)
            assert told.tokens[:-1] == output.tokens
            assert told.logprobs == pytest.approx(output.logprobs, abs=1e-4)
            assert told.total == pytest.approx(output.score, abs=1e-3)
            compared += 1
    assert compared >= 3


@pytest.mark.parametrize("name", FAMILIES)
def test_the_n_best_are_different_and_sorted(model, name):
    outputs = model(name).translate("a b", nbest=5).outputs
    scores = [output.score for output in outputs]
    assert scores == sorted(scores, reverse=True)
    assert len({output.tokens for output in outputs}) == 5
    assert outputs[0] == model(name).translate("a b", beam=5).outputs[0]


def test_a_beam_that_fills_a_batch_alone_stops_nobody(model):
    """The longest text has more places to be written in than a batch should have."""
    texts = ["a b", "c " * 20, "d"]
    wide = list(model("reverse").translate_all(texts, beam=1000, max_tokens=3))
    assert [done.source for done in wide] == texts
    assert all(len(done.outputs) == 1 for done in wide)
    assert len(model("reverse").translate("a b", nbest=1000).outputs) == 1000


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 300)), max_size=200),
    st.integers(1, 1000),
)
def test_every_request_is_in_one_batch_and_none_is_empty(sizes, beam):
    requests = [Request([1], limit, source=[3] * length) for length, limit in sizes]
    batches = list(batches_of(requests, beam))
    assert sorted(i for batch in batches for i in batch) == [*range(len(requests))]
    assert all(1 <= len(batch) <= ROWS for batch in batches)
    for batch in batches:
        first = requests[batch[0]]
        size = len(batch) * beam * (len(first.source) + 1 + first.limit)
        assert len(batch) == 1 or size <= MAX_BATCH_POSITIONS


@pytest.mark.parametrize("nbest", [0, -1, 1001, 10**9])
def test_an_impossible_number_of_translations_is_refused(model, nbest):
    with pytest.raises(UserError, match=rf"nbest={nbest} is out of range"):
        model("reverse").translate("a", nbest=nbest)


def test_drawn_translations_have_no_order(model):
    with pytest.raises(UserError, match="nbest=2 needs a beam"):
        model("reverse").translate("a", nbest=2, temperature=1.0)


# Constraints


@pytest.mark.parametrize("name", FAMILIES)
def test_wishes_are_kept(model, name):
    def wish(beam=4, **wishes):
        return model(name).translate("a b c", constraints=Constraints(**wishes), beam=beam).text

    assert wish(prefix="x y").startswith("x y")
    assert wish(prefix="x y", beam=1).startswith("x y")
    assert {"x", "k"} <= set(wish(include=("x", "k")))
    for beam in (1, 4):
        banned = wish(beam=beam)[0]
        assert banned not in wish(beam=beam, exclude=(banned,))


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"include": ("a b",), "exclude": ("b",)}, "'a b' cannot be included, and 'b' excluded"),
        ({"prefix": "x y", "exclude": ("y",)}, "'y' cannot be excluded: the prefix 'x y' has it"),
        ({"include": "abc"}, r"include='abc' is not a list of texts: write \['abc'\]"),
        ({"exclude": "abc"}, "exclude='abc' is not a list"),
        ({"exclude": None}, "exclude=None is not a list"),
        ({"include": ("a", "")}, "include has an empty text: is it a variable that is not set?"),
        ({"exclude": ("",)}, "exclude has an empty text"),
        ({"include": (3,)}, "expected a text, got 3"),
        ({"prefix": None}, "expected a text, got None"),
    ],
)
def test_wishes_that_nobody_can_keep_are_refused(wishes, sentence):
    with pytest.raises(UserError, match=sentence):
        Constraints(**wishes)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("beam", [1, 4])
def test_a_beginning_is_not_made_a_word_that_is_excluded(model, name, beam):
    free = model(name).translate("a b c", beam=1, constraints=Constraints(prefix="c")).text
    assert len(free) >= 3
    wishes = Constraints(prefix="c", exclude=(free[:3],))
    assert free[:3] not in model(name).translate("a b c", beam=beam, constraints=wishes).text


def test_words_of_the_beginning_need_not_come_again(model):
    wishes = Constraints(prefix="x y", include=("y",))
    assert model("reverse").translate("a b", constraints=wishes, beam=4).text.count("y") == 1


def test_a_word_that_is_begun_by_the_beginning_is_gone_on_with():
    """Subwords: `Hund` begins with the `H` that is there, and does not come again behind it."""
    wishes = Constraints(prefix="Der H", include=("Hund",))
    text = limelight.load("en-de").translate("The dog sleeps on the sofa.", constraints=wishes).text
    assert text.startswith("Der Hund")
    assert text.count("Hund") == 1


@pytest.mark.parametrize("beam", [1, 4])
def test_a_beginning_may_end_with_a_space(beam):
    """The space belongs to the word that follows, whichever that is."""
    model = limelight.load("en-de")
    for begin in ("Der", "Die", "Auf"):
        free, spaced = (
            model.translate(
                "The dog sleeps on the sofa.", constraints=Constraints(prefix=p), beam=beam
            ).text
            for p in (begin, f"{begin} ")
        )
        assert spaced.startswith(f"{begin} ")
        assert len(set(spaced.split())) == len(spaced.split())  # no `Der Der`
        if free.startswith(f"{begin} "):
            assert spaced == free


def test_more_translations_than_a_beam_of_groups_has_places_are_refused(model):
    with pytest.raises(UserError, match="nbest=8 of a beam of 4 in 2 groups: widen the beam"):
        model("reverse").translate("a b", nbest=8, beam=4, beam_groups=2)


def test_a_promise_that_could_not_be_kept_is_told(model):
    wishes, config = Constraints(include=("x y z",)), DecodeConfig(beam=4, max_tokens=2)
    (done,) = translate(model("reverse"), ["a b"], config, constraints=wishes)
    assert done.problem == "no translation with 'x y z' was found"
    with pytest.raises(UserError, match="'x y z'"):
        model("reverse").translate("a b", constraints=wishes, beam=4, max_tokens=2)
    (kept,) = translate(model("reverse"), ["a b"], DecodeConfig(beam=4), constraints=wishes)
    assert (kept.problem, "x y z" in kept.text) == ("", True)


@pytest.mark.parametrize("wrong", [None, 5, b"a b", ["a b"]])
def test_what_is_no_text_is_refused_everywhere(model, wrong):
    asked = [
        lambda: model("reverse").translate([wrong] if isinstance(wrong, list) else wrong),
        lambda: model("reverse").translate(["a", wrong]),
        lambda: model("reverse").score("a", wrong),
        lambda: model("chat").chat().reply(wrong),
        lambda: model("writer").write(wrong),
        lambda: model("bert").fill(wrong),
        lambda: model("bert").embed([wrong] if isinstance(wrong, list) else wrong),
        lambda: model("classifier").classify(["a", wrong]),
    ]
    for ask in asked:
        with pytest.raises(UserError, match="expected a text, got"):
            ask()


@pytest.mark.parametrize("count", ["3", None, 2.5, True, 0, 1001])
def test_what_is_no_number_of_answers_is_refused(model, count):
    with pytest.raises(UserError, match=f"nbest={count!r} is out of range"):
        model("reverse").translate("a", nbest=count)
    with pytest.raises(UserError, match=f"count={count!r} is out of range"):
        model("bert").fill("___", count=count)


def test_a_text_in_the_place_of_a_list_is_refused(model):
    with pytest.raises(UserError, match="texts='abc' is not a list of texts"):
        next(model("reverse").translate_all("abc"))
    for stops in ("END", None):
        with pytest.raises(UserError, match=f"stops={stops!r} is not a list of texts"):
            model("writer").write("a", stops)
    with pytest.raises(UserError, match="constraints='x' must be Constraints"):
        model("reverse").translate("a", constraints="x")


def test_a_beginning_that_leaves_no_room_is_refused(model):
    with pytest.raises(UserError, match="65 tokens are too many: the model reads fewer than 64"):
        model("reverse").translate("a", constraints=Constraints(prefix="x" * 64))


def test_unknown_settings_are_refused_with_the_nearest(model):
    with pytest.raises(UserError, match="no setting 'beem': did you mean 'beam'"):
        model("reverse").translate("a", beem=3)
    with pytest.raises(UserError, match="tag"):  # as with Constraints(tag="en")
        model("reverse").translate("a", tag="en")


def test_constraints_can_be_given_by_name_and_texts_as_a_list(model):
    tagged = model("tagged")
    both = tagged.translate(["a", "c d"], tag="same")
    assert both == [tagged.translate(t, constraints=Constraints(tag="same")) for t in ("a", "c d")]
    assert tagged.translate([], tag="same") == []
    mixed = tagged.translate("a", constraints=Constraints(tag="same"), prefix="z")
    assert mixed.text.startswith("z")


def test_a_model_with_tags_is_told_what_to_do(model):
    tagged = model("tagged")
    assert tagged.tags == ("back", "same")
    for text in ("a", "c d"):
        done = tagged.translate(text, constraints=Constraints(tag="same"))
        assert tagged.score(text, done.text, tag="same").total == pytest.approx(
            sum(done.outputs[0].logprobs), abs=1e-3
        )
    back, same = (
        requests_for(tagged, "a b", tagged.decode, Constraints(tag=tag))[0].source
        for tag in tagged.tags
    )
    assert back[0] != same[0]
    assert back[1:] == same[1:]
    assert tagged.chat(tag="same").source(["a b"]) == same[:-1]


@pytest.mark.parametrize(
    ("name", "tag", "sentence"),
    [
        ("tagged", "", "say with --tag what is wanted: back or same"),
        ("tagged", "bakc", "no tag 'bakc': did you mean 'back'"),
        ("tagged", "end", "no tag 'end'"),  # a special token is no tag
        ("reverse", "back", "this model learned no tags, so there is no 'back'"),
    ],
)
def test_wrong_tags_are_refused(model, name, tag, sentence):
    for ask in (
        lambda: model(name).translate("a", constraints=Constraints(tag=tag)),
        lambda: model(name).score("a", "a", tag=tag),
        lambda: model(name).chat(tag=tag),
    ):
        with pytest.raises(UserError, match=sentence):
            ask()


# Texts that are too long, or none


@pytest.mark.parametrize("name", FAMILIES)
def test_a_long_text_is_translated_in_parts_and_nothing_is_lost(model, name):
    learned = model(name)
    text = " ".join(f"{text}." for text in sources(30))
    done = learned.translate(text)
    requests = requests_for(learned, text, learned.decode, Constraints())
    assert done.parts == len(requests) > 1
    tokens = [request.source or request.prompt for request in requests]
    assert all(len(row) <= learned.max_len for row in tokens)
    read = " ".join(learned.tokenizer.decode(row) for row in tokens)
    assert read == text
    parts = [learned.tokenizer.decode(row) for row in tokens]
    answers = [learned.translate(part).text for part in parts]
    assert done.text == " ".join(answer for answer in answers if answer)


def over_http(loaded, text):
    """Into how many parts the service splits a text."""
    message = {"texts": [text], "nbest": 1, "include": [], "exclude": [], "tag": "", "prefix": ""}
    wishes = {"alternatives": 0, "alignment": False, "tree": False}
    return len(_GENERATING["translate"](loaded, message | wishes).sequences)


def test_a_source_that_fits_with_its_answer_is_not_split(model, run, capsys):
    """It is longer than half of the context; answers were short in training, and are here."""
    learned = model("first letter")
    done = list(learned.translate_all(LONG))
    assert all(len(text) > learned.max_len // 2 for text in LONG)
    assert [(one.text, one.parts) for one in done] == [(text[0], 1) for text in LONG]
    assert {over_http(learned, text) for text in LONG} == {1}
    run_command(["translate", str(run("first letter")), LONG[0]])
    assert capsys.readouterr() == (f"{LONG[0][0]}\n", "")
    # The control: a run that knows nothing of its answers keeps half of the context for them,
    cautious = replace(learned, answer_share=0.5)
    assert (cautious.translate(LONG[0]).parts, over_http(cautious, LONG[0])) == (2, 2)
    # unless the settings allow no answer of that length.
    assert cautious.translate(LONG[0], max_tokens=1).parts == 1
    # And what does not fit is split still.
    assert learned.translate(LONG[0] * 2).parts == over_http(learned, LONG[0] * 2) == 2


def test_a_prefix_has_its_part_of_the_context(model):
    done = model("first letter").translate(
        LONG[0] + "uuuuuu", constraints=Constraints("", "aaaaaa")
    )
    assert done.parts == 2
    assert done.text.startswith("aaaaaa")


def test_an_empty_part_leaves_no_space(model):
    learned = model("reverse")
    answers = [learned.tokenizer.encode(text) for text in ("", "a b", "", "c", "")]
    found = [[Hypothesis(tokens, [], True, 0.0)] for tokens in answers]
    assert translation_of(learned, "", found, Constraints()).text == "a b c"


def test_what_does_not_fit_in_any_number_of_parts_is_refused_and_not_cut(model):
    """A tag and the end token leave nothing of such a context."""
    tagged = model("tagged")
    for longest, problem in ((3, ""), (2, "2 tokens are too many")):
        tiny = replace(tagged, model=deepcopy(tagged.model))
        tiny.model.config = replace(tiny.model.config, max_len=longest)
        (done,) = translate(tiny, ["a"], constraints=Constraints("back"))
        assert done.problem.startswith(problem)
        assert bool(done.problem) == bool(problem)


def test_wishes_for_a_text_in_parts(model):
    text = "a b. " * 40
    begun = model("reverse").translate(text, constraints=Constraints(prefix="x y", exclude=("b",)))
    assert begun.parts > 1
    assert begun.text.startswith("x y")
    assert "b" not in begun.text
    assert begun.text.count("x y") == 1
    with pytest.raises(UserError, match="in 4 parts, so words cannot be required"):
        model("reverse").translate(text, constraints=Constraints(include=("x",)), beam=4)


def test_what_is_no_text_has_its_own_outcome(model):
    given = ["", "a b", InvalidLine("line 3 is not UTF-8"), " \t", "c", "a. " * 60, ""]
    done = list(translate(model("reverse"), given, constraints=Constraints(prefix="")))
    assert [one.text for one in done[:5]] == ["", "b a", "", "", "c"]
    assert [one.problem for one in done[:3]] == ["", "", "line 3 is not UTF-8"]
    assert [one.parts > 1 for one in done] == [False] * 5 + [True, False]
    assert done[0].outputs == ()


def test_one_text_that_cannot_be_answered_does_not_stop_the_others(model):
    wishes, config = Constraints(include=("a",)), DecodeConfig(beam=2)
    long, short = translate(model("reverse"), ["b. " * 60, "b"], config, constraints=wishes)
    assert "so words cannot be required" in long.problem
    assert "a" in short.text


def test_odd_characters_are_only_characters(model):
    texts = ["\x00", "\ud800", "🍌" * 5, "a\u2028b", "\x1b[31m", "a\rb"]
    done = list(model("reverse").translate_all(texts))
    assert len(done) == len(texts)
    assert not any(one.problem for one in done)


# Ensembles


def test_an_ensemble_of_one_model_twice_is_that_model(model, run):
    twice = limelight.load(run("reverse"), run("reverse"))
    for text in sources(4):
        one, two = model("reverse").translate(text), twice.translate(text)
        assert one.text == two.text
        assert one.outputs[0].logprobs == pytest.approx(two.outputs[0].logprobs, abs=1e-4)


def test_an_ensemble_averages_probabilities_and_reads_what_all_can_read(model, run):
    both = limelight.load(run("reverse"), run("other reverse"))
    assert both.max_len == 32
    done = both.translate("a b c " * 8)
    assert done.parts > 1
    chances = [torch.tensor(each.score("a", "b").logprobs).exp() for each in both_of(model)]
    mean = (chances[0] + chances[1]) / 2
    assert torch.tensor(both.score("a", "b").logprobs).exp().allclose(mean, atol=1e-5)
    (output,) = both.translate("a b").outputs
    told = both.score("a b", output.text)
    assert told.logprobs == pytest.approx(output.logprobs, abs=1e-4)


def both_of(model):
    return model("reverse"), model("other reverse")


def test_models_with_other_tokenizers_are_no_ensemble(run):
    with pytest.raises(UserError, match="has another tokenizer than"):
        limelight.load(run("reverse"), run("chat"))
    with pytest.raises(UserError, match="an ensemble needs models of one kind"):
        limelight.load(run("reverse"), run("gpt")).translate("a")


# What else could have come


def test_other_choices_begin_with_what_was_written(model):
    learned = model("reverse")
    config = replace(learned.decode, beam=1)
    (output,) = learned.translate("a b").outputs
    places = list(alternative_choices(learned, "a b", config, count=3))
    assert [place[0].piece for place in places] == [*output.tokens, "⟨end⟩"]
    for place, logprob in zip(places, output.logprobs, strict=True):
        chances = [choice.probability for choice in place]
        assert chances == sorted(chances, reverse=True)
        assert place[0].probability == pytest.approx(torch.tensor(logprob).exp().item(), abs=1e-4)
        assert place[0].text == output.text
    assert places[0][1].text.startswith(places[0][1].piece.strip())


@pytest.mark.parametrize("name", FAMILIES)
def test_choices_are_the_same_whether_places_are_looked_at_together_or_alone(
    model, name, monkeypatch
):
    together = list(alternative_choices(model(name), "a b c d"))
    monkeypatch.setattr("limelight.tasks.translate.TOGETHER", 1)
    for place, alone in zip(together, alternative_choices(model(name), "a b c d"), strict=True):
        assert [choice.text for choice in place] == [choice.text for choice in alone]
        chances = [choice.probability for choice in alone]
        assert [choice.probability for choice in place] == pytest.approx(chances, abs=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_pieces_are_those_of_the_choices(model, name):
    both = zip(
        alternative_tokens(model(name), "a b c d"),
        alternative_choices(model(name), "a b c d"),
        strict=True,
    )
    for pieces, choices in both:
        assert pieces == [(choice.piece, choice.probability) for choice in choices]


def test_the_beginning_of_a_choice_makes_it(model):
    """As a prefix it leads where the choice said it would, and back to what was written."""
    learned = model("reverse")
    config = replace(learned.decode, beam=1)
    for i, place in enumerate(list(alternative_choices(learned, "a b", config, count=3))[:-1]):
        assert place[0].begin == "".join(learned.translate("a b").outputs[0].tokens[: i + 1])
        for choice in place:
            if choice.piece == "⟨end⟩":  # no beginning makes a text end
                continue
            (forced,) = translate(
                learned, ["a b"], config, constraints=Constraints(prefix=choice.begin)
            )
            assert forced.text == choice.text


@pytest.mark.parametrize("settings", [{"beam": 4}, {"beam": 1}, {"temperature": 3.0, "beam": 1}])
def test_what_was_written_is_among_the_choices_and_what_is_excluded_is_not(model, settings):
    learned, wishes = model("reverse"), Constraints(exclude=("b", "c"))
    config = learned.settings(**settings)
    (done,) = translate(learned, ["a b c"], config, constraints=wishes)
    places = list(alternative_choices(learned, "a b c", config, 2, wishes))
    for place, piece in zip(places, done.outputs[0].tokens, strict=False):
        assert piece in [choice.piece for choice in place]
        assert len(place) == 2
        for choice in place:
            assert not {"b", "c"} & {*choice.piece, *choice.text, *choice.begin}
    pieces = list(alternative_tokens(learned, "a b c", config, 2, wishes))
    assert pieces == [[(c.piece, c.probability) for c in place] for place in places]


def test_a_choice_within_a_character_begins_with_the_whole_of_it():
    model = limelight.load("en-de")
    config, text = model.settings(beam=1), "The café of André is in Korea, near the Müller house."
    places = list(alternative_choices(model, text, config, count=8))
    halves = [c for place in places for c in place if c.piece.startswith("<")]
    assert halves  # bytes that are no characters
    assert [c.begin for c in halves if "\ufffd" not in c.text]
    assert not [c.begin for c in halves if "\ufffd" in c.begin and "\ufffd" not in c.text]


@pytest.mark.parametrize("precision", ["float64", "int8"])
def test_more_or_fewer_bits_say_the_same_with_other_scores(run, precision):
    """A model that is sure of itself; int8 moves its scores a little, float64 hardly."""
    texts = sources(20, longest=3)
    plain = list(limelight.load(run("reverse")).translate_all(texts))
    other = limelight.load(run("reverse")).to(precision=precision)
    found = list(other.translate_all(texts))
    assert [done.text for done in found] == [done.text for done in plain]
    moved = max(
        abs(a.outputs[0].score - b.outputs[0].score) for a, b in zip(found, plain, strict=True)
    )
    assert 0 < moved < (1e-3 if precision == "float64" else 1.0)


def test_int8_gives_the_same_alone_and_among_others_until_it_is_taken_back(run):
    model = limelight.load(run("reverse"))
    plain = model.translate("a b c").outputs[0].score
    model.to(precision="int8")
    texts = sources(20, longest=3)
    for together, text in zip(model.translate_all(texts), texts, strict=True):
        alone = model.translate(text)
        assert alone.text == together.text
        # A tie in rounding may be broken the other way, which is seen in no word.
        assert alone.outputs[0].score == pytest.approx(together.outputs[0].score, abs=0.02)
    rounded = model.translate("a b c").outputs[0].score
    assert model.to().translate("a b c").outputs[0].score == plain != rounded


def test_precision_is_of_the_model_and_not_of_one_text(model):
    with pytest.raises(UserError, match=r"write \.to\(precision='int8'\)"):
        model("reverse").translate("a b", precision="int8")


# Glossaries


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a dog", ["D"]),
        ("A Dog, a DOG and a dog's bone", ["D"]),  # small letters stand for any
        ("dogs, hotdog, dog_1", []),  # other words
        ("hot  dog, then a dog", ["H", "D"]),  # the longest first, whatever the space
        ("hot dog", ["H"]),
        ("the US", ["S"]),
        ("let us go", []),  # capitals stand for themselves
        ("Use C++.", ["P"]),
        ("AI机器人", ["M"]),  # no spaces, no words
        ("", []),
    ],
)
def test_a_term_is_found_as_a_word(text, found):
    terms = {"dog": "D", "hot dog": "H", "US": "S", "C++": "P", "机器": "M"}
    assert Glossary(terms).targets(text) == tuple(found)


def test_terms_are_used_where_the_source_has_them(model):
    learned, terms = model("reverse"), {"a": "x", "b c": "y"}
    done = learned.translate(["a", "b c", "b", "q"], glossary=terms, beam=4)
    free = learned.translate(["b", "q"], beam=4)
    assert ["x" in done[0].text, "y" in done[1].text] == [True, True]
    assert [d.text for d in done[2:]] == [d.text for d in free]  # the control
    assert [d.missing_terms for d in done] == [()] * 4
    same = learned.translate("a", constraints=Constraints(glossary=terms), beam=4)
    assert same == done[0]


def test_each_part_of_a_long_text_has_its_own_terms(model):
    text = "a b. " * 14 + "q r. " * 14
    done = model("reverse").translate(text, glossary={"q": "x"}, beam=4)
    assert done.parts > 1
    assert done.missing_terms == ()


def test_a_term_may_begin_a_sentence():
    """With a capital, if the source begins with one; --include has no such freedom."""
    learned = limelight.load("en-de", device="cpu")
    text = "Children are playing."
    assert learned.translate(text).text.startswith("Kinder ")
    assert learned.translate(text, glossary={"children": "kinder"}).text == "Kinder spielen."
    assert "kinder" in learned.translate(text, include=["kinder"]).text
    assert "kinder" in learned.translate(text.lower(), glossary={"children": "kinder"}).text


def test_a_term_that_cannot_be_used_is_reported(model):
    config, terms = DecodeConfig(beam=4, max_tokens=2), Constraints(glossary={"a": "x y z"})
    (done,) = translate(model("reverse"), ["a b"], config, constraints=terms)
    assert (done.problem, done.missing_terms) == ("", ("x y z",))
    assert done.text


@pytest.mark.parametrize(
    ("name", "content", "terms"),
    [
        ("a.tsv", "dog\tHund\n\nhot dog \t Wurst\n", {"dog": "Hund", "hot dog": "Wurst"}),
        ("a.txt", '\ufeff"dog"\tHund\r\n', {'"dog"': "Hund"}),
        ("a.csv", '"dog, hot",Wurst\ndog,Hund\n', {"dog, hot": "Wurst", "dog": "Hund"}),
        ("a.tsv", "dog Hund\n", "line 1 of a.tsv is 'dog Hund': write a term, a tab and its"),
        ("a.csv", "dog,Hund\ncat\n", "line 2 of a.csv is 'cat': write a term, a comma and its"),
        ("a.tsv", "dog\t\n", "line 1 of a.tsv is 'dog\\\\t': write"),
        (
            "a.tsv",
            "dog\tHund\ndog\tKöter\n",
            "line 2 of a.tsv: 'dog' cannot be translated as 'Hund",
        ),
        ("a.tsv", None, "cannot read a.tsv: No such file or directory"),
        ("a.tsv", b"\xff\t\xfe", "cannot read a.tsv: 'utf-8' codec"),
    ],
)
def test_glossaries_are_files_too(tmp_path, monkeypatch, name, content, terms):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    if isinstance(terms, dict):
        assert Constraints(glossary=name).glossary == Glossary(terms)
    else:
        with pytest.raises(UserError, match=terms):
            Constraints(glossary=Path(name))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"glossary": {"a": "x"}, "beam": 1}, "a glossary: words that must appear need a beam"),
        ({"glossary": {"a": "x"}, "temperature": 1}, "a glossary: words that must appear need"),
        ({"glossary": {"a": "x"}, "engine": "ctranslate2"}, "'ctranslate2' does not know a gloss"),
        ({"glossary": {"a": "x"}, "exclude": ["x"]}, "'x' cannot be included, and 'x' excluded"),
        ({"glossary": {"a": ""}}, "the glossary has an empty term"),
        ({"glossary": ["a"]}, r"glossary=\['a'\] is neither a file nor"),
        ({"glossary": {"a": 3}}, "expected a text, got 3"),
    ],
)
def test_glossaries_that_cannot_be_used(model, given, sentence):
    with pytest.raises(UserError, match=sentence):
        model("reverse").translate("b", **{"beam": 4, **given})
