"""The shape of the source: complete reading orders, unique and used names, functions that fit."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "limelight"
TREES = {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
PACKAGES = sorted({path.parent for path in TREES} - {PACKAGE})
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
LONGEST = 60  # lines of a function; Triton's kernels may be longer
WORDS: Counter[str] = Counter()  # in how many files each occurs; docs and tests count as use
SEARCHED = {"limelight": "py", "tests": "py", "benchmarks": "py", "docs": "[mp][dy]"}
for folder, ending in SEARCHED.items():
    for file in [*(ROOT / folder).rglob(f"*.{ending}"), *(ROOT / folder).glob("../README.md")]:
        WORDS.update(set(re.findall(r"\w+", file.read_text("utf-8"))))


def named(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("folder", PACKAGES, ids=named)
def test_the_reading_order_lists_every_module(folder):
    text = ast.get_docstring(TREES[folder / "__init__.py"]) or ""
    listed = re.findall(r"^ *(\w+)  +\S", text, re.MULTILINE)
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    inner = {path.name for path in folder.iterdir() if (path / "__init__.py").is_file()}
    assert sorted(listed) == sorted(modules | inner)


def test_class_names_are_unique():
    classes = [n.name for t in TREES.values() for n in ast.walk(t) if isinstance(n, ast.ClassDef)]
    assert [name for name, count in Counter(classes).items() if count > 1] == []


@pytest.mark.parametrize("path", TREES, ids=named)
def test_public_names_are_used_elsewhere_and_functions_fit(path):
    tree = TREES[path]
    defined = [node.name for node in tree.body if isinstance(node, DEFINITIONS)]
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        defined += [target.id for target in targets if isinstance(target, ast.Name)]
    routed = {n.name for n in tree.body if isinstance(n, DEFINITIONS) and n.decorator_list}
    public = {name for name in defined if not name.startswith("_")} - routed
    if path.parent.name == "schemas":  # their names are in the API's own description
        public = set()
    assert [name for name in public if WORDS[name] < 2] == []
    for node in (node for node in ast.walk(tree) if isinstance(node, DEFINITIONS)):
        assert not (ast.get_docstring(node) or "").startswith("The same"), node.name
        kernel = any("jit" in ast.unparse(one) for one in node.decorator_list)
        if not isinstance(node, ast.ClassDef) and not kernel:
            assert node.end_lineno - node.lineno < LONGEST, node.name
