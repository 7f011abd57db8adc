"""Ask, paraphrase, summarise: a tag selects the task, and a long text is split into parts."""

import pytest

from limelight.errors import UserError
from limelight.tasks.text_to_text import ask, different_first, summarise
from limelight.tasks.translate import Translation, TranslationOutput


def test_a_model_without_tags_reads_the_text_as_it_is(model):
    loaded = model("reverse")
    assert loaded.summarise("a b c").text == loaded.translate("a b c").text
    assert loaded.ask("a", "b c").text == loaded.translate("a b c").text
    assert loaded.paraphrase("a b", beam=3).text


def test_a_tag_selects_the_task_and_another_is_refused(model):
    loaded = model("tagged")
    for task in ("summarise", "paraphrase"):
        with pytest.raises(UserError, match=f"did not learn to {task}, but back, same"):
            getattr(loaded, task)("a b")
    with pytest.raises(UserError, match="no bundled model does; import one"):
        loaded.summarise("a b")
    with pytest.raises(UserError, match="the bundled model helper does"):
        loaded.ask("a", "b")
    loaded.tags, before = ("ask", "same"), loaded.tags  # the first of its two tokens
    try:
        assert "ask" in loaded.tasks
        assert "paraphrase" not in loaded.tasks
    finally:
        loaded.tags = before


def test_models_of_another_kind_are_refused_by_the_name_of_the_task(model):
    for name, says in (("writer", "cannot ask: it is decoder-only"), ("chat", "ask, but chat")):
        with pytest.raises(UserError, match=says):
            list(ask(model(name), ["a"], "b"))


def test_an_empty_question_has_an_empty_answer(model):
    nothing, something = ask(model("reverse"), [" ", "a"], "b c")
    assert nothing.text == "" != something.text


def test_a_long_text_is_summarised_in_parts_and_a_long_context_is_refused(model):
    loaded = model("reverse")
    long = " ".join("abcdefgh. " * 20)
    (summary,) = summarise(loaded, [long])
    assert summary.parts > 1
    assert next(summarise(loaded, ["a b"])).parts == 1
    (refused,) = ask(loaded, ["a"], long)
    assert "tokens, the model reads 63: shorten the paragraph" in refused.problem
    with pytest.raises(UserError, match="the context is empty"):
        loaded.ask("a", "  ")


def test_a_paraphrase_differs_if_the_beam_has_one_that_does(model):
    outputs = tuple(TranslationOutput(text, -i) for i, text in enumerate(["hi  there", "Hello."]))
    done = different_first(Translation("Hi there!", outputs))
    assert [output.text for output in done.outputs] == ["Hello.", "hi  there"]
    assert different_first(Translation("Bye", outputs)).outputs == outputs
    loaded = model("reverse")  # what reads the same backwards is its own translation
    assert loaded.translate("a").text == "a"
    assert loaded.paraphrase("a", beam=3).text != "a"
