"""The page's modules keep the rules by which they are joined, and a file holds all of it safely."""

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from limelight.web import bundle

MODULES = sorted(
    path.relative_to(files("limelight.web")).as_posix()
    for path in files("limelight.web").rglob("*.js")
)
FOLDERS = ("core", "charts", "attention", "bench", "stages", "tabs", "")  # "": entries
HOSTILE = "</script><script>alert(1)</script><!-- \u2028 ' \" & <img src=x onerror=alert(1)>"


def test_all_modules_are_reached_and_joined():
    live, file = bundle.joined("js/main.js"), bundle.joined("js/file.js")
    there = set(re.findall(r"^// ([\w/]+\.js)$", live, re.MULTILINE))
    there |= set(re.findall(r"^// ([\w/]+\.js)$", file, re.MULTILINE))
    assert there == set(MODULES)
    for script in (live, file):
        assert not re.search(r"^(import|export)\b", script, re.MULTILINE)


def test_what_is_imported_comes_first():
    script = bundle.joined()
    order = re.findall(r"^// ([\w/]+\.js)$", script, re.MULTILINE)
    for name in order:
        for needed in bundle.imports(name, bundle.source_of(name)).values():
            assert order.index(needed) < order.index(name)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_from_its_own_folder_and_those_before_it(name):
    def rank(path):
        return FOLDERS.index(path.removeprefix("js/").rpartition("/")[0])

    needed = bundle.imports(name, bundle.source_of(name)).values()
    assert not [path for path in needed if rank(path) > rank(name)]


@pytest.mark.parametrize("name", MODULES)
def test_no_module_makes_elements_of_text_or_code_of_data(name):
    code = re.sub(r"//.*", "", bundle.source_of(name))
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    assert not re.search(forbidden, code)
    assert not re.search(r"Math\.random|https?://(?!www\.w3\.org/)|\bimport\(", code)


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        ({"a.js": 'import x from "./b.js";', "b.js": ""}, "an import is"),
        ({"a.js": 'import * as b from "./b.js";', "b.js": ""}, "an import is"),
        ({"a.js": 'import { c as d } from "./b.js";', "b.js": "export const c = 1;"}, "an import"),
        ({"a.js": 'const b = await import("./b.js");', "b.js": ""}, "an import is"),
        ({"a.js": 'import { c } from "./b.js";', "b.js": "const c = 1;"}, "does not export"),
        ({"a.js": "export default 1;"}, "an export is"),
        ({"a.js": "const a = 1;\nexport { a };"}, "an export is"),
        (
            {
                "a.js": 'import { c } from "./b.js";\nconst d = 1;',
                "b.js": "const d = 2;\nexport const c = 3;",
            },
            "d is at the top of both b.js and a.js",
        ),
        (
            {
                "a.js": 'import { c } from "./b.js";\nexport const d = 1;',
                "b.js": 'import { d } from "./a.js";\nexport const c = 1;',
            },
            "circle: a.js > b.js > a.js",
        ),
        ({"a.js": 'const a = "</SCRIPT>";'}, "end of a script"),
    ],
)
def test_what_breaks_the_rules_is_refused(monkeypatch, modules, told):
    monkeypatch.setattr(bundle, "source_of", modules.__getitem__)
    with pytest.raises(bundle.RuleError, match=re.escape(told)):
        bundle.joined("a.js")


def test_modules_become_one_script(monkeypatch):
    modules = {
        "a.js": 'import { twice } from "./deep/b.js";\n\nexport const four = twice(2);\n',
        "deep/b.js": 'import { two } from "../c.js";\n\n'
        "export function twice(x) {\n  return two * x;\n}\n",
        "c.js": "export const two = 2;\n",
    }
    monkeypatch.setattr(bundle, "source_of", modules.__getitem__)
    assert bundle.joined("a.js") == (
        "// c.js\nconst two = 2;\n\n"
        "// deep/b.js\nfunction twice(x) {\n  return two * x;\n}\n\n"
        "// a.js\nconst four = twice(2);\n"
    )


class Elements(HTMLParser):
    """Every element of a file, with its attributes and its text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=False)
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append([tag, dict(attributes), ""])

    def handle_endtag(self, tag):
        self.found.append([f"/{tag}", {}, ""])

    def handle_data(self, data):
        if self.found:
            self.found[-1][2] += data


def test_a_file_allows_its_own_script_and_style_and_nothing_else():
    elements = Elements(bundle.single_file("a title", {}, "<p>plain</p>")).found
    policy = next(a["content"] for _, a, _ in elements if a.get("http-equiv"))
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    script = next(text for tag, a, text in elements if a.get("type") == "module")
    style = next(text for tag, _, text in elements if tag == "style")
    for text in (script, style):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in allowed
    assert len(allowed) == 2
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not [a for _, a, _ in elements if {"src", "href", "style", "onload"} & set(a)]


def test_hostile_data_and_title_stay_what_they_are():
    elements = Elements(bundle.single_file(HOSTILE, {"text": HOSTILE}, "")).found
    assert [tag for tag, _, _ in elements].count("script") == 2
    assert "img" not in [tag for tag, _, _ in elements]
    held = next(text for _, a, text in elements if a.get("id") == "held")
    assert json.loads(held) == {"text": HOSTILE, "texts": bundle.catalogues()}


def test_the_page_travels_in_few_bytes():
    script = gzip.compress(bundle.joined("js/main.js").encode(), 9)
    assert len(script) <= 250_000
