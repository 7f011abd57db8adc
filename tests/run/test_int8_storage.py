"""Weights in bytes come back as near as they can, and always the same."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from benchmarks.bundle import quantize_rows
from limelight.errors import UserError
from limelight.run.int8_storage import SCALES, dequantize_rows
from limelight.run.weights import read_weights, shapes_in


def matrix(seed, rows=40, columns=30):
    """Rows of very different sizes, one of zeros among them."""
    drawn = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    sizes = torch.logspace(-30, 20, rows)
    drawn[seed % rows] = 0
    return drawn * sizes[:, None]


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_no_weight_moves_by_more_than_half_a_scale(seed):
    weights = {"a.weight": matrix(seed)}
    packed = quantize_rows(weights)
    moved = (dequantize_rows(packed)["a.weight"].double() - weights["a.weight"].double()).abs()
    scales = packed["a.weight" + SCALES].double()
    assert (moved <= scales[:, None] / 2 * (1 + 1e-6)).all()
    largest = weights["a.weight"].abs().amax(dim=1).double() / 127
    kept = largest > 0
    assert (scales[kept] >= largest[kept] * (1 - 1e-7)).all()
    assert (scales[kept] <= largest[kept] * (1 + 2**-11)).all()  # and no larger than they must be


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_packing_again_changes_not_a_bit(seed):
    packed = quantize_rows({"a": matrix(seed), "b": torch.randn(7)})
    again = quantize_rows(dequantize_rows(packed))
    assert packed.keys() == again.keys()
    assert all(torch.equal(packed[name], again[name]) for name in packed)
    assert packed["a"].dtype == torch.int8


def test_vectors_and_floats_stay_as_they_are():
    weights = {"bias": torch.randn(5), "norm.scales": torch.randn(3)}
    assert all(
        torch.equal(value, weights[name])
        for name, value in dequantize_rows(quantize_rows(weights)).items()
    )


def test_a_file_of_bytes_has_the_shapes_of_its_weights(tmp_path):
    weights = {"a": matrix(1), "b": torch.randn(4)}
    save_file(quantize_rows(weights), tmp_path / "packed")
    assert shapes_in(tmp_path / "packed") == {"a": (40, 30), "b": (4,)}
    read = read_weights(tmp_path / "packed")
    assert {name: tuple(tensor.shape) for name, tensor in read.items()} == {
        "a": (40, 30),
        "b": (4,),
    }
    assert read["a"].dtype == torch.float32
    assert torch.equal(read["a"], dequantize_rows(quantize_rows(weights))["a"])


BYTES = torch.ones(4, 3, dtype=torch.int8)


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": BYTES},
        {"a": BYTES, "a.scales": torch.ones(3)},
        {"a": BYTES, "a.scales": torch.ones(4, 1)},
        {"a": BYTES, "a.scales": torch.ones(4, dtype=torch.float64)},
        {"a": torch.ones(4, dtype=torch.int8), "a.scales": torch.ones(4)},
        {"a": BYTES, "a.scales": torch.ones(4, dtype=torch.int8), "a.scales.scales": torch.ones(4)},
        {"a": torch.ones(4, 3), "a.scales": torch.ones(4)},
        {"a": torch.ones(4, 3, dtype=torch.uint8), "a.scales": torch.ones(4)},
    ],
)
def test_what_is_not_packed_as_ours_is_refused(tmp_path, tensors):
    save_file(tensors, tmp_path / "wrong")
    with pytest.raises(UserError, match="is not a weights file"):
        shapes_in(tmp_path / "wrong")
