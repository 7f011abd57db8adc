"""The benchmark's compiled contestant does the same work as ours: it writes the same tokens."""

import subprocess
import sys

import pytest
import torch

from benchmarks import decoding_gpu

GREEDY = [name for name, case in decoding_gpu.CASES.items() if case[3] == 1]


@pytest.mark.parametrize("name", GREEDY)
def test_the_static_cache_writes_what_we_write(name):
    case = decoding_gpu.quick(decoding_gpu.CASES[name])
    with torch.no_grad():
        play = decoding_gpu.compiled(case, "cpu", backend="eager")
        found = [play(), play()]  # the second time the cache was used before
        assert found[0] == found[1] == decoding_gpu.ours(case, "cpu")()
    assert all(len(row) == case[2] for row in found[0])


def test_its_help_needs_no_gpu():
    done = subprocess.run(
        [sys.executable, decoding_gpu.__file__, "--help"], capture_output=True, check=False
    )
    assert done.returncode == 0
    assert b"reduce-overhead" in done.stdout
