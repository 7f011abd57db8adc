"""A classifier of your own labels: they are counted, rare ones count more, and nobody is misled."""

import json
import math
import re
from itertools import chain

import pytest
import torch

from limelight.errors import UserError
from limelight.loading import load
from limelight.recipe import load_recipe
from limelight.training.loss import sum_loss
from limelight.workflows.evaluate import compare_runs, score_run
from limelight.workflows.info import describe
from limelight.workflows.train import train
from tests.training.samples import labelled, log_of, texts, tiny, train_in

LINES = [*["good film\tpositive"] * 6, *["bad film\tnegative"] * 3, "a film\tneutral"]
SMALL = ["model.layers=1", "model.d_model=16", "model.heads=2", "tokenizer.vocab=270"]
SMALL += ["train.steps=4", "train.validate_every=4", "train.batch_tokens=64"]


def classify(run, file, *changes):
    """Train the recipe on a file that is also its validation."""
    files = [f"data.train={file}", f"data.valid={file}"]
    train("classify", run, [*files, *SMALL, *changes], silent=True)
    return run


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.tsv").write_text("\n".join(LINES) + "\n")
    return tmp_path / "mine.tsv"


def test_classes_are_counted_and_can_still_be_given(file, tmp_path):
    counted = load(classify(tmp_path / "counted", file))
    assert counted.recipe.model.classes == 3
    assert counted.classes == ("negative", "neutral", "positive")
    given = load(classify(tmp_path / "given", file, "model.classes=3"))
    for name, weight in counted.model.state_dict().items():
        assert torch.equal(weight, given.model.state_dict()[name])


def test_the_same_command_resumes_what_it_has_counted(file, tmp_path):
    classify(tmp_path / "run", file)
    classify(tmp_path / "run", file, "train.steps=6", "train.warmup=1")
    assert load(tmp_path / "run").step == 6


def test_the_end_tells_the_best_by_the_metric_of_the_recipe(file, tmp_path, capsys):
    changes = [f"data.train={file}", f"data.valid={file}", *SMALL, "train.validate_every=1"]
    train("classify", tmp_path / "run", [*changes, "train.learning_rate=0.05"])
    valid = [entry for entry in log_of(tmp_path / "run") if "validation" in entry]
    best = max(valid, key=lambda entry: entry["accuracy"])
    sentence = f"best validation accuracy {best['accuracy']:.4f} at step {best['step']};"
    assert sentence in capsys.readouterr().err


WRONG = {
    "another number": (LINES, ["model.classes=2"], "model.classes is 2, but the data has 3 labels"),
    "one": (LINES[:6], [], r"nothing to learn from one label \(positive\): use two or more"),
    "numbers": (
        [f"text {i}\t{i / 7}" for i in range(150)],
        [],
        r"150 labels: .* for 150 texts: is the column right\? If so, set --model.classes 150",
    ),
    "perplexity": (LINES, ["train.metric=perplexity"], "no metric 'perplexity': choose one of"),
}


@pytest.mark.parametrize("name", WRONG)
def test_labels_that_make_no_classifier_are_told(tmp_path, name):
    lines, changes, sentence = WRONG[name]
    (tmp_path / "mine.tsv").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=sentence):
        classify(tmp_path / "run", tmp_path / "mine.tsv", *changes)


def test_a_number_of_classes_that_is_meant_is_taken(tmp_path):
    """The control."""
    lines, *_ = WRONG["numbers"]
    (tmp_path / "mine.tsv").write_text("\n".join(lines) + "\n")
    run = classify(tmp_path / "run", tmp_path / "mine.tsv", "model.classes=150")
    assert len(load(run).classes) == 150


def test_weights_are_those_that_scikit_learn_calls_balanced(tmp_path):
    data = labelled(tmp_path)
    file = tmp_path / "train.tsv"
    first = [line for line in file.read_text().splitlines() if line.endswith("one")]
    file.write_text("\n".join([*first, "ybc\ttwo", "ybcbc\ttwo", "y\ttwo"]) + "\n")
    seen = []
    recipe = tiny("encoder-only", data, class_weights=True, label_smoothing=0.0, steps=2)
    train_in(tmp_path / "run", recipe, touch=lambda t: seen.append(t.loss_module.class_weights))
    assert seen[0].tolist() == pytest.approx([12 / (2 * 9), 12 / (2 * 3)])


def test_weights_are_in_the_objective_and_in_no_metric(tmp_path):
    """By hand; and two trainings with one batch, of which only the first step is the same."""
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 0])
    weights = torch.tensor([0.5, 2.0, 4.0])
    plain, weighted = sum_loss(logits, labels), sum_loss(logits, labels, 0.0, weights)
    each = -logits.log_softmax(-1)[range(5), labels]
    assert weighted.loss.item() == pytest.approx((each * weights[labels]).sum().item(), rel=1e-5)
    assert weighted.nll.item() == pytest.approx(each.sum().item(), rel=1e-5)
    assert (weighted.nll, weighted.correct) == (plain.nll, plain.correct)
    data = labelled(tmp_path)
    rare = (tmp_path / "train.tsv").read_text().splitlines()[:11]
    (tmp_path / "train.tsv").write_text("\n".join(rare) + "\n")
    first = {}
    for on in (False, True):
        settings = {"class_weights": on, "label_smoothing": 0.0, "batch_tokens": 999}
        recipe = tiny("encoder-only", data, {"dropout": 0.0}, **settings)
        train_in(tmp_path / str(on), recipe)
        entry, *_, last = [e for e in log_of(tmp_path / str(on)) if "lr" in e]
        first[on] = entry
        assert math.isfinite(last["loss"])
    assert first[True]["loss"] == pytest.approx(first[False]["loss"], rel=1e-6)
    assert first[False]["objective"] == pytest.approx(first[False]["loss"], rel=1e-6)
    assert first[True]["objective"] != pytest.approx(first[False]["objective"], rel=1e-3)


