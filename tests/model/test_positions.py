"""Positions: the paper's formula, why it was chosen, and what rotation keeps."""

import math

import pytest
import torch

from limelight.errors import UserError
from limelight.model import ModelConfig
from limelight.model.positions import LearnedPositions, positions_of, rotation, sinusoids

HEAD = ModelConfig(vocab=2, d_model=8, heads=1, positions="rotary")


def test_sinusoids_follow_the_formula():
    table = sinusoids(torch.arange(50), 12, torch.float64)
    for position in (0, 1, 7, 49):
        for i in range(6):
            angle = position / 10000 ** (2 * i / 12)
            assert math.isclose(table[position, 2 * i], math.sin(angle), abs_tol=1e-12)
            assert math.isclose(table[position, 2 * i + 1], math.cos(angle), abs_tol=1e-12)


@pytest.mark.parametrize("shift", [1, 5, 100])
def test_a_shift_is_the_same_linear_map_everywhere(shift):
    """Why the paper chose them: PE(pos + k) = M_k PE(pos), with one M_k for all positions."""
    d_model = 8
    table = sinusoids(torch.arange(300), d_model, torch.float64)
    angle = shift * 10000 ** (-torch.arange(0, d_model, 2).double() / d_model)
    turns = [torch.tensor([[c, s], [-s, c]]) for c, s in zip(angle.cos(), angle.sin(), strict=True)]
    moved = table[:-shift] @ torch.block_diag(*turns).double().T
    torch.testing.assert_close(moved, table[shift:], rtol=0, atol=1e-9)


def test_rotation_keeps_lengths_and_depends_on_distance_alone():
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)

    def score(i, j):
        turn = [rotation(torch.tensor([at]), HEAD, torch.float64) for at in (i, j)]
        return (turn[0](q) * turn[1](k)).sum()

    turned = rotation(torch.tensor([17]), HEAD, torch.float64)(q)
    torch.testing.assert_close(turned.norm(), q.norm())
    for i, j in ((0, 3), (5, 8), (40, 43)):
        torch.testing.assert_close(score(i, j), score(100 + i, 100 + j))
    assert abs(score(0, 3) - score(0, 4)) > 1e-3  # and it does depend on distance


def test_padding_takes_no_position():
    real = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 1, 0, 1]]).bool()
    found = positions_of(torch.zeros(3, 5), real)
    assert found[0, 2:].tolist() == [0, 1, 2]
    assert found[1, :2].tolist() == [0, 1]
    assert found[2, ::2].tolist() == [0, 1, 2]
    assert positions_of(torch.zeros(3, 5), None).tolist() == [0, 1, 2, 3, 4]


def test_half_precision_counts_as_well_as_single():
    single = sinusoids(torch.arange(2000), 16, torch.float32)
    half = sinusoids(torch.arange(2000), 16, torch.bfloat16).float()
    torch.testing.assert_close(half, single, rtol=0, atol=4e-3)  # one rounding, not a lost count


def test_learned_positions_end_with_a_sentence():
    table = LearnedPositions(10, 4)
    assert table(torch.arange(10), torch.float32).shape == (10, 4)
    with pytest.raises(UserError, match=r"11 tokens are too many .* max_len=10"):
        table(torch.arange(11), torch.float32)
