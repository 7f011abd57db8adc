"""Writing on and talking: piece by piece, beyond what a model can see at once, and interrupted."""

from itertools import pairwise

import pytest

import limelight
from limelight.decode.generate import write
from limelight.errors import UserError
from limelight.tasks.chat import Conversation
from limelight.tasks.translate import with_end
from limelight.tasks.write import Continuation

WRITERS = ("writer", "rnn")
WILD = {"temperature": 1.0, "seed": 5}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("settings", [{}, WILD, {"beam": 1}])
def test_pieces_are_the_whole(model, name, settings):
    pieces = list(model(name).stream("the", max_tokens=60, **settings))
    assert "".join(pieces) == model(name).write("the", max_tokens=60, **settings)
    assert len(pieces) > 5


@pytest.mark.parametrize("name", WRITERS)
def test_it_goes_on_beyond_its_context(model, name):
    writer = model(name)
    random = {"temperature": 30.0, "max_tokens": 150}  # all tokens are about as likely
    texts = [list(writer.stream("the", seed=seed, **random)) for seed in range(5)]
    assert max(map(len, texts)) == 151  # a piece for each token, and what is left in the end
    assert writer.max_len == 32


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("prompt", ["", "the", "the cat sleeps here. " * 30, "🍌\x00"])
def test_any_prompt_can_be_gone_on_with(model, name, prompt):
    assert isinstance(model(name).write(prompt, max_tokens=40, **WILD), str)


@pytest.mark.parametrize("n", [0, 2])
def test_no_repetition_beyond_the_context_either(model, n):
    babbler = model("babbler")
    text = Continuation(babbler, "the", babbler.settings(max_tokens=300, no_repeat_ngram=n))
    while (request := text.request()) is not None:
        (found,) = write(babbler.engine.model, [request], text.config, babbler.tokenizer)
        for token in with_end(babbler, found):
            text.add(token)
    assert len(text.tokens) > babbler.max_len
    pairs = list(pairwise(text.tokens))
    assert (len(set(pairs)) == len(pairs)) == bool(n)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "seed": 3}])
def test_a_prompt_may_end_with_a_space(settings):
    """The space belongs to the next word, and is not written a second time."""
    writer = limelight.load("writer")
    for prompt in ("Once upon a", "The old man looked at"):
        with_space = writer.write(f"{prompt} ", max_tokens=8, **settings)
        assert not with_space.startswith(" ")
        without = writer.write(prompt, max_tokens=8, **settings)
        if without.startswith(" "):
            assert without == f" {with_space}"
    tokens = Continuation(writer, "Once upon a ", writer.decode).request()
    assert (tokens.needs_leading_space, tokens.prompt) == (
        True,
        Continuation(writer, "Once upon a", writer.decode).request().prompt,
    )


def test_characters_keep_their_spaces(model):
    """Where a space is a token of its own, it is read like any other."""
    request = Continuation(model("writer"), "the ", model("writer").decode).request()
    assert (len(request.prompt), request.needs_leading_space) == (5, False)


def test_a_model_sees_the_end_of_a_long_prompt(model):
    long, short = "the dog walks here. " * 30, "something else. " * 30
    end = "the cat sits by the river"
    texts = {model("writer").write(begin + end, max_tokens=5) for begin in (long, short)}
    assert len(texts) == 1


@pytest.mark.parametrize("name", WRITERS)
def test_seeds_decide_and_more_tokens_only_add(model, name):
    def draw(seed, count=20):
        return model(name).write("", max_tokens=count, temperature=3.0, seed=seed)

    assert draw(1) == draw(1)
    assert len({draw(seed) for seed in range(1, 6)}) == 5
    assert draw(1, 90).startswith(draw(1, 60).rstrip("�"))


def test_it_stops_where_it_should(model):
    writer = model("writer")
    whole = writer.write("the cat", max_tokens=30)
    middle = whole[len(whole) // 2 :][:3]
    assert len(middle) == 3
    assert writer.write("the cat", [middle], max_tokens=30) == whole.split(middle)[0]
    assert writer.write("the cat", ["never", "e"], max_tokens=30) == whole.split("e")[0]
    assert writer.write("the cat", ["never"], max_tokens=30) == whole
    with pytest.raises(UserError, match="stops has an empty text"):
        writer.write("the cat", ["never", ""])


@pytest.mark.parametrize("name", WRITERS)
def test_a_beam_that_is_asked_for_is_not_dropped_without_a_word(model, name):
    with pytest.raises(UserError, match="beam=7 is not for writing"):
        model(name).write("the", beam=7)


def test_it_stops_at_the_end_of_a_text(model):
    writer = model("writer")
    assert writer.write("the cat sleeps", max_tokens=100).strip().endswith(".")
    assert "\n" not in writer.write("the cat sleeps", max_tokens=100)


# Talking


def test_a_conversation_looks_at_the_last_turns(model):
    talker = model("chat")
    assert talker.history == 3
    conversation = talker.chat()
    said = ["hello", "  how\n are   you? ", "a friend", "good bye"]
    answers = [conversation.reply(text) for text in said]
    assert conversation.turns == [answers[-2], "good bye", answers[-1]]
    read = talker.tokenizer.decode(conversation.source(["one", "two", "three", "four"]))
    assert read == "two\nthree\nfour"


def test_a_conversation_goes_as_it_was_learned(model):
    conversation = model("chat").chat()
    assert conversation.reply("hello") == "hello, who is there?"
    assert conversation.reply("a friend") == "how are you?"
    conversation.reset()
    assert conversation.turns == []
    assert conversation.reply("hello") == "hello, who is there?"


def test_the_oldest_turns_leave_first_where_room_is_short(model):
    talker = model("chat")
    conversation, room = talker.chat(), talker.max_len - 1
    long = "well, who is this? " * 6
    for turns in (["bye", long, long], [long, long, long]):
        tokens = conversation.source(turns)
        assert len(tokens) <= room
        assert talker.tokenizer.decode(tokens).endswith(turns[-1])
        assert "bye" not in talker.tokenizer.decode(tokens)
    endless = conversation.source(["bye" * 500 + " well"])
    assert len(endless) == room
    assert talker.tokenizer.decode(endless).endswith(" well")
    assert conversation.cut
    conversation.source(["bye", "well"])
    assert not conversation.cut


@pytest.mark.parametrize("settings", [{"beam": 1}, {"beam": 4}, {"temperature": 1.0}])
def test_pieces_of_an_answer_are_the_answer(model, settings):
    pieces = []
    answer = model("chat").chat(**settings).reply("hello", pieces.append)
    assert " ".join("".join(pieces).split()) == answer
    assert (len(pieces) == 1) == (settings == {"beam": 4})


@pytest.mark.parametrize("settings", [{"beam": 1}, {"beam": 4}, {"temperature": 1.0}])
def test_an_interrupted_answer_was_never_given(model, settings):
    def interrupt(piece):
        raise KeyboardInterrupt

    one, other = model("chat").chat(**settings), model("chat").chat(**settings)
    assert one.reply("hello") == other.reply("hello")
    with pytest.raises(KeyboardInterrupt):
        one.reply("never mind", interrupt)
    assert one.turns == other.turns
    assert one.reply("a friend") == other.reply("a friend")


@pytest.mark.parametrize("name", ["reverse", "gpt", "lstm", "chat"])
def test_whoever_learned_pairs_can_talk(model, name):
    conversation = Conversation(model(name))
    for text in ("a b", "", "c " * 200):
        assert isinstance(conversation.reply(text), str)
    assert len(conversation.turns) == model(name).history
