"""What training can be asked for besides: stopping early, averages, clipping, frozen parts."""

import math
from dataclasses import replace
from io import StringIO

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from limelight.errors import UserError
from limelight.model import build
from limelight.run import atomic
from limelight.run.folder import RunFolder
from limelight.run.weights import WEIGHTS, name_of
from limelight.training.checkpoint import OPTIMIZER
from limelight.training.config import TrainConfig
from limelight.training.console import Report
from limelight.training.distributed import init_distributed
from limelight.training.optimizer import freeze, make_optimizer
from limelight.workflows.build import build_trainer
from limelight.workflows.evaluate import evaluate_run
from tests.training.samples import hashes, labelled, log_of, texts, tiny, train_in


def weights_at(folder, step, part="checkpoints"):
    return load_file(folder / part / name_of(step) / WEIGHTS)


def assert_same(one, other, **closeness):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], **closeness)


def same_bits(one, other):
    return all(torch.equal(one[name], other[name]) for name in one.keys() | other.keys())


EARLY = {"steps": 300, "patience": 3, "validate_every": 3, "learning_rate": 1.0}


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
@pytest.mark.parametrize("checkpoint_every", [3, 1000])
def test_it_stops_when_nothing_improves_and_gives_the_best(tmp_path, metric, checkpoint_every):
    """Whether or not the best step is one of those that are saved anyway."""
    recipe = tiny("decoder-only", **EARLY, metric=metric, checkpoint_every=checkpoint_every)
    state = train_in(tmp_path, recipe).state
    told = [entry for entry in log_of(tmp_path) if entry.get("validation")]
    better = min if metric == "loss" else max
    best = better(told, key=lambda entry: entry[metric])["step"]  # the first of equals
    assert state.best_step == best
    assert state.step == told[-1]["step"] == best + 3 * 3 < 300
    finished = weights_at(tmp_path, state.step, "finished")
    assert same_bits(finished, weights_at(tmp_path, best))
    assert not same_bits(finished, weights_at(tmp_path, state.step))


def test_what_the_best_so_far_writes_is_in_the_log(tmp_path):
    """The model's own answers to the first validation sources, whenever it has become better."""
    recipe = tiny("decoder-only", **EARLY)
    train_in(tmp_path, recipe)
    told = [entry for entry in log_of(tmp_path) if entry.get("validation")]
    lowest = math.inf
    for entry in told:
        better, lowest = entry["loss"] < lowest, min(lowest, entry["loss"])
        assert ("samples" in entry) == better
        assert all(" -> " in line for line in entry.get("samples", []))
    assert 0 < sum("samples" in entry for entry in told) < len(told)


def test_with_more_patience_it_goes_on(tmp_path):
    recipe = tiny("decoder-only", **EARLY)
    stopped = train_in(tmp_path / "one", recipe).state.step
    assert train_in(tmp_path / "one", recipe).state.step == stopped
    patient = replace(recipe, train=replace(recipe.train, patience=5))
    train_in(tmp_path / "one", patient)
    train_in(tmp_path / "two", patient)
    assert hashes(tmp_path / "one" / "finished") == hashes(tmp_path / "two" / "finished")
    assert log_of(tmp_path / "one") == log_of(tmp_path / "two")
    assert len(log_of(tmp_path / "one")) > stopped


def test_another_metric_is_not_compared_with_the_one_before(tmp_path):
    """An accuracy is no loss: what was best by the one is not by the other, nor is it tired."""
    first = tiny("decoder-only", **EARLY)
    stopped = train_in(tmp_path, first).state
    assert (stopped.metric, stopped.validations_without_improvement) == ("loss", 3)
    second = replace(first, train=replace(first.train, metric="accuracy"))
    state = train_in(tmp_path, second).state
    told = [e for e in log_of(tmp_path) if e.get("validation") and e["step"] >= stopped.step]
    best = max(told, key=lambda entry: entry["accuracy"])  # the first of equals
    assert (state.metric, state.best_step, state.best) == (
        "accuracy",
        best["step"],
        -best["accuracy"],
    )
    assert state.step > stopped.step
    assert len({e["step"] for e in told}) == len(told)


def test_a_finished_run_that_is_judged_anew_gives_what_it_can_judge(tmp_path):
    recipe = tiny("decoder-only", **EARLY)
    stopped = train_in(tmp_path, recipe).state
    assert stopped.best_step < stopped.step
    last = weights_at(tmp_path, stopped.step)
    assert not same_bits(weights_at(tmp_path, stopped.step, "finished"), last)
    no_more = replace(recipe.train, steps=stopped.step, metric="accuracy")
    assert train_in(tmp_path, replace(recipe, train=no_more)).state.best_step == stopped.step
    assert same_bits(weights_at(tmp_path, stopped.step, "finished"), last)