def test_weights_are_for_classes(tmp_path):
    recipe = tiny("encoder-only", texts(tmp_path), class_weights=True)
    with pytest.raises(UserError, match=r"class_weights=true is for labelled texts, .* are texts"):
        train_in(tmp_path / "run", recipe)


def test_what_is_held_out_gives_way_to_a_file_for_validation(file):
    plain = load_recipe("classify", [f"data.train={file}"])
    assert plain.data.hold_out == 0.1
    named = load_recipe("classify", [f"data.train={file}", f"data.valid={file}"])
    assert named.data.hold_out == 0
    both = [f"data.valid={file}", "data.hold_out=0.2"]
    with pytest.raises(UserError, match=r"hold_out=0.2 makes valid and test: name no such files"):
        load_recipe("classify", [f"data.train={file}", *both])


FEW = {  # lines, and what is said of the share that is held out of them
    "three": ["good thing\tgood", "bad thing\tbad", "my thing\tgood"],
    "one of a label": ["good thing\tgood", *(f"bad {i}\tbad" for i in range(8)), "mine\tgood"],
    "rare": [f"{'a' * i} thing\t{'good' if i in (4, 25) else 'bad'}" for i in range(40)],
}


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("name", FEW)
def test_the_share_that_is_advised_can_be_held_out(tmp_path, name, share):
    """Whatever was tried before; and where none can, there is a way without validation."""
    (tmp_path / "few.tsv").write_text("\n".join(FEW[name]) + "\n")
    own = [f"data.train={tmp_path / 'few.tsv'}", *SMALL]
    said = complaint(tmp_path / "first", own, [f"data.hold_out={share}"])
    advised = re.findall(r"--(data.hold-out) ([\d.]+)", said)
    off = re.findall(r"--(train.\w+) (\w+)", said)
    hopeless = "use --data.valid FILE instead" in said or "use two or more" in said
    assert not said or advised or off or (name == "three" and hopeless), said
    if advised:
        assert complaint(tmp_path / "other", own, ["=".join(advised[0])]) == ""
    if off:
        without = [f"data.hold_out={share}", *map("=".join, off)]
        assert complaint(tmp_path / "without", own, without) == ""


def complaint(run, *changes):
    try:
        train("classify", run, [*chain(*changes)], silent=True)
    except UserError as error:
        return str(error)
    return ""


def test_the_size_of_a_classifier_is_that_of_its_own_head():
    open_, two, fills = (
        describe(load_recipe("classify", changes))["parts"]["head"]
        for changes in ([], ["model.classes=2"], ["data.kind=texts", "data.hold_out=0"])
    )
    assert open_ == two != fills


def test_a_report_counts_what_was_taken_for_what(file, tmp_path):
    run, out = classify(tmp_path / "run", file), tmp_path / "out.jsonl"
    told = score_run(run, "valid", silent=True, output=str(out))
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["text"], row["label"]) for row in rows] == [tuple(x.split("\t")) for x in LINES]
    model = load(run)
    for row in rows:
        name, chance = next(iter(model.classify(row["text"]).items()))
        assert (row["prediction"], row["probability"]) == (name, pytest.approx(chance, abs=1e-5))
    assert "perplexity" not in told
    matrix = told["confusion"]
    for name, counts in zip(matrix["classes"], matrix["counts"], strict=True):
        for other, count in zip(matrix["classes"], counts, strict=True):
            assert count == sum((r["label"], r["prediction"]) == (name, other) for r in rows)
    right = sum(row["label"] == row["prediction"] for row in rows)
    assert sum(matrix["counts"][i][i] for i in range(len(matrix["classes"]))) == right
    assert told["scores"]["accuracy"]["score"] == right / len(rows)
    mean = sum(own["f1"] for own in told["classes"].values()) / len(told["classes"])
    assert told["scores"]["macro F1"]["score"] == pytest.approx(mean)
    picture = (tmp_path / "out.confusion.svg").read_text()
    assert told["written"] == [str(out), str(tmp_path / "out.confusion.svg")]
    assert all(name in picture for name in (*matrix["classes"], "predicted"))
    score_run(run, "valid", silent=True, output=str(out))
    assert (tmp_path / "out.confusion.svg").read_text() == picture  # the same bytes


def test_several_classifiers_stand_side_by_side(file, tmp_path):
    runs = [classify(tmp_path / f"{i}", file, f"train.seed={i}") for i in (1, 2, 3)]
    told = compare_runs(runs, "valid", silent=True, output=str(tmp_path / "out.csv"))
    head, *rows = (tmp_path / "out.csv").read_text().splitlines()
    assert head == ",".join(["text", "label", *map(str, runs)])
    assert len(rows) == len(LINES)
    others = told["comparisons"]["accuracy"]["others"]
    assert [other["run"] for other in others] == [str(runs[2])]


def test_labelled_texts_are_for_an_encoder(tmp_path):
    data = labelled(tmp_path)
    with pytest.raises(UserError, match="family 'decoder-only' cannot learn from labelled"):
        train_in(tmp_path / "run", tiny("decoder-only", data))
