"""The loss in chunks is torch's own loss: every sum, every gradient, in less memory."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from limelight.training import loss
from limelight.training.loss import IGNORED, chunked_cross_entropy
from limelight.training.optimizer import optimizer_step, optimizer_step_no_sync
from tests.training.samples import cross_entropy_reference

POSITIONS, VOCAB, WIDTH = 23, 11, 6
ROOMS = {"one position": 1, "four": 4 * VOCAB + 3, "all": 2**24}  # 23 = 5 * 4 + 3: a ragged end


def exercise(ignored=(0, 5, 6, 22)):
    states, weight, bias = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((POSITIONS, WIDTH), (VOCAB, WIDTH), (VOCAB,))
    )
    answers = torch.randint(VOCAB, (POSITIONS,))
    answers[list(ignored)] = IGNORED
    return states, weight, bias, answers


def gradients(score, inputs):
    return torch.autograd.grad(3 * score.loss, [x for x in inputs if x is not None])


@pytest.mark.parametrize(
    "ignored", [(), (0, 5, 6, 22), range(POSITIONS)], ids=["no", "some", "all"]
)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("room", ROOMS.values(), ids=ROOMS)
def test_chunks_equal_the_plain_way(monkeypatch, room, smoothing, biased, ignored):
    monkeypatch.setattr(loss, "_max_logits", lambda *_: room)
    states, weight, bias, answers = exercise(ignored)
    inputs = (states, weight, bias if biased else None)
    ours, plain = (
        way(*inputs, answers, smoothing) for way in (chunked_cross_entropy, cross_entropy_reference)
    )
    assert ours.total == plain.total == POSITIONS - len(ignored)
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-13, atol=1e-13)
    for a, b in zip(gradients(ours, inputs), gradients(plain, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
    if len(ignored) < POSITIONS:  # the control: other answers, other numbers
        other = cross_entropy_reference(*inputs, (answers + 1) % VOCAB, smoothing)
        assert abs(ours.loss - other.loss) > 1e-3


def test_smoothing_is_cross_entropy_with_softened_answers():
    states, weight, bias, answers = exercise(ignored=())
    soft = F.one_hot(answers, VOCAB) * 0.9 + 0.1 / VOCAB
    wanted = -(soft * F.linear(states, weight, bias).log_softmax(dim=-1)).sum()
    torch.testing.assert_close(
        chunked_cross_entropy(states, weight, bias, answers, 0.1).loss, wanted
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradients_are_those_of_finite_differences(monkeypatch, smoothing):
    monkeypatch.setattr(loss, "_max_logits", lambda *_: ROOMS["four"])
    *inputs, answers = exercise()
    torch.autograd.gradcheck(lambda *x: chunked_cross_entropy(*x, answers, smoothing).loss, inputs)


def test_of_equal_logits_only_one_is_the_first_choice():
    """A model that says nothing must not seem to be always right."""
    states, weight, _, answers = exercise(ignored=())
    silent = (states, torch.zeros_like(weight), None, answers)
    assert (
        chunked_cross_entropy(*silent).correct
        == cross_entropy_reference(*silent).correct
        == (answers == 0).sum()
        < 10
    )


def test_nothing_asked_is_nothing_lost():
    """A batch of few texts may have no blank at all."""
    states, weight, bias, answers = exercise()
    score = chunked_cross_entropy(states[:0], weight, bias, answers[:0], 0.1)
    assert [value.item() for value in score] == [0, 0, 0, 0]
    made = gradients(score, (states, weight, bias))
    assert all(not grad.any() for grad in made)


def test_without_learning_no_gradient_is_computed(monkeypatch):
    *inputs, answers = exercise()
    made = []
    monkeypatch.setattr(loss.Products, "accumulate", lambda *x: made.append(x))
    with torch.no_grad():
        chunked_cross_entropy(*inputs, answers)
    assert made == []
    chunked_cross_entropy(*inputs, answers)
    assert len(made) == 1


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("learning", [True, False])
def test_the_judge_for_the_compiler_judges_alike(smoothing, learning):
    states, weight, bias, answers = exercise()
    logits = (states @ weight.T + bias).detach().flatten(0, -2)
    plain = loss.cross_entropy_chunk(logits, answers.flatten(), smoothing, learning)
    other = loss.cross_entropy_chunk_functional(logits, answers.flatten(), smoothing, learning)
    torch.testing.assert_close(other[0], plain[0])
    if learning:
        torch.testing.assert_close(other[1], plain[1])
    else:
        assert other[1] is plain[1] is None


def test_a_step_that_is_not_looked_at_moves_alike():
    """The way of a GPU, taken by a CPU."""
    ends = []
    for step in (optimizer_step, optimizer_step_no_sync):
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        for i in range(4):
            model(torch.randn(2, 5)).sum().backward()
            factor = torch.tensor(0.25, dtype=torch.float64)
            step(optimizer, list(model.parameters()), factor, torch.tensor(i != 2))
            optimizer.zero_grad()
        ends.append([*model.parameters(), optimizer.state[model.weight]["step"]])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert ends[0][-1] == 3  # one was skipped


def test_what_is_frozen_gets_no_gradient():
    states, weight, bias, answers = exercise()
    chunked_cross_entropy(states, weight.requires_grad_(False), bias, answers).loss.backward()
    plain = torch.autograd.grad(
        cross_entropy_reference(states, weight, bias, answers).loss, (states, bias)
    )
    torch.testing.assert_close((states.grad, bias.grad), plain)
    assert weight.grad is None


class Largest(TorchDispatchMode):
    """Notes how many numbers the largest tensor has that is made."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.numel())
        return made


