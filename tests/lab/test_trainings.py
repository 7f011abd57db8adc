"""Experiments that train: fair, resumable, and in the direction that theory guarantees."""

import json

import pytest

from limelight.errors import FailedError, UserError
from limelight.lab import ablate, duel, report, trainings
from limelight.lab.experiment import Subject
from limelight.lab.networks import parameters_of
from limelight.lab.report import draw
from limelight.recipe import load_recipe, with_overrides, write_recipe
from limelight.run.folder import RunFolder
from tests.tasks.conftest import FAST, TOY

ROWS = ("as it is", "no positions", "no mask")


@pytest.fixture(scope="module")
def recipe():
    """A toy of at most three letters, which is learned in seconds."""
    short = ["train.steps=100", "data.toy_examples=600"]
    return trainings.shortened(load_recipe("reverse", [*TOY, *FAST, *short]), 100)


@pytest.fixture(scope="module")
def ablated(recipe, tmp_path_factory):
    folder, rows = tmp_path_factory.mktemp("ablate"), ablate.variants(recipe)
    return {
        f"{name}, seed 1": trainings.train_in(folder / name, recipe, rows[name]) for name in ROWS
    }


def test_without_positions_nothing_can_be_reversed(ablated):
    """The encoder reads a bag of letters, so that their order is a guess."""
    scores = {name: ablated[f"{name}, seed 1"]["score"] for name in ROWS}
    assert scores["no positions"] < 0.6, "a single letter is right anyway"
    assert scores["as it is"] > scores["no positions"] + 0.2


def test_without_the_mask_training_reads_the_answer(ablated):
    bare, base = ablated["no mask, seed 1"], ablated["as it is, seed 1"]
    assert bare["training_loss"] < 0.5 * bare["loss"], "what is read is not there while writing"
    assert bare["score"] < base["score"]
    assert any(s.startswith("Without the mask") for s in ablate.findings(ablated).conclusion)


def test_every_row_has_the_same_tokens(ablated):
    assert len({run["tokens"] for run in ablated.values()}) == 1
    panels = ablate.findings(ablated).panels
    assert [panel.names for panel in panels] == [list(ROWS)] * 2
    assert [ax.get_ylabel()[:4] for ax in draw(panels).axes] == ["exac", "loss"]


def test_rows_change_one_thing_each():
    rows = ablate.variants(load_recipe("reverse"))
    assert list(rows)[:4] == ["as it is", "no positions", "1 head", "16 heads"]
    assert "dropout 0.1" in rows
    assert "label smoothing 0.1" in rows
    for table in rows.values():
        assert len({name for name in table if name != "model.kv_heads"}) <= 1
    assert "dropout 0.0" in ablate.variants(load_recipe("multi30k-en-de"))
    assert "no mask" not in ablate.variants(load_recipe("bert-small"))
    single = with_overrides(load_recipe("reverse"), ["model.heads=1"])
    assert "1 head" not in ablate.variants(single), "it is the recipe itself"
    with pytest.raises(UserError, match="reverse-lstm is recurrent-encoder-decoder: lab ablate"):
        ablate.variants(load_recipe("reverse-lstm"))


def test_what_the_seeds_explain_is_no_result():
    def runs(name, scores):
        facts = {"metric": "exact", "failed": "", "training_loss": 0.1, "loss": 0.1, "tokens": 5}
        return {f"{name}, seed {i}": {**facts, "score": s} for i, s in enumerate(scores)}

    failed = {
        "metric": "exact",
        "failed": "not finite",
        "training_loss": None,
        "loss": None,
        "tokens": 1,
    }
    values = {
        **runs("as it is", [0.9, 0.92, 0.94]),
        **runs("1 head", [0.5, 0.52, 0.5]),
        **runs("no warm-up", [0.85, 0.97, 0.9]),
        "no norm, seed 1": {**failed, "score": None},
    }
    found = ablate.findings(values)
    text = " ".join(found.conclusion)
    assert "changes clearly: 1 head -0.413." in text
    assert "No clear change: no warm-up -0.013." in text
    assert "training stopped: no norm." in text
    assert report._table(found.panels[0])[-1] == ["no norm", "-"]


def test_a_training_that_fails_is_a_result(recipe, tmp_path, monkeypatch):
    def diverge(*_, **__):
        skipped = {"step": 1, "skipped": True, "examples": [3]}  # it has no time
        RunFolder(tmp_path).log.write_text(json.dumps(skipped) + "\n", encoding="utf-8")
        raise FailedError("the loss is not finite")

    monkeypatch.setattr(trainings, "train", diverge)
    found = trainings.train_in(tmp_path, recipe)
    assert (found["failed"], found["minutes"]) == ("the loss is not finite", 0.0)


