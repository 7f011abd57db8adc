"""The docs as a site: it is whole, all its links lead somewhere, and it needs no other host."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?(https?:)?//[^>]*")
REPOSITORY = "https://git.example/people/limelight"


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rewritten(hooks, text, page="use.md", repository=REPOSITORY):
    page = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    return hooks.on_page_markdown(text, page, SimpleNamespace(extra={"repository": repository}), [])


@pytest.mark.parametrize(
    ("page", "written", "on_the_site"),
    [
        ("use.md", "[a](data.md#b)", "[a](data.md#b)"),
        ("use.md", "[a](README.md)", "[a](contents.md)"),
        ("use.md", "[a](../README.md#results)", "[a](index.md#results)"),
        ("use.md", "[a](hundred_lines.py)", "[a](hundred_lines.md)"),
        ("use.md", "[a](../LAB.md)", f"[a]({REPOSITORY}/blob/HEAD/LAB.md)"),
        ("use.md", "[`a`](../Makefile#L3)", f"[`a`]({REPOSITORY}/blob/HEAD/Makefile#L3)"),
        ("use.md", "[a](../benchmarks)", f"[a]({REPOSITORY}/tree/HEAD/benchmarks)"),
        ("use.md", "[a](https://x.org/)", "[a](https://x.org/)"),
        ("index.md", "[a](docs/README.md)", "[a](contents.md)"),
        ("index.md", "![a](docs/pictures/page.png)", "![a](pictures/page.png)"),
        ("index.md", "[a](#results)", "[a](#results)"),
        ("use.md", "[a](../no-such-file.md)", "[a](../no-such-file.md)"),  # mkdocs complains
    ],
)
def test_a_link_for_github_becomes_one_for_the_site(hooks, page, written, on_the_site):
    assert rewritten(hooks, f"See {written}.", page) == f"See {on_the_site}."
    block = f"```text\n{written}\n```"
    assert rewritten(hooks, block, page) == block


def test_where_the_repository_is_unknown_a_link_into_it_is_only_its_words(hooks):
    assert rewritten(hooks, "See [`a`](../LAB.md#b).", repository="") == "See `a`."


def test_what_a_block_needs_is_for_the_tests_alone(hooks):
    assert rewritten(hooks, "```sh gpu\nmake gpu test\n```") == "```sh\nmake gpu test\n```"


@pytest.mark.parametrize(
    ("origin", "address"),
    [
        ("https://git.example/people/limelight.git", REPOSITORY),
        ("https://name:secret@git.example/people/limelight", REPOSITORY),
        ("git@git.example:people/limelight.git", REPOSITORY),
        ("ssh://git@git.example/people/limelight.git", REPOSITORY),
        ("/home/me/limelight", ""),
        ("", ""),
    ],
)
def test_the_repository_is_where_git_has_it_from(hooks, monkeypatch, origin, address):
    monkeypatch.setattr(hooks.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=origin))
    assert hooks.repository() == address


def test_every_guide_and_every_module_has_its_place(hooks):
    guides = [page for section in hooks.guides() for pages in section.values() for page in pages]
    docs = ROOT / "docs"
    there = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - {"README.md"}
    assert sorted(guides) == sorted({*there, "hundred_lines.md"})
    names = [hooks.dotted(path) for path in hooks.modules()]
    assert names[0] == "limelight"
    assert {"limelight.model", "limelight.model.attention", "limelight.tasks"} <= set(names)
    assert not [name for name in names if "._" in name]


def build(source, target):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    return subprocess.run(
        [*command, "--site-dir", target],
        cwd=source,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.system  # takes twenty seconds
def test_the_site_is_whole(site):
    texts = {path.relative_to(site).as_posix(): path.read_text() for path in site.rglob("*.html")}
    assert {"index.html", "contents.html", "story.html", "hundred_lines.html"} <= texts.keys()
    assert 'id="limelight.load"' in texts["api/index.html"]
    assert 'id="limelight.model.attention.Attention"' in texts["api/model/attention.html"]
    assert (site / "pictures" / "page.png").is_file()
    assert not list(site.rglob("*.py"))
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert "api/index.html#limelight.load" in [page["location"] for page in found]


@pytest.mark.system
def test_the_site_loads_nothing_from_other_hosts(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    assert {found[0] for page in pages for found in LOADED.finditer(page.read_text())} == set()
    assert LOADED.search('<script src="https://cdn.example/x.js"></script>')  # would be noticed


@pytest.mark.system
def test_links_that_lead_nowhere_fail_the_build(tmp_path):
    for path in ROOT.iterdir():
        if path.name not in ("docs", "build", ".git", ".venv"):
            (tmp_path / path.name).symlink_to(path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    settings = tmp_path / "mkdocs.yml"
    without_api = re.sub(r"  - mkdocstrings:\n.*?\n\n", "\n", settings.read_text(), flags=re.DOTALL)
    settings.unlink()  # a link
    settings.write_text(without_api)  # which takes longest to make, and has no such links
    wrong = ["no-such-page.md", "use.md#no-such-heading", "../no-such-file"]
    with (tmp_path / "docs" / "use.md").open("a") as page:
        page.writelines(f"\n[a link]({link})\n" for link in wrong)
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "Aborted with 3 warnings" in done.stdout + done.stderr
    for link in ("no-such-page.md", "#no-such-heading", "../no-such-file"):
        assert link in done.stdout + done.stderr
