"""Many runs at once, several references, outputs in a file, and metrics that others compute."""

import csv
import json
import math
import os
import shutil
import sys

import pytest
import sacrebleu
from rich.console import Console

from limelight.data.check import check
from limelight.data.config import DataConfig
from limelight.data.corpora import read_split
from limelight.data.lines import LineStats
from limelight.data.tokenizer import TokenizerConfig
from limelight.errors import FailedError, UserError
from limelight.evaluate.line_metrics import check_metrics, line_scores
from limelight.evaluate.report import report_comparison
from limelight.evaluate.significance import compare_examples, compare_translations
from limelight.loading import load
from limelight.workflows.evaluate import compare_runs, score_run, show
from limelight.workflows.train import train
from tests.training.samples import tiny

SOURCES = ["a b c", "d e", "f"]
REFERENCES = [["c b a", "e d", "f"], ["a c b", "", "f f"]]  # the second source has one


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A toy, from three seeds."""
    place = tmp_path_factory.mktemp("runs")
    for seed in (1, 2, 3):
        train(tiny(seed=seed, validate_every=10), place / str(seed), silent=True)
    return [place / str(seed) for seed in (1, 2, 3)]


def test_many_runs_are_each_compared_with_the_first(runs):
    three = compare_runs(runs, silent=True)
    assert three["runs"] == [str(run) for run in runs]
    assert len(three["decoding"]) == 3
    pairs = [compare_runs((runs[0], other), silent=True)["comparisons"] for other in runs[1:]]
    for name, fields in three["comparisons"].items():
        (third,) = fields.pop("others")
        assert fields == {k: v for k, v in pairs[0][name].items() if k != "others"}
        assert third == {**pairs[1][name]["second"], "p_value": pairs[1][name]["p_value"]}
    assert json.loads(json.dumps(three)) == three


def test_toys_are_compared_by_exact_match_too(runs):
    told = compare_runs(runs[:2], silent=True)["comparisons"]["exact"]
    model = load(runs[0])
    pairs = list(read_split(model.recipe.data, "test", LineStats()))
    hits = [model.translate(source).text == target for source, target in pairs]
    assert told["first"]["score"] == sum(hits) / len(hits)
    assert score_run(runs[0], silent=True)["exact"] >= 0  # of one run it is measured anyway


def test_the_table_of_many_names_each_run_and_what_it_is_against(capsys):
    good, bad = ["a b c d e f"] * 40, ["x y z"] * 40
    found = compare_translations(["one", "two", "three"], [good, good, bad], good)
    told = report_comparison(["one", "two", "three"], "test", [good, good], found, [{}, {}, {}])
    show(told, Console(width=100))
    said = capsys.readouterr().out
    assert "against one" in said
    rows = [line.split() for line in said.splitlines() if "(" in line]
    assert [row[-1] for row in rows if "two" in row] == ["significant"] * 3  # "not significant"
    assert [row[-1] for row in rows if "three" in row] == ["worse"] * 3
    assert "better" not in said


# Several references


def write_jsonl(path):
    targets = [[one for one in own if one] for own in zip(*REFERENCES, strict=True)]
    targets[1] = targets[1][0]  # a text alone is a list of one
    entries = [{"source": s, "target": t} for s, t in zip(SOURCES, targets, strict=True)]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return [path], {}


def write_csv(path):
    with path.open("w", newline="") as file:
        rows = zip(SOURCES, *REFERENCES, strict=True)
        csv.writer(file).writerows([("en", "one", "two"), *rows])
    return [path], {"columns": ("en", "one", "two"), "header": True}


def write_parallel(path):
    names = [path.with_name(name) for name in ("own.en", "own.a.de", "own.b.de")]
    for name, texts in zip(names, (SOURCES, *REFERENCES), strict=True):
        name.write_text("".join(f"{text}\n" for text in texts))
    return names, {}


FORMATS = {"own.jsonl": write_jsonl, "own.csv": write_csv, "own": write_parallel}


@pytest.mark.parametrize("name", FORMATS)
def test_references_are_read_and_scored_as_sacrebleu_does(runs, tmp_path, name):
    files, how = FORMATS[name](tmp_path / name)
    changes = {"data.test": tuple(map(str, files)), **{f"data.{k}": v for k, v in how.items()}}
    out = tmp_path / "out.jsonl"
    told = score_run(runs[0], changes=changes, silent=True, output=str(out), metrics=["exact"])
    assert told["tally"]["used"] == told["lines"] == 3
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["source"] for row in rows] == SOURCES
    assert [[row["reference"], row["reference_2"]] for row in rows] == [
        list(own) for own in zip(*REFERENCES, strict=True)
    ]
    outputs = [row["output"] for row in rows]
    assert outputs == [load(runs[0]).translate(source).text for source in SOURCES]
    for score, metric in (("BLEU", sacrebleu.BLEU()), ("chrF2", sacrebleu.CHRF())):
        missing = [[text or None for text in own] for own in REFERENCES]
        wanted = metric.corpus_score(outputs, missing).score
        assert told["scores"][score]["score"] == pytest.approx(wanted)
    assert "nrefs:var" in told["scores"]["BLEU"]["signature"]
    assert math.isfinite(told["loss"])  # of the first references
    both = compare_runs(runs[:2], changes=changes, silent=True)
    assert both["comparisons"]["BLEU"]["first"]["score"] == told["scores"]["BLEU"]["score"]


def test_the_best_reference_counts_and_an_empty_one_does_not():
    exact, *rouge = line_scores(["exact", "rouge"], SOURCES, ["a c b", "", "f f"], REFERENCES)
    assert exact.scores == [1.0, 0.0, 1.0]
    assert rouge[0].scores == pytest.approx([100, 0, 100])


@pytest.mark.parametrize("name", FORMATS)
def test_training_wants_one_target_and_says_so(tmp_path, name):
    files, how = FORMATS[name](tmp_path / name)
    data = DataConfig(train=tuple(map(str, files)), **how)
    tally = LineStats()
    if name == "own":
        with pytest.raises(UserError, match=r"two parallel files or one, .* but 3 are named"):
            list(read_split(data, "train", tally))
        return
    assert list(read_split(data, "train", tally)) == [("d e", "e d")]
    assert tally.faults == {"several targets": 2}
    assert tally.examples["several targets"][0]["text"].startswith("a b c | c b a | a c b")


def test_references_can_be_checked_and_validated_with(tmp_path):
    files, _ = write_jsonl(tmp_path / "own.jsonl")
    (tmp_path / "train.tsv").write_text("".join(f"{x} b\tb {x}\n" for x in "abcdefgh"))
    data = DataConfig(train=(str(tmp_path / "train.tsv"),), valid=tuple(map(str, files)))
    report = check(data, TokenizerConfig(kind="char", vocab=261), 100, 32)
    assert report["splits"]["valid"]["tally"]["used"] == 3
    train(tiny(data=data, metric="bleu", validate_every=10), tmp_path / "run", silent=True)
    assert '"bleu"' in (tmp_path / "run" / "log.jsonl").read_text()


@pytest.mark.parametrize("target", ["[]", '["a", 5.5]', "null", '{"a": 1}'])
def test_targets_that_are_no_texts_are_rejected(tmp_path, target):
    """The control; so is a list of sources."""
    lines = f'{{"source": "x", "target": {target}}}\n{{"source": ["x"], "target": "y"}}\n'
    (tmp_path / "own.jsonl").write_text(lines + '{"source": "x", "target": "y"}\n')
    tally = LineStats()
    data = DataConfig(test=(str(tmp_path / "own.jsonl"),))
    assert list(read_split(data, "test", tally)) == [("x", "y")]
    assert tally.rejected == {"without source and target": 2}


# Outputs


def test_outputs_of_several_runs_stand_side_by_side(runs, tmp_path):
    out = tmp_path / "out.tsv"
    told = compare_runs(runs, silent=True, output=str(out))
    head, *rows = [line.split("\t") for line in out.read_text().splitlines()]
    assert head == ["source", "reference", *map(str, runs)]
    assert len(rows) == told["lines"]
    for column, run in enumerate(runs, 2):
        assert rows[0][column] == " ".join(load(run).translate(rows[0][0]).text.split())
    assert told["written"] == [str(out)]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("out.xlsx", r"the output .*out.xlsx must end in .tsv, .csv, .jsonl"),
        ("no/out.tsv", r"there is no folder .*no$"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_first(runs, tmp_path, name, sentence):
    with pytest.raises(UserError, match=sentence):
        score_run(runs[0], output=str(tmp_path / name))


def test_what_reads_has_no_outputs(tmp_path):
    (tmp_path / "own.txt").write_text("Once upon a time.\n")
    own = [f"data.test={tmp_path / 'own.txt'}"]
    with pytest.raises(UserError, match=r"--output out.tsv is for models that classify or transl"):
        score_run("writer", changes=own, output="out.tsv")
    with pytest.raises(UserError, match=r"--metric rouge is for models that translate: this one"):
        score_run("writer", changes=own, metrics=["rouge"])
    with pytest.raises(UserError, match="there is no metric 'rogue': did you mean 'rouge'"):
        score_run("writer", changes=own, metrics=["rogue"])


# Metrics of others


def test_rouge_is_that_of_its_package(runs):
    from rouge_score.rouge_scorer import RougeScorer

    outputs, wanted = ["the cat was sitting", "a b"], ["the cats sat there", "b a b"]
    found = line_scores(["rouge"], ["x", "y"], outputs, [wanted])
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    for one, key in zip(found, ("rouge1", "rouge2", "rougeL"), strict=True):
        pairs = zip(wanted, outputs, strict=True)
        assert one.scores == [100 * scorer.score(a, b)[key].fmeasure for a, b in pairs]
        assert one.measure.score == sum(one.scores) / 2
        assert "rouge-score:0.1.2" in one.signature
    told = compare_runs(runs[:2], silent=True, metrics=["rouge"])["comparisons"]
    assert {"ROUGE-1", "ROUGE-2", "ROUGE-L", "BLEU"} <= told.keys()
    assert told["ROUGE-L"]["signature"].startswith("nrefs:1|stemmer:porter|rouge-score:")


def test_rouge_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(UserError, match=r"rouge needs rouge-score: pip install 'limelight\[rouge"):
        check_metrics(["rouge"])


FAKE = f"""#!{sys.executable}
import sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
read = lambda key: open(given[key], encoding="utf-8").read().splitlines()
texts = {{key: read(key) for key in ("-s", "-t", "-r")}}
assert given["--model"] == "Unbabel/wmt22-comet-da" and given["--gpus"] in ("0", "1")
for i, (s, t, r) in enumerate(zip(*texts.values(), strict=True)):
    if t == "crash":
        sys.exit("CUDA is on fire")
    print(f"{{given['-t']}}\\tSegment {{i}}\\tscore: {{(t == r) / 2 + (s != '') / 4:.4f}}")
