"""The plan of a training: what it counts on fake tensors is what a real step allocates."""

import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from benchmarks.large_model import LARGE, SHAPE
from benchmarks.training_speed import BASE, BERT, FAMILIES, GPT2
from limelight.errors import UserError
from limelight.model import ModelConfig, build
from limelight.recipe import Recipe, load_recipe
from limelight.training.activation_checkpointing import checkpoint_layers
from limelight.training.config import TrainConfig
from limelight.workflows import step_memory
from limelight.workflows.info import describe, show, training_memory
from limelight.workflows.plan import add_plan, make_plan, show_plan, training_share

GPT = ModelConfig(
    family="decoder-only", vocab=50, layers=4, d_model=64, heads=4, max_len=48,
    norm_order="pre", positions="learned", dropout=0.0,
)  # fmt: skip
BERT_LIKE = ModelConfig(
    family="encoder-only", vocab=50, layers=4, d_model=64, heads=4, max_len=48, dropout=0.0
)
BOTH = ModelConfig(vocab=50, layers=4, d_model=64, heads=4, max_len=48, dropout=0.0)


@pytest.mark.parametrize("config", [GPT, BOTH, BERT_LIKE], ids=lambda config: config.family)
@pytest.mark.parametrize("how", ["off", "selective", "layer"])
def test_what_is_counted_without_numbers_is_what_a_real_step_has(config, how):
    model = build(config).train()
    checkpoint_layers(model, how)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    text = torch.zeros(3, config.max_len, dtype=torch.long)
    with step_memory._LiveBytes([*model.parameters(), *model.buffers(), text]) as live:
        if config.family == "decoder-only":
            states = model.decode(text)
        elif config.family == "encoder-only":
            states = model.encode(text)
        else:
            states = model.decode(text, model.encode(text))
        real = live.now
        states.backward(torch.empty_like(states))
    kept, peak = step_memory.activation_memory(config, 3, how, "float32")
    assert kept == pytest.approx(real, rel=0.1)
    assert peak == pytest.approx(live.peak, rel=0.1)


def test_checkpointing_and_offloading_make_room():
    def bytes_of(**train):
        recipe = Recipe("x", replace(GPT, dropout=0.1), train=TrainConfig(**train))
        return training_memory(recipe, 20 * GPT.max_len)

    off, layer = bytes_of(), bytes_of(activation_checkpointing="layer")
    selective = bytes_of(activation_checkpointing="selective")
    assert layer["activations"] < 0.5 * off["activations"]
    assert layer["activations"] < selective["activations"] < off["activations"]
    assert bytes_of(offload_optimizer=True) == {
        **off, "optimizer": 0, "total": off["total"] - off["optimizer"]
    }  # fmt: skip


def test_gpt3_fits_on_1024_devices_eight_of_which_divide_a_layer():
    plan = make_plan(load_recipe("gpt3-175b"), 0, 1024, 8, 80)
    assert plan["activation_checkpointing"] == "off"
    assert (plan["batches"], plan["tokens"]) == (128, 2048)
    for parts in plan["bytes"].values():
        assert parts["total"] == sum(size for part, size in parts.items() if part != "total")
        assert parts["weights"] == pytest.approx(4 * 174.6e9 / 1024, rel=0.05)
    # By hand: 6 FLOPs for each parameter and token, at 75% of 800e12; 96 layers with 4 sums.
    assert plan["seconds"]["computing"] == pytest.approx(
        6 * 174.6e9 / 8 * 2048 / (0.75 * 800e12), rel=0.1
    )
    sums = plan["received_bytes"]["sums of sub-layers (tensor parallel)"]
    assert sums == 96 * 4 * 2 * 2 * 2048 * 12_288 * 7 // 8
    assert plan["seconds"]["step"] == pytest.approx(sum([*plan["seconds"].values()][:-1]))


