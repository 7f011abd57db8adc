"""`limelight info`: the published sizes, counted and not believed."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers as hf
from rich.console import Console
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from limelight.errors import UserError
from limelight.model import ModelConfig, RecurrentConfig, build
from limelight.recipe import Recipe, load_recipe, recipe_names
from limelight.workflows import info
from limelight.workflows.info import describe, kept_for_backward, short
from tests.model.samples import EXPERIMENTS


@cache
def facts_of(name):
    """Counted once for all tests: it takes a while for large and recurrent models."""
    return describe(load_recipe(name))


def test_the_papers_base_model_by_hand():
    d, ff, v, n = 512, 2048, 37_000, 6
    attention = 4 * (d * d + d)
    feed_forward = d * ff + ff + ff * d + d
    norm = 2 * d
    assert facts_of("wmt14-en-de-base")["parts"] == {
        "embedding": v * d,
        "encoder attention": n * attention,
        "encoder norms": n * 2 * norm,
        "encoder feed-forward": n * feed_forward,
        "decoder attention": n * 2 * attention,
        "decoder norms": n * 3 * norm,
        "decoder feed-forward": n * feed_forward,
        "classifier": v,
    }


@pytest.mark.parametrize(
    ("name", "ours", "published"),
    [
        ("wmt14-en-de-base", 63_119_496, 65_000_000),
        ("wmt14-en-de-big", 214_282_376, 213_000_000),
        ("gpt2-124m", 124_439_808, 124_000_000),
        ("bert-base", 110_106_428, 110_000_000),
        ("gpt3-175b", 174_604_259_328, 175_000_000_000),
    ],
)
def test_published_sizes(name, ours, published):
    facts = facts_of(name)
    assert facts["parameters"] == sum(facts["parts"].values()) == ours
    assert facts["published"]["parameters"] == published
    if round(ours / published, 2) != 1:
        assert facts["published"]["difference"], "a difference must be explained"


def test_no_vocabulary_gives_both_of_the_papers_counts():
    """What wmt14-en-de-base.toml says of table 3, so that it stays true."""
    fits = {}
    for name, millions in (("wmt14-en-de-base", 65), ("wmt14-en-de-big", 213)):
        config = load_recipe(name).model
        sizes = []
        for vocab in (1, 2):
            with torch.device("meta"):
                model = build(replace(config, vocab=vocab))
            sizes.append(sum(p.numel() for p in model.parameters()))
        rest, per_token = sizes[0] - (sizes[1] - sizes[0]), sizes[1] - sizes[0]
        fits[name] = [((millions + e) * 1e6 - rest) / per_token for e in (-0.5, 0, 0.5)]
    assert round(fits["wmt14-en-de-base"][1], -2) == 40_700
    assert round(fits["wmt14-en-de-big"][1], -2) == 35_700
    assert fits["wmt14-en-de-big"][2] < 37_000 < fits["wmt14-en-de-base"][0]


def test_same_count_as_hugging_face():
    with torch.device("meta"):
        gpt2, bert = hf.GPT2LMHeadModel(hf.GPT2Config()), hf.BertForPreTraining(hf.BertConfig())
    for name, theirs in (("gpt2-124m", gpt2), ("bert-base", bert)):
        count = facts_of(name)["parameters"]
        assert count == sum(p.numel() for p in theirs.parameters())


def test_multiply_adds_by_hand():
    d, ff, v, n, length = 768, 3072, 50_257, 12, 1024
    work = facts_of("gpt2-124m")["multiply_adds_per_token"]
    assert work == {
        "decoder": {"weights": n * (4 * d * d + 2 * d * ff), "positions": n * 2 * length * d},
        "classifier": {"weights": d * v, "positions": 0},
    }


def test_multiply_adds_of_grouped_heads_and_gates():
    config = ModelConfig(
        family="decoder-only", vocab=10, layers=1, d_model=8, heads=4, kv_heads=2, d_ff=12,
        activation="swiglu", max_len=16,
    )  # fmt: skip
    work = describe(Recipe("x", config))["multiply_adds_per_token"]["decoder"]
    assert work["weights"] == 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 12


@pytest.mark.parametrize("name", recipe_names())
def test_multiply_adds_are_all_there(name):
    recipe = load_recipe(name)
    config = recipe.model
    if recipe.data.kind == "labelled" and not config.classes:
        config = replace(config, classes=2)  # training counts them
    if isinstance(config, RecurrentConfig):  # a loop over each token: slow when counted in full
        config = replace(config, max_len=min(config.max_len, 64))
    with torch.device("meta"):
        model = build(config)
        text = torch.zeros(1, config.max_len, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(*([text, text] if config.family.endswith("encoder-decoder") else [text]))
    facts = facts_of(name) if config == recipe.model else describe(replace(recipe, model=config))
    parts = facts["multiply_adds_per_token"].values()
    total = sum(work["weights"] + work["positions"] for work in parts)
    assert total * 2 * config.max_len == counter.get_total_flops()


SMALL = {"vocab": 50, "d_model": 32, "max_len": 21}


def test_experiments_are_said_and_counted():
    """Norms have weights, and nothing else that can be switched off; none changes the MACs."""
    plain = describe(Recipe("x", ModelConfig(layers=2, heads=4, **SMALL)))
    assert plain["experiments"] == {}
    for changes in EXPERIMENTS.values():
        if "decoder_cell" in changes:
            continue
        facts = describe(Recipe("x", ModelConfig(layers=2, heads=4, **SMALL, **changes)))
        assert facts["experiments"] == {k: v for k, v in changes.items() if k != "norm_order"}
        counted = {part: n for part, n in facts["parts"].items() if "norms" not in part}
        assert counted == {part: n for part, n in plain["parts"].items() if "norms" not in part}
        assert any("norms" in part for part in facts["parts"]) == ("norm" not in changes)
        assert facts["multiply_adds_per_token"] == plain["multiply_adds_per_token"]
        shown = Console(record=True, width=100, file=io.StringIO())
        info.show(facts, shown)
        lines = [s for s in shown.export_text().splitlines() if s.startswith("experiment: ")]
        assert [line.split()[1] for line in lines] == list(facts["experiments"])


def test_an_ssru_is_counted():
    config = ModelConfig(layers=2, heads=4, **SMALL)
    plain = describe(Recipe("x", config))
    facts = describe(Recipe("x", replace(config, decoder_cell="ssru")))
    d, layers, length = 32, 2, SMALL["max_len"]
    assert facts["parts"]["decoder recurrent cells"] == layers * (2 * d * d + d)
    assert facts["parts"]["decoder attention"] == plain["parts"]["decoder attention"] // 2
    work, before = (x["multiply_adds_per_token"]["decoder"] for x in (facts, plain))
    assert work["weights"] == before["weights"] - layers * 2 * d * d
    assert work["positions"] == before["positions"] // 2  # cross-attention remains
    kept, was = (x["decoding_bytes"]["cache of one text"] for x in (facts, plain))
    assert kept == pytest.approx(was - 4 * layers * (2 * length * d - d), abs=64)


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(layers=5, heads=4, **SMALL),
        ModelConfig(layers=3, heads=4, decoder_cell="ssru", **SMALL),
        ModelConfig(
            family="decoder-only", layers=4, heads=4, norm_order="pre", dropout=0.0, **SMALL
        ),
        ModelConfig(family="encoder-only", layers=3, heads=4, classes=3, **SMALL),
        ModelConfig(family="decoder-only", layers=1, heads=4, positions="rotary", **SMALL),
        RecurrentConfig(family="recurrent-encoder-decoder", layers=2, **SMALL),
        RecurrentConfig(family="recurrent-encoder-decoder", cell="gru", attention=False, **SMALL),
        RecurrentConfig(family="recurrent-decoder-only", cell="rnn", layers=3, **SMALL),
        RecurrentConfig(family="recurrent-decoder-only", **{**SMALL, "max_len": 3}),
    ],
)
def test_what_is_extrapolated_equals_what_is_counted_in_full(config, monkeypatch):
    def in_full(count, config, length):
        with torch.device("meta"):
            return count(build(config), length)

    quick = describe(Recipe("x", config), batch_tokens=3 * config.max_len)
    monkeypatch.setattr(info, "extrapolate", in_full)
    assert describe(Recipe("x", config), batch_tokens=3 * config.max_len) == quick


def test_a_classifier_pays_for_its_classes_only():
    config = ModelConfig(
        family="encoder-only", vocab=30_000, layers=1, d_model=8, heads=1, classes=3
    )
    assert describe(Recipe("x", config))["training_bytes"]["logits"] == 3 * 4 * 3


def test_open_sizes_are_shown_as_they_turn_out():
    facts = facts_of("gpt2-124m")
    assert (facts["model"]["d_ff"], facts["model"]["kv_heads"]) == (3072, 12)


def test_sharding_divides_what_is_shared_and_adds_what_is_gathered():
    alone = facts_of("gpt3-175b")["training_bytes"]
    shared = describe(load_recipe("gpt3-175b"), devices=1000)["training_bytes"]
    parameters, layer = 174_604_259_328, 12 * 12_288**2 + 13 * 12_288
    for part, size in {"weights": 4, "gradients": 4, "optimizer": 8}.items():
        assert alone[part] == size * parameters
        assert shared[part] == size * parameters // 1000
    assert alone["gathered layers"] == 0
    assert shared["gathered layers"] == 2 * 4 * layer
    assert shared["activations"] == alone["activations"]  # each device has a batch of its own
    for memory in (alone, shared):
        parts = [n for key, n in memory.items() if key not in ("devices", "tokens", "total")]
        assert memory["total"] == sum(parts)


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(vocab=50, layers=2, d_model=32, heads=4, max_len=24),
        ModelConfig(
            family="decoder-only", vocab=50, layers=2, d_model=32, heads=4, max_len=24,
            positions="rotary", activation="swiglu", norm_order="pre", norm="rms", dropout=0.0,
        ),
        ModelConfig(family="encoder-only", vocab=50, layers=2, d_model=32, heads=4, max_len=24),
        RecurrentConfig(family="recurrent-decoder-only", vocab=50, d_model=32, max_len=24),
    ],
    ids=lambda config: config.family,
)  # fmt: skip
def test_the_estimate_of_activations_is_what_a_real_pass_keeps(config):
    model = build(config).train()
    text = torch.zeros(3, 24, dtype=torch.long)
    tokens = [text, text] if config.family == "encoder-decoder" else [text]
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def keep(value):
        storage = value.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return value

    with saved_tensors_hooks(keep, lambda value: value):
        output = model(*tokens)
    assert output.requires_grad
    real = sum(storage.nbytes() for storage in kept.values())
    with torch.device("meta"):
        estimate, _ = kept_for_backward(build(config), [t.to("meta") for t in tokens])
    if config.family.startswith("recurrent"):
        assert (
            real / 4 < estimate <= real
        )  # a lower bound: each kernel of a cell keeps its own extras
    else:
        assert abs(estimate - real) <= 0.06 * real


def test_decoding_memory_by_hand():
    n, g, k, length = 12, 12, 64, 1024
    memory = facts_of("gpt2-124m")["decoding_bytes"]
    assert memory["weights"] == 4 * 124_439_808
    assert abs(memory["cache of one text"] - 2 * n * g * length * k * 4) < 100  # and the counters
    assert "cache of one text" not in facts_of("bert-base")["decoding_bytes"]


def test_gpt3_takes_no_memory():
    command = (
        "from limelight.workflows.info import describe; from limelight.recipe import load_recipe;"
    )
    command += "describe(load_recipe('gpt3-175b'), devices=64);"
    peak = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    if Path("/proc/self/status").exists():  # there ru_maxrss begins at the parent's
        peak = "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    done = subprocess.run(
        [sys.executable, "-c", command + peak], capture_output=True, text=True, check=True
    )
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 1e9


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_can_be_described_and_survives_json(name):
    facts = facts_of(name)
    assert json.loads(json.dumps(facts)) == facts
    assert facts["about"]


def test_impossible_questions():
    recipe = load_recipe("reverse")
    with pytest.raises(UserError, match="--devices 0 is out of range"):
        describe(recipe, devices=0)
    with pytest.raises(UserError, match=r"--batch-tokens 3 is out of range: .* max_len=64"):
        describe(recipe, batch_tokens=3)


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (0, "", "0"),
        (999, "", "999"),
        (999.6, "", "1k"),
        (63_119_496, "", "63.1M"),
        (174_604_259_328, "", "175B"),
        (2.8e12, "B", "2.8TB"),
        (1.5e16, "B", "15000TB"),
    ],
)
def test_short_numbers(number, unit, text):
    assert short(number, unit) == text