def largest(way):
    """The largest tensor made on the way forward and back, and the largest kept between them."""
    states = torch.randn(4096, 8, requires_grad=True)
    weight = torch.randn(1000, 8, requires_grad=True)
    answers = torch.randint(1000, (4096,))
    kept = [0]

    def keep(tensor):
        kept.append(tensor.numel())
        return tensor

    with Largest() as watch, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        way(states, weight, None, answers, 0.1).loss.backward()
    return watch.size, max(kept)


def test_the_logits_are_never_whole(monkeypatch):
    monkeypatch.setattr(loss, "_max_logits", lambda *_: 100_000)
    made, kept = largest(chunked_cross_entropy)
    assert made <= 100_000
    assert kept == 4096 * 8  # the states' own gradient is the largest that waits
    assert largest(cross_entropy_reference) == (4096 * 1000, 4096 * 1000)  # the control


def test_of_two_that_are_highest_the_first_is_the_choice():
    logits = torch.tensor([[1.0, 3.0, 0.0, 3.0]] * 3)
    answers = torch.tensor([1, 3, IGNORED])
    for judge in (loss.cross_entropy_chunk, loss.cross_entropy_chunk_functional):
        sums, _ = judge(logits, answers, smoothing=0.0, with_grad=False)
        assert sums[2] == 1


@pytest.mark.parametrize(
    ("positions", "vocab", "rows"),
    [
        (0, 100, 1),
        (10, 100, 128),
        (10_000, 50_304, 256),  # of which 333 would fit
        (1_000_000, 100, 41_728),  # 24 chunks, and the last is not small
        (5, 2**25, 1),
    ],
)
def test_chunks_are_of_much_the_same_size(positions, vocab, rows):
    assert loss.chunk_rows(positions, vocab, torch.device("cpu")) == rows


def plain_agreement(states, weight, bias, answers, smoothing, alpha):
    """R-Drop as its paper says it, with torch's own divergences."""
    score = cross_entropy_reference(states, weight, bias, answers, smoothing)
    one, other = F.linear(states, weight, bias).log_softmax(dim=-1).unflatten(0, (2, -1))
    total = partial(F.kl_div, reduction="none", log_target=True)
    both = (total(one, other) + total(other, one)).sum(dim=-1) / 2
    asked = answers[: len(one)] != IGNORED
    return score._replace(loss=score.loss + alpha * both[asked].sum())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("room", ROOMS.values(), ids=ROOMS)
def test_disagreement_of_two_passes_equals_the_plain_way(monkeypatch, room, smoothing):
    monkeypatch.setattr(loss, "_max_logits", lambda *_: room)
    states, weight, bias, answers = exercise()
    states = torch.cat([states, states + 0.3 * torch.randn_like(states)])
    states, answers = states.detach().requires_grad_(), torch.cat([answers, answers])
    inputs = (states, weight, bias)
    plain = plain_agreement(*inputs, answers, smoothing, 5.0)
    slopes = gradients(plain, inputs)
    for judge in (loss.cross_entropy_chunk, loss.cross_entropy_chunk_functional):
        ours = chunked_cross_entropy(*inputs, answers, smoothing, rdrop_alpha=5.0, chunk_loss=judge)
        for a, b in zip(ours, plain, strict=True):
            torch.testing.assert_close(a.double(), b.double(), rtol=1e-12, atol=1e-12)
        for a, b in zip(gradients(ours, inputs), slopes, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
    without = chunked_cross_entropy(*inputs, answers, smoothing)
    assert plain.loss - without.loss > 1e-3  # the control


def test_gradients_have_the_bits_of_what_they_are_for():
    """As under autocast, where weights have more bits than the products they take part in."""
    slope, states, weight = torch.randn(6, 5), torch.randn(6, 3), torch.randn(5, 3)
    precise = [torch.zeros(6, 3).double(), torch.zeros(5, 3).double(), torch.zeros(5).double()]
    plain = [grad.float() for grad in precise]
    for grads in (precise, plain):
        products = loss.Products(states, weight, None, torch.float32)
        products.accumulate(grads, slice(0, 6), slope)
    for one, other in zip(precise, plain, strict=True):
        assert one.dtype == torch.float64
        torch.testing.assert_close(one.float(), other)
    assert plain[1].abs().sum() > 0
