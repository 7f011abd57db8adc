"""Three hundred strings that would like to be more than text: as input, output, token and name."""

import json

import pytest

from tests.browser.conftest import MODELS, ready, visit
from tests.browser.test_accessibility_everywhere import TABS

pytestmark = pytest.mark.system

PAYLOADS = [
    "<img src=x onerror=hacked()>", "<script>hacked()</script>", "<svg onload=hacked()>",
    "<iframe srcdoc='<script>parent.hacked()</script>'>", "<a href=javascript:hacked()>x</a>",
    "<b onmouseover=hacked()>b</b>", "<style>*{display:none}</style>", "<base href=//evil.example>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>", "<form action=//evil.example>",
    "<input autofocus onfocus=hacked()>", "<object data=//evil.example>", "${hacked()}",
    "{{constructor.constructor('hacked()')()}}", "<math><mi xlink:href='javascript:hacked()'>",
]  # fmt: skip
WRAPPERS = [
    "%s", '"%s', "'>%s", "</textarea>%s", "</title>%s", "</script>%s", "<!--%s", "-->%s", "]]>%s",
    "\u202e%s", "\u2028%s", "\x00%s", "&lt;%s", "<<%s//>", "\\u003c%s", "`%s", "<p/%s", "%%3C%s",
    "a\tb %s", "🍌%s",
]  # fmt: skip
HOSTILE = [wrapper % payload for payload in PAYLOADS for wrapper in WRAPPERS]
# What a service tells that comes from people or from a model, wherever it stands in an answer.
SPOKEN = {"pieces", "labels", "piece", "text", "token", "tokens", "content", "about", "recipe",
          "input", "target", "best", "source", "reads", "filled", "letters", "claim",
          "what"}  # fmt: skip
ODD = """() => {
  const never = ["img", "iframe", "object", "embed", "base", "style", "frame", "marquee"];
  const once = { script: 1, meta: 12 };
  const leads = ["href", "src", "action", "formaction", "data", "xlink:href", "srcdoc"];
  const away = (value) => {
    const url = new URL(value, location.href);
    return url.origin !== location.origin && !["data:", "blob:"].includes(url.protocol);
  };
  const odd = [...document.querySelectorAll("*")].filter((e) =>
    never.includes(e.localName)
    || [...e.attributes].some((a) =>
      /^on/i.test(a.name) || (leads.includes(a.name) && away(a.value))));
  for (const [name, count] of Object.entries(once)) {
    const found = [...document.querySelectorAll(name)];
    if (found.length !== count) odd.push(...found);
  }
  return odd.map((e) => e.outerHTML.slice(0, 200));
}"""


def test_there_are_three_hundred_and_all_are_different():
    assert len(HOSTILE) == len(set(HOSTILE)) == 300