print(f"{{given['-t']}}\\tscore: 0.1234")
"""


@pytest.fixture
def comet(tmp_path, monkeypatch):
    """A command that scores 0.75 for the reference itself, and 0.25 for all else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "comet-score").write_text(FAKE)
    (folder / "comet-score").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.mark.usefixtures("comet")
def test_comet_is_what_its_command_says_of_each_line(runs):
    outputs, wanted = ["eins\nzwei", "zwei", "drei"], ["eins zwei", "2", "drei"]
    (found,) = line_scores(["comet"], ["a", "b", "c"], outputs, [wanted])
    assert found.scores == [0.75, 0.25, 0.75]
    assert found.measure.signature == "nrefs:1|model:Unbabel/wmt22-comet-da"
    told = score_run(runs[0], silent=True, metrics=["comet"])
    assert 0.25 <= told["scores"]["COMET"]["score"] <= 0.75
    both = compare_runs(runs[:2], silent=True, metrics=["comet"])["comparisons"]
    assert both["COMET"]["first"]["score"] == told["scores"]["COMET"]["score"]


@pytest.mark.usefixtures("comet")
def test_a_command_that_fails_is_quoted():
    with pytest.raises(FailedError, match="scored 1 of 2 lines: CUDA is on fire"):
        line_scores(["comet"], ["a", "b"], ["x", "crash"], [["x", "y"]])


def test_a_command_that_is_missing_is_named_before_anything_is_decoded(runs, monkeypatch):
    assert shutil.which("comet-score") is None
    sentence = "comet needs the command comet-score on the PATH: install unbabel-comet in"
    with pytest.raises(UserError, match=sentence):
        score_run(runs[0], metrics=["comet"])


def test_lines_of_runs_must_be_as_many():
    with pytest.raises(UserError, match="have 1 and 1 and 2 examples with 1 counts"):
        compare_examples("x", ["a", "b", "c"], [[1], [1], [1, 2]])