@pytest.mark.parametrize("begun_at", [0, 50])
def test_the_time_left_is_told_from_the_steps_taken_here(begun_at):
    """A resumed run has not taken the steps before."""
    told = StringIO()
    report = Report(console=Console(file=told))
    report.begin(begun_at, 100)
    numbers = {"loss": 1.0, "lr": 0.1, "tokens_per_second": 9.0, "peak_memory": 1e9}
    report.train({"step": begun_at + 10, "seconds": 20.0, **numbers}, 100)
    assert told.getvalue().strip().endswith("3:00 left" if begun_at == 0 else "1:20 left")


def test_the_last_checkpoints_are_averaged(tmp_path):
    train_in(
        tmp_path, tiny(steps=11, checkpoint_every=2, average_checkpoints=3, keep_checkpoints=1)
    )
    made = [weights_at(tmp_path, step) for step in (11, 10, 8)]
    mean = {name: sum(w[name].double() for w in made) / 3 for name in made[0]}
    finished = weights_at(tmp_path, 11, "finished")
    assert_same(finished, {name: tensor.float() for name, tensor in mean.items()}, rtol=0, atol=0)
    assert not same_bits(finished, made[0])
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == [name_of(step) for step in (8, 10, 11)]  # no more than are needed


def mean_of(folder, steps):
    made = [weights_at(folder, step) for step in steps]
    return {name: (sum(w[name].double() for w in made) / len(made)).float() for name in made[0]}


def test_finished_weights_are_what_the_recipe_says_now(tmp_path):
    """A finished run can be asked for another average; what asks for the same changes nothing."""
    recipe = tiny(checkpoint_every=2, average_checkpoints=3, keep_checkpoints=9)
    for average, steps in ((3, (10, 8, 6)), (0, (10,)), (2, (10, 8)), (2, (10, 8))):
        before = (tmp_path / "finished" / name_of(10)).stat().st_ino if steps != (10, 8, 6) else 0
        train_in(
            tmp_path, replace(recipe, train=replace(recipe.train, average_checkpoints=average))
        )
        assert same_bits(weights_at(tmp_path, 10, "finished"), mean_of(tmp_path, steps))
    assert (tmp_path / "finished" / name_of(10)).stat().st_ino == before  # not even written again


def hear(told):
    def touch(trainer):
        trainer.report = Report(console=Console(file=told, width=200))

    return touch


def test_a_damaged_checkpoint_is_left_out_of_the_average_and_named(tmp_path):
    recipe = tiny(checkpoint_every=2, average_checkpoints=3, keep_checkpoints=1)
    train_in(tmp_path, recipe)
    file = tmp_path / "checkpoints" / name_of(8) / WEIGHTS
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    told = StringIO()
    train_in(tmp_path, recipe, touch=hear(told))
    assert same_bits(weights_at(tmp_path, 10, "finished"), mean_of(tmp_path, (10, 6)))
    assert "step-000008 is left out of the finished weights: 'weights.safe" in told.getvalue()


def test_a_save_reads_no_checkpoint_again_that_it_has_written(tmp_path, monkeypatch):
    """But it reads those of a process before: who knows what has happened to them."""
    read = []
    true_hash = atomic.sha256_of
    monkeypatch.setattr(atomic, "sha256_of", lambda p: read.append(p.parent.name) or true_hash(p))
    train_in(tmp_path, tiny(steps=6, checkpoint_every=1, keep_checkpoints=2))
    assert [name for name in read if "tmp" not in name] == []
    train_in(tmp_path, tiny(steps=8, checkpoint_every=1, keep_checkpoints=3))
    assert {name for name in read if "tmp" not in name} == {name_of(5), name_of(6)}


def test_an_average_of_what_is_gone_says_so(tmp_path):
    train_in(tmp_path, tiny(checkpoint_every=2, average_checkpoints=2, keep_checkpoints=1))
    told = StringIO()
    train_in(
        tmp_path,
        tiny(checkpoint_every=2, average_checkpoints=4, keep_checkpoints=1),
        touch=hear(told),
    )
    assert "of 4 checkpoints to average only 2 are left" in told.getvalue()
    train_in(
        tmp_path,
        tiny(checkpoint_every=2, average_checkpoints=2, keep_checkpoints=1),
        touch=hear(told := StringIO()),
    )
    assert "average" not in told.getvalue()


