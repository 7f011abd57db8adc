"""Marian's binary models, against the same network in NumPy from Marian's own names."""

import math
import struct

import numpy as np
import pytest
import torch

from limelight.errors import UserError
from limelight.interop.marian import half_sinusoids, marian_model, read, read_binary
from limelight.interop.sentencepiece import CONTROL, NORMAL, UNKNOWN, SentencePieceModel, to_bytes
from limelight.model import build

V, D, FF, HEADS = 40, 16, 24, 4
SETTINGS = {
    "type": "transformer",
    "enc-depth": 2,
    "dec-depth": 1,
    "dim-emb": D,
    "transformer-dim-ffn": FF,
    "transformer-heads": HEADS,
    "transformer-ffn-activation": "relu",
    "transformer-preprocess": '""',
    "transformer-postprocess": "dan",
    "transformer-decoder-autoreg": "rnn",
    "dec-cell": "ssru",
    "tied-embeddings-all": "true",
}


def shapes(recurrent, separate):
    norm = {"_ln_scale": (1, D), "_ln_bias": (1, D)}
    attention = {f"_W{x}": (D, D) for x in "qkvo"} | {f"_b{x}": (1, D) for x in "qkvo"}
    attention |= {f"_Wo{end}": shape for end, shape in norm.items()}
    ffn = {"_W1": (D, FF), "_b1": (1, FF), "_W2": (FF, D), "_b2": (1, D)}
    ffn |= {f"_ffn{end}": shape for end, shape in norm.items()}
    cell = {"_W": (D, D), "_Wf": (D, D), "_bf": (1, D)} | {f"_ffn{e}": s for e, s in norm.items()}
    parts = {f"encoder_l{i}_self": attention for i in (1, 2)}
    parts |= {f"encoder_l{i}_ffn": ffn for i in (1, 2)}
    parts |= {"decoder_l1_rnn": cell} if recurrent else {"decoder_l1_self": attention}
    parts |= {"decoder_l1_context": attention, "decoder_l1_ffn": ffn}
    tables = {"encoder_Wemb": (V - 5, D), "decoder_Wemb": (V, D)} if separate else {"Wemb": (V, D)}
    inner = {f"{p}{end}": shape for p, ends in parts.items() for end, shape in ends.items()}
    return {**tables, "decoder_ff_logit_out_b": (1, V), **inner}


