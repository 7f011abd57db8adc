"""A model may be changed after its first answer: its next answer is the changed model's."""

import copy
import pickle
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.nn.utils import parametrize, prune, vector_to_parameters

from limelight.decode import simple
from limelight.decode.accel import Accelerated
from limelight.decode.accel.changes import Snapshot, unknown_part
from limelight.decode.accel.cpu.model import CpuModel
from limelight.decode.config import DecodeConfig
from limelight.decode.engine import Engine
from limelight.model.attention import Attention, explicit_attention
from limelight.model.taps import Recorder
from limelight.training.dropout import use_fast_cpu_dropout
from limelight.training.fast_layers import use_kernels
from tests.decode.samples import END, FAMILIES, Letters, requests_for, tiny

VOCAB = 12
TRANSFORMERS = FAMILIES[:2]


def new_model(family, seed=3):
    """One in which every part has a say; few of its texts end early."""
    model = tiny(family, seed, vocab=VOCAB)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(std=0.5).add_(name.endswith("norm.weight"))
        model.classifier.weight[END] = 0
    return model


def linear(model):
    """A layer that both families of Transformers have, with a fused copy of its weights."""
    return model.decoder.layers[0].self_attention.value


def twice(*given):
    return 2 * given[-1]


class Twice(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return 2 * (x if self.inner is None else self.inner(x))


CHANGES = {}


def change(kind):
    CHANGES[kind.__name__] = kind
    return kind


@change
def in_place(model, _):
    with torch.no_grad():
        linear(model).weight.mul_(-1)


@change
def in_place_in_inference_mode(model, _):
    with torch.inference_mode():
        linear(model).weight.mul_(-1)


@change
def a_bias_in_place(model, _):
    with torch.no_grad():
        model.decoder.layers[0].feed_forward.outer.bias.add_(torch.arange(8))


@change
def one_number_in_place(model, _):
    with torch.no_grad():
        linear(model).weight[5, 2] += 3


@change
def data_in_place(model, _):
    linear(model).weight.data.mul_(-1)


@change
def a_row_of_data(model, _):
    linear(model).weight.data[5] = 3


@change
def a_column_of_data(model, _):
    linear(model).weight.data[:, 2] = 3


@change
def data_of_one_token(model, _):
    model.target.tokens.weight.data[1] = torch.arange(8) - 3.5


@change
def numpy_memory(model, _):
    linear(model).weight.detach().numpy()[:] *= -1


@change
def assigned_data(model, _):
    """Twice: the memory of the first may have been free, and used again by the second."""
    for _ in range(2):
        linear(model).weight.data = linear(model).weight.data * 3


@change
def vector_of_parameters(model, _):
    sizes = sum(p.numel() for p in model.parameters())
    vector_to_parameters(torch.linspace(-1, 1, sizes, dtype=torch.float64), model.parameters())


@change
def a_new_parameter(model, _):
    linear(model).weight = nn.Parameter(-linear(model).weight.detach())


@change
def a_deleted_bias(model, _):
    linear(model).bias = None


@change
def state_dict(model, _):
    model.load_state_dict(new_model(model.config.family, seed=8).state_dict())


@change
def assigned_state_dict(model, _):
    model.load_state_dict(new_model(model.config.family, seed=8).state_dict(), assign=True)
    model.tie()


def step_of(optimizer, model, **options):
    optimizer = optimizer(model.parameters(), lr=0.3, **options)
    sides = [torch.tensor([[1, 3, 4, 5]])] * (2 if "encoder" in model.config.family else 1)
    model(*sides).logsumexp(dim=-1).sum().backward()
    optimizer.step()


@change
def an_sgd_step(model, _):
    step_of(torch.optim.SGD, model)


@change
def an_adam_step(model, _):
    step_of(torch.optim.AdamW, model)


@change
def a_fused_adam_step(model, _):
    step_of(torch.optim.AdamW, model, fused=True)


@change
def a_hook(model, _):
    linear(model).register_forward_hook(twice)


@change
def a_hook_with_keywords(model, _):
    linear(model).register_forward_hook(
        lambda module, args, kwargs, output: 2 * output, with_kwargs=True
    )


@change
def a_pre_hook(model, _):
    linear(model).register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))


@change
def a_hook_on_the_classifier(model, _):
    model.classifier.register_forward_hook(lambda module, inputs, output: -output)


@change
def a_hook_on_all_modules(model, undo):
    def double(module, inputs, output):
        return 2 * output if module is linear(model) else None

    undo(register_module_forward_hook(double).remove)


@change
def a_pre_hook_on_all_modules(model, undo):
    def double(module, inputs):
        return (2 * inputs[0],) if module is linear(model) else None

    undo(register_module_forward_pre_hook(double).remove)


@change
def a_module_of_the_same_kind(model, _):
    torch.manual_seed(8)
    model.decoder.layers[0].feed_forward.inner = nn.Linear(8, 16, dtype=torch.float64)


