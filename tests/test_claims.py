"""What README, docs and recipes say in numbers is what the code and the recorded results say."""

import re

import pytest
import torch

from limelight.data.registry import NAMED
from limelight.model import build
from limelight.model.count import count_parameters
from limelight.recipe import load_recipe
from limelight.workflows.info import describe
from tests.doc_pages import PAGES, ROOT

README, DOCS = ROOT / "README.md", ROOT / "docs"
RECORDED = "\n".join(p.read_text("utf-8") for p in (ROOT / "benchmarks/results").glob("*.md"))
SECTIONS = {"3", "3.1", "3.2", "3.2.1", "3.2.2", "3.2.3", "3.3", "3.4", "3.5"}
SECTIONS |= {"5.1", "5.2", "5.3", "5.4", "6.1", "6.2", "6.3"}
NUMBER = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?k?\b")


def words(page):
    return " ".join(page.read_text("utf-8").split())


def parameters(name):
    with torch.device("meta"):
        return sum(count_parameters(build(load_recipe(name).model)).values())


def test_parameter_counts_in_recipes_are_counted():
    text = words(ROOT / "limelight/recipes/multi30k-en-de-lstm.toml")
    own, other = re.findall(r"# ([\d.]+)M parameters; multi30k-en-de has ([\d.]+)M", text)[0]
    assert float(own) == round(parameters("multi30k-en-de-lstm") / 1e6, 1)
    assert float(other) == round(parameters("multi30k-en-de") / 1e6, 1)


def test_the_model_in_one_file_has_as_many_lines_as_is_said():
    lines = len((DOCS / "hundred_lines.py").read_text("utf-8").splitlines())
    said = [
        (page.name, int(number))
        for page in PAGES
        for near in re.findall(r"hundred_lines\.py.{0,120}|.{60}\]\(hundred_lines", words(page))
        for number in re.findall(r"(\d+) lines", near)
    ]
    assert {page for page, _ in said} == {"README.md", "story.md"}
    assert {number for _, number in said} == {lines}


def test_sst2_is_reported_as_it_was_recorded():
    counts = re.findall(r"([\d,]+) of the ([\d,]+) training lines that GLUE", NAMED["sst2"].origin)
    means = re.findall(r"^\| .*\| \**([\d.]+)\** \|$", RECORDED.partition("### SST-2")[2], re.M)
    for page in (README, DOCS / "results.md"):
        (row,) = re.findall(r"^\| SST-2, .*", page.read_text("utf-8"), re.M)
        assert re.findall(r"([\d,]+) of GLUE's ([\d,]+) training lines", row) == counts
        tuned, scratch = re.findall(r"\*\*([\d.]+)\*\* after .* ([\d.]+) from scratch", row)[0]
        assert tuned == means[0]
        assert scratch == max(means[1:3])  # the better of two learning rates


def test_the_paper_page_has_every_section_or_says_that_it_is_left_out():
    marked = re.findall(r"^\| \*\*([^*]+)\*\*", (DOCS / "paper.md").read_text("utf-8"), re.M)
    named = {section for mark in marked for section in re.findall(r"\d[\d.]*", mark)}
    assert SECTIONS - named == set()


def test_what_gpt3_would_need_is_what_info_says():
    need = describe(load_recipe("gpt3-175b"), devices=1024)["training_bytes"]
    text = words(DOCS / "platforms.md")
    said = re.findall(r"`gpt3-175b` on ([\d,]+) .*? is (\d+) GB, .*? (\d+) GB", text)
    assert said == [("1,024", f"{need['total'] / 1e9:.0f}", f"{need['activations'] / 1e9:.0f}")]


def speeds_in(page):
    """Numbers in the cells of tables of speeds, without the work, the ratio and the commit."""
    columns, found = [], set()
    for line in page.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        if not columns or not cells:
            columns = cells if "recorded in" in cells else []
            continue
        for column, cell in list(zip(columns, cells, strict=True))[1:-1]:
            if "ratio" not in column:
                found |= set(NUMBER.findall(cell))
    return found


@pytest.mark.parametrize("page", [README, DOCS / "results.md"], ids=lambda page: page.name)
def test_every_speed_was_recorded(page):
    exact = set(NUMBER.findall(RECORDED))
    whole_numbers = (int(n.replace(",", "")) for n in exact if re.fullmatch(r"\d+(,\d{3})+", n))
    thousands = {f"{n / 1000:,.0f}k" for n in whole_numbers}
    whole = {f"{float(n):.0f}" for n in exact if re.fullmatch(r"\d{3}\.\d", n)}
    found = speeds_in(page)
    assert len(found) > 10
    assert found - exact - thousands - whole == set()
