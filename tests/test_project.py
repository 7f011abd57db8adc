"""What stands around the code, for people who may join, agrees with the code."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FORMS = sorted(p for p in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if p.stem != "config")


def read(name):
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


def test_ruff_is_the_same_everywhere():
    (pinned,) = re.findall(r"^ruff==(.*)", (ROOT / "constraints.txt").read_text(), re.M)
    repos = {repo["repo"]: repo["rev"] for repo in read(".pre-commit-config.yaml")["repos"]}
    assert repos["https://github.com/astral-sh/ruff-pre-commit"] == f"v{pinned}"


def test_ci_runs_the_one_script_with_every_python_from_the_oldest():
    job = read(".github/workflows/ci.yml")["jobs"]["test"]
    assert [step["run"] for step in job["steps"] if "run" in step][-1] == ".ci/run"
    assert PROJECT["requires-python"] == f">={job['strategy']['matrix']['python'][0]}"
    assert "PYTHON ?=" in (ROOT / "Makefile").read_text()


def test_the_citation_is_of_this_version():
    citation = read("CITATION.cff")
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["cff-version"] == "1.2.0"
    assert [reference["title"] for reference in citation["references"]] == [
        "Attention Is All You Need"
    ]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_forms_are_what_github_reads(form):
    issue = read(form)
    assert {"name", "description", "body"} <= issue.keys()
    fields = [part for part in issue["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in fields}) == len(fields)
    assert all(part["attributes"]["label"] for part in fields)


def test_the_changelog_has_this_version_and_a_place_for_the_next():
    titles = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert titles[:2] == ["Unreleased", PROJECT["version"]]


def test_links_of_the_security_page_lead_somewhere():
    targets = re.findall(r"\]\(([^)]+)\)", (ROOT / "SECURITY.md").read_text("utf-8"))
    assert "../../security/advisories/new" in targets  # of GitHub, relative to the page there
    assert all((ROOT / t).is_file() for t in targets if not t.startswith("../../"))


def said_by_make():
    """What `make help` says of each target."""
    return dict(re.findall(r'@echo "([a-z-]+) +(.*)"', (ROOT / "Makefile").read_text()))


def test_readme_and_contributing_say_of_make_test_what_make_says():
    helped = said_by_make()
    text = (ROOT / "README.md").read_text("utf-8")
    (beside,) = re.findall(r"^make test +# (.*)", text, re.M)
    (promised,) = re.findall(r"^- `make test`: (.*)\.$", text, re.M)
    assert beside == promised == helped["test"]
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for target in ("test", "test-system", "test-gpu", "soak"):
        (row,) = re.findall(rf"^\| `make {target}` \| (.*) \|$", contributing, re.M)
        assert row == helped[target]


def test_make_test_leaves_out_what_it_says():
    pytest_ = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]
    options = pytest_["ini_options"]
    marked = {marker.partition(":")[0] for marker in options["markers"]}
    assert set(re.findall(r"not (\w+)", options["addopts"])) == marked == {"gpu", "soak", "system"}
    reasons = {"gpu": ["GPU"], "system": ["browser", "strace", "root"], "soak": ["hours"]}
    named = re.findall(r"\w+", said_by_make()["test"].partition(" need no ")[2])
    assert set(named) - {"or"} == {reason for each in reasons.values() for reason in each}
    makefile = (ROOT / "Makefile").read_text()  # it has no -m of its own
    assert "pytest -n auto --maxprocesses 4 --dist worksteal || $(ALONE)\n" in makefile


def test_ci_runs_what_its_comment_and_the_readme_say():
    script = (ROOT / ".ci/run").read_text("utf-8")
    comment = " ".join(re.findall(r"^# (.*)", script, re.M))
    (said,) = re.findall(r"bare machine: (.*? not the soak\.)", comment)
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"- `.ci/run`: {said}" in text
    assert re.findall(r"^make ([\w-]+)$", script, re.M) == ["lint", "test", "test-system"]
    for target in ("lint", "test", "test-system"):
        assert target in said
