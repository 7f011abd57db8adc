"""The notebooks are valid, their exercises solved, and all of them run from top to bottom."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from limelight.course import notebooks as course
from limelight.errors import FailedError, UserError
from tests.course.notebooks import answered, execute, normal, read, tagged, tags_of

NOTEBOOKS = course.bundled_notebooks()
ROOT = Path(__file__).parents[2]
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_eight_and_the_docs_list_them_in_order():
    assert len(NOTEBOOKS) == 8
    page = (ROOT / "docs" / "course.md").read_text("utf-8")
    listed = re.findall(r"^\| \[(\d\d-[\w-]+)\]\(\.\./limelight/course/\1\.ipynb\)", page, re.M)
    assert listed == [path.stem for path in NOTEBOOKS]


@each
def test_a_notebook_is_valid_and_has_no_outputs(path):
    text = path.read_text("utf-8")
    nbformat.validate(json.loads(text))
    assert text == normal(text), "run: python -m tests.course.notebooks"


@each
def test_cells_are_short_and_compile(path):
    cells = read(path).cells
    for cell in (cell for cell in cells if cell.cell_type == "code"):
        ast.parse(cell.source)
        assert len(cell.source.splitlines()) <= 18, cell.id
        assert max(map(len, cell.source.splitlines())) <= 120, cell.id
    assert "LIMELIGHT_COURSE_QUICK" in cells[1].source
    prose = [cell.source for cell in cells if cell.cell_type == "markdown"]
    assert len(prose) > len(cells) / 3
    assert any("**Prediction:**" in text for text in prose)
    assert any("plt." in cell.source or "show_matrix" in cell.source for cell in cells)


@each
def test_every_exercise_has_a_check_and_a_solution(path):
    notebook = read(path)
    kinds = [tags_of(cell)[0] for cell in notebook.cells if tags_of(cell)]
    asked = sum(cell.source.startswith("### Exercise") for cell in notebook.cells)
    assert kinds == ["exercise", "check", "solution"] * asked
    assert 3 <= asked <= 5
    for cell in tagged(notebook, "solution"):
        assert cell.metadata["jupyter"]["source_hidden"]
    for cell in tagged(notebook, "check"):
        assert "assert " in cell.source
        assert "raises-exception" in tags_of(cell)  # so that "run all" goes on


@each
def test_files_and_names_of_the_package_exist(path):
    for cell in read(path).cells:
        for name in re.findall(r"`((?:limelight|docs)/[\w/.-]+)`", cell.source):
            assert (ROOT / name).exists(), name


def run_whole(path, folder, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(folder / ".ipython"))
    found = execute(answered(read(path)), folder)
    for cell in tagged(found, "check"):  # a check that passes without an answer checks nothing
        assert any(output.output_type == "error" for output in cell.outputs), cell.id
    assert tagged(found, "checked")


@pytest.mark.system
@each
def test_it_runs_with_quick_settings(path, tmp_path, monkeypatch):
    monkeypatch.setenv("LIMELIGHT_COURSE_QUICK", "1")
    run_whole(path, tmp_path, monkeypatch)


@pytest.mark.soak
@each
def test_it_runs_in_full(path, tmp_path, monkeypatch):
    monkeypatch.delenv("LIMELIGHT_COURSE_QUICK", raising=False)
    run_whole(path, tmp_path, monkeypatch)


@pytest.mark.system
def test_a_wrong_solution_would_be_noticed(tmp_path):
    notebook = answered(read(NOTEBOOKS[0]))
    wanted = [cell for cell in notebook.cells if cell.id.startswith("ex3")]
    notebook.cells = [nbformat.v4.new_code_cell("import math, torch"), *wanted]
    execute(notebook, tmp_path)
    (solution,) = tagged(notebook, "solution")
    solution.source = solution.source.replace("-sin", "sin")
    with pytest.raises(CellExecutionError, match="the same matrix"):
        execute(notebook, tmp_path)


def test_copies_are_written_once_and_changed_ones_kept(tmp_path):
    folder = tmp_path / "my" / "course"
    names = [path.name for path in NOTEBOOKS]
    assert course.copy_notebooks(folder) == []
    assert sorted(path.name for path in folder.iterdir()) == names
    assert course.copy_notebooks(folder) == []
    own = folder / names[2]
    own.write_text(own.read_text("utf-8").replace("Training", "My training"), "utf-8")
    (folder / names[4]).unlink()
    mine = own.read_bytes()
    assert course.copy_notebooks(folder) == [names[2]]
    assert own.read_bytes() == mine
    assert (folder / names[4]).read_bytes() == NOTEBOOKS[4].read_bytes()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FailedError, match="FOLDER"):
        course.copy_notebooks(tmp_path / "file" / "course")


def test_without_jupyter_a_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(course, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'limelight\[course\]'"):
        course.start_jupyter(tmp_path)


@pytest.mark.parametrize("status", [0, 3])
def test_jupyter_is_started_on_the_folder(tmp_path, monkeypatch, status):
    """A stand-in for Jupyter, which notes what it is asked to open."""
    (tmp_path / "standin.py").write_text(
        f"import sys\nopen('asked', 'w').write(sys.argv[1])\nsys.exit({status})\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(course, "_JUPYTERS", ("no_such_module", "standin"))
    monkeypatch.syspath_prepend(tmp_path)
    if status:
        with pytest.raises(FailedError, match="status 3"):
            course.start_jupyter(tmp_path / "course")
    else:
        course.start_jupyter(tmp_path / "course")
    assert (tmp_path / "asked").read_text() == str(tmp_path / "course")


def test_the_command_copies_and_says_what_it_kept(tmp_path):
    command = [sys.executable, "-m", "limelight", "course", "mine", "--no-start"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "mine\n"
    assert done.stderr == ""
    assert len(list((tmp_path / "mine").glob("*.ipynb"))) == 8
    changed = tmp_path / "mine" / NOTEBOOKS[0].name
    changed.write_text("{}")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"kept mine/{changed.name}" in done.stderr
    assert changed.read_text() == "{}"
