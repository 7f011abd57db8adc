"""LoRA: only adapters are trained and saved, and merged they are the model that was trained."""

import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import limelight
from limelight.errors import UserError
from limelight.loading import load
from limelight.model import build
from limelight.run.weights import ADAPTERS, name_of
from limelight.training.checkpoint import OPTIMIZER
from limelight.training.lora import add_lora
from limelight.workflows.info import describe
from tests.training.samples import hashes, labelled, log_of, rewrite, texts, tiny, train_in

LORA = {"lora_rank": 2, "learning_rate": 1.0, "checkpoint_every": 5}
TASKS = ("encoder-decoder", "decoder-only", "encoder-only", "classifier", "untied")


def recipe_of(task, folder, **train):
    if task == "untied":
        return tiny("encoder-decoder", None, {"tied": False}, **train)
    if task == "classifier":
        return tiny("encoder-only", labelled(folder), {"classes": 2}, **train)
    return tiny(task, texts(folder) if task == "encoder-only" else None, **train)


@pytest.fixture(scope="module", params=TASKS)
def tuned(request, tmp_path_factory):
    """A task, the folder of a trained base and of LoRA's run, and the model as it was trained."""
    folder = tmp_path_factory.mktemp(request.param)
    before = "encoder-only" if request.param == "classifier" else request.param
    train_in(folder / "base", recipe_of(before, folder))
    recipe = recipe_of(request.param, folder, **LORA)
    trainer = train_in(folder / "lora", recipe, start_from=folder / "base")
    return request.param, folder, trainer.loss_module.model.eval()


def weights(model):
    return {name: p.detach() for name, p in model.named_parameters()}


def outputs(task, model):
    tokens = torch.arange(12).view(2, 6) + 5
    with torch.no_grad():
        return model(tokens, tokens) if task in ("encoder-decoder", "untied") else model(tokens)


def test_merged_equals_unmerged(tuned):
    task, folder, unmerged = tuned
    merged = load(folder / "lora", device="cpu")
    assert weights(merged.model).keys() == weights(build(merged.recipe.model)).keys()
    ours, theirs = outputs(task, merged.model), outputs(task, unmerged)
    assert torch.allclose(ours, theirs, atol=1e-5 * theirs.abs().max().item())


def test_without_the_adapters_it_is_another_model(tuned):
    """The control: they have learned something, and how much of them is added matters."""
    task, _, unmerged = tuned
    before = outputs(task, unmerged)
    adapters = [part for part in unmerged.modules() if hasattr(part, "lora_b")]
    for wrong in (0.0, 2.0):
        scales = [part.scale for part in adapters]
        for part in adapters:
            part.scale *= wrong
        assert not torch.allclose(outputs(task, unmerged), before, atol=1e-4)
        for part, scale in zip(adapters, scales, strict=True):
            part.scale = scale


def test_no_matrix_of_the_base_changes_by_a_bit(tuned):
    task, folder, unmerged = tuned
    base, now = weights(load(folder / "base", device="cpu").model), weights(unmerged)
    shared = [name for name in base if name in now and base[name].dim() > 1]
    assert len(shared) > 5
    assert all(torch.equal(base[name], now[name]) for name in shared)
    other = train_in(folder / "full", recipe_of(task, folder), start_from=folder / "base")
    full = weights(other.loss_module.model)  # the control
    assert not any(torch.equal(base[name], full[name]) for name in shared)
    shutil.rmtree(folder / "full")


def test_only_what_is_trained_is_saved(tuned):
    task, folder, unmerged = tuned
    checkpoint = folder / "lora" / "checkpoints" / name_of(10)
    saved = load_file(checkpoint / ADAPTERS)
    full = {name for name in saved if not name.endswith(("lora_a", "lora_b"))}
    small = {name for name, p in weights(unmerged).items() if p.dim() == 1}
    assert full == small | {name for name in weights(unmerged) if name.startswith("text_head.")}
    assert bool(full - small) == (task == "classifier")
    moments = {name.split(".", 1)[1] for name in load_file(checkpoint / OPTIMIZER)}
    assert moments == saved.keys()
    finished = folder / "lora" / "finished" / name_of(10)
    assert {path.name for path in finished.iterdir()} == {ADAPTERS, "MANIFEST.json"}


