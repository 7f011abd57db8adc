"""What README and docs tell people to run is run here, and what they show is what comes out."""

import ast
import re
import runpy
from dataclasses import fields
from inspect import signature

import pytest

from limelight.cli import COMMANDS
from limelight.decode.config import DecodeConfig
from limelight.recipe import parse_recipe
from limelight.run.bundled_models import model_names
from tests.doc_pages import (
    ELSEWHERE,
    PAGES,
    ROOT,
    Shell,
    agree,
    blocks_of,
    commands_of,
    run_python,
    run_shell,
    runnable,
)
from tests.test_faults import FAULTS

OTHERS = [ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "LAB.md")]
NAMED = re.compile(r"`((?:limelight|tests|docs|benchmarks)/[\w/.-]+\.\w+)(?:::([\w.]+))?`")
LINKED = re.compile(r"\[`([\w.]+)`\]\(\.\./([\w/]+\.py)(?:#L\d+)?\)")  # a name, and its file
RUN_BY = {  # what is done with a block, by what follows its three backticks
    "sh": "here, line by line",
    "python": "here, from top to bottom",
    "toml": "read as a recipe",
    "bash": "tests/serve/test_docs.py",
    "py": "tests/serve/test_docs.py",
    "text": "not at all: something to look at",
}


def name_of(page):
    return str(page.relative_to(ROOT))


@pytest.fixture
def shell(programs, tmp_path):
    return Shell(tmp_path, programs)


@pytest.mark.parametrize("page", [p for p in PAGES if runnable(p, "sh")], ids=name_of)
def test_shell_commands_run_one_after_the_other(page, shell):
    printed, before = {}, set()
    for block, command, done in run_shell(page, shell):
        assert done.returncode == 0, f"{block.location}: {command}\n{done.stderr}"
        files = set(shell.folder.rglob("*"))
        assert done.stdout or done.stderr or files != before, (
            f"{block.location}: {command} does nothing"
        )
        before = files
        printed[block] = printed.get(block, "") + done.stdout
    for block, output in printed.items():
        if block.shown is not None:
            assert agree(block.shown, output), f"{block.location} prints\n{output}"


@pytest.mark.parametrize("page", [p for p in PAGES if runnable(p, "python")], ids=name_of)
def test_python_blocks_run_from_top_to_bottom(page, shell):
    outputs, problem = run_python(page, shell)
    assert not problem, f"{name_of(page)}\n{problem}"
    for block, output in outputs:
        if block.shown is not None:
            assert agree(block.shown, output), f"{block.location} prints\n{output}"


def test_a_page_that_shows_something_else_would_be_noticed():
    assert agree("the cat 0.123  0.9\n", "the cat  0.124 0.9\n")
    assert agree("one\n...\nfour\n", "one\ntwo\nthree\nfour\n")
    assert not agree("the cat 0.123", "the dog 0.123")
    assert not agree("the cat 0.123", "the cat 0.223")
    assert not agree("3 tokens", "4 tokens")
    assert not agree("one\nthree\n", "one\ntwo\nthree\n")
    assert not agree("one\n...\nfive\n", "one\ntwo\nthree\nfour\n")


def test_every_block_is_run_or_says_which_machine_it_needs():
    blocks = [block for page in PAGES for block in blocks_of(page)]
    assert [b.location for b in blocks if b.language not in RUN_BY] == []
    assert [b.location for b in blocks if b.needs not in ("", *ELSEWHERE)] == []
    fences = sum(p.read_text().count("```") for p in PAGES)
    fenced = [b for b in blocks if b.text.endswith("\n")]  # and not a cell of a table
    assert fences == 2 * sum(1 + (b.shown is not None) for b in fenced)  # none was overlooked
    hidden = [
        f"{block.location}: {line}"
        for block in blocks
        if block.language == "text"
        for line in block.text.splitlines()
        if re.match(r"(limelight|make|docker|torchrun|srun|pip) ", line) and " RUN" not in line
    ]
    assert hidden == []  # a command is shell, so that it is run
    served = {b.page.name for b in blocks if b.language in ("bash", "py")}
    assert served <= {"serve.md"}


def test_make_targets_exist():
    targets = re.findall(r"^([a-z-]+)(?=[ a-z-]*:)", (ROOT / "Makefile").read_text(), re.M)
    phony = re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.M)
    known = {*targets, *" ".join(phony).split()}
    asked = [
        command.split()[1]
        for page in PAGES
        for block in blocks_of(page)
        if block.language == "sh"
        for command in commands_of(block)
        if command.startswith("make ")
    ]
    assert asked
    assert set(asked) <= known  # the targets themselves are run by CI


def test_recipes_in_the_docs_are_valid():
    shown = [block for page in PAGES for block in runnable(page, "toml")]
    assert shown
    for block in shown:
        assert parse_recipe("shown.toml", block.text).model.vocab, block.location