@change
def a_foreign_module(model, _):
    model.decoder.layers[0].self_attention.value = Twice(linear(model))


@change
def a_foreign_norm(model, _):
    model.decoder.layers[0].self_residual.norm = Twice()


@change
def a_removed_layer(model, _):
    model.decoder.layers = model.decoder.layers[:0]


@change
def a_layer_in_two_places(model, _):
    model.decoder.layers.append(model.decoder.layers[0])
    if "encoder" in model.config.family:
        model.encoder.layers.append(model.encoder.layers[0])
    model.config = replace(model.config, layers=2)


@change
def a_patched_forward(model, _):
    inner, forward = linear(model), linear(model).forward
    inner.forward = lambda x: 2 * forward(x)


@change
def a_patched_method(model, _):
    attention = model.decoder.layers[0].self_attention
    keys_values = attention.keys_values
    attention.keys_values = lambda states: keys_values(2 * states)


@change
def a_patched_class(model, undo):
    forward = Attention.forward
    undo(lambda: setattr(Attention, "forward", forward))
    Attention.forward = lambda *given, **named: 2 * forward(*given, **named)


@change
def a_parametrization(model, _):
    parametrize.register_parametrization(linear(model), "weight", Twice())


@change
def pruned_weights(model, _):
    prune.l1_unstructured(linear(model), "weight", 0.5)


@change
def a_setting_of_a_norm(model, _):
    model.decoder.layers[0].self_residual.norm.eps = 3.0


@change
def a_setting_of_the_embedding(model, _):
    model.target.scale = 7.0


@change
def another_activation(model, _):
    model.decoder.layers[0].feed_forward.activate = torch.sin


@change
def another_attention(model, _):
    def attend(q, k, v, *others):
        return explicit_attention(2 * q, k, -v, *others)

    model.decoder.layers[0].self_attention.attend = attend


@change
def another_precision(model, _):
    model.to(torch.bfloat16).to(torch.float64)


CROSS = {}  # for models that read a source


def cross_change(kind):
    CROSS[kind.__name__] = kind
    return kind


@cross_change
def no_cross_attention(model, _):
    with torch.no_grad():
        for weight in model.decoder.layers[0].cross_attention.output.parameters():
            weight.zero_()


@cross_change
def keys_of_the_source(model, _):
    with torch.no_grad():
        model.decoder.layers[0].cross_attention.key.weight.mul_(-5)


@cross_change
def an_encoder_in_place(model, _):
    with torch.no_grad():
        model.encoder.layers[0].feed_forward.outer.weight.mul_(-5)


@cross_change
def a_hook_on_the_encoder(model, _):
    model.encoder.register_forward_hook(twice)


@cross_change
def an_untied_table(model, _):
    model.source.tokens.weight = nn.Parameter(model.source.tokens.weight.detach().flip(0))


RECURRENT = {
    name: {
        "in_place": lambda model, _: model.decoder.cell.weight_hh_l0.detach().mul_(-2),
        "data_in_place": lambda model, _: model.classifier.weight.data.mul_(-1),
        "a_hook": lambda model, _: model.classifier.register_forward_hook(twice),
        "a_foreign_module": lambda model, _: setattr(model, "classifier", Twice(model.classifier)),
    }
    for name in FAMILIES[2:]
}
CASES = [
    *((family, name, kind) for family in TRANSFORMERS for name, kind in CHANGES.items()),
    *(("encoder-decoder", name, kind) for name, kind in CROSS.items()),
    *((family, *change) for family, changes in RECURRENT.items() for change in changes.items()),
]
EVERY = pytest.mark.parametrize(
    ("family", "kind"),
    [pytest.param(family, kind, id=f"{family}-{name}") for family, name, kind in CASES],
)
STALE = pytest.mark.parametrize(
    ("family", "kind"),
    [
        pytest.param(family, kind, id=f"{family}-{name}")
        for family, name, kind in CASES
        if family in TRANSFORMERS
    ],
)


@pytest.fixture
def undo():
    """What a test must take back, as it changes more than its model."""
    steps = []
    yield steps.append
    for step in reversed(steps):
        step()


def answers(engine, requests, beam):
    found = engine.generate(requests, DecodeConfig(beam=beam, length_penalty=0.6))
    return [texts[0] for texts in found]


def plain(model, requests, beam):
    if beam == 1:
        return [simple.greedy_search(model, request, END) for request in requests]
    return [simple.beam_search(model, request, END, beam)[0] for request in requests]