def test_a_checkpoint_can_be_loaded(tuned):
    _, folder, _ = tuned
    early, late = (load(folder / "lora", device="cpu", step=step) for step in (5, 10))
    assert (early.step, late.step) == (5, 10)
    differ = [not torch.equal(a, b) for a, b in zip(*map(weights_list, (early, late)), strict=True)]
    assert any(differ)


def weights_list(loaded):
    return list(weights(loaded.model).values())


def test_an_untrained_adapter_changes_nothing():
    model = build(tiny().model).eval()
    before = outputs("encoder-decoder", model)
    add_lora(model, tiny(**LORA).train)
    assert torch.equal(outputs("encoder-decoder", model), before)


# Resuming


EXACT = {**LORA, "grad_accumulation": 2, "ema": 0.5, "patience": 10, "validate_every": 3}
EXACT["keep_checkpoints"] = 10


@pytest.mark.parametrize("lose", [False, True])
def test_a_resumed_run_ends_the_same_to_the_last_bit(tuned, tmp_path, lose):
    """Without being told again where it began; and the control, which loses the adapters."""
    task, folder, _ = tuned
    recipe = recipe_of(task, folder, **EXACT)
    train_in(tmp_path / "whole", recipe, start_from=folder / "base")
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    shutil.rmtree(tmp_path / "broken" / "finished")
    for checkpoint in (tmp_path / "broken" / "checkpoints").iterdir():
        if checkpoint.name > name_of(5):
            shutil.rmtree(checkpoint)
    if lose:
        adapters = tmp_path / "broken" / "checkpoints" / name_of(5)
        rewrite(adapters, lambda path: _scramble(path / ADAPTERS))
    train_in(tmp_path / "broken", recipe)
    ends = [
        [hashes(tmp_path / run / part / name_of(10)) for part in ("checkpoints", "finished")]
        + [log_of(tmp_path / run)]
        for run in ("whole", "broken")
    ]
    assert (ends[0] == ends[1]) != lose


def _scramble(path):
    save_file({name: tensor + 0.01 for name, tensor in load_file(path).items()}, path)


# The base


@pytest.fixture
def pair(tmp_path):
    train_in(tmp_path / "base", tiny())
    train_in(tmp_path / "lora", tiny(**LORA), start_from=tmp_path / "base")
    return tmp_path


def test_a_base_that_has_moved_is_named_and_can_be_named_anew(pair):
    before = weights_list(load(pair / "lora"))
    (pair / "base").rename(pair / "elsewhere")
    with pytest.raises(UserError, match=r"lora has adapters for .*base, which is not there"):
        load(pair / "lora")
    with pytest.raises(UserError, match=r"bring it back, or write where it is now into .*base\.js"):
        train_in(pair / "lora", tiny(**LORA, steps=12))
    text = (pair / "lora" / "base.json").read_text()
    (pair / "lora" / "base.json").write_text(text.replace(str(pair / "base"), "../elsewhere"))
    assert all(map(torch.equal, before, weights_list(load(pair / "lora"))))
    assert train_in(pair / "lora", tiny(**LORA, steps=12)).state.step == 12


def test_a_base_with_other_weights_is_refused(pair):
    train_in(pair / "base", tiny(steps=11))
    sentence = r"adapters for .*base, whose weights have changed since: bring the old ones back"
    with pytest.raises(UserError, match=sentence):
        load(pair / "lora")
    with pytest.raises(UserError, match=sentence):
        train_in(pair / "lora", tiny(**LORA, steps=12))


@pytest.mark.parametrize("text", ["[]", '{"run": 1, "sha256": ""}', '{"run": "../lora"}'])
def test_a_base_that_no_training_has_written_is_refused(pair, text):
    (pair / "lora" / "base.json").write_text(text)
    with pytest.raises(UserError, match=r"base\.json is not what a training writes"):
        load(pair / "lora")