def poisoned(value, strings, key=""):
    """An answer in which everything that is spoken is hostile."""
    if isinstance(value, dict):
        return {name: poisoned(inner, strings, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [poisoned(inner, strings, key) for inner in value]
    return next(strings) if isinstance(value, str) and key in SPOKEN else value


def endless():
    while True:
        yield from HOSTILE


def poison(page):
    """Let every JSON answer of the service be hostile; the page must not mind."""
    strings, used = endless(), []

    def answer(route):
        response = route.fetch()
        if "application/json" not in response.headers.get("content-type", ""):
            route.fulfill(response=response)
            return
        before = json.loads(response.body())

        def counted():
            for string in strings:
                used.append(string)
                yield string

        route.fulfill(response=response, json=poisoned(before, counted()))

    page.route("**/api/**", answer)
    return used


def check(page):
    """No element that is not ours, no handler in an attribute, and nothing was run."""
    assert page.evaluate(ODD) == []
    assert page.evaluate("window.hacks") == 0
    assert page.url.startswith(page.watch.host)


@pytest.fixture
def wary(new_page):
    page = new_page()
    page.add_init_script("window.hacks = 0; window.hacked = () => { window.hacks += 1; };")
    page.on("dialog", lambda dialog: page.watch.note(f"a dialog: {dialog.message}"))
    return page


@pytest.mark.parametrize("model", MODELS)
def test_whatever_the_service_says_is_shown_as_text(wary, model):
    """Tokens, translations, candidates, descriptions: all of it hostile, in every tab."""
    used = poison(wary)
    wary.watch.allow("400|413|Failed to load")  # the example is hostile too, and may be too long
    shown = ""
    for tab in TABS[model]:
        visit(wary, model=model, tab=tab)
        check(wary)
        shown += wary.locator("body").inner_text()
    assert len(used) >= 100
    assert "=hacked()" in shown


def test_whatever_the_model_answers_is_shown_as_text(wary):
    """All three hundred as the pieces of one answer."""

    def answer(route):
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        events = [
            {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
            for delta, reason in [*(({"content": f" {s}"}, None) for s in HOSTILE), ({}, "stop")]
        ]
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        route.fulfill(content_type="text/event-stream", body=body)

    visit(wary, model="greetings", tab="chat")
    wary.route("**/v1/chat/completions", answer)
    wary.get_by_label("Your message").fill(HOSTILE[0])
    wary.get_by_role("button", name="Send").click()
    wary.wait_for_selector(".answer.done")
    ready(wary)
    check(wary)
    said = "".join(wary.locator(".answer").first.text_content().split())
    assert "".join(PAYLOADS[0].split()) in said


def test_whatever_is_typed_is_shown_as_text(wary):
    """All three hundred, a handful at a time, as the text that is explained and translated."""
    for begin in range(0, 300, 30):
        some = HOSTILE[begin : begin + 30]
        text = " ".join(some)[:120] if begin % 60 else some[begin % 7]
        wary.watch.allow("400|413|Failed to load")  # some are too long for a small model
        visit(wary, model="greetings", tab="translate", text=text)
        check(wary)
    for string in HOSTILE[::10]:
        visit(wary, model="writer", tab="attention", text=string[:20])
        check(wary)


def test_every_one_of_them_in_the_address(wary):
    """A link from a stranger can hold anything; all of its fields, without opening a new page."""
    wary.watch.allow("400|404|413|422|Failed to load")
    visit(wary, model="greetings", tab="model")
    names = ("model", "tab", "text", "target", "stop", "side", "step", "layer", "head", "query")
    for begin in range(0, 300, len(names)):
        fields = dict(zip(names, HOSTILE[begin : begin + len(names)], strict=True))
        if begin % 4:
            fields["model"], fields["tab"] = "greetings", "model"
        wary.evaluate(
            """(fields) => {
                history.pushState(null, "", "#" + new URLSearchParams(fields));
                dispatchEvent(new PopStateEvent("popstate"));
            }""",
            fields,
        )
        ready(wary)
        check(wary)


def test_runs_with_hostile_names(wary):
    """A service would refuse to start with such a folder; the page does not rely on it."""

    def models(route):
        data = [{"id": name, "object": "model", "created": 0} for name in HOSTILE]
        route.fulfill(json={"object": "list", "data": data})

    def described(route):
        facts = route.fetch(url=f"{wary.watch.host}/api/model").json()
        route.fulfill(json={**facts, "name": HOSTILE[7], "about": HOSTILE[8]})

    wary.route("**/v1/models", models)
    wary.route("**/api/model?*", described)
    wary.route(
        "**/api/example?*", lambda route: route.fulfill(json={"text": HOSTILE[9], "tag": ""})
    )
    wary.watch.allow("404|400|Failed to load")
    visit(wary, tab="model")
    check(wary)
    options = wary.locator("select.model-choice option").all_inner_texts()
    shown = wary.locator("select.model-choice option").evaluate_all("all => all.map(o => o.value)")
    assert len(options) == 300
    assert shown == [name.replace("\x00", "\ufffd") for name in HOSTILE] or shown == HOSTILE


def test_an_element_out_of_a_string_would_be_noticed(wary):
    wary.watch.allow("Content Security Policy")
    visit(wary, model="greetings", tab="model")
    check(wary)
    wary.evaluate("""() => {
        const bad = document.createElement("div");
        bad.setAttribute("onclick", "hacked()");
        const link = document.createElement("a");
        link.href = "javascript:hacked()";
        document.body.append(bad, link, document.createElement("iframe"));
    }""")
    assert len(wary.evaluate(ODD)) == 3
    wary.evaluate("document.body.append(document.createElement('script'))")
    assert len(wary.evaluate(ODD)) == 5
