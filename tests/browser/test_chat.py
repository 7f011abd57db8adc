"""Chat: a conversation as Python has it; whatever breaks, no turn is lost or said twice."""

import re
from urllib.parse import urlparse

import pytest

from tests.browser.conftest import ready, visit
from tests.browser.flaky_proxy import FlakyProxy
from tests.browser.number_format import is_share
from tests.serve.samples import Served
from tests.tasks.conftest import TALK, model  # noqa: F401  (a fixture)

pytestmark = pytest.mark.system

QUESTIONS = ["Hi how are you", "What is your name?", "Good night"]


@pytest.fixture
def opened(page):
    return visit(page, model="greetings", tab="chat")


def say(page, text, wait="done"):
    page.get_by_label("Your message").fill(text)
    page.get_by_role("button", name="Send").click()
    if wait:
        page.wait_for_selector(f".exchange:last-child .answer.{wait}")


def answers(page):
    return [" ".join(text.split()) for text in page.locator(".answer .words").all_inner_texts()]


def asked(page):
    """The messages of every request for an answer."""
    chats = [r for r in page.watch.sent if r.url.endswith("/v1/chat/completions")]
    return [[m["content"] for m in r.post_data_json["messages"]] for r in chats]


def expected(known_one, questions, **settings):
    conversation = known_one.chat(**settings)
    return [conversation.reply(question) or "(nothing)" for question in questions]


def test_a_conversation_is_pythons_and_survives_a_reload(opened, known):
    page = opened
    for question in QUESTIONS:
        say(page, question)
    wanted = expected(known["greetings"], QUESTIONS)
    assert answers(page) == wanted
    assert (
        asked(page)[-1]
        == [turn for pair in zip(QUESTIONS, wanted, strict=True) for turn in pair][:-1]
    )
    page.reload()
    ready(page)
    assert answers(page) == wanted
    assert page.locator(".asked p").all_inner_texts() == QUESTIONS
    page.get_by_role("button", name="New conversation").click()
    assert page.locator(".exchange").count() == 0
    page.reload()
    ready(page)
    assert page.locator(".exchange").count() == 0


def test_words_come_one_by_one_where_no_beam_thinks_ahead(opened, known):
    opened.get_by_label("token by token").check()
    say(opened, QUESTIONS[0])
    assert answers(opened) == expected(known["greetings"], QUESTIONS[:1], beam=1)


def test_every_word_tells_why_it_came(opened, known):
    page, greeter = opened, known["greetings"]
    say(page, QUESTIONS[1])
    (answer,) = answers(page)
    word = page.locator(".answer .word").first
    text = word.inner_text()
    word.click()
    page.wait_for_selector(".inspector-card .share.strongest")
    trace = greeter.explain(QUESTIONS[1], target=answer)
    step = next(s for s in trace.steps if text.startswith(s.chosen.piece.strip()))
    rows = page.locator(".inspector-card .bars li").all()
    shown = [row.locator(".bars-label").inner_text().replace("·", " ") for row in rows][:8]
    assert shown == [candidate.piece for candidate in step.top[:8]]
    for row, candidate in zip(rows, step.top, strict=False):
        assert is_share(row.locator(".bars-value").inner_text(), candidate.probability)
    layers = greeter.model.config.layers
    weights = trace.tensor(f"decoder.{layers - 1}.cross.weights")[:, step.row].mean(dim=0)
    numbers = page.locator(".inspector-card .share-number").all_inner_texts()
    assert is_share(numbers[-1], weights[-1].item())
    assert word.get_attribute("aria-expanded") == "true"
    word.click()
    assert page.locator(".inspector-card").count() == 0


def test_a_model_that_looks_further_back_tells_of_earlier_turns(new_page, run, model):  # noqa: F811
    """Of three turns that it sees, all three are what its words looked at."""
    with Served(run("chat")) as talker:
        page = visit(new_page(host=talker.url), tab="chat")
        for question in TALK[:2]:
            say(page, question)
        said = answers(page)
        assert said == expected(model("chat"), TALK[:2])
        page.locator(".exchange:last-child .answer .word").first.click()
        page.wait_for_selector(".inspector-card .share.strongest")
        whole = "\n".join([TALK[0], said[0], TALK[1]])
        trace = model("chat").explain(whole, target=said[1])
        shares = page.locator(".inspector-card .share-word").all_inner_texts()
        assert "".join(shares).replace("·", "") == "".join(trace.source.labels).replace("·", "")
        weights = trace.tensor("decoder.0.cross.weights")[:, 0].mean(dim=0)
        numbers = page.locator(".inspector-card .share-number").all_inner_texts()
        assert is_share(numbers[-1], weights[-1].item())


def test_the_keyboard_is_enough(opened, known):
    page = opened
    page.get_by_label("Your message").focus()
    page.keyboard.type(QUESTIONS[0])
    page.keyboard.press("Enter")
    page.wait_for_selector(".answer.done .word")
    page.keyboard.press("Shift+Tab")
    while not page.evaluate("() => document.activeElement.classList.contains('word')"):
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector(".inspector-card .share.strongest")
    assert answers(page) == expected(known["greetings"], QUESTIONS[:1])


def test_a_double_click_says_it_once(opened, known):
    page = opened
    page.get_by_label("Your message").fill(QUESTIONS[0])
    page.get_by_role("button", name="Send").dblclick()
    page.get_by_label("Your message").press("Enter")
    page.wait_for_selector(".answer.done")
    ready(page)
    assert len(asked(page)) == 1
    assert answers(page) == expected(known["greetings"], QUESTIONS[:1])