def agree(found, wanted):
    return [a.tokens for a in found] == [b.tokens for b in wanted] and all(
        a.logprobs == pytest.approx(b.logprobs, rel=1e-4, abs=1e-5)
        for a, b in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("beam", [1, 3])
@EVERY
def test_the_next_answer_is_the_changed_models(family, kind, beam, undo):
    used, fresh = new_model(family), new_model(family)
    requests, engine = requests_for(used, 3, 8), Engine([used], Letters(VOCAB))
    before = answers(engine, requests, beam)
    kind(used, undo)
    kind(fresh, undo)
    after = answers(engine, requests, beam)
    assert agree(after, answers(Engine([fresh], Letters(VOCAB)), requests, beam))
    assert agree(after, plain(used, requests, beam))
    assert not agree(after, before)


@STALE
def test_without_the_check_the_answer_is_wrong(family, kind, undo, monkeypatch):
    """The control: every change above is one that accelerators do not see by themselves."""
    monkeypatch.setattr(Snapshot, "holds", lambda _: True)
    used = new_model(family)
    requests, engine = requests_for(used, 3, 8), Engine([used], Letters(VOCAB))
    answers(engine, requests, 3)
    kind(used, undo)
    try:
        after = answers(engine, requests, 3)
    except (AttributeError, RuntimeError):
        return
    assert not agree(after, plain(used, requests, 3))


@pytest.mark.parametrize("family", TRANSFORMERS)
def test_an_unchanged_model_is_accelerated_once(family):
    model = new_model(family)
    engine = Engine([model], Letters(VOCAB))
    fast = engine.model
    assert isinstance(fast, CpuModel)
    answers(engine, requests_for(model, 2, 4), 2)
    with Recorder(model) as recorder:  # which adds hooks, and removes them
        assert engine.model is model
        simple.next_logprobs(recorder.model, requests_for(model, 1, 4)[0], [[3]])
    again = engine.model
    assert isinstance(again, CpuModel)
    assert engine.model is again
    model.some_note = "of a user"  # and what nothing computes with is no part of it
    assert isinstance(engine.model, CpuModel)


@pytest.mark.parametrize("family", TRANSFORMERS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"norm_order": "post"},
        {"norm": "rms", "positions": "rotary", "activation": "swiglu", "bias": False},
        {"positions": "learned", "activation": "gelu-tanh", "tied": False},
        {"dropout": 0.3, "attention_dropout": 0.2},
    ],
)
def test_what_build_makes_is_known(family, settings):
    other = tiny_with(family, settings)
    assert unknown_part(other) == ""
    assert isinstance(Accelerated(other).model, CpuModel)
    use_fast_cpu_dropout(other)  # as training does
    if find_spec("triton"):
        use_kernels(other, 16)
    assert isinstance(Accelerated(other).model, CpuModel)
    other.train()
    assert unknown_part(other) == "another `training` in the model itself"
    assert Accelerated(other).model is other


def tiny_with(family, settings):
    from limelight.model import build, model_config

    settings = {"layers": 2, "d_model": 8, "heads": 2, "d_ff": 16, "max_len": 64, **settings}
    return build(model_config(family=family, vocab=VOCAB, **settings)).eval()


def test_a_removed_hook_leaves_an_accelerated_model():
    model = new_model("decoder-only")
    engine = Engine([model], Letters(VOCAB))
    hook = linear(model).register_forward_hook(twice)
    assert engine.model is model
    hook.remove()
    assert isinstance(engine.model, CpuModel)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_used_engine_can_be_copied(family, copied):
    engine = Engine([new_model(family)], Letters(VOCAB))
    requests = requests_for(engine.accelerated[0].original, 3, 8)
    first = answers(engine, requests, 2)
    twin = copied(engine)
    assert agree(answers(twin, requests, 2), first)
    with torch.no_grad():
        twin.accelerated[0].original.classifier.weight.mul_(-1)
    shared = twin.accelerated[0].original is engine.accelerated[0].original
    assert not agree(answers(twin, requests, 2), first)
    assert agree(answers(engine, requests, 2), first) == (not shared)


def test_each_model_of_an_ensemble_is_checked():
    models = [new_model("encoder-decoder", seed) for seed in (3, 4)]
    requests, engine = requests_for(models[0], 3, 8), Engine(models, Letters(VOCAB))
    before = answers(engine, requests, 2)
    in_place(models[1], None)
    after = answers(engine, requests, 2)
    assert not agree(after, before)
    assert agree(after, answers(Engine(models, Letters(VOCAB)), requests, 2))


@pytest.mark.parametrize(
    "shape", [(7,), (1, 6), (6, 1), (6, 6), (12, 5), (5, 12), (4, 6, 9), (3, 8)]
)
def test_every_row_and_column_is_sampled(shape):
    """Of the numbers that are compared when nothing else tells of a change."""
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(shape))
    snapshot, flat = Snapshot(model), model.weight.data.view(-1, shape[-1])
    assert snapshot.holds()
    for lines in (flat, flat.t()):
        for line in lines:
            line.fill_(1)
            assert not snapshot.holds()
            line.zero_()
            assert snapshot.holds()