def test_the_fastest_that_fits_is_chosen_and_said():
    recipe = Recipe("x", replace(GPT, layers=12, vocab=2))
    batch = 64 * GPT.max_len  # its activations take more than the gradients
    choices = make_plan(recipe, batch, 1, 1, 80)["bytes"]
    total = {how: parts["total"] for how, parts in choices.items()}
    assert total["off"] > total["selective"] > total["layer"]

    def said(memory):
        shown = Console(record=True, width=100, file=io.StringIO())
        show_plan({"plan": make_plan(recipe, batch, 1, 1, memory)}, shown)
        return shown.export_text()

    assert "fits into 1 GB\n" in said(1)
    tight = (total["layer"] + total["selective"]) / 2 / 0.92 / 1e9
    assert "GB with --train.activation-checkpointing layer\n" in said(tight)
    assert "does not fit into 1e-05 GB: fewer --batch-tokens" in said(1e-5)


def test_gradients_take_the_place_of_activations_within_a_batch():
    recipe = Recipe("x", replace(GPT, d_model=256))
    few, many = (make_plan(recipe, n * GPT.max_len, 1, 1, 80)["bytes"]["layer"] for n in (1, 500))
    assert few["further gradients"] > 0 == many["further gradients"]
    apart = Recipe("x", recipe.model, train=TrainConfig(grad_accumulation=2))
    for n in (1, 500):
        parts = make_plan(apart, n * GPT.max_len, 1, 1, 80)["bytes"]["layer"]
        assert parts["further gradients"] == parts["weights"]


def test_a_small_model_waits_for_its_kernels():
    """No step is faster than its kernels are launched, of which a layer has dozens."""
    plan = make_plan(load_recipe("reverse"), 0, 4, 2, 80)
    layers = 2 * load_recipe("reverse").model.layers
    assert plan["seconds"]["step"] > layers * 10 * 7e-6
    assert plan["tokens_per_second"] < 1e6
    assert plan["waits_for_launches"]
    twice = make_plan(load_recipe("reverse"), 128, 4, 2, 80)
    assert twice["seconds"]["computing"] == plan["seconds"]["computing"]
    # Two layers' three attentions and two sub-layers more: some 20 sums wait for one another.
    assert 1e-4 < plan["seconds"]["waiting for sums"] < 1e-3


MEASURED = {  # benchmarks/results/2026-11-19-h200.md: rows, tokens/s; a pair counts as one token
    "the paper's base model, 512 rows": (BASE, "translation", 512, 2_010_268 / 2),
    "the paper's base model, 2,048 rows": (BASE, "translation", 2048, 2_239_568 / 2),
    "GPT-2 124M": (GPT2, "writing", 32, 551_696),
    "BERT-base": (BERT, "filling", 64, 687_596),
}


@pytest.mark.parametrize("name", MEASURED)
def test_rates_are_those_that_were_measured(name):
    sizes, family, rows, measured = MEASURED[name]
    sizes = {key.replace("masked_len", "max_len"): size for key, size in sizes.items()}
    config = ModelConfig(**{"max_len": 32, **sizes, **FAMILIES[family]})
    plan = make_plan(Recipe("x", config), rows * config.max_len, 1, 1, 141)
    assert plan["tokens"] == rows * config.max_len
    assert plan["tokens_per_second"] == pytest.approx(measured, rel=0.06)
    assert not plan["waits_for_launches"]


def test_a_large_model_fits_as_it_was_measured():
    """Out of memory without checkpointing, 42.4 GB and 49,991 tokens/s with it, on an H200."""
    config = ModelConfig(family="decoder-only", **LARGE, **SHAPE)
    recipe = Recipe("x", config, train=TrainConfig(master_weights=True))
    plan = make_plan(recipe, 64 * config.max_len, 1, 1, 150)
    assert plan["bytes"]["off"]["total"] > 150e9
    assert plan["bytes"]["layer"]["total"] == pytest.approx(42.4e9, rel=0.1)
    only = make_plan(recipe, 64 * config.max_len, 1, 1, 60)
    assert only["activation_checkpointing"] == "layer"
    assert only["tokens_per_second"] == pytest.approx(49_991, rel=0.06)


