"""A model is loaded to the best device, says where it is, and is explained in full precision."""

import copy
import inspect
import pickle
import shutil
from dataclasses import replace

import pytest
import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_module_registration_hook,
)

import limelight
from limelight.decode.accel.changes import Snapshot
from limelight.errors import UserError
from limelight.model.attention import Attention
from limelight.model.taps import Recorder
from limelight.run.atomic import lock
from limelight.run.weights import WEIGHTS, read_weights
from limelight.serve.worker.scheduler import describe
from limelight.tasks.translate import Constraints, alternative_tokens
from tests.tasks.conftest import FAST, TOY


@pytest.fixture
def bfloat16(monkeypatch):
    """As if this machine computed in bfloat16 by itself, as one with a GPU does."""
    usual = limelight.loading.choose_precision

    def choose(wanted, device):
        return "bfloat16" if wanted in ("auto", "bfloat16") else usual(wanted, device)

    monkeypatch.setattr("limelight.loading.choose_precision", choose)
    return choose


def weights(model):
    return torch.cat([p.detach().float().flatten() for p in model.parameters()])


def test_it_says_where_it_is(run):
    best = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = limelight.load(run("reverse"), device="cpu")
    assert (loaded.device.type, loaded.precision) == ("cpu", "float32")
    assert limelight.load(run("reverse"), precision="float32").device.type == best
    assert limelight.load(run("reverse"), device="cpu", precision="float64").precision == "float64"
    assert limelight.load(run("reverse"), precision="int8").precision == "int8"
    assert loaded.to("cpu", "int8").precision == "int8"
    assert loaded.to("cpu").precision == "float32"


@pytest.mark.parametrize(("wanted", "wrong"), [("device", "gpu"), ("precision", "float8")])
def test_a_wrong_device_or_precision_is_rejected(run, wanted, wrong):
    with pytest.raises(UserError, match=f"no {wanted} '{wrong}'"):
        limelight.load(run("reverse"), **{wanted: wrong})


def test_a_rejected_device_leaves_the_model_as_it_was(run):
    loaded = limelight.load(run("reverse"), device="cpu")
    before, engine = weights(loaded.model), loaded.engine
    with pytest.raises(UserError, match="no device 'tpu'"):
        loaded.to("tpu", "float64")
    assert torch.equal(weights(loaded.model), before)
    assert loaded.engine is engine


def test_the_recipes_precision_is_the_default(run, monkeypatch):
    usual = limelight.loading.recipe_from_run

    def exact(folder):
        recipe = usual(folder)
        decode = limelight.loading.replace(recipe.decode, precision="float64")
        return limelight.loading.replace(recipe, decode=decode)

    monkeypatch.setattr("limelight.loading.recipe_from_run", exact)
    assert limelight.load(run("reverse"), device="cpu").precision == "float64"
    assert limelight.load(run("reverse"), device="cpu", precision="float32").precision == "float32"


def test_rounded_weights_are_explained_as_they_were_trained(run, bfloat16):
    true = limelight.load(run("reverse"), device="cpu")  # as trained: nothing is rounded
    rounded = limelight.load(run("reverse"), device="cpu", precision="bfloat16")
    assert (true.precision, rounded.precision) == ("float32", "bfloat16")
    assert not torch.equal(weights(true.model), weights(rounded.model))
    assert rounded.full_precision.precision == "float32"
    expected, got = (m.explain("a b c", beam=2) for m in (true, rounded))
    assert got.values.keys() == expected.values.keys()
    for name, value in expected.values.items():
        assert torch.equal(got.values[name], value), name
    assert torch.equal(weights(rounded.to("cpu", "float32").model), weights(true.model))
    assert rounded.full_precision is rounded


def test_int8_is_explained_in_float32(run):
    plain, int8 = (limelight.load(run("reverse"), device="cpu") for _ in range(2))
    int8.to(precision="int8")
    assert not int8.full_precision.int8
    first, second = (m.explain("a b c").values for m in (plain, int8))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_ensemble_moves_together(run):
    both = limelight.load(run("reverse"), run("other reverse"), precision="float64", device="cpu")
    assert {p.dtype for m in (both.model, *both.ensemble) for p in m.parameters()} == {
        torch.float64
    }


def test_constraints_are_exported():
    assert limelight.Constraints is Constraints


