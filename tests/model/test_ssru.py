"""The SSRU: a recurrent cell that reads as masked self-attention does, and keeps one vector."""

import pytest
import torch

from limelight.model.ssru import SSRU, recurrence
from limelight.model.taps import Recorder, taps
from tests.model.samples import small, tokens
from tests.model.test_look_ahead import (
    LENGTH,
    sees_ahead_by_gradient,
    sees_ahead_by_value,
    sees_ahead_in_a_cache,
)


@pytest.fixture
def model():
    return small("encoder-decoder", decoder_cell="ssru")


def test_a_state_is_the_weighted_sum_of_all_inputs_before():
    gate, inputs = torch.rand(2, 3, 7, 5, dtype=torch.float64)
    before = torch.randn(3, 5, dtype=torch.float64)
    states = recurrence(gate, inputs, before)
    for t in range(7):
        sums = gate[:, : t + 1].prod(dim=1) * before
        for s in range(t + 1):
            sums = sums + gate[:, s + 1 : t + 1].prod(dim=1) * inputs[:, s]
        torch.testing.assert_close(states[:, t], sums)
    torch.testing.assert_close(recurrence(gate, inputs), recurrence(gate, inputs, 0 * before))


def test_gradients(model):
    cell: SSRU = model.decoder.layers[0].self_cell
    x = torch.randn(2, 4, 16, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(cell, (x,))


def test_it_never_looks_ahead(model):
    source, target = tokens(1, 6), tokens(1, LENGTH)
    assert sees_ahead_by_value(model, source, target) == []
    assert sees_ahead_by_gradient(model, source, target) == []
    assert sees_ahead_in_a_cache(model, source, target) == []


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_leaves_no_trace(model, side):
    source, target = tokens(2, 5), tokens(2, 6)
    more, none = tokens(2, 3), torch.zeros(2, 3, dtype=torch.bool)
    both = [(more, none), (target, ~none[:, :1].expand(2, 6))]
    padded, real = (
        torch.cat(x, 1) for x in zip(*both[:: 1 if side == "left" else -1], strict=True)
    )
    with torch.no_grad():
        found = model(source, padded, target_real=real)[real].view(2, 6, -1)
        torch.testing.assert_close(found, model(source, target))
        if side == "left":  # the negative control
            assert not torch.allclose(model(source, padded)[real].view(2, 6, -1), found)


def test_the_past_is_one_vector_per_layer(model):
    short, long = (model.start(tokens(3, 5), max_len=n) for n in (6, 40))
    for state in (short, long):
        model.step(tokens(3, 4), state)
        assert [x.shape for x in state.states] == [(3, 16)] * 2
        assert sum(x.nbytes for x in (*state.keys, *state.values)) == 0


def test_rows_that_come_later_are_written_as_if_alone(model):
    source, target = tokens(4, 5), tokens(4, 6)
    with torch.no_grad():
        expected = model(source, target)
        first, second = model.start(source[:2]), model.start(source[2:])
        model.step(target[:2, :3], first)
        model.step(target[2:, :2], second)
        first.insert_rows(second, torch.tensor([0, 2]))  # over the first row, and behind the last
        rows, columns = torch.tensor([2, 1, 3]), torch.tensor([2, 3, 2])
        found = model.step(target[rows, columns][:, None], first)
    torch.testing.assert_close(found, expected[rows, columns])


def test_taps(model):
    inside = ["gate", "value", "state", "output", "add", "norm"]
    names = [f"decoder.1.self.{step}" for step in inside]
    assert [name for name in taps(model) if name.startswith("decoder.1.self.")] == names
    with torch.no_grad(), Recorder(model) as recorder:
        recorder.model(tokens(2, 5), tokens(2, 4))
    gate, value, state, output, *_ = (recorder[name] for name in names)
    assert (gate > 0).all()
    assert (gate < 1).all()
    torch.testing.assert_close(state, recurrence(gate, (1 - gate) * value))
    assert torch.equal(output, state.relu())