@pytest.mark.parametrize("config", [GPT, BOTH, BERT_LIKE], ids=lambda config: config.family)
def test_more_work_takes_longer(config, monkeypatch):
    monkeypatch.setattr("limelight.workflows.plan.activation_memory", lambda *_: (0, 0))  # slow

    def seconds(batch=0, devices=1, tensor=1, **model):
        recipe = Recipe("x", replace(config, **model))
        return make_plan(recipe, batch, devices, tensor, 80)["seconds"]

    def steps(name, *values):
        return [seconds(**{name: value})["step"] for value in values]

    for found in (
        steps("batch", 48, 4800, 48 * 10**5, 48 * 10**6, 48 * 10**7),
        steps("layers", 2, 4, 8, 16),
        steps("d_model", 64, 256, 512, 640, 768, 1024),
        steps("max_len", 48, 96, 4096),
        steps("devices", 1, 2, 8, 16),
        steps("vocab", 50, 50_000, 5_000_000),
    ):
        assert found == sorted(found)
    assert steps("batch", 48, 480)[0] == steps("batch", 48, 480)[1]  # both wait for launches
    assert 9 < seconds(48 * 10**8)["step"] / seconds(48 * 10**7)["step"] < 11
    assert 0 == seconds()["waiting for sums"] < seconds(devices=2, tensor=2)["waiting for sums"]


def test_a_wider_model_uses_more_of_the_rate():
    shares = [training_share(d) for d in (1, 64, 256, 512, 600, 768, 1024, 2048, 4096, 12_288)]
    assert shares == sorted(shares)
    assert shares[-1] == shares[-3] < 1
    assert training_share(256) == training_share(512) / 2


@pytest.mark.parametrize("name", ["bert-base", "classify", "sentence-encoder", "captioned-images"])
def test_models_of_all_kinds_are_planned(name):
    plan = make_plan(load_recipe(name), 0, 2, 1, 80)
    assert plan["activation_checkpointing"] == "off"
    assert plan["bytes"]["off"]["activations"] > plan["bytes"]["layer"]["activations"] > 0
    assert plan["tokens_per_second"] > 0


@pytest.mark.parametrize(
    ("name", "devices", "tensor", "where"),
    [
        ("gpt3-175b", 1024, 8, "2,048 tokens on every 8 of 1,024 devices"),
        ("reverse", 4, 1, "tokens on each of 4 devices"),
        ("reverse", 1, 1, "tokens on one device"),
    ],
)
def test_one_table_tells_the_memory_of_a_training(name, devices, tensor, where):
    recipe = load_recipe(name)
    facts = add_plan(describe(recipe, 0, devices), recipe, 0, devices, tensor, 80)
    shown = Console(record=True, width=80, file=io.StringIO())
    show(facts, shown)
    show_plan(facts, shown)
    said = shown.export_text()
    assert f"{where}, by activation checkpointing:" in " ".join(said.split())
    assert said.count("optimizer") == 1
    assert said.count("weights and gradients (FSDP)") == (devices > tensor)
    assert "training in float32" not in said


def test_a_plan_is_made_when_it_is_asked_for():
    recipe = Recipe("x", GPT)
    assert "plan" not in add_plan({}, recipe, 0, 1, 1, 0)
    assert "plan" not in add_plan({}, load_recipe("reverse-lstm"), 0, 4, 1, 0)
    assert add_plan({}, recipe, 0, 4, 1, 0)["plan"]["device_gb"] == 141
    assert add_plan({}, recipe, 0, 1, 1, 24)["plan"]["device_gb"] == 24
    with pytest.raises(UserError, match="--tp 3 must divide --devices 4"):
        make_plan(recipe, 0, 4, 3, 80)
    with pytest.raises(UserError, match="must divide kv_heads=4"):
        make_plan(recipe, 0, 8, 8, 80)
