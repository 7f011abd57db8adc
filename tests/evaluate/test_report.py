"""A report has all that is needed to do it again, as data and as a table."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256

import pytest
from rich.console import Console

from limelight.errors import UserError
from limelight.evaluate.bleu import score_translations
from limelight.evaluate.report import hash_lines, report_comparison, report_scores, show, verdict
from limelight.evaluate.significance import compare_examples

SOURCES, REFERENCES = ["a house", "ünder"], ["ein Haus", "unter dem Haus am See"]
DECODING = {"beam": 4, "length_penalty": 0.6}


def drawn(report):
    console = Console(file=io.StringIO(), width=100)
    show(report, console)
    return console.file.getvalue()


def scored():
    scores = score_translations(REFERENCES, REFERENCES)
    return report_scores("runs/[a]", "test", [SOURCES, REFERENCES], scores, DECODING)


def compared(first=(1, 1, 1, 1), second=(0, 0, 0, 0), better="higher"):
    runs = ("runs/[a]", "runs/[b]")
    found = compare_examples("accuracy", runs, (first, second), better=better)
    columns = [["text"] * len(first), ["label"] * len(first)]
    return report_comparison(runs, "valid", columns, [found], (DECODING, {}))


def test_one_run_as_json():
    told = json.loads(json.dumps(scored(), allow_nan=False))
    assert told["run"] == "runs/[a]"
    assert (told["split"], told["lines"]) == ("test", 2)
    assert told["decoding"] == DECODING
    assert list(told["scores"]) == ["BLEU", "chrF2", "TER"]
    assert told["scores"]["BLEU"]["score"] == pytest.approx(100)
    assert told["scores"]["BLEU"]["signature"].startswith("nrefs:1|case:mixed")
    assert told["scores"]["TER"]["better"] == "lower"


def test_two_runs_as_json():
    told = json.loads(json.dumps(compared(), allow_nan=False))
    assert told["runs"] == ["runs/[a]", "runs/[b]"]
    assert told["decoding"] == [DECODING, {}]
    accuracy = told["comparisons"]["accuracy"]
    assert accuracy["first"] == {"run": "runs/[a]", "score": 1, "low": 1, "high": 1}
    assert accuracy["p_value"] < 0.05


def test_the_data_is_known_by_what_sha256sum_says():
    text = "a house\nünder\nein Haus\nunter dem Haus am See\n"
    assert scored()["data_sha256"] == sha256(text.encode()).hexdigest()
    assert hash_lines([SOURCES, REFERENCES[::-1]]) != hash_lines([SOURCES, REFERENCES])


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(UserError, match="2 and 1 lines"):
        report_scores("run", "test", [SOURCES, ["one"]], [], {})
    with pytest.raises(UserError, match="no lines"):
        report_scores("run", "test", [], [], {})


def test_people_see_scores_names_and_signatures():
    text = drawn(scored())
    for part in ("runs/[a]", "BLEU", "100.00", "tok:13a", "2 lines", scored()["data_sha256"]):
        assert part in text


def test_people_see_which_run_is_better():
    text = drawn(compared())
    for part in (
        "runs/[a]",
        "runs/[b]",
        "1.0000 (1.0000 to",
        "0.0000 (0.0000 to",
        "accuracy",
        "bs:1000",
    ):
        assert part in text
    assert "not significant" not in text
    assert "not significant" in drawn(compared(second=(1, 1, 1, 1)))


def test_better_can_be_lower():
    for better, winner in (("higher", "runs/[a]"), ("lower", "runs/[b]")):
        assert verdict(compared(better=better)["comparisons"]["accuracy"]) == winner
    even = compared()["comparisons"]["accuracy"] | {"p_value": 0.05}
    assert verdict(even) == "not significant"


def test_nobody_waits_for_what_is_not_used():
    names = ("bleu", "metrics", "report", "significance")
    imports = "; ".join(f"import limelight.evaluate.{name}" for name in names)
    heavy = "{'sacrebleu', 'sacremoses', 'torch'}"
    code = f"import sys; {imports}; assert not {heavy} & sys.modules.keys()"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_scores_cannot_be_changed_afterwards():
    (score, *_) = score_translations(["a"], ["a"])
    with pytest.raises(AttributeError):
        score.score = 100.0  # type: ignore[misc]
    assert replace(score, score=1.0).score == 1.0