def zero_cross_attention(model):
    with torch.no_grad():
        for layer in model.decoder.layers:
            for weight in layer.cross_attention.output.parameters():
                weight.zero_()


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_a_used_model_can_be_copied(run, copied, precision):
    used = limelight.load(run("reverse"), device="cpu", precision=precision)
    answer, told = used.translate("a b c").text, used.explain("a b c", beam=2).values
    twin = copied(used)
    assert (twin.translate("a b c").text, twin.precision) == (answer, precision)
    assert torch.equal(twin.explain("a b c", beam=2).values["logits"], told["logits"])
    zero_cross_attention(twin.model)
    fresh = limelight.load(run("reverse"), device="cpu", precision=precision)
    zero_cross_attention(fresh.model)
    assert twin.translate("a b c").text == fresh.translate("a b c").text
    if copied is not copy.copy:  # which has the same model
        assert used.translate("a b c").text == answer


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_a_used_model_answers_and_explains_as_it_was_changed(run, precision):
    used, fresh = (
        limelight.load(run("reverse"), device="cpu", precision=precision) for _ in range(2)
    )
    before = used.explain("a b c", beam=2).values["logits"]
    used.translate("a b c")
    for loaded in (used, fresh):
        zero_cross_attention(loaded.model)
    assert used.translate("a b c", nbest=2) == fresh.translate("a b c", nbest=2)
    explained, wanted = (m.explain("a b c", beam=2) for m in (used, fresh))
    assert torch.equal(explained.values["logits"], wanted.values["logits"])
    assert explained.checks.fast_difference < 0.1  # it was decoded by the model that is explained
    assert explained.values["logits"].shape != before.shape or not torch.equal(
        explained.values["logits"], before
    )
    used.to("cpu", "float64")  # and what was changed is not lost
    assert not used.model.decoder.layers[0].cross_attention.output.weight.any()


def test_a_models_fields_may_be_replaced(run):
    one, other = (limelight.load(run(name), device="cpu") for name in ("reverse", "other reverse"))
    both = limelight.load(run("reverse"), run("other reverse"), device="cpu")
    one.translate("a b c")
    one.ensemble = [other.model]
    assert one.translate("a b c", nbest=3) == both.translate("a b c", nbest=3)
    one.model, one.ensemble = other.model, ()
    assert one.translate("a b c", nbest=3) == other.translate("a b c", nbest=3)
    one.to(precision="int8")
    assert one.full_precision.model is other.model
    one.model = both.model
    assert one.full_precision.model is both.model


