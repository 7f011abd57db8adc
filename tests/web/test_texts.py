"""The page's words in other languages: none is missing, none is left over, none is garbled."""

import json
import re
from functools import cache
from importlib.resources import files

import pytest

from limelight.explain.explanation import explain
from limelight.explain.stage_table import STAGES, stage_facts
from limelight.serve.worker.trace_cache import EXAMPLES
from limelight.web.bundle import catalogues
from tests.explain.samples import KINDS, trained
from tests.tasks.conftest import model, run  # noqa: F401  (fixtures)

JS = files("limelight.web").joinpath("js")
NUMBER = re.compile(r"\d[\d,.]*\d|\d")
SENTENCE = re.compile(r"(?<=[.?!]) (?=[A-Z(])|(?<=[.?!][)”]) (?=[A-Z(])")
LITERAL = re.compile(r'\bt\(\s*"((?:[^"\\]|\\.)*)"')
LANGUAGES = sorted(catalogues())
# Where every text that is shown goes through `t`.
TRANSLATED = (
    *(
        "app.js",
        "core/sentenceInput.js",
        "core/samplingSliders.js",
        "core/tag.js",
        "tabs/",
        "bench/",
    ),
    *("attention/attentionHighlight.js", "attention/attentionShares.js", "attention/headGrid.js"),
    *("attention/headStats.js", "attention/heads.js", "attention/tokenInspector.js"),
    *("attention/topAttention.js", "stages/lesson.js", "stages/loop.js"),
)
TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<mark>[`{}])|\$\{""",
    re.DOTALL,
)
READS = re.compile(r"[^\W\d_]{2,}[,.:;!?]? (?:\S+ )*[a-z]{2,}|^[A-Z][a-z]+$")
NOT_SHOWN = re.compile(  # what stands before a literal that nobody reads, or that is an example
    r"""(class(Name)?(:|[ ]=)[^,{}]*|\bd:[ ]|closest\(|querySelector(All)?\(|matchMedia\(
    |import[ ].*|^[ ][ ]title:[ ]|^const[ ][A-Z_]+[ ]=[ ].*|\bt\(|[!=]==[ ]|includes\()$""",
    re.VERBOSE,
)
NAMES = {
    *("Limelight", "Escape", "Enter", "Tab", "Space", "Ctrl", "Esc", "Home", "End", "Temperature"),
    *("an animal that rests", "limelight translate --input FILE"),
}


def keys_of(text):
    """How a text is looked up: sentence by sentence, with numbers taken out."""
    for sentence in SENTENCE.split(text):
        numbers = iter(range(99))
        yield NUMBER.sub(lambda _, found=numbers: f"{{{next(found)}}}", sentence)


@cache
def own_words():
    """Keys in the page's own source: what `t` is called with, tabs, keys, names of examples."""
    names = [path.relative_to(JS).as_posix() for path in JS.rglob("*.js")]
    sources = {name: JS.joinpath(name).read_text("utf-8") for name in names}
    found = {
        json.loads(f'"{key}"') for source in sources.values() for key in LITERAL.findall(source)
    }
    tabs = re.compile(r'^  id: "[\w-]+",\n  title: "([^"]+)"', re.MULTILINE)
    found |= {title for source in sources.values() for title in tabs.findall(source)}
    found |= {
        does for _, does in re.findall(r'^  \["(.+?)", "(.+?)"\],$', sources["core/keys.js"], re.M)
    }
    found |= {name for examples in EXAMPLES["more"].values() for name in examples}
    return found | {"encoder", "decoder"}


def literals(source):
    """The strings of a script, with what stands before each in its line; `${...}` is left out."""
    found, open_templates, depth, start = [], [], [], None
    at = 0

    def before(place):
        return source[source.rfind("\n", 0, place) + 1 : place]

    while at < len(source):
        if start is not None:  # within a template
            begin, parts = start
            end = re.compile(r"`|\$\{|\\.", re.DOTALL).search(source, at)
            parts.append(source[at : end.start()])
            at = end.end()
            if end[0] == "`":
                found.append((before(begin), "".join(parts)))
                start = None
            elif end[0] == "${":
                open_templates.append(start)
                depth.append(0)
                start = None
            continue
        token = TOKEN.search(source, at)
        if token is None:
            break
        at = token.end()
        if token["text"]:
            found.append((before(token.start()), token["text"][1:-1]))
        elif token[0] == "`":
            start = (token.start(), [])
        elif token[0] == "{" and depth:
            depth[-1] += 1
        elif token[0] == "}" and depth:
            if depth[-1] == 0:
                depth.pop()
                start = open_templates.pop()
            else:
                depth[-1] -= 1
    return found


def untranslated(source):
    """Strings that read like words for people, and do not go through `t`."""
    return [
        text
        for before, text in literals(source)
        if READS.search(text.strip())
        and text not in NAMES
        and text[:1] != "<"
        and not NOT_SHOWN.search(before)
    ]


def of_the_walk(traces):
    """Keys of the stage table, and of the titles and sentences of all stages of these models."""
    found = {text for entry in STAGES.values() for text in (entry.title, entry.label) if text}
    (cell,) = stage_facts(["masked"], ("encoder", "decoder"), "ssru")
    found |= {cell["title"], cell["label"]}
    for stage in (stage for trace in traces for stage in trace.walk()):
        texts = (stage.title, stage.what, *stage.notes)
        found |= {
            key for text in texts for key in keys_of(text) if not key.startswith("The input x is")
        }
    return found


@pytest.fixture(scope="module")
def wanted(model):  # noqa: F811
    texts = {"bert": "Hi ___ are you"}
    traces = [explain(trained(kind), texts.get(kind, "Hi how are you")) for kind in KINDS]
    return own_words() | of_the_walk(
        [*traces, model("lstm").explain("c a b"), model("rnn").explain("the cat")]
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_text_is_missing_and_none_is_left_over(language, wanted):
    catalogue = set(catalogues()[language])
    assert sorted(wanted - catalogue) == []
    assert sorted(catalogue - wanted) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_translation_has_what_its_text_has(language):
    for key, text in catalogues()[language].items():
        assert text.strip() == text != "", key
        assert sorted(re.findall(r"\{\d\}", key)) == sorted(re.findall(r"\{\d\}", text)), key


def test_there_are_languages_and_english_is_the_index():
    assert {"de", "zh"} <= set(LANGUAGES)
    assert "en" not in LANGUAGES
    listed = re.search(r"LANGUAGES = \[(.*)\];", JS.joinpath("core", "texts.js").read_text("utf-8"))
    assert set(re.findall(r'\["(\w+)"', listed[1])) == {"en", *LANGUAGES}


def test_every_text_of_these_files_can_be_translated():
    names = sorted(path.relative_to(JS).as_posix() for path in JS.rglob("*.js"))
    read = {n: JS.joinpath(n).read_text("utf-8") for n in names if n.startswith(TRANSLATED)}
    assert len(read) > 35
    assert {name: texts for name, source in read.items() if (texts := untranslated(source))} == {}


def test_a_text_that_is_not_translated_would_be_noticed():
    source = """
      // A comment is "not a text".
      h("p", { class: "small soft" }, "Choose a word.", t("Choose one."), `The ${n} best of ${t("all words")}`);
      button("Again", go, { class: busy ? "button quiet" : "button" });
      const way = `M${x} C${`${y} of`}`;
    """  # noqa: E501
    assert untranslated(source) == ["Choose a word.", "The  best of ", "Again"]


def test_numbers_are_taken_out_sentence_by_sentence():
    assert list(keys_of("It has 6,000 rows of 2.5. All (4) of them.")) == [
        "It has {0} rows of {1}.",
        "All ({0}) of them.",
    ]
