"""What is not kept is computed again: the same bits, dropout included, from less memory."""

from contextlib import contextmanager

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from limelight.errors import UserError
from limelight.model import ModelConfig, build
from limelight.model.layers import FeedForward, Layer
from limelight.training.activation_checkpointing import checkpoint_layers
from limelight.training.config import TrainConfig
from tests.training.samples import hashes, log_of, texts, tiny, train_in

FAMILIES = ("encoder-decoder", "decoder-only", "encoder-only")
DROPOUT = {"dropout": 0.2, "attention_dropout": 0.1, "layers": 2}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_training_is_the_same_bit_for_bit(tmp_path, family):
    data = texts(tmp_path) if family == "encoder-only" else None
    ends = {}
    for how in ("off", "layer", "selective"):
        recipe = tiny(family, data, DROPOUT, activation_checkpointing=how, batch_tokens=128)
        train_in(tmp_path / how, recipe)
        losses = [entry["objective"] for entry in log_of(tmp_path / how) if "lr" in entry]
        assert len(losses) == 10
        ends[how] = (losses, hashes(tmp_path / how / "checkpoints"))
    assert ends["layer"] == ends["selective"] == ends["off"]


def test_layers_are_computed_again_with_the_kernels_of_the_first_time(tmp_path, monkeypatch):
    preferred, seen = [], []

    @contextmanager
    def prefer(batch):
        preferred.append(batch)
        yield
        preferred.pop()

    original = FeedForward.forward

    def forward(self, x):
        seen.append(len(preferred) if self.training else 1)
        return original(self, x)

    monkeypatch.setattr("limelight.training.trainer.prefer_cudnn_attention", prefer)
    monkeypatch.setattr(FeedForward, "forward", forward)
    recipe = tiny("decoder-only", None, DROPOUT, activation_checkpointing="layer")
    train_in(tmp_path / "run", recipe)
    assert len(seen) > 20
    assert set(seen) == {1}


def test_layers_keep_less_and_compute_again():
    kept, passes = {}, {}
    for how in ("off", "selective", "layer"):
        torch.manual_seed(1)
        model = build(ModelConfig(family="decoder-only", vocab=50, layers=4, d_model=32, heads=4))
        names = list(dict(model.named_parameters()))
        checkpoint_layers(model, how)
        assert list(dict(model.named_parameters())) == names
        seen = []
        for part in model.modules():
            if isinstance(part, FeedForward):
                part.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        saved = {}

        def keep(x, saved=saved):
            saved[x.untyped_storage().data_ptr()] = x.nbytes
            return x

        with saved_tensors_hooks(keep, lambda x: x):
            loss = model(torch.randint(50, (4, 16))).sum()
        loss.backward()
        kept[how], passes[how] = sum(saved.values()), len(seen)
        with torch.no_grad():  # nothing to keep, so nothing is repeated
            model(torch.randint(50, (4, 16)))
        assert len(seen) == passes[how] + 4
    assert kept["layer"] < kept["off"] / 3
    assert passes == {"off": 4, "selective": 8, "layer": 8}
    assert sum(isinstance(part, Layer) for part in model.modules()) == 4


def test_a_model_without_layers_is_refused(tmp_path):
    recipe = tiny("recurrent-encoder-decoder", activation_checkpointing="layer")
    with pytest.raises(UserError, match="is for the layers of a Transformer"):
        train_in(tmp_path, recipe)


def test_what_a_captured_step_cannot_do_is_refused():
    with pytest.raises(UserError, match=r"set --train\.cuda-graphs false"):
        TrainConfig(cuda_graphs=True, activation_checkpointing="layer")
