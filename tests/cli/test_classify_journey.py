"""From somebody's own .csv to a classifier, its scores and its predictions: a user's journey."""

import csv
import json
import random
import subprocess

import pytest

import limelight

WORDS = {"good": ["great", "lovely", "superb"], "bad": ["awful", "poor", "dull"], "odd": ["odd"]}
COUNTS = {"good": 120, "bad": 60, "odd": 20}
SMALL = ["--model.layers", "1", "--model.d-model", "32", "--model.heads", "2", "--model.max-len"]
SMALL += ["32", "--tokenizer.vocab", "300", "--train.learning-rate", "0.01", "--train.warmup", "5"]
SMALL += ["--train.batch-tokens", "256", "--train.validate-every", "20", "--train.patience", "0"]
SHORT = ["--train.steps", "60"]
COLUMNS = ["--data.columns", "review", "stars"]


@pytest.fixture
def folder(tmp_path):
    """Reviews with commas and quotes, a third column, and classes of different sizes."""
    draw = random.Random(1)
    rows = [
        (i, f'A "{draw.choice(WORDS[label])}" film, said {draw.choice("abcdefgh")}{i}', label)
        for i, label in enumerate(x for label, n in COUNTS.items() for x in [label] * n)
    ]
    draw.shuffle(rows)
    with (tmp_path / "mine.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "review", "stars"), *rows])
    return tmp_path


def test_from_a_csv_to_predictions(folder, programs):
    def call(*arguments, status=0, cwd=folder):
        command = [programs / "limelight", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    train = ["train", "classify", "--data.train", "mine.csv", "--run", "runs/mine"]
    # The file is checked: what it lacks is an option, which the error names.
    told = call("data", "check", "mine.csv", "--data.kind", "labelled", status=2)
    assert "has 3 columns ('id', 'review', 'stars'), and labelled need 2 (text and label)" in told
    assert told.strip().endswith("choose them, as with --data.columns review stars")
    told = call("data", "check", "mine.csv", "--data.kind", "labelled", *COLUMNS)
    for label, count in COUNTS.items():
        assert f"{count} {count / 200:6.1%} {label}" in told
    # It is trained, and mistakes are sentences.
    told = call(*train, *COLUMNS, "--train.metric", "perplexity", status=2)
    assert "there is no metric 'perplexity': choose one of: accuracy, loss" in told
    told = call(*train, *COLUMNS, *SMALL, *SHORT, "--model.classes", "2", status=2)
    assert "model.classes is 2, but the data has 3 labels: bad, good, odd" in told
    told = call(*train, *COLUMNS, "--train.log-to", "wandb", status=2)
    assert "log_to='wandb' needs a package that is not here: pip install 'limelight[wandb]'" in told
    call(*train, *COLUMNS, *SMALL, *SHORT)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    call("resume", str(folder / "runs/mine"), "--train.steps", "80", cwd=elsewhere)
    assert "loss per text (nats, not smoothed)" in (folder / "runs/mine/curves.svg").read_text()
    # It is evaluated on what was held out, and its predictions are written.
    told = call("evaluate", "runs/mine", "--output", "out.csv")
    for word in ("accuracy", "macro F1", "precision", "recall", "label, predicted as", "out.csv"):
        assert word in told
    assert "perplexity" not in told
    assert "<svg" in (folder / "out.confusion.svg").read_text()
    scores = json.loads(call("evaluate", "runs/mine", "--json"))
    assert scores["scores"]["accuracy"]["score"] > 0.8
    with (folder / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    right = sum(row["label"] == row["prediction"] for row in rows)
    assert right / len(rows) == scores["scores"]["accuracy"]["score"]
    # One text, by command and from Python.
    text = rows[0]["text"]
    chances = json.loads(call("classify", "runs/mine", text, "--json"))
    assert next(iter(chances)) == rows[0]["prediction"]
    model = limelight.load(folder / "runs/mine")
    assert next(iter(model.classify(text).items())) == (
        rows[0]["prediction"],
        pytest.approx(float(rows[0]["probability"]), abs=1e-5),
    )
    # Another seed, and both side by side.
    call(*train[:-1], "runs/two", *COLUMNS, *SMALL, "--train.steps", "6", "--train.seed", "2")
    told = call("evaluate", "runs/mine", "runs/two", "runs/mine", "--output", "both.tsv")
    assert "against runs/mine" in told
    assert (folder / "both.tsv").read_text().startswith("text\tlabel\truns/mine\truns/two\n")
