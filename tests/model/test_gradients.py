"""Gradients of every layer of ours, against finite differences in double precision."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.func import functional_call

from limelight.model import ModelConfig, RecurrentConfig
from limelight.model.attention import Attention, attention_mask, explicit_attention
from limelight.model.encoder_only import ClassificationHead, MaskedLMHead
from limelight.model.layers import FeedForward, Layer, Residual
from limelight.model.positions import LearnedPositions, rotation, sinusoids
from limelight.model.recurrent import AdditiveAttention, RecurrentStack
from limelight.model.stack import Classifier, Embedding, Stack
from tests.model.samples import TRANSFORMERS, VARIANTS, small, tokens

REAL = torch.tensor([[True, True, True], [True, True, False]])


def randomised(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return module.double()


def check(module, *inputs, **options):
    """Of the inputs that are floating point, and of all parameters."""
    names, parameters = zip(*module.named_parameters(), strict=True)
    moving = [x.requires_grad_() for x in inputs if x.is_floating_point()]

    def function(*values):
        given = iter(values[: len(moving)])
        arguments = [next(given) if x.is_floating_point() else x for x in inputs]
        weights = dict(zip(names, values[len(moving) :], strict=True))
        return functional_call(module, weights, tuple(arguments), options)

    assert gradcheck(function, (*moving, *parameters), fast_mode=False)


def config(**changes):
    return ModelConfig(
        **{"vocab": 5, "layers": 1, "d_model": 4, "heads": 2, "d_ff": 3, "dropout": 0.0, **changes}
    )


def x(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def turning(size):
    """Rotary positions of heads of this size."""
    return config(positions="rotary", head_dim=size)


@pytest.mark.parametrize("kv_heads", [2, 1])
@pytest.mark.parametrize("explicit", [True, False])
def test_attention(kv_heads, explicit):
    attention = randomised(Attention(config(kv_heads=kv_heads)))
    if explicit:
        attention.attend = explicit_attention
    check(attention, x(2, 3, 4))
    check(attention, x(2, 3, 4), causal=True)
    check(attention, x(2, 3, 4), mask=attention_mask(REAL, causal=True))
    check(attention, x(2, 2, 4), x(2, 3, 4), mask=attention_mask(REAL))
    check(
        attention,
        x(2, 3, 4),
        rope=rotation(torch.arange(3), turning(2), torch.float64),
        causal=True,
    )


@pytest.mark.parametrize("activation", ["gelu", "gelu-tanh", "silu", "swiglu"])
def test_feed_forward(activation):
    check(randomised(FeedForward(config(activation=activation))), x(2, 3, 4))


def test_feed_forward_with_relu_away_from_its_corner():
    layer = randomised(FeedForward(config()))
    inside = x(1, 3, 4)
    assert layer.inner(inside).abs().min() > 1e-4  # no difference quotient may step over the corner
    check(layer, inside)


@pytest.mark.parametrize("norm_order", ["post", "pre"])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_residual_and_layer(norm_order, norm):
    changes = {"norm_order": norm_order, "norm": norm, "activation": "gelu"}
    residual = randomised(Residual(config(**changes)))
    check(residual, x(2, 3, 4), sublayer=torch.sin)
    check(
        randomised(Layer(config(**changes), cross=True)),
        x(2, 2, 4),
        mask=None,
        causal=True,
        memory=x(2, 3, 4),
        memory_mask=attention_mask(REAL),
    )


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_embedding_stack_and_classifier(positions):
    changes = config(positions=positions, activation="gelu", norm_order="pre", max_len=3)
    ids, places = tokens(2, 3) % 5, torch.arange(3)
    check(randomised(Embedding(changes, 5, segments=2, norm=True)), ids, places, ids % 2)
    check(randomised(Stack(changes)), x(2, 3, 4), places, mask=attention_mask(REAL))
    check(randomised(Classifier(5, 4, bias=True)), x(2, 3, 4))


def test_positions():
    check(randomised(LearnedPositions(3, 4)), torch.arange(3), dtype=torch.float64)
    turn = rotation(torch.arange(3), turning(4), torch.float64)
    assert gradcheck(turn, x(1, 2, 3, 4).requires_grad_())
    assert sinusoids(torch.arange(3), 4, torch.float64).requires_grad is False


def test_heads_of_the_encoder():
    check(randomised(MaskedLMHead(config(activation="gelu"))), x(2, 4))
    check(randomised(ClassificationHead(config(), 3)), x(2, 4))


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_recurrent_layers(cell):
    sizes = RecurrentConfig(
        family="recurrent-encoder-decoder", vocab=5, d_model=4, layers=1, cell=cell, dropout=0.0
    )
    reader = randomised(RecurrentStack(sizes, both_ways=True))
    for real in (None, REAL, REAL.flip(1)):
        check(Flat(reader, real), x(2, 3, 4))
    check(randomised(AdditiveAttention(4)), x(2, 2, 4), x(2, 3, 4), x(2, 3, 4), mask=REAL[:, None])


class Flat(torch.nn.Module):
    """A reader whose tuple of outputs gradcheck can take."""

    def __init__(self, reader, real):
        super().__init__()
        self.reader, self.real = reader, real

    def forward(self, x):
        states, hidden = self.reader(x, None, self.real)
        return torch.cat([states.flatten(), *(h.flatten() for h in hidden)])


@pytest.mark.parametrize("family", TRANSFORMERS)
@pytest.mark.parametrize("variant", ["rotary", "llama", "grouped"])
def test_a_whole_model(family, variant):
    changes = {**VARIANTS[variant], "d_model": 8, "layers": 1, "d_ff": 4, "vocab": 7}
    model = small(family, **changes)
    inputs = [tokens(1, 3) % 7] * (2 if family == "encoder-decoder" else 1)
    parameters = list(model.parameters())
    names = [name for name, _ in model.named_parameters()]

    def loss(*values):
        out = functional_call(model, dict(zip(names, values, strict=True)), tuple(inputs))
        return out.log_softmax(-1)[..., 0].sum()

    assert gradcheck(loss, tuple(parameters), fast_mode=True)