def test_the_running_average_is_what_it_says(tmp_path):
    first = {}

    def look(trainer):
        first.update(
            {n: p.detach().clone() for n, p in trainer.loss_module.model.named_parameters()}
        )

    train_in(tmp_path, tiny(checkpoint_every=1, keep_checkpoints=10, ema=0.7), touch=look)
    average = {name: tensor.double() for name, tensor in first.items()}
    for step in range(1, 11):
        weights = weights_at(tmp_path, step)
        average = {name: 0.7 * average[name] + 0.3 * weights[name].double() for name in average}
    finished = weights_at(tmp_path, 10, "finished")
    assert_same(finished, {n: t.float() for n, t in average.items()}, rtol=1e-5, atol=1e-6)
    assert not same_bits(finished, weights)


@pytest.mark.parametrize("patience", [0, 3])
def test_what_is_validated_is_what_is_kept(tmp_path, patience):
    """With a running average that, the last or the best; not the weights that still move."""
    settings = {"steps": 60, "validate_every": 3, "learning_rate": 1.0, "ema": 0.8}
    train_in(tmp_path, tiny("decoder-only", **settings, patience=patience))
    told = [entry["loss"] for entry in log_of(tmp_path) if entry.get("validation")]
    kept = evaluate_run(tmp_path, "valid", silent=True)["loss"]
    assert kept == pytest.approx(min(told) if patience else told[-1], rel=1e-6)
    assert min(told) < told[-1]


@pytest.mark.parametrize(("ema", "warned"), [(0.99, True), (0.9, False), (0.0, False)])
def test_a_running_average_that_hardly_runs_is_told(tmp_path, capsys, ema, warned):
    recipe = tiny(ema=ema)
    with init_distributed(recipe.train) as world:
        build_trainer(recipe, RunFolder(tmp_path), world, Report())
    assert ("the finished weights will have learned little" in capsys.readouterr().err) == warned


def test_validating_the_average_leaves_the_weights_alone(tmp_path):
    for name, every in (("often", 1), ("once", 10)):
        train_in(tmp_path / name, tiny(ema=0.7, validate_every=every, checkpoint_every=10))
    often, once = (tmp_path / name / "checkpoints" / name_of(10) for name in ("often", "once"))
    for file in (WEIGHTS, OPTIMIZER):
        assert same_bits(load_file(often / file), load_file(once / file))


def norms_of(folder, monkeypatch, **settings):
    """The norm of each step's gradient as it was logged, and as the optimizer met it."""
    met = []

    def watch(trainer):
        true_step = trainer.optimizer.step

        def step():
            flat = torch.cat([p.grad.flatten() for p in trainer.trainable])
            met.append(float(flat.double().norm()))
            return true_step()

        monkeypatch.setattr(trainer.optimizer, "step", step)

    train_in(folder, tiny(precision="float64", **settings), touch=watch)
    return [entry["grad_norm"] for entry in log_of(folder) if "lr" in entry], met


def test_long_gradients_are_clipped_and_short_ones_are_not(tmp_path, monkeypatch):
    free, met = norms_of(tmp_path / "free", monkeypatch)
    assert met == pytest.approx(free)  # no clipping unless asked for
    clip = sorted(free)[5]
    told, met = norms_of(tmp_path / "clipped", monkeypatch, clip_grad_norm=clip)
    assert met == pytest.approx([min(norm, clip) for norm in told])
    assert min(told) < clip < max(told)


@pytest.mark.parametrize("family", ["encoder-decoder", "recurrent-encoder-decoder"])
def test_matrices_decay_and_biases_and_norms_do_not(family):
    model = build(tiny(family).model)
    freeze(model, ["encoder"])
    names = {id(p): name for name, p in model.named_parameters()}
    groups = make_optimizer(model, TrainConfig(weight_decay=0.1)).param_groups
    decay = {names[id(p)]: group["weight_decay"] for group in groups for p in group["params"]}
    assert decay.keys() == {n for n in names.values() if not n.startswith("encoder.")}
    for name, much in decay.items():
        stays = "norm" in name or "bias" in name
        assert much == (0.0 if stays else 0.1)
    assert set(decay.values()) == {0.0, 0.1}