def test_hooks_are_called_until_they_are_removed(run):
    loaded = limelight.load(run("reverse"), device="cpu")
    answer, calls = loaded.translate("a b c").text, []
    hooks = [
        part.register_forward_hook(lambda *_: calls.append(1)) for part in loaded.model.modules()
    ]
    assert loaded.translate("a b c").text == answer
    assert len(calls) > len(hooks) - 10  # all but lists of modules and what pre-norm alone has
    for hook in hooks:
        hook.remove()
    calls.clear()
    assert loaded.translate("a b c").text == answer
    assert not calls


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run with the checkpoints of steps 2, 4 and 6, and a finished average of them."""
    run = tmp_path_factory.mktemp("kept") / "run"
    every = ["train.checkpoint_every=2", "train.keep_checkpoints=9", "train.average_checkpoints=3"]
    limelight.train("reverse", run=run, changes=[*TOY, *FAST, "train.steps=6", *every])
    return run


def files_in(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize("step", [2, 4, 6])
def test_a_kept_checkpoint_is_loaded_while_a_trainer_holds_the_run(kept, step):
    before = files_in(kept)
    with lock(kept):
        loaded = limelight.load(kept, device="cpu", step=step)
    assert loaded.step == step
    wanted = read_weights(kept / "checkpoints" / f"step-00000{step}" / WEIGHTS)
    for name, weight in loaded.model.named_parameters():
        assert torch.equal(weight, wanted[name]), name
    assert files_in(kept) == before
    newest = limelight.load(kept, device="cpu")
    assert newest.step == 6
    assert not torch.equal(weights(newest.model), weights(loaded.model))  # it is the average


def test_a_checkpoint_that_is_not_there_or_damaged(kept, tmp_path):
    with pytest.raises(UserError, match=r"no checkpoint of step 5: it has 2, 4, 6$"):
        limelight.load(kept, step=5)
    with pytest.raises(UserError, match="step=2 is a checkpoint of one run"):
        limelight.load(kept, kept, step=2)
    copied = tmp_path / "run"
    shutil.copytree(kept, copied)
    (copied / "checkpoints" / "step-000002" / WEIGHTS).write_bytes(b"x")
    with pytest.raises(UserError, match="step-000002 is damaged: 'weights"):
        limelight.load(copied, step=2)
    assert limelight.load(copied, step=4).step == 4


@pytest.fixture
def looks(monkeypatch):
    """How often weights were compared with what they had been."""
    seen, usual = [], Snapshot.parts_hold
    monkeypatch.setattr(Snapshot, "parts_hold", lambda own: seen.append(own) or usual(own))
    return seen


def use_it_in_every_way(loaded):
    """As commands and the service do, without a look at its weights."""
    first = loaded.translate("a b c", nbest=2)
    assert loaded.translate("a b c", nbest=2) == first
    [*loaded.translate_all(["a b", "c"])], loaded.chat().reply("a b"), loaded.score("a b", "b a")
    [*alternative_tokens(loaded, "a b c")]
    [*loaded.translate_all(["a b"], engine="ctranslate2")], loaded.to(precision="int8")
    [*loaded.translate_all(["a b", "c"])], loaded.translate("a b c")
    assert loaded.full_precision.translate("a b c", nbest=2) == first
    return repr(loaded), loaded.tasks, loaded.config, loaded.max_len, describe(loaded)


def test_the_weights_of_a_model_that_nobody_has_are_not_compared(run, looks):
    loaded = limelight.load(run("reverse"), device="cpu")
    use_it_in_every_way(loaded)
    assert not looks
    assert limelight.load(run("reverse"), run("other reverse"), device="cpu").translate("a b c")
    assert not looks


def a_hook_on_all_modules(loaded):
    given = []
    handle = register_module_forward_hook(lambda module, *_: given.append(module))
    loaded.score("a b", "b a")
    handle.remove()
    return given[-1]


WAYS = {
    "model": lambda loaded: loaded.model,
    "full precision": lambda loaded: loaded.full_precision.model,
    "int8": lambda loaded: loaded.to(precision="int8").full_precision.model,
    "engine": lambda loaded: loaded.engine.accelerated[0].original,
    "another's ensemble": lambda loaded: replace(loaded, ensemble=[loaded.model]).ensemble[0],
    "replace": lambda loaded: replace(loaded, history=2).model,
    "copy": lambda loaded: copy.copy(loaded).model,
    "every attribute": lambda loaded: dict(inspect.getmembers(loaded))["model"],
    "an explanation": lambda loaded: loaded.explain("a b c").model,
    "a trace": lambda loaded: Recorder(loaded.model, []).model,
    "a hook on all modules": a_hook_on_all_modules,
}


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("way", WAYS)
def test_whoever_gets_hold_of_a_model_may_change_it(run, looks, way, precision):
    used, fresh = (
        limelight.load(run("reverse"), device="cpu", precision=precision) for _ in range(2)
    )
    used.translate("a b c")
    assert not looks
    network = WAYS[way](used)
    for _ in range(2):  # with an engine that is new, and once more
        used.translate("a b c")
    assert looks
    for model in (network, fresh.model):
        zero_cross_attention(model)
    used.to(precision=precision)
    assert used.translate("a b c", nbest=2) == fresh.translate("a b c", nbest=2)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: x.to("cpu", "float64")],
)
def test_copies_and_moved_models_are_looked_at(run, looks, copied):
    loaded = limelight.load(run("reverse"), device="cpu")
    loaded.translate("a b c")
    twin, other = copy.copy(loaded), copied(loaded)
    for _ in range(2):
        other.translate("a b c")
    assert looks
    if other is loaded:  # its weights were moved under the engine that both have
        assert next(twin.engine.model.parameters()).dtype == torch.float64


def test_whoever_saw_a_model_being_built_may_change_it(run, looks):
    handle = register_module_module_registration_hook(lambda *_: None)
    loaded = limelight.load(run("reverse"), device="cpu")
    handle.remove()
    loaded.translate("a b c"), loaded.translate("a b c")
    assert looks


def test_nobody_needs_a_model_to_change_how_it_computes(run, monkeypatch):
    """Without a look at its weights: a patched class, and a hook on all modules."""
    loaded = limelight.load(run("reverse"), device="cpu")
    before, forward = loaded.translate("a b c", nbest=2), Attention.forward
    with monkeypatch.context() as patched:
        patched.setattr(Attention, "forward", lambda *given, **named: 2 * forward(*given, **named))
        assert loaded.translate("a b c", nbest=2) != before
    assert loaded.translate("a b c", nbest=2) == before
    handle = register_module_forward_hook(
        lambda module, _, output: 2 * output if isinstance(module, torch.nn.Linear) else None
    )
    try:
        assert loaded.translate("a b c", nbest=2) != before
    finally:
        handle.remove()
