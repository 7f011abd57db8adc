"""Watching changes nothing, costs nothing when off, and every name is held here."""

import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from limelight.errors import UserError
from limelight.model.attention import fused_attention
from limelight.model.taps import Recorder, taps
from tests.model.samples import TRANSFORMERS, VARIANTS, begin, has_source, small, tokens

INSIDE = ["q", "k", "v", "scores", "scaled", "masked", "weights", "mixed"]
EQUATION = ["query", "key", "value", *INSIDE, "concat", "output"]


def layer(name: str, cross: bool, norm_order: str, gate: bool = False) -> list[str]:
    """The names of one layer, in the order in which they happen."""
    names = []
    for part in ("self", "cross", "feed_forward") if cross else ("self", "feed_forward"):
        inner = (["gate"] if gate else []) + ["inner", "active", "output"]
        inner = inner if part == "feed_forward" else EQUATION
        around = [*inner, "add", "norm"] if norm_order == "post" else ["norm", *inner, "add"]
        names += [f"{name}.{part}.{step}" for step in around]
    return names


# The list for each family. Explanations, pages and other people's notebooks rely on these names.
EXPECTED = {
    "encoder-decoder": [
        "encoder.embedding",
        "encoder.positions",
        "encoder.input",
        *layer("encoder.0", False, "post"),
        *layer("encoder.1", False, "post"),
        "encoder.output",
        "decoder.embedding",
        "decoder.positions",
        "decoder.input",
        *layer("decoder.0", True, "post"),
        *layer("decoder.1", True, "post"),
        "decoder.output",
        "logits",
    ],
    "decoder-only": [
        "decoder.embedding",
        "decoder.positions",
        "decoder.input",
        *layer("decoder.0", False, "post"),
        *layer("decoder.1", False, "post"),
        "decoder.output",
        "logits",
    ],
    "encoder-only": [
        "encoder.embedding",
        "encoder.positions",
        "encoder.segments",
        "encoder.input",
        *layer("encoder.0", False, "post"),
        *layer("encoder.1", False, "post"),
        "encoder.output",
        "logits",
    ],
    "recurrent-encoder-decoder": [
        "encoder.embedding",
        "encoder.output",
        "decoder.embedding",
        "decoder.states",
        "decoder.cross.masked",
        "decoder.cross.weights",
        "decoder.cross.output",
        "logits",
    ],
    "recurrent-decoder-only": ["decoder.embedding", "decoder.states", "logits"],
}


def inputs(model):
    return [tokens(2, 5), tokens(2, 4)] if has_source(model) else [tokens(2, 5)]


@pytest.mark.parametrize("family", EXPECTED)
def test_the_names_of_each_family(family):
    model = small(family)
    assert list(taps(model)) == EXPECTED[family]


def test_names_follow_the_variant():
    llama = small("decoder-only", **VARIANTS["llama"])
    assert list(taps(llama)) == [
        "decoder.embedding",
        "decoder.input",
        *layer("decoder.0", False, "pre", gate=True),
        *layer("decoder.1", False, "pre", gate=True),
        "decoder.output",
        "logits",
    ]


@pytest.mark.parametrize("family", EXPECTED)
def test_one_pass_reaches_every_name_in_its_order(family):
    model = small(family)
    with Recorder(model) as recorder:
        output = recorder.model(*inputs(model))
    assert sorted(recorder.values) == sorted(EXPECTED[family])
    assert torch.equal(recorder["logits"], output)
    if not family.startswith("recurrent"):
        assert list(recorder.values) == EXPECTED[family]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", TRANSFORMERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_traced_equals_untraced(family, variant, dtype):
    model = small(family, dtype, **VARIANTS[variant])
    given = inputs(model)
    with torch.no_grad():
        fused = model(*given)
        with Recorder(model, names=[]):  # nothing watched: just the explicit path
            explicit = model(*given)
        with Recorder(model):
            traced = model(*given)
        after = model(*given)
    assert torch.equal(traced, explicit)
    assert torch.equal(after, fused)
    assert (traced - fused).abs().max() <= 1e-6 * fused.abs().max()


@pytest.mark.parametrize("family", ["recurrent-encoder-decoder", "recurrent-decoder-only"])
def test_traced_equals_untraced_for_recurrent_models(family):
    model = small(family)
    given = inputs(model)
    untraced = model(*given)
    with Recorder(model) as recorder:
        traced = model(*given)
    assert torch.equal(traced, untraced)
    assert torch.equal(recorder["logits"], untraced)


def test_one_recorder_at_a_time():
    model = small("decoder-only")
    with Recorder(model, "logits") as outer:
        with pytest.raises(UserError, match="recorded already"), Recorder(model):
            pass
        model(*inputs(model))
    assert list(outer.values) == ["logits"]
    with outer:
        assert outer.values == {}  # a new block starts afresh
    with Recorder(model):  # and after the refusal all is as before
        model(*inputs(model))


