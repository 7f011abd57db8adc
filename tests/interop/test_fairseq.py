"""fairseq's checkpoints, against the same network in NumPy from fairseq's names; and its ids."""

import argparse
import json
import math
import re

import numpy as np
import pytest
import torch

from limelight.errors import UserError
from limelight.interop.fairseq import fairseq_model, read
from limelight.interop.marian import half_sinusoids
from limelight.interop.pickled import read_checkpoint
from limelight.interop.sentencepiece import (
    NORMAL,
    UNKNOWN,
    SentencePieceCoder,
    SentencePieceModel,
    to_bytes,
)
from limelight.interop.subword_nmt import SubwordCoder
from limelight.model import build
from tests.interop.nasty import nasty_texts

D, FF, HEADS, SOURCE, TARGET = 16, 24, 4, 20, 31
OPTIONS = {
    "arch": "transformer",
    "encoder_layers": 1,
    "decoder_layers": 2,
    **{f"{side}_embed_dim": D for side in ("encoder", "decoder")},
    **{f"{side}_ffn_embed_dim": FF for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": HEADS for side in ("encoder", "decoder")},
    "share_decoder_input_output_embed": True,
}


def random_state(pre, learned, fused):
    draw = torch.Generator().manual_seed(0)
    state = {}

    def add(name, *shape, around=0.0):
        state[name] = torch.randn(*shape, generator=draw) * 0.3 + around

    def attention(path):
        if fused:
            add(f"{path}.in_proj_weight", 3 * D, D)
            add(f"{path}.in_proj_bias", 3 * D)
        for name in ("out_proj",) if fused else ("q_proj", "k_proj", "v_proj", "out_proj"):
            add(f"{path}.{name}.weight", D, D)
            add(f"{path}.{name}.bias", D)
        norm(f"{path}_layer_norm")

    def norm(path):
        add(f"{path}.weight", D, around=1.0)
        add(f"{path}.bias", D)

    for side, size, layers in (("encoder", SOURCE, 1), ("decoder", TARGET, 2)):
        add(f"{side}.embed_tokens.weight", size, D)
        if learned:
            add(f"{side}.embed_positions.weight", 34, D)
        for i in range(layers):
            path = f"{side}.layers.{i}"
            attention(f"{path}.self_attn")
            if side == "decoder":
                attention(f"{path}.encoder_attn")
            add(f"{path}.fc1.weight", FF, D)
            add(f"{path}.fc1.bias", FF)
            add(f"{path}.fc2.weight", D, FF)
            add(f"{path}.fc2.bias", D)
            norm(f"{path}.final_layer_norm")
        if pre:
            norm(f"{side}.layer_norm")
    state["decoder.version"] = torch.tensor([3.0])
    state["encoder.embed_positions._float_tensor"] = torch.zeros(1)
    return state


class Fairseq:
    """One pass over a source and a target, from fairseq's names."""

    def __init__(self, state, pre):
        self.w = {name: value.double().numpy() for name, value in state.items()}
        self.pre = pre

    def norm(self, x, path):
        if f"{path}.weight" not in self.w:
            return x
        centred = x - x.mean(-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return centred / spread * self.w[f"{path}.weight"] + self.w[f"{path}.bias"]

    def linear(self, x, path):
        return x @ self.w[f"{path}.weight"].T + self.w[f"{path}.bias"]

    def projected(self, x, path, i):
        if f"{path}.in_proj_weight" in self.w:
            own = slice(i * D, (i + 1) * D)
            return x @ self.w[f"{path}.in_proj_weight"][own].T + self.w[f"{path}.in_proj_bias"][own]
        return self.linear(x, f"{path}.{'qkv'[i]}_proj")

    def attend(self, x, path, memory, causal):
        read = self.norm(x, f"{path}_layer_norm") if self.pre else x
        inputs = (read, *(2 * (read if memory is None else memory,)))
        q, k, v = (
            self.projected(y, path, i).reshape(len(y), HEADS, -1).transpose(1, 0, 2)
            for i, y in enumerate(inputs)
        )
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(D / HEADS)
        if causal:
            scores = np.where(np.tril(np.ones(scores.shape[1:])), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True) @ v).transpose(1, 0, 2)
        x = x + self.linear(mixed.reshape(len(x), D), f"{path}.out_proj")
        return x if self.pre else self.norm(x, f"{path}_layer_norm")

    def side(self, name, tokens, memory):
        x = self.w[f"{name}.embed_tokens.weight"][tokens] * math.sqrt(D)
        learned = self.w.get(f"{name}.embed_positions.weight")
        table = half_sinusoids(2, 50, D).double().numpy() if learned is None else learned[2:]
        x = x + table[: len(tokens)]
        for i in range(1 if name == "encoder" else 2):
            path = f"{name}.layers.{i}"
            x = self.attend(x, f"{path}.self_attn", None, name == "decoder")
            if memory is not None:
                x = self.attend(x, f"{path}.encoder_attn", memory, False)
            read = self.norm(x, f"{path}.final_layer_norm") if self.pre else x
            inner = np.maximum(self.linear(read, f"{path}.fc1"), 0)
            x = x + self.linear(inner, f"{path}.fc2")
            x = x if self.pre else self.norm(x, f"{path}.final_layer_norm")
        return self.norm(x, f"{name}.layer_norm")

    def logits(self, source, target):
        memory = self.side("encoder", source, None)
        states = self.side("decoder", target, memory)
        return states @ self.w["decoder.embed_tokens.weight"].T


def save(path, state, new=True, **options):
    values = OPTIONS | options
    args = argparse.Namespace(**values)
    content = {"args": None, "cfg": {"model": args}} if new else {"args": args}
    torch.save({**content, "model": state, "optimizer": {"state": torch.ones(5)}}, path)
    return path


@pytest.mark.parametrize("pre", [True, False])
@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("old", [True, False])
def test_logits_are_those_of_fairseq(tmp_path, pre, learned, old):
    state = random_state(pre, learned, fused=old)
    both = {"normalize_before": pre, "learned_pos": learned}
    options = {f"{side}_{n}": value for side in ("encoder", "decoder") for n, value in both.items()}
    path = save(tmp_path / "checkpoint.pt", state, not old, **options)
    config, weights = fairseq_model(read_checkpoint(path))
    model = build(config).eval()
    assert model.load_state_dict(weights, strict=False).missing_keys == ["classifier.weight"]
    model.tie()
    source, target = [4, 9, 17, 2], [2, 5, 30, 8, 8]
    with torch.no_grad():
        found = model(torch.tensor([source]), torch.tensor([target]))[0].numpy()
    np.testing.assert_allclose(found, Fairseq(state, pre).logits(source, target), atol=2e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layernorm_embedding", True),
        ("activation_fn", "tanh"),
        ("adaptive_softmax_cutoff", "10,20"),
        ("encoder_embed_dim", 32),
        ("cross_self_attention", True),
    ],
)
def test_options_that_ours_has_not_are_refused_by_name(tmp_path, name, value):
    path = save(tmp_path / "checkpoint.pt", random_state(False, False, False), **{name: value})
    with pytest.raises(UserError, match=name):
        fairseq_model(read_checkpoint(path))