def write(path, arrays, settings, rounded=()):
    """A file as Marian writes it; `rounded` matrices in int8, with how they must be divided."""
    items = []
    for name, array in arrays.items():
        data, kind = array.astype("<f4").tobytes(), 0x404
        if name in rounded:
            divisor = 127 / np.abs(array).max()
            stored = array if name.endswith("Wemb") else array.T
            data = np.rint(stored * divisor).astype(np.int8).tobytes() + struct.pack("<f", divisor)
            kind = 0x4101
            items.append((f"{name}_QuantMultA", (1, 1), 0x404, struct.pack("<f", 1.5)))
        items.append((name, array.shape, kind, data.ljust(-(-len(data) // 256) * 256, b"\0")))
    text = "".join(f"{name}: {value}\n" for name, value in settings.items()).encode() + b"\0"
    items.append(("special:model.yml", (len(text),), 0x101, text))
    out = struct.pack("<QQ", 1, len(items))
    for name, shape, kind, data in items:
        out += struct.pack("<4Q", len(name) + 1, kind, len(shape), len(data))
    out += b"".join(name.encode() + b"\0" for name, *_ in items)
    out += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, shape, *_ in items)
    out += struct.pack("<Q", 8) + b"\0" * 8 + b"".join(data for *_, data in items)
    path.write_bytes(out)
    return path


def random_arrays(recurrent=True, separate=False):
    draw = np.random.default_rng(0)
    wanted = shapes(recurrent, separate)
    return {n: draw.normal(0, 0.3, shape) + n.endswith("scale") for n, shape in wanted.items()}


class Marian:
    """Greedy, one token after the other, from Marian's names."""

    def __init__(self, arrays):
        self.w = arrays

    def linear(self, x, path, w, b):
        return x @ self.w[path + w] + self.w[path + b]

    def norm(self, x, path):
        centred = x - x.mean(-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        return centred / spread * self.w[f"{path}_ln_scale"] + self.w[f"{path}_ln_bias"]

    def attention(self, x, memory, path, causal=False):
        q, k, v = (
            self.linear(y, path, f"_W{n}", f"_b{n}").reshape(len(y), HEADS, -1).transpose(1, 0, 2)
            for n, y in (("q", x), ("k", memory), ("v", memory))
        )
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(D / HEADS)
        if causal:
            scores = np.where(np.tril(np.ones(scores.shape[1:])), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ v
        mixed = mixed.transpose(1, 0, 2).reshape(len(x), D)
        return self.norm(x + self.linear(mixed, path, "_Wo", "_bo"), f"{path}_Wo")

    def feed_forward(self, x, path):
        inner = np.maximum(self.linear(x, path, "_W1", "_b1"), 0)
        return self.norm(x + self.linear(inner, path, "_W2", "_b2"), f"{path}_ffn")

    def cell(self, x, path):
        gate, state, out = 1 / (1 + np.exp(-self.linear(x, path, "_Wf", "_bf"))), 0.0, []
        for f, value in zip(gate, x @ self.w[f"{path}_W"], strict=True):
            state = f * state + (1 - f) * value
            out.append(np.maximum(state, 0))
        return self.norm(x + np.stack(out), f"{path}_ffn")

    def logits(self, source, target):
        """Row t is for the token after target[:t]; the first input is a vector of zeros."""
        positions, scale = half_sinusoids(0, 50, D).double().numpy(), math.sqrt(D)
        table = self.w.get("Wemb", self.w.get("encoder_Wemb"))
        x = table[source] * scale + positions[: len(source)]
        for i in (1, 2):
            x = self.attention(x, x, f"encoder_l{i}_self")
            x = self.feed_forward(x, f"encoder_l{i}_ffn")
        table = self.w.get("Wemb", self.w.get("decoder_Wemb"))
        y = np.vstack([np.zeros(D), table[target]]) * scale + positions[: len(target) + 1]
        if "decoder_l1_rnn_W" in self.w:
            y = self.cell(y, "decoder_l1_rnn")
        else:
            y = self.attention(y, y, "decoder_l1_self", causal=True)
        y = self.feed_forward(self.attention(y, x, "decoder_l1_context"), "decoder_l1_ffn")
        return y @ table.T + self.w["decoder_ff_logit_out_b"]


@pytest.mark.parametrize("recurrent", [True, False])
@pytest.mark.parametrize("separate", [True, False])
def test_logits_are_those_of_marian(tmp_path, recurrent, separate):
    arrays = random_arrays(recurrent, separate)
    settings = SETTINGS | ({} if recurrent else {"transformer-decoder-autoreg": "self-attention"})
    if separate:
        settings |= {"tied-embeddings-all": "false", "tied-embeddings": "true"}
    config, weights = marian_model(write(tmp_path / "model.bin", arrays, settings))
    model = build(config).eval()
    model.load_state_dict(weights, strict=False)
    model.tie()
    source, target = [3, 5, 8, 0], [4, 9, 2, 30, 7]
    with torch.no_grad():
        found = model(torch.tensor([source]), torch.tensor([[V, *target]]))[0].numpy()
    wanted = Marian(arrays).logits(source, target)
    np.testing.assert_allclose(found[:, :V], wanted, atol=2e-5)
    assert (found[:, V] < -1e8).all()  # nobody writes the vector of zeros


def test_sinusoids_are_the_formula_with_all_sines_first():
    table = half_sinusoids(2, 3, 6).numpy()
    for row, position in enumerate((2, 3, 4)):
        for i in range(3):
            angle = position / 10000 ** (i / 2)
            assert table[row, i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[row, 3 + i] == pytest.approx(math.cos(angle), abs=1e-6)


def test_int8_matrices_are_divided_and_turned(tmp_path):
    arrays = random_arrays()
    rounded = [name for name in arrays if arrays[name].shape[0] > 1]
    found, _ = read_binary(write(tmp_path / "model.bin", arrays, SETTINGS, rounded))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        step = np.abs(array).max() / 127
        np.testing.assert_allclose(found[name].numpy(), array, atol=step * 0.51)
    assert np.abs(found["Wemb"].numpy() - arrays["Wemb"]).max() > 1e-6  # it was rounded


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("type", "s2s"),
        ("dec-cell", "gru"),
        ("transformer-postprocess", "an"),
        ("transformer-train-position-embeddings", "true"),
        ("transformer-tied-layers", "[1, 1]"),
        ("enc-depth", "many"),
    ],
)
def test_settings_that_ours_has_not_are_refused_by_name(tmp_path, name, value):
    path = write(tmp_path / "model.bin", random_arrays(), SETTINGS | {name: value})
    with pytest.raises(UserError, match=name):
        marian_model(path)


def test_missing_and_unknown_tensors_are_refused_by_name(tmp_path):
    arrays = random_arrays()
    lost = arrays.pop("decoder_l1_rnn_Wf")
    with pytest.raises(UserError, match="no tensor decoder_l1_rnn_Wf"):
        marian_model(write(tmp_path / "model.bin", arrays, SETTINGS))
    arrays |= {"decoder_l1_rnn_Wf": lost, "odd": lost}
    with pytest.raises(UserError, match="no such model has: odd"):
        marian_model(write(tmp_path / "model.bin", arrays, SETTINGS))


def vocabulary(size):
    letters = [chr(0x61 + i) for i in range(26)] + [chr(0x3B1 + i) for i in range(20)]
    pieces = [("</s>", 0.0, CONTROL), ("<unk>", 0.0, UNKNOWN), ("▁", -2.0, NORMAL)]
    pieces += [(letter, -3.0, NORMAL) for letter in letters][: size - 3]
    return to_bytes(SentencePieceModel(pieces, special={"eos": 0, "unk": 1}))


@pytest.mark.parametrize("separate", [True, False])
def test_a_folder_of_firefox_is_read_with_its_vocabularies(tmp_path, separate):
    settings = SETTINGS | ({"tied-embeddings": "true"} if separate else {})
    write(tmp_path / "model.xy.intgemm.bin", random_arrays(separate=separate), settings)
    names = {"srcvocab": V - 5, "trgvocab": V} if separate else {"vocab": V}
    for name, size in names.items():
        (tmp_path / f"{name}.xy.spm").write_bytes(vocabulary(size))
    found = read(tmp_path)
    assert (found.tokenizer.start, found.tokenizer.end, len(found.tokenizer)) == (V, 0, V + 1)
    assert len(found.tokenizer.source) == (V - 5 if separate else V) + 1
    assert found.tokenizer.decode([*found.tokenizer.encode("abc de"), 0]) == "abc de"
    (tmp_path / ("trgvocab.xy.spm" if separate else "vocab.xy.spm")).write_bytes(vocabulary(V - 1))
    with pytest.raises(UserError, match="different sizes"):
        read(tmp_path)