def test_recorded_values_fit_together():
    """Each value is the one that was used: recompute the next from it, across a whole layer."""
    model = small("encoder-decoder")
    with Recorder(model) as r, torch.no_grad():
        model(*inputs(model))
    at = "decoder.1.cross."
    layer = model.decoder.layers[1]
    q, k, v = (r[at + name] for name in "qkv")
    assert q.shape == (2, 4, 4, 4)  # B H T K: target positions ask
    assert k.shape == (2, 4, 5, 4)  # B H S K: source positions answer
    torch.testing.assert_close(r[at + "key"], layer.cross_attention.key(r["encoder.output"]))
    torch.testing.assert_close(
        r[at + "query"], layer.cross_attention.query(r["decoder.1.self.norm"])
    )
    torch.testing.assert_close(r[at + "scores"], q @ k.mT)
    torch.testing.assert_close(r[at + "weights"], (r[at + "scores"] / 2).softmax(-1))
    torch.testing.assert_close(r[at + "mixed"], r[at + "weights"] @ v)
    torch.testing.assert_close(r[at + "concat"], r[at + "mixed"].transpose(1, 2).flatten(2))
    torch.testing.assert_close(r[at + "add"], r["decoder.1.self.norm"] + r[at + "output"])
    torch.testing.assert_close(r[at + "norm"], layer.cross_residual.norm(r[at + "add"]))
    inner = r["decoder.1.feed_forward.inner"]
    assert torch.equal(r["decoder.1.feed_forward.active"], inner.relu())
    assert torch.equal(r["decoder.output"], r["decoder.1.feed_forward.norm"])
    embedded = r["encoder.embedding"] * 4 + r["encoder.positions"]
    torch.testing.assert_close(r["encoder.input"], embedded)


def test_pre_norm_adds_what_it_says():
    model = small("decoder-only", norm_order="pre")
    with Recorder(model) as r, torch.no_grad():
        model(*inputs(model))
    torch.testing.assert_close(
        r["decoder.0.self.add"], r["decoder.input"] + r["decoder.0.self.output"]
    )
    norm = model.decoder.layers[0].feed_forward_residual.norm
    torch.testing.assert_close(r["decoder.0.feed_forward.norm"], norm(r["decoder.0.self.add"]))


def test_a_filter_keeps_only_what_it_names_and_changes_no_value():
    model = small("encoder-decoder")
    given = inputs(model)
    with torch.no_grad():
        with Recorder(model) as everything:
            model(*given)
        with Recorder(model, ["encoder.*.self.weights", "logits"]) as some:
            model(*given)
    assert list(some.values) == ["encoder.0.self.weights", "encoder.1.self.weights", "logits"]
    for name, value in some.values.items():
        assert torch.equal(value, everything[name])


def test_unknown_names_raise():
    model = small("decoder-only")
    with pytest.raises(
        UserError, match=r"no tap 'decoder.0.self.weigths': .*decoder.0.self.weights"
    ):
        Recorder(model, ["decoder.0.self.weigths"])
    with pytest.raises(UserError, match="no tap 'encoder"):
        Recorder(model, ["encoder.*"])
    recorder = Recorder(model, ["logits"])
    with pytest.raises(UserError, match=r"no tap 'logit'.* did you mean 'logits'"):
        recorder["logit"]
    with pytest.raises(UserError, match="was not recorded: no pass went through it"):
        recorder["logits"]
    with pytest.raises(UserError, match="was not recorded: it was filtered out"):
        recorder["decoder.output"]
    with pytest.raises(UserError, match="Linear is not one of Limelight's models"):
        Recorder(nn.Linear(2, 2))


class Operations(TorchDispatchMode):
    """Counts what really runs."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_off_means_off():
    """Outside its block a recorder leaves no hook, no operation and no state-dict key behind."""
    model = small("encoder-decoder")
    untouched = copy.deepcopy(model)
    given = inputs(model)
    keys = list(model.state_dict())
    with pytest.raises(RuntimeError, match="on purpose"), Recorder(model):  # noqa: PT012
        model(*given)
        assert list(model.state_dict()) == keys
        raise RuntimeError("on purpose")
    assert list(model.state_dict()) == keys
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert getattr(module, "attend", fused_attention) is fused_attention
    with Operations() as before:
        expected = untouched(*given)
    with Operations() as after:
        got = model(*given)
    assert after.names == before.names
    assert torch.equal(got, expected)


def test_steps_can_be_watched_too():
    model = small("encoder-decoder")
    source, target = inputs(model)
    with Recorder(model, ["decoder.1.cross.weights"]) as recorder, torch.no_grad():
        recorder.model(source, target)
        full = recorder["decoder.1.cross.weights"]
        state = begin(recorder.model, source)
        for t in range(target.size(1)):
            recorder.model.step(target[:, t : t + 1], state)
            row = recorder["decoder.1.cross.weights"]
            torch.testing.assert_close(row, full[:, :, t : t + 1])


class Wrapper(nn.Module):
    """What a distributed wrapper looks like from outside."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *given):
        return self.module(*given)


def test_logits_stay_what_they_were_when_a_search_writes_over_them():
    model = small("decoder-only")
    with Recorder(model, ["logits"]) as recorder, torch.no_grad():
        given = recorder.model(tokens(2, 5))
        truth = given.clone()
        given.fill_(0)
    assert torch.equal(recorder["logits"], truth)


def test_compiled_and_wrapped_models_are_traced_underneath():
    model = small("decoder-only")
    given = inputs(model)
    with Recorder(model) as expected, torch.no_grad():
        model(*given)
    for wrapped in (Wrapper(model), torch.compile(model), Wrapper(torch.compile(model))):
        with Recorder(wrapped) as recorder, torch.no_grad():
            recorder.model(*given)
        assert recorder.model is model
        assert list(recorder.values) == list(expected.values)
    model.compile(backend="eager")
    model.decoder.layers[0].compile(backend="eager")
    with torch.no_grad():
        compiled = model(*given)
        with Recorder(model) as recorder:
            traced = recorder.model(*given)
    assert list(recorder.values) == list(expected.values)
    torch.testing.assert_close(traced, compiled)


def test_a_part_that_cannot_be_reached_is_said():
    model = small("decoder-only")
    model.decoder.layers[0] = torch.compile(model.decoder.layers[0])
    with pytest.raises(UserError, match=r"'decoder.0.self.query' cannot be reached"):
        Recorder(model)
