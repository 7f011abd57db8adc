"""nanoGPT's checkpoints, against GPT-2 of transformers with the same weights."""

import json
import pickle

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from limelight.errors import UserError
from limelight.interop.nanogpt import nanogpt_model, read
from limelight.interop.pickled import read_checkpoint
from limelight.model import build

ARGS = {"vocab_size": 30, "n_layer": 2, "n_embd": 16, "n_head": 4, "block_size": 12}
TURNED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def saved(path, compiled, bias=True):
    """A GPT-2 of transformers, saved as nanoGPT saves its own."""
    torch.manual_seed(0)
    names = {"vocab_size": 30, "n_layer": 2, "n_embd": 16, "n_head": 4, "n_positions": 12}
    theirs = GPT2LMHeadModel(GPT2Config(**names, activation_function="gelu")).eval()
    state = {}
    with torch.no_grad():
        for name, value in theirs.state_dict().items():
            if not bias and name.endswith("bias"):
                value.zero_()
                continue
            value.normal_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0, 0.3)
            state[name] = value.T.contiguous() if name.endswith(TURNED) else value
    state["lm_head.weight"] = state["transformer.wte.weight"]
    prefix = "_orig_mod." if compiled else ""
    model = {f"{prefix}{name}": value for name, value in state.items()}
    model |= {f"{prefix}transformer.h.{i}.attn.bias": torch.ones(1, 1, 12, 12) for i in range(2)}
    torch.save({"model": model, "model_args": ARGS | {"bias": bias, "dropout": 0.0}}, path)
    return theirs


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_logits_are_those_of_gpt_2(tmp_path, compiled, bias):
    theirs = saved(tmp_path / "ckpt.pt", compiled, bias)
    config, weights = nanogpt_model(read_checkpoint(tmp_path / "ckpt.pt"))
    ours = build(config).eval()
    assert ours.load_state_dict(weights, strict=False).missing_keys == ["classifier.weight"]
    ours.tie()
    rows = torch.randint(0, 30, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(rows), theirs(rows).logits, rtol=0, atol=1e-5)


def test_characters_come_from_its_meta_file(tmp_path):
    saved(tmp_path / "ckpt.pt", True)
    letters = ["\n", " ", *"abcdefghijklmnop"]
    stoi = {letter: i for i, letter in enumerate(letters)}
    meta = {"vocab_size": 30, "stoi": stoi, "itos": dict(enumerate(letters))}
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(meta))
    tokenizer = read(tmp_path).tokenizer
    text = "a bad\ncafe"
    assert tokenizer.encode(text) == [stoi[letter] for letter in text]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert not tokenizer.ends  # nothing ends a text
    with pytest.raises(UserError, match="no character 'z'"):
        tokenizer.encode("z")


def test_other_checkpoints_need_a_tokenizer(tmp_path):
    saved(tmp_path / "ckpt.pt", False)
    with pytest.raises(UserError, match=r"put meta\.pkl there"):
        read(tmp_path / "ckpt.pt")
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"stoi": {"ab": 0, "c": "d"}}))
    with pytest.raises(UserError, match="no table of characters"):
        read(tmp_path)
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(json.dumps))
    with pytest.raises(UserError, match="no table of characters"):
        read(tmp_path)
