"""A position never sees what comes after it: all pairs at length 16, by value and by gradient."""

import pytest
import torch
from torch.nn import functional as F

from limelight.model import attention as attention_module
from limelight.model.attention import explicit_attention, fused_attention
from tests.model.samples import VARIANTS, VOCAB, begin, has_source, logits, small, tokens

LENGTH = 16
MODELS = [(family, v) for family in ("encoder-decoder", "decoder-only") for v in VARIANTS] + [
    ("recurrent-encoder-decoder", None),
    ("recurrent-decoder-only", None),
]


def make(family, variant, trained):
    model = small(family, **(VARIANTS[variant] if variant else {}))
    if trained:
        train_briefly(model)
    return model


def train_briefly(model):
    """Weights as training leaves them are not those of a random start: look at both."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(15):
        source, target = tokens(8, 6), tokens(8, LENGTH)
        out = logits(model.train(), source, target[:, :-1])
        loss = F.cross_entropy(out.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().zero_grad()


def sees_ahead_by_value(model, source, target) -> list[tuple[int, int]]:
    """Pairs (i, j), j > i, where another token at j changes the logits at i, in one pass."""
    changed = target.repeat(LENGTH, 1)  # row j has another token at place j
    changed[range(LENGTH), range(LENGTH)] = (target[0] + 1) % VOCAB
    with torch.no_grad():
        before = logits(model, source, target)[0]
        after = logits(model, source.expand(LENGTH, -1), changed)
    return [
        (i, j)
        for j in range(LENGTH)
        for i in range(j)
        if (after[j, i] - before[i]).abs().max() > 1e-12
    ]


def sees_ahead_by_gradient(model, source, target) -> list[tuple[int, int]]:
    """Pairs (i, j), j > i, where the logits at i have a gradient towards the token at j."""
    table = model.target if hasattr(model.target, "weight") else model.target.tokens
    kept = []
    hook = table.register_forward_hook(lambda _, __, out: kept.append(out.requires_grad_()) or out)
    out = logits(model, source, target)[0]
    hook.remove()
    pairs = []
    for i in range(LENGTH):
        (gradient,) = torch.autograd.grad(out[i].square().sum(), kept[-1], retain_graph=True)
        assert gradient[0, i].abs().max() > 0  # it does see itself
        pairs += [(i, j) for j in range(i + 1, LENGTH) if gradient[0, j].abs().max() != 0]
    return pairs


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(("family", "variant"), MODELS)
def test_no_look_ahead_in_one_pass(family, variant, trained):
    model = make(family, variant, trained)
    source, target = tokens(1, 6), tokens(1, LENGTH)
    assert sees_ahead_by_value(model, source, target) == []
    assert sees_ahead_by_gradient(model, source, target) == []


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(("family", "variant"), MODELS)
def test_no_look_ahead_with_a_cache(family, variant, trained):
    """A prompt of 16 tokens read at once: its keys and values up to i must not know of j > i."""
    model = make(family, variant, trained)
    source, target = tokens(1, 6), tokens(1, LENGTH)
    rows = target.repeat(LENGTH, 1)
    rows[range(LENGTH), range(LENGTH)] = (target[0] + 1) % VOCAB
    with torch.no_grad():
        for i in range(LENGTH - 1):
            real = (torch.arange(LENGTH) <= i).expand(LENGTH, LENGTH)
            state = begin(model, source.expand(LENGTH, -1))
            answer = model.step(rows, state, real)  # only the first i + 1 tokens are real
            later = model.step(target[:, i + 1 : i + 2].expand(LENGTH, -1), state)
            alone = begin(model, source)
            expected = model.step(target[:, : i + 1], alone)
            torch.testing.assert_close(
                answer[i + 1 :], expected.expand_as(answer[i + 1 :]), rtol=0, atol=1e-12
            )
            then = model.step(target[:, i + 1 : i + 2], alone)
            torch.testing.assert_close(
                later[i + 1 :], then.expand_as(later[i + 1 :]), rtol=0, atol=1e-12
            )


def sees_ahead_in_a_cache(model, source, target) -> list[tuple[int, int]]:
    """The same by gradient for a prompt that is read into a cache: states at i, tokens at j > i."""
    state = begin(model, source)
    state.begin(LENGTH)
    x = model.target(target, state.positions).detach().requires_grad_()
    states = model.decoder.step(x, state)[0]
    pairs = []
    for i in range(LENGTH):
        (gradient,) = torch.autograd.grad(states[i].pow(3).sum(), x, retain_graph=True)
        assert gradient[0, i].abs().max() > 0
        pairs += [(i, j) for j in range(i + 1, LENGTH) if gradient[0, j].abs().max() != 0]
    return pairs


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only"])
def test_no_gradient_towards_the_future_in_a_cache(family, variant, trained):
    model = make(family, variant, trained)
    assert sees_ahead_in_a_cache(model, tokens(1, 6), tokens(1, LENGTH)) == []


def blind(q, k, v, mask, causal, *others):
    return fused_attention(q, k, v, None, False, *others)


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only"])
def test_without_the_mask_these_tests_fail(family):
    """The negative control: every pair is found, both ways, once the mask is gone."""
    model = make(family, "paper", trained=False)
    for module in model.modules():
        if isinstance(module, attention_module.Attention):
            module.attend = blind
    source, target = tokens(1, 6), tokens(1, LENGTH)
    every_pair = [(i, j) for i in range(LENGTH) for j in range(i + 1, LENGTH)]
    assert sorted(sees_ahead_by_value(model, source, target)) == every_pair
    assert sees_ahead_by_gradient(model, source, target) == every_pair
    assert sees_ahead_in_a_cache(model, source, target) == every_pair


def test_an_encoder_does_look_both_ways():
    model = small("encoder-only")
    text = tokens(1, LENGTH)
    changed = text.clone()
    changed[0, -1] = (text[0, -1] + 1) % VOCAB
    with torch.no_grad():
        assert ((model(text) - model(changed)).abs().amax(-1) > 1e-9).all()


def test_the_explicit_path_does_not_look_ahead_either():
    model = make("encoder-decoder", "paper", trained=False)
    assert has_source(model)
    for module in model.modules():
        if isinstance(module, attention_module.Attention):
            module.attend = explicit_attention
    source, target = tokens(1, 6), tokens(1, LENGTH)
    assert sees_ahead_by_value(model, source, target) == []
    assert sees_ahead_by_gradient(model, source, target) == []
