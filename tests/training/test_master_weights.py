"""The optimizer may have weights of its own: in float32 beside bfloat16, or on the CPU."""

import os
import subprocess
import sys

import pytest
import torch

from limelight.errors import UserError
from limelight.training.config import TrainConfig
from limelight.training.optimizer import copy_masters, make_masters, make_optimizer, move_grads
from tests.training.processes import ROOT
from tests.training.samples import hashes, log_of, tiny, train_in


@pytest.mark.parametrize("changes", [{}, {"ema": 0.9, "grad_accumulation": 2}, {"patience": 3}])
def test_an_offloaded_optimizer_changes_no_bit(tmp_path, changes):
    """Its checkpoints are those of any other, and either resumes from them."""
    usual = {"validate_every": 5, "checkpoint_every": 5, **changes}
    train_in(tmp_path / "usual", tiny(**usual))
    train_in(tmp_path / "other", tiny(**usual, offload_optimizer=True, steps=5), expect=0)
    train_in(tmp_path / "other", tiny(**usual, offload_optimizer=True))
    for parent in ("checkpoints", "finished"):
        assert hashes(tmp_path / "usual" / parent) == hashes(tmp_path / "other" / parent)
    assert log_of(tmp_path / "usual")[-3:] == log_of(tmp_path / "other")[-3:]


def test_small_steps_add_up_in_masters_and_are_lost_in_bfloat16():
    config = TrainConfig(master_weights=True, weight_decay=0.0)
    ends = []
    for how in ("masters", "bfloat16"):
        model = torch.nn.Linear(4, 4, bias=False)
        torch.nn.init.ones_(model.weight)
        masters = make_masters(model, config, torch.device("cpu"), "bfloat16")
        model.to(torch.bfloat16)
        masters = masters if how == "masters" else {}
        optimizer = make_optimizer(model, config, masters=masters)
        for group in optimizer.param_groups:
            group["lr"] = 1e-4
        for _ in range(100):
            model.weight.grad = torch.ones_like(model.weight)
            move_grads(masters)
            optimizer.step()
            copy_masters(masters)
        ends.append(model.weight.mean().item())
    assert ends == [pytest.approx(0.99, abs=0.004), 1.0]


PROBE = """
import sys
from pathlib import Path
from tests.training.samples import log_of, tiny, train_in
folder = Path(sys.argv[1])
for name, changes in {"float32": {}, "masters": {"master_weights": True}}.items():
    precision = "bfloat16" if changes else "float32"
    train_in(folder / name, tiny(precision=precision, steps=30, validate_every=30, **changes))
    print(*(e["objective"] for e in log_of(folder / name) if "lr" in e))
"""


def test_bfloat16_weights_learn_what_float32_does(tmp_path):
    ours = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", PROBE, str(tmp_path)]
    done = subprocess.run(words, env=os.environ | ours, capture_output=True, text=True, check=True)
    exact, rounded = ([*map(float, line.split())] for line in done.stdout.splitlines())
    assert len(exact) == 30
    assert exact[-1] < 0.9 * exact[0]
    assert rounded == pytest.approx(exact, rel=0.02)
    assert rounded != exact


def test_what_has_no_masters_is_refused(tmp_path):
    with pytest.raises(UserError, match="is for bfloat16, and the precision is float32"):
        train_in(tmp_path, tiny(precision="float32", master_weights=True))
    for changes in ({"fsdp": True}, {"tensor_parallel": 2}):
        with pytest.raises(UserError, match=r"set --train\.offload-optimizer false"):
            TrainConfig(offload_optimizer=True, **changes)
    with pytest.raises(UserError, match="choose one of them"):
        TrainConfig(offload_optimizer=True, cuda_graphs=True)