def test_a_run_cannot_be_its_own_base(pair):
    (pair / "lora" / "base.json").write_text('{"run": "../lora", "sha256": ""}')
    with pytest.raises(UserError, match="leads back to the run itself"):
        load(pair / "lora")


def test_adapters_can_be_the_base_of_others(pair):
    train_in(pair / "more", tiny(**LORA), start_from=pair / "lora")
    base, more = (weights(load(pair / run, device="cpu").model) for run in ("lora", "more"))
    frozen = [name for name in base if torch.equal(base[name], more[name])]
    assert "source.tokens.weight" in frozen
    assert "decoder.layers.0.self_attention.query.weight" not in frozen


def test_frozen_adapters_are_left_out(pair):
    recipe = tiny(**LORA, freeze=("encoder",))
    train_in(pair / "frozen", recipe, start_from=pair / "base")
    saved = load_file(pair / "frozen" / "finished" / name_of(10) / ADAPTERS)
    assert {name.split(".")[0] for name in saved} == {"decoder", "classifier"}
    base, tuned = (weights(load(pair / run, device="cpu").model) for run in ("base", "frozen"))
    assert all(torch.equal(base[n], tuned[n]) for n in base if n.startswith("encoder."))


# What cannot be


def test_there_must_be_something_to_adapt(tmp_path):
    with pytest.raises(UserError, match=r"lora_rank=2 adapts a model that is trained .*--from RUN"):
        train_in(tmp_path / "run", tiny(**LORA))
    train_in(tmp_path / "lstm", tiny("recurrent-encoder-decoder"))
    recurrent = tiny("recurrent-encoder-decoder", **LORA)
    with pytest.raises(UserError, match=r"linear layers of a Transformer, and this is family='rec"):
        train_in(tmp_path / "run", recurrent, start_from=tmp_path / "lstm")


@pytest.mark.parametrize("wrong", [{"lora_rank": -1}, {"lora_rank": 1025}, {"lora_alpha": 0.0}])
def test_bounds(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        tiny(**wrong)


def test_the_rank_of_a_run_stays(pair):
    recipe = tiny(**{**LORA, "lora_rank": 3})
    with pytest.raises(UserError, match=r"begun with train\.lora_rank = 2, and this is 3"):
        train_in(pair / "lora", recipe)


# As people use it


def test_info_counts_what_is_trained():
    recipe = tiny()
    lora = describe(replace(recipe, train=replace(recipe.train, lora_rank=2)))
    linears = [part for part in build(recipe.model).modules() if type(part) is torch.nn.Linear]
    adapters = sum(2 * (part.in_features + part.out_features) for part in linears)
    vectors = sum(p.numel() for p in build(recipe.model).parameters() if p.dim() == 1)
    trained = adapters + vectors
    assert lora["trained_parameters"] == trained
    full = describe(recipe)
    assert full["trained_parameters"] == full["parameters"] == lora["parameters"]
    ours, theirs = (facts["training_bytes"] for facts in (lora, full))
    assert theirs["gradients"] + theirs["optimizer"] == 12 * full["parameters"]
    assert ours["weights"] == 4 * (full["parameters"] + adapters)
    assert ours["gradients"] + ours["optimizer"] == 12 * trained


def test_the_bundled_translator_learns_from_a_file(tmp_path):
    (tmp_path / "mine.tsv").write_text("the dog sleeps\tder Hund schläft\n" * 8)
    changes = {"data.train": [str(tmp_path / "mine.tsv")], "train.lora_rank": 8, "train.steps": 2}
    changes |= {"train.warmup": 1, "train.learning_rate": 0.01, "train.batch_tokens": 64}
    limelight.train("en-de", tmp_path / "run", changes, silent=True)
    base, tuned = limelight.load("en-de", device="cpu"), load(tmp_path / "run", device="cpu")
    assert tuned.translate("the dog sleeps").text
    name = "encoder.layers.0.self_attention.query.weight"
    assert not torch.equal(weights(base.model)[name], weights(tuned.model)[name])
    size = (tmp_path / "run" / "finished" / name_of(2) / ADAPTERS).stat().st_size
    assert size < 0.04 * 4 * sum(p.numel() for p in base.model.parameters())