MERGES = [("a", "b"), ("ab", "c</w>"), ("t", "h"), ("th", "e</w>"), ("y", "o"), ("yo", "u</w>")]
CODES = "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in MERGES)
PIECES = ["ab@@", "abc", "the", "a@@", "a", "b@@", "b", "c@@", "c", "t@@", "h@@", "e", "e@@", "é"]


def dictionary(pieces):
    return "".join(f"{piece} {9 - i // 4}\n" for i, piece in enumerate(pieces))


def by_hand(text):
    """subword-nmt's `process_line`, then fairseq's `encode_line`."""
    symbols, spelled = ["<s>", "<pad>", "</s>", "<unk>", *PIECES], []
    for word in text.strip("\r\n ").split(" "):
        pieces = [*word[:-1], f"{word[-1]}</w>"] if word else []
        for left, right in MERGES:
            i = 0
            while i < len(pieces) - 1:
                if (pieces[i], pieces[i + 1]) == (left, right):
                    pieces[i : i + 2] = [left + right]
                i += 1
        ends = [p.removesuffix("</w>") if p.endswith("</w>") else f"{p}@@" for p in pieces]
        spelled += ends
    words = re.sub(r"\s+", " ", " ".join(spelled)).strip().split()
    return [symbols.index(word) if word in PIECES else 3 for word in words]


def test_ids_are_those_of_subword_nmt_and_fairseq():
    coder = SubwordCoder({"dict.txt": dictionary(PIECES).encode(), "bpe.codes": CODES.encode()})
    texts = [*nasty_texts(), "the abc you", "thethe  abcab", "the\u00a0", "a\tb"]
    for text, found in zip(texts, coder.encode(texts), strict=True):
        assert found == by_hand(text), repr(text)
    assert coder.decode(coder.encode(["abab the  é"])[0]) == "abab the é"


def test_pieces_of_sentencepiece_have_the_ids_of_the_dictionary():
    pieces = [("<unk>", 0.0, UNKNOWN), *((p, -2.0, NORMAL) for p in ("▁", "▁the", "a", "b", "q"))]
    symbols = ["<s>", "<pad>", "</s>", "<unk>", "b", "▁the", "▁", "a", "z"]
    files = {"vocab.json": json.dumps({symbol: i for i, symbol in enumerate(symbols)}).encode()}
    files["pieces.spm"] = to_bytes(SentencePieceModel(pieces))
    coder = SentencePieceCoder(files)
    (ids,) = coder.encode(["the ab q"])
    assert ids == [5, 6, 7, 4, 6, 3]  # q is unknown to the dictionary
    assert coder.decode(ids[:4]) == "the ab"


def test_a_folder_is_read_with_the_dictionaries_of_the_right_sides(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "data").mkdir()
    save(tmp_path / "checkpoints" / "checkpoint_best.pt", random_state(False, False, False))
    for language, first, size in (("el", 0x3B1, TARGET), ("ru", 0x430, SOURCE)):
        pieces = [*PIECES, *(chr(first + i) for i in range(size - 4 - len(PIECES)))]
        (tmp_path / "data" / f"dict.{language}.txt").write_text(dictionary(pieces), "utf-8")
    with pytest.raises(UserError, match="neither the codes of subword-nmt"):
        read(tmp_path)
    (tmp_path / "data" / "bpe.code").write_text(CODES, "utf-8")
    found = read(tmp_path)
    assert found.tokenizer.source.encode("the \u0430 \u03b1") == [6, 18, 3]
    assert found.tokenizer.encode("the \u0430 \u03b1") == [6, 3, 18]
    assert found.tokenizer.start == found.tokenizer.end == 2
    (tmp_path / "data" / "dict.ru.txt").write_text(dictionary(PIECES), "utf-8")
    with pytest.raises(UserError, match="the source has 20 tokens and the target 31"):
        read(tmp_path)