def test_an_interrupted_training_ends_the_experiment(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(trainings, "train", lambda *_, **__: 15)
    with pytest.raises(KeyboardInterrupt):
        trainings.train_in(tmp_path, recipe)


@pytest.mark.parametrize("name", ["reverse", "greetings"])
def test_contestants_have_as_many_parameters(name):
    model = load_recipe(name).model
    sizes = {k: parameters_of(duel.matched(k, model)) for k in duel.CONTESTANTS}
    assert set(sizes) == {"transformer", "lstm", "gru", "ssru"}
    assert max(sizes.values()) < 1.05 * min(sizes.values()), sizes


@pytest.fixture(scope="module")
def fought(recipe, tmp_path_factory):
    """A short duel of two contestants, with all that an experiment measures."""
    folder = tmp_path_factory.mktemp("duel")
    path = folder / "own.toml"
    path.write_text(
        write_recipe(with_overrides(recipe, ["train.steps=160", "data.toy_examples=200"]))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duel, "CONTESTANTS", {k: duel.CONTESTANTS[k] for k in ("transformer", "gru")})
        patch.setattr(duel, "_FACTORS", (1.0,))
        patch.setattr(duel, "_MOST", 1)
        made = duel.measurements(True, Subject(str(path), folder))
        return {name: measure() for name, measure in made.items()}


def test_contestants_have_the_same_tokens_and_tests(fought):
    trained = [fought[f"{kind} training"] for kind in ("transformer", "gru")]
    assert trained[0]["tokens"] == trained[1]["tokens"] > 0
    assert len(trained[0]["curve"]) == len(trained[1]["curve"]) == 8
    tests = [fought[f"{kind} test"] for kind in ("transformer", "gru")]
    assert tests[0]["sentences"] == tests[1]["sentences"] == 20
    scores = [{score["name"]: score for score in test["scores"]} for test in tests]
    for name in ("BLEU", "exact"):
        assert scores[0][name]["second"]["score"] == scores[1][name]["first"]["score"]
        assert scores[0][name]["p_value"] == 1.0, "nobody is better than oneself"


@pytest.mark.parametrize(("best", "tried"), [(1.0, 3), (3.0, 4), (9.0, 5), (100.0, 5), (1 / 9, 5)])
def test_the_best_rate_is_sought_beyond_the_edge_of_the_grid(monkeypatch, tmp_path, best, tried):
    recipe, rates = load_recipe("reverse"), []

    def loss_by_rate(folder, _, changes):
        rates.append(changes["train.learning_rate"] / recipe.train.learning_rate)
        distance = abs(rates[-1] / best - 1) if rates[-1] > best else abs(best / rates[-1] - 1)
        return {"loss": distance, "failed": "" if "trial" in folder.name else "stop here"}

    monkeypatch.setattr(duel, "train_in", loss_by_rate)
    with pytest.raises(UserError, match="stop here"):
        duel._train(recipe, "gru", Subject("reverse", tmp_path), 100)
    *trials, chosen = rates
    assert len(trials) == tried
    assert chosen == pytest.approx(min(best, 27.0))


def test_a_duel_is_reported(fought):
    found = duel.findings(fought)
    header, *rows = found.table
    assert header == ["", "transformer", "gru"]
    assert {len(row) for row in rows} == {3}
    assert {"parameters", "BLEU", "exact", "validation loss"} <= {row[0] for row in rows}
    assert "tokens by 0.0%" in found.conclusion[0]
    assert draw(found.panels).axes[0].get_ylabel().startswith("validation loss")
    swapped = {**fought, "gru test": {**fought["gru test"]}}
    best = {"score": 1.0, "low": 1.0, "high": 1.0}
    better = {"name": "BLEU", "first": {"score": 0.1}, "second": best, "p_value": 0.001}
    swapped["gru test"]["scores"] = [better, {**better, "name": "exact"}]
    assert "gru is better" in duel.findings(swapped).conclusion[1], "it is computed, not written"


def test_a_duel_needs_an_encoder_and_a_decoder(tmp_path):
    with pytest.raises(UserError, match="reverse-gpt is decoder-only: lab duel needs"):
        duel.measurements(True, Subject("reverse-gpt", tmp_path))
