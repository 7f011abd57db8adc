"""`loss` means the same in training and in validation, and the objective has its own column."""

import json
import math

import matplotlib as mpl
import pytest
import torch

from limelight.data.config import DataConfig
from limelight.run.log import cut_log, read_log, summary
from limelight.run.plots import draw_curves
from limelight.training.loss import chunked_cross_entropy, cross_entropy_chunk_functional
from tests.training.samples import labelled, log_of, tiny, train_in

OLD = {"step": 5, "loss": 2.5, "perplexity": math.e, "lr": 0.1, "tokens": 40}


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only", "recurrent-encoder-decoder"])
def test_smoothing_is_in_the_objective_alone(tmp_path, family):
    """One example, trained and validated on without dropout: both losses are the same number."""
    (tmp_path / "one.tsv").write_text("a b c\tc b a\n")
    data = DataConfig(train=(str(tmp_path / "one.tsv"),), valid=(str(tmp_path / "one.tsv"),))
    for smoothing in (0.0, 0.3):
        settings = {"steps": 6, "validate_every": 1, "label_smoothing": smoothing}
        train_in(tmp_path / f"{smoothing}", tiny(family, data, {"dropout": 0.0}, **settings))
        log = log_of(tmp_path / f"{smoothing}")
        trained = {e["step"]: e for e in log if "lr" in e}
        valid = {e["step"]: e["loss"] for e in log if "validation" in e}
        for step in range(1, 6):  # what is validated after a step is trained on in the next
            assert trained[step + 1]["loss"] == pytest.approx(valid[step], rel=1e-5)
            same = trained[step]["objective"] == pytest.approx(trained[step]["loss"], rel=1e-6)
            assert same is (smoothing == 0)
        assert trained[1]["perplexity"] == pytest.approx(math.exp(trained[1]["loss"]))


def test_the_optimized_number_is_the_objective(tmp_path):
    """By hand: (1 - s) times the loss plus s times the mean of -log p over all tokens."""
    torch.manual_seed(1)
    states, weight = torch.randn(7, 4), torch.randn(11, 4)
    labels = torch.randint(11, (7,))
    logp = (states @ weight.T).log_softmax(-1)
    nll = -logp.gather(1, labels[:, None]).sum()
    smoothed = 0.8 * nll - 0.2 * logp.mean(-1).sum()
    for chunk in (None, cross_entropy_chunk_functional):
        sums = chunked_cross_entropy(states, weight, None, labels, 0.2, chunk_loss=chunk)
        assert sums.nll.item() == pytest.approx(nll.item(), rel=1e-5)
        assert sums.loss.item() == pytest.approx(smoothed.item(), rel=1e-5)


def test_a_classifier_has_no_perplexity(tmp_path):
    recipe = tiny("encoder-only", labelled(tmp_path), {"classes": 2}, validate_every=10)
    train_in(tmp_path / "run", recipe)
    log = log_of(tmp_path / "run")
    assert {"loss", "objective", "accuracy"} <= log[0].keys()
    assert all("perplexity" not in entry for entry in log)


def written(folder, *entries):
    (folder / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder / "log.jsonl"


def test_an_old_log_is_read_with_the_loss_of_today(tmp_path):
    log = written(tmp_path, OLD, {**OLD, "step": 6, "objective": 2.5, "loss": 1.5})
    old, new = read_log(log)
    assert (old["loss"], old["objective"]) == (pytest.approx(1.0), 2.5)
    assert (new["loss"], new["objective"]) == (1.5, 2.5)
    assert summary(log)["last"]["loss"] == 1.5
    cut_log(log, 6, 6)  # what a resumed run keeps of it says the same
    assert [entry["loss"] for entry in read_log(log)] == [pytest.approx(1.0), 1.5]


@pytest.mark.parametrize("perplexity", [None, 0, -1, 0.5, "many", math.nan, 1e30])
def test_a_perplexity_that_is_none_of_the_loss_changes_nothing(tmp_path, perplexity):
    (entry,) = read_log(written(tmp_path, {**OLD, "perplexity": perplexity}))
    assert entry["loss"] == 2.5


def test_the_axis_says_what_it_is(tmp_path):
    draw_curves(written(tmp_path, OLD), tmp_path / "curves.svg")
    of_tokens = (tmp_path / "curves.svg").read_text()
    assert "loss per token (nats, not smoothed)" in of_tokens
    classified = {key: value for key, value in OLD.items() if key != "perplexity"}
    draw_curves(written(tmp_path, classified), tmp_path / "curves.svg")
    assert "loss per text (nats, not smoothed)" in (tmp_path / "curves.svg").read_text()


def test_the_figures_of_a_notebook_are_still_shown_after_a_training(tmp_path):
    mpl.use("agg")  # a notebook has its own backend
    draw_curves(written(tmp_path, OLD), tmp_path / "curves.svg")
    assert mpl.get_backend() == "agg"