def test_decay_alone_moves_weights_towards_zero():
    model = build(tiny().model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make_optimizer(model, TrainConfig(weight_decay=0.1))
    for group in optimizer.param_groups:
        group["lr"] = 0.5
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        kept = 1 - 0.5 * 0.1 if parameter.dim() > 1 else 1
        torch.testing.assert_close(parameter.detach(), kept * before[name])


@pytest.mark.parametrize("part", ["encoder", "decoder.layers.0.cross_attention", "target.tokens"])
def test_frozen_parts_keep_every_bit_and_the_others_move(tmp_path, part):
    recipe = tiny(checkpoint_every=1, keep_checkpoints=10, freeze=(part,), ema=0.5)
    before = {}

    def look(trainer):
        before.update(
            {n: p.detach().clone() for n, p in trainer.loss_module.model.named_parameters()}
        )

    train_in(tmp_path, recipe, touch=look)
    shared = {"target.tokens": "source.tokens"}.get(part, part)  # one table has one name
    for folder in ("checkpoints", "finished"):
        after = weights_at(tmp_path, 10, folder)
        frozen = {name for name in after if torch.equal(after[name], before[name])}
        assert frozen == {name for name in after if name.startswith(f"{shared}.")}
        assert frozen
    assert not any(
        f".{shared}." in name for name in optimizer_names(tmp_path) if "ema." not in name
    )


def optimizer_names(folder):
    return load_file(folder / "checkpoints" / name_of(10) / OPTIMIZER).keys()


def test_a_part_that_is_none_is_refused(tmp_path):
    with pytest.raises(UserError, match="no part of the model 'encodr': did you mean 'encoder'"):
        train_in(tmp_path, tiny(freeze=("encodr",)))
    with pytest.raises(UserError, match=r"'encoder.layer.0': did you mean 'encoder.layers.0'"):
        train_in(tmp_path, tiny(freeze=("encoder.layer.0",)))
    with pytest.raises(UserError, match="leaves nothing to train"):
        train_in(tmp_path, tiny("decoder-only", freeze=("target", "decoder", "classifier")))
    assert not (tmp_path / "run.json").exists()


IN_VAIN = {  # what a training could not do, and what is said of it
    "perplexty": ({"metric": "perplexty"}, "no metric 'perplexty': did you mean 'perplexity'?"),
    "f1": ({"metric": "f1"}, "no metric 'f1': choose one of: accuracy, bleu, chrf2, exact, loss"),
    "shared": ({"metric": "exact", "fsdp": True}, "no metric 'exact': .* accuracy, loss, perpl"),
}


@pytest.mark.parametrize("settings", IN_VAIN)
def test_a_metric_that_nobody_measures_is_refused_before_anything_is_done(tmp_path, settings):
    changes, sentence = IN_VAIN[settings]
    with pytest.raises(UserError, match=sentence):
        train_in(tmp_path, tiny(**changes))
    assert not (tmp_path / "tokenizer.json").exists()


def test_a_toy_is_measured_by_what_comes_out_right(tmp_path):
    """The control."""
    train_in(tmp_path / "toy", tiny(metric="exact"))
    train_in(tmp_path / "bleu", tiny(metric="bleu"))
    assert {"bleu", "chrf2"} <= log_of(tmp_path / "bleu")[-1].keys()
    with pytest.raises(UserError, match=r"no metric 'exact': .* accuracy, loss, perplexity"):
        train_in(tmp_path / "run", tiny("decoder-only", texts(tmp_path), metric="exact"))


@pytest.mark.parametrize("name", ["patience", "metric"])
def test_without_validation_texts_nothing_can_be_asked_of_them(tmp_path, name):
    data = replace(texts(tmp_path), valid=())
    settings = {"patience": 3} if name == "patience" else {"metric": "accuracy"}
    with pytest.raises(UserError, match=rf"{name}=.* there are none: .* or set --train.{name} "):
        train_in(tmp_path / "run", tiny("decoder-only", data, **settings))
    assert not (tmp_path / "run" / "tokenizer.json").exists()
    train_in(tmp_path / "run", tiny("decoder-only", data))  # the control


def test_without_blanks_there_is_nothing_to_learn(tmp_path):
    with pytest.raises(UserError, match="mask_rate=0 masks no token, so there is nothing to pred"):
        train_in(tmp_path / "run", tiny("encoder-only", texts(tmp_path), mask_rate=0.0))
    classifier = tiny("encoder-only", labelled(tmp_path), {"classes": 2}, mask_rate=0.0)
    train_in(tmp_path / "run", classifier)  # it fills in nothing anyway


def test_a_head_that_no_data_could_train_is_refused(tmp_path):
    recipe = tiny("encoder-only", texts(tmp_path), {"sentence_pairs": True})
    with pytest.raises(UserError, match="there is no data here to train it with"):
        train_in(tmp_path / "run", recipe)