def test_generated_pages_are_what_the_types_say():
    reference = runpy.run_path(str(ROOT / "docs" / "reference.py"))
    assert list(reference["stale_pages"]()) == []  # or else: make docs


def test_every_option_of_a_trained_model_has_a_line():
    text = (ROOT / "docs" / "use.md").read_text()
    for name in (
        *("translate", "chat", "ask", "paraphrase", "summarise", "write", "fill", "classify"),
        *("embed", "search", "score"),
    ):
        assert f"limelight {name} " in text
        others = {"run", "text", "prompt", "set", "query", "file", "question"}
        for option in signature(COMMANDS[name]).parameters.keys() - others:
            (line,) = re.findall(rf"^\| .*`--{option.replace('_', '-')}(?![\w-]).*", text, re.M)
            assert name in line or ("all" in line and name != "embed"), f"{name} --{option}"
    for setting in fields(DecodeConfig):
        assert re.search(rf"^\| .*`{setting.name}`", text, re.M), setting.name


def test_the_readme_counts_truly():
    text = (ROOT / "README.md").read_text()
    assert len(FAULTS) == 47
    assert "forty-seven planted" in text.replace("\n", " ")
    words = {6: "Six", 7: "Seven", 8: "Eight", 9: "Nine"}
    assert f"{words[len(model_names())]} small models are bundled" in text.replace("\n", " ")
    assert len(text.splitlines()) <= 200


def anchors_of(page):
    """The names under which GitHub reaches the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)", text, re.M)
    bare = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in bare}


def leads_nowhere(page, target):
    """What is wrong with a link, if something is."""
    path, _, anchor = target.partition("#")
    there = (page.parent / path) if path else page
    if not there.exists():
        return "no such file"
    if there.suffix == ".py" and re.fullmatch(r"L\d+", anchor):
        return ""  # the name beside it is looked for by another test
    if anchor and (there.suffix != ".md" or anchor not in anchors_of(there)):
        return "no such heading"
    return ""


def test_links_lead_somewhere():
    targets = [
        (page, target)
        for page in [*PAGES, *OTHERS]
        for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", page.read_text())
        for target in target
        if target and not target.startswith("http")
    ]
    wrong = {f"{name_of(p)}: {t}": leads_nowhere(p, t) for p, t in targets}
    assert len(wrong) > 50
    assert {link: problem for link, problem in wrong.items() if problem} == {}


def test_a_link_that_leads_nowhere_would_be_noticed():
    page = ROOT / "docs" / "README.md"
    assert leads_nowhere(page, "use.md") == ""
    assert leads_nowhere(page, "use.md#from-python") == ""
    assert leads_nowhere(page, "useless.md") == "no such file"
    assert leads_nowhere(page, "use.md#from-cobol") == "no such heading"


def test_every_page_can_be_reached_from_the_table_of_contents():
    contents = (ROOT / "docs" / "README.md").read_text()
    linked = {target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", contents)}
    assert {page.name for page in PAGES if page.parent == ROOT / "docs"} - {"README.md"} <= linked


def defined_in(path):
    """Every function, class, method and constant of a file, methods as Class.method."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        own = [getattr(node, "name", "")]
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            own = [target.id for target in targets if isinstance(target, ast.Name)]
        names.update(own)
        if isinstance(node, ast.ClassDef):
            names.update(f"{node.name}.{getattr(part, 'name', '')}" for part in node.body)
            names.update(
                f"{node.name}.{part.target.id}"
                for part in node.body
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
            )
    return names


def test_what_the_docs_point_at_in_the_source_is_there():
    pointed = [
        (name_of(page), *found)
        for page in [*PAGES, *OTHERS]
        for text in [page.read_text()]
        for found in [*NAMED.findall(text), *((path, name) for name, path in LINKED.findall(text))]
    ]
    wrong = [
        (page, path, symbol)
        for page, path, symbol in pointed
        if not (ROOT / path).exists() or (symbol and symbol not in defined_in(ROOT / path))
    ]
    assert len(pointed) > 100
    assert wrong == []


SECTIONS = {"1", "2", "3", "3.1", "3.2", "3.2.1", "3.2.2", "3.2.3", "3.3", "3.4", "3.5"}
SECTIONS |= {"5.1", "5.2", "5.3", "5.4", "6.1", "6.2", "6.3", "7"}


def test_every_section_of_the_paper_is_read_with_the_code():
    text = (ROOT / "docs" / "paper.md").read_text()
    rows = {
        row for bold in re.findall(r"^\| \*\*(.*?)\*\*", text, re.M) for row in bold.split(", ")
    }
    assert [section for section in SECTIONS if section not in rows] == []
    assert "## 4 Why self-attention" in text


def test_a_name_that_is_not_there_would_be_noticed():
    names = defined_in(ROOT / "limelight" / "model" / "attention.py")
    assert {"explicit_attention", "Attention", "Attention.forward", "KeysValues"} <= names
    assert "attend_somehow" not in names