def test_cut_anywhere_the_answer_says_so_and_trying_again_works(new_page, service, known):
    """At twenty points of the answer, each a broken connection; then the same question again."""
    wanted = expected(known["greetings"], QUESTIONS[:1], beam=1)
    with FlakyProxy(urlparse(service.url).port) as proxy:
        page = new_page(host=proxy.url)
        page.watch.allow("ERR_|Failed to load resource")
        visit(page, model="greetings", tab="chat")
        page.get_by_label("token by token").check()
        say(page, QUESTIONS[0])
        assert answers(page) == wanted
        for i in range(20):
            page.get_by_role("button", name="New conversation").click()
            proxy.cut = i / 19
            say(page, QUESTIONS[0], wait="broken")
            assert proxy.cut is None  # it was cut
            assert page.get_by_text("The reply was interrupted here.").count() == 1
            assert wanted[0].startswith(answers(page)[0])
            page.get_by_role("button", name="Try again").click()
            page.wait_for_selector(".answer.done")
            assert answers(page) == wanted
            assert page.locator(".exchange").count() == 1
            assert asked(page)[-1] == [QUESTIONS[0]]


def held_back(page):
    """Answers that begin and do not end, until somebody lets them."""
    page.route("**/v1/chat/completions", lambda route: None)


def test_stop_leaves_what_was_written_and_the_next_question_goes_on(opened, known):
    page = opened
    held_back(page)
    say(page, QUESTIONS[0], wait="writing")
    assert page.get_by_role("button", name="Send").is_disabled()
    page.get_by_role("button", name="Stop").click()
    page.wait_for_selector(".answer.stopped")
    page.unroute("**/v1/chat/completions")
    say(page, QUESTIONS[1])
    assert asked(page)[-1] == [QUESTIONS[1]]  # nothing was answered, so nothing was said
    assert answers(page)[-1:] == expected(known["greetings"], QUESTIONS[1:2])


def test_a_reload_in_the_middle_of_an_answer_leaves_a_clear_state(opened, known):
    page = opened
    say(page, QUESTIONS[0])
    held_back(page)
    say(page, QUESTIONS[1], wait="writing")
    page.reload()
    ready(page)
    assert page.locator(".exchange").count() == 2
    assert page.get_by_text("The reply was interrupted here.").count() == 1
    page.unroute("**/v1/chat/completions")
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".exchange:last-child .answer.done")
    assert answers(page) == expected(known["greetings"], QUESTIONS[:2])
    assert page.locator(".asked p").all_inner_texts() == QUESTIONS[:2]


def test_leaving_the_tab_in_the_middle_is_no_loss_either(opened):
    page = opened
    held_back(page)
    say(page, QUESTIONS[0], wait="writing")
    page.get_by_role("tab", name="Translate").click()
    page.get_by_role("tab", name="Chat").click()
    assert page.get_by_text("The reply was interrupted here.").count() == 1
    page.unroute("**/v1/chat/completions")
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".answer.done")
    assert page.locator(".exchange").count() == 1


def test_two_tabs_are_two_conversations(opened, known):
    page = opened
    say(page, QUESTIONS[0])
    other = page.context.new_page()
    other.goto(page.url)
    ready(other)
    assert other.locator(".exchange").count() == 0
    other.get_by_label("Your message").fill(QUESTIONS[1])
    other.get_by_role("button", name="Send").click()
    other.wait_for_selector(".answer.done")
    assert answers(other) == expected(known["greetings"], QUESTIONS[1:2])
    assert answers(page) == expected(known["greetings"], QUESTIONS[:1])


def test_a_service_that_ends_and_comes_back(new_page, runs, known):
    """Nobody answers for a while: that is told; then the same page goes on."""
    with Served(runs["greetings"]) as first:
        page = new_page(host=first.url)
        page.watch.allow("ERR_|Failed to load resource")
        visit(page, tab="chat")
        say(page, QUESTIONS[0])
        port = urlparse(first.url).port
    say(page, QUESTIONS[1], wait="broken")
    assert "does not respond" in page.locator(".broke").inner_text()
    with Served(runs["greetings"], arguments=[f"--port={port}"]):
        page.get_by_role("button", name="Try again").click()
        page.wait_for_selector(".exchange:last-child .answer.done")
        assert answers(page) == expected(known["greetings"], QUESTIONS[:2])
        assert page.locator(".exchange").count() == 2


def test_a_message_that_is_too_long_is_told_and_the_conversation_goes_on(opened, known):
    page = opened
    page.watch.allow("413")
    long = "a b c d " * 20
    say(page, long, wait="broken")
    assert "the last turn comes to" in page.locator(".broke").inner_text()
    say(page, QUESTIONS[0])
    assert answers(page)[-1:] == expected(known["greetings"], QUESTIONS[:1])
    assert asked(page) == [[long.strip()], QUESTIONS[:1]]


def test_what_is_said_is_text_whatever_it_is(opened):
    page = opened
    before = page.locator("img, script").count()
    for hostile in (
        "<img src=x onerror=alert(1)> &amp; \u202e ⟨end⟩",
        "&lt; </p><script>alert(1)</script>",
    ):
        say(page, hostile)
        shown = page.locator(".asked p").last.inner_text()
        assert re.sub(r"\s+", " ", shown) == hostile
    assert page.locator("img, script").count() == before
