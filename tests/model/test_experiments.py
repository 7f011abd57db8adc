"""Experimental settings: each takes one part of the paper's model away, and nothing else."""

import pytest
import torch

from limelight.model import ModelConfig, build
from limelight.model.attention import explicit_attention, fused_attention
from limelight.model.taps import Recorder, dataflow
from tests.model.samples import EXPERIMENTS, SWITCHED, begin, has_source, logits, small, tokens
from tests.model.test_look_ahead import LENGTH, sees_ahead_by_gradient, sees_ahead_by_value

WRITING = [(family, switch) for family, switch in SWITCHED if family != "encoder-only"]
EVERY_PAIR = [(i, j) for i in range(LENGTH) for j in range(i + 1, LENGTH)]


def test_the_settings_in_use_are_listed():
    assert ModelConfig(vocab=9).experiments == {}
    for changes in EXPERIMENTS.values():
        used = {name: value for name, value in changes.items() if name != "norm_order"}
        assert ModelConfig(vocab=9, **changes).experiments == used


@pytest.mark.parametrize(("family", "switch"), SWITCHED)
def test_what_is_switched_off_has_no_weights_and_the_rest_keeps_its_names(family, switch):
    order = {"norm_order": EXPERIMENTS[switch].get("norm_order", "post")}
    full = small(family, positions="learned", **order).state_dict()
    left = small(family, **{"positions": "learned", **EXPERIMENTS[switch]}).state_dict()
    gone = full.keys() - left.keys()
    assert left.keys() <= full.keys()
    off = [mark for mark in ("norm", "positions") if EXPERIMENTS[switch].get(mark) == "none"]
    assert {name for name in full if any(f"{mark}." in name for mark in off)} == gone


@pytest.mark.parametrize(("family", "switch"), WRITING)
def test_cached_equals_uncached(family, switch):
    model = small(family, **EXPERIMENTS[switch])
    source, target = tokens(3, 5), tokens(3, 6)
    state = begin(model, source)
    with torch.no_grad():
        expected = logits(model, source, target)
        model.step(target[:, :3], state)
        state.select(torch.tensor([2, 0]))
        for t in range(3, 6):
            found = model.step(target[[2, 0], t : t + 1], state)
            torch.testing.assert_close(found, expected[[2, 0], t], rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize(("family", "switch"), SWITCHED)
def test_traced_equals_untraced_and_copies_are_copies(family, switch):
    model = small(family, **EXPERIMENTS[switch])
    given = [tokens(2, 5), tokens(2, 4)] if has_source(model) else [tokens(2, 5)]
    with torch.no_grad(), Recorder(model) as recorder:
        traced = recorder.model(*given)
    with torch.no_grad():
        torch.testing.assert_close(traced, model(*given), rtol=1e-10, atol=1e-10)
    flow = dataflow(model.config)
    assert list(recorder.values) == list(flow)
    for name, tap in flow.items():
        parts = [recorder[source] for source in tap.sources]
        if tap.op == "copy":
            assert torch.equal(recorder[name], parts[0])
        elif name.endswith(".add"):
            torch.testing.assert_close(recorder[name], parts[0] + parts[1])


@pytest.mark.parametrize("causal", [False, True])
def test_without_scaling_both_attentions_are_equal(causal):
    q, k, v = torch.randn(3, 2, 4, 5, 8, dtype=torch.float64)
    fused = fused_attention(q, k, v, None, causal, 0.0, scaling=False)
    seen = {}
    explicit = explicit_attention(q, k, v, None, causal, scaling=False, watch=seen.setdefault)
    torch.testing.assert_close(fused, explicit)
    assert torch.equal(seen["scaled"], seen["scores"])
    assert not torch.allclose(fused, fused_attention(q, k, v, None, causal, 0.0))


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only"])
def test_without_the_mask_training_looks_ahead_and_writing_does_not(family):
    model, source, target = small(family, mask=False, dropout=0.0), tokens(1, 6), tokens(1, LENGTH)
    assert sees_ahead_by_value(model, source, target) == []
    model.train()
    assert sorted(sees_ahead_by_value(model, source, target)) == EVERY_PAIR
    assert sees_ahead_by_gradient(model, source, target) == EVERY_PAIR


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only"])
def test_without_the_mask_padding_is_still_hidden(family):
    model = small(family, mask=False, dropout=0.0).train()
    source, target = tokens(2, 4), tokens(2, 7)
    real = torch.arange(7) < 5
    rest = {"target_real": real[None]} if has_source(model) else {"real": real[None]}
    given = (source,) if has_source(model) else ()
    rest = {name: value.expand(2, -1) for name, value in rest.items()}
    padded = model(*given, target, **rest)[:, :5]
    torch.testing.assert_close(padded, model(*given, target[:, :5]))
    assert not torch.allclose(model(*given, target)[:, :5], padded)  # the negative control


def test_without_positions_an_encoder_sees_no_order():
    order = torch.randperm(6)
    text = torch.arange(6)[None]
    for positions, same in (("none", True), ("sinusoidal", False), ("rotary", False)):
        model = small("encoder-only", positions=positions)
        with torch.no_grad():
            moved, states = model.encode(text[:, order]), model.encode(text)[:, order]
        assert torch.allclose(moved, states) == same


@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_without_the_residual_a_sub_layer_replaces_its_input(norm_order):
    """If one layer gives zeros, nothing of the text is left behind it."""
    for residual in (False, True):
        model = small("decoder-only", residual=residual, norm_order=norm_order)
        with torch.no_grad():
            for name in ("weight", "bias"):
                getattr(model.decoder.layers[0].feed_forward.outer, name).zero_()
            one, other = (model.decode(tokens(1, 5)) for _ in range(2))
        assert torch.allclose(one, other) == (not residual)


def test_any_number_of_heads_at_equal_width_has_as_many_weights():
    sizes = set()
    for heads in (1, 2, 4, 8, 16):
        model = small("encoder-decoder", heads=heads)
        assert logits(model, tokens(2, 3), tokens(2, 4)).isfinite().all()
        sizes.add(sum(weight.numel() for weight in model.parameters()))
    assert len(sizes) == 1


def test_defaults_start_from_the_same_weights_as_before():
    """The settings draw no random numbers, so a seed still gives the model that it gave."""

    def start(**changes):
        torch.manual_seed(1)
        return build(ModelConfig(vocab=9, layers=1, d_model=8, heads=2, **changes)).state_dict()

    plain = start()
    for changes in ({"scaling": False}, {"mask": False}, {"residual": False}, {"norm": "none"}):
        for name, weight in start(**changes).items():
            assert torch.equal(weight, plain[name])
