"""The benchmark of training runs nanoGPT where a checkout is given, and says so where none is."""

import json

import pytest
import torch

from benchmarks import large_model, training_speed

GPT = "GPT-2 124M, 32 x 1024"
STAND_IN = '''
from dataclasses import dataclass
import torch
from torch import nn
from torch.nn import functional as F

@dataclass
class GPTConfig:
    block_size: int = 1024
    vocab_size: int = 50304
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.1
    bias: bool = False

class GPT(nn.Module):
    """The interface of nanoGPT's, and no attention."""

    def __init__(self, config):
        super().__init__()
        assert (config.dropout, config.bias) == (0.0, True)
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        if targets is None:
            return x[:, [-1]] @ self.wte.weight.T, None
        logits = x @ self.wte.weight.T
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss
'''


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "model.py").write_text(STAND_IN)
    return tmp_path / "model.py"


def run(monkeypatch, *options):
    arguments = ["training_speed.py", "--quick", "--repeats", "1", "--modes", "eager", *options]
    monkeypatch.setattr("sys.argv", arguments)
    training_speed.main()


def test_nanogpt_takes_part_where_its_file_is_given(monkeypatch, capsys, checkout):
    run(monkeypatch, "--cases", GPT, "--nanogpt", str(checkout))
    printed = capsys.readouterr().out
    assert "  nanoGPT  " in printed
    assert "does not take part" not in printed
    assert printed.startswith("commit ")


def test_without_it_a_sentence_says_so(monkeypatch, capsys):
    run(monkeypatch, "--cases", GPT, "--only", "limelight")
    assert "nanoGPT, the strongest peer for GPT-2, does not take part" in capsys.readouterr().out
    run(monkeypatch, "--cases", "S, 32 x (32 + 32)", "--only", "limelight")
    assert "nanoGPT" not in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no such file"):
        run(monkeypatch, "--nanogpt", "nowhere.py")


def test_it_learns_from_every_position_of_the_batch(checkout):
    sizes, rows, length = training_speed.quick(training_speed.CASES[GPT])
    peer = training_speed.NanoGPT(checkout, **sizes)
    batch = training_speed.make_batch(sizes, rows, length, "cpu")
    read, wanted, smoothing = training_speed.exercise(batch)
    logits, _ = peer.core(*read, wanted.contiguous())
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
    assert each.numel() == rows * length
    torch.testing.assert_close(peer.loss(read, wanted, smoothing), each.mean())
    before = peer.core.wte.weight.clone()
    training_speed.their_step(peer, "cpu", compiled=False)(batch)
    assert not torch.equal(peer.core.wte.weight, before)


@pytest.mark.parametrize("name", ["S, 32 x (32 + 32)", "base, ragged pairs"])
def test_every_contestant_of_a_translation_takes_a_step(monkeypatch, capsys, name):
    run(monkeypatch, "--cases", name)
    lines = capsys.readouterr().out.splitlines()[2:]
    assert len(lines) == 3
    assert all("tokens/s" in line for line in lines)


def test_the_large_model_s_benchmark_runs(tmp_path, monkeypatch, capsys):
    words = ["large_model.py", "--quick", "--precision", "bfloat16", "fp8"]
    words += ["--json", str(tmp_path / "found.json")]
    monkeypatch.setattr("sys.argv", words)
    large_model.main()
    found, said = json.loads((tmp_path / "found.json").read_text()), capsys.readouterr().out
    for how in ("off", "selective", "layer"):
        more, fewer = (found[f"{how}, {precision}"] for precision in ("bfloat16", "fp8"))
        assert more["seconds"] > 0
        assert more["planned_bytes"] > 0
        assert f"\n{how} " in said
        assert 0 < abs(fewer["loss"] - more["loss"]) < 0.01 * more["loss"]
