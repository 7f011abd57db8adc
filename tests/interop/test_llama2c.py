"""Files of llama2.c, against its `run.c` once more in NumPy."""

import math
import struct

import numpy as np
import pytest
import torch

import limelight
from limelight.errors import UserError
from limelight.interop.import_model import import_model
from limelight.interop.llama2c import llama2c_model, llama2c_tokenizer
from limelight.interop.sentencepiece import SentencePieceCoder, to_bytes
from limelight.model import build
from tests.interop.nasty import nasty_texts

D, FF, LAYERS, HEADS, KV, VOCAB, LENGTH = 16, 24, 2, 4, 2, 300, 32
ORDER = {
    "tok": (VOCAB, D),
    "rms_att": (LAYERS, D),
    "wq": (LAYERS, D, D),
    "wk": (LAYERS, D // 2, D),
    "wv": (LAYERS, D // 2, D),
    "wo": (LAYERS, D, D),
    "rms_ffn": (LAYERS, D),
    "w1": (LAYERS, FF, D),
    "w2": (LAYERS, D, FF),
    "w3": (LAYERS, FF, D),
    "rms_final": (D,),
    "freqs": (2, LENGTH, D // HEADS // 2),
    "wcls": (VOCAB, D),
}


def random_weights():
    draw = np.random.default_rng(0)
    return {
        name: (draw.normal(0, 0.3, shape) + ("rms" in name)).astype(np.float32)
        for name, shape in ORDER.items()
    }


def write(path, weights, version, tied):
    numbers = [D, FF, LAYERS, HEADS, KV, VOCAB, LENGTH]
    order = [name for name in ORDER if not (tied and name == "wcls")]
    if version == 0:
        numbers[5] *= 1 if tied else -1
        header = struct.pack("<7i", *numbers)
    else:
        header = struct.pack("<Ii7iB", 0x616B3432, 1, *numbers, tied).ljust(256, b"\0")
        norms = [name for name in order if "rms" in name]
        order = [*norms, *(name for name in order if name not in norms and name != "freqs")]
    path.write_bytes(header + b"".join(weights[name].tobytes() for name in order))
    return path


def run_c(w, tokens, tied):
    """`forward` of run.c: one token after the other, with its own cache."""
    keys = [[] for _ in range(LAYERS)]
    values = [[] for _ in range(LAYERS)]
    size = D // HEADS

    def rms(x, gain):
        return x / math.sqrt((x * x).mean() + 1e-5) * gain

    def turn(x, position):
        x = x.copy()
        for i in range(0, len(x), 2):
            angle = position / 10000 ** ((i % size) / size)
            a, b = x[i], x[i + 1]
            x[i] = a * math.cos(angle) - b * math.sin(angle)
            x[i + 1] = a * math.sin(angle) + b * math.cos(angle)
        return x

    for position, token in enumerate(tokens):
        x = w["tok"][token].astype(np.float64)
        for n in range(LAYERS):
            y = rms(x, w["rms_att"][n])
            q = turn(w["wq"][n] @ y, position)
            keys[n].append(turn(w["wk"][n] @ y, position))
            values[n].append(w["wv"][n] @ y)
            mixed = np.zeros(D)
            for h in range(HEADS):
                own = slice(h * size, (h + 1) * size)
                shared = slice(h // (HEADS // KV) * size, (h // (HEADS // KV) + 1) * size)
                scores = np.array([q[own] @ k[shared] / math.sqrt(size) for k in keys[n]])
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                mixed[own] = sum(a * v[shared] for a, v in zip(weights, values[n], strict=True))
            x = x + w["wo"][n] @ mixed
            y = rms(x, w["rms_ffn"][n])
            gate = w["w1"][n] @ y
            x = x + w["w2"][n] @ (gate / (1 + np.exp(-gate)) * (w["w3"][n] @ y))
        yield w["tok" if tied else "wcls"] @ rms(x, w["rms_final"])


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_run_c(tmp_path, version, tied):
    weights = random_weights()
    config, ours = llama2c_model(write(tmp_path / "m.bin", weights, version, tied))
    model = build(config).eval()
    model.load_state_dict(ours, strict=False)
    model.tie()
    tokens = np.random.default_rng(1).integers(0, VOCAB, 20).tolist()
    with torch.no_grad():
        found = model(torch.tensor([tokens]))[0].numpy()
    np.testing.assert_allclose(found, np.stack([*run_c(weights, tokens, tied)]), atol=1e-5)


def vocabulary():
    letters = [" ", *"etaoinshrdlu", "é"]
    pairs = ["th", "the", " t", " th", " the", "in", "an", "and", " a", " and", "er", "re"]
    names = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{i:02X}>" for i in range(256))]
    return [*names, *pairs, *letters], [0.0] * 259 + [-float(i) for i in range(len(pairs))]


def write_tokenizer(path):
    names, scores = vocabulary()
    scores += [-1e6] * (len(names) - len(scores))
    rows = [(score, name.encode()) for score, name in zip(scores, names, strict=True)]
    data = [struct.pack("<fi", score, len(raw)) + raw for score, raw in rows]
    path.write_bytes(struct.pack("<i", max(len(raw) for _, raw in rows)) + b"".join(data))
    return path, names, scores


def test_ids_are_those_of_run_c(tmp_path):
    path, names, scores = write_tokenizer(tmp_path / "tok.bin")
    model = llama2c_tokenizer(path, len(names))
    coder = SentencePieceCoder({"tok.spm": to_bytes(model)})
    index = {name: i for i, name in enumerate(names) if i >= 259}

    def encode(text):  # `encode` of run.c
        ids = []
        for letter in " " + text if text else "":
            one = index.get(letter)
            ids += [one] if one is not None else [3 + byte for byte in letter.encode()]
        spelled = lambda i: "" if i < 259 else names[i]  # noqa: E731
        while True:
            best = max(
                (
                    (scores[index[both]], -at, index[both])
                    for at in range(len(ids) - 1)
                    if (both := spelled(ids[at]) + spelled(ids[at + 1])) in index
                    and ids[at] >= 259 <= ids[at + 1]
                ),
                default=None,
            )
            if best is None:
                return ids
            ids[-best[1] : -best[1] + 2] = [best[2]]

    for text in nasty_texts():
        if "▁" not in text:  # which the library cannot tell from a space
            assert coder.encode([text])[0] == encode(text), text


def test_headers_that_cannot_be_are_refused(tmp_path):
    path = write(tmp_path / "m.bin", random_weights(), 0, True)
    data = path.read_bytes()
    for at, number in [(0, -1), (1, 2**30), (2, 0), (3, 5), (4, 3), (5, 2**31 - 1), (6, 2**30)]:
        path.write_bytes(data[: 4 * at] + struct.pack("<i", number) + data[4 * at + 4 :])
        with pytest.raises(UserError):
            llama2c_model(path)
    path.write_bytes(data + b"\0" * 4)
    with pytest.raises(UserError, match="4 bytes are left"):
        llama2c_model(path)


def test_a_folder_with_one_model_is_that_model(tmp_path):
    hub = tmp_path / "hub"
    hub.mkdir()
    names = write_tokenizer(hub / "tok300.bin")[1]
    weights = random_weights()
    weights["tok"] = weights["tok"][: len(names)]
    numbers = struct.pack("<7i", D, FF, LAYERS, HEADS, KV, len(names), LENGTH)
    write(hub / "m.bin", weights, 0, True)
    data = (hub / "m.bin").read_bytes()
    (hub / "m.bin").write_bytes(numbers + data[len(numbers) :])
    import_model(hub, tmp_path / "folder")
    import_model(hub / "m.bin", tmp_path / "file")
    texts = [
        limelight.load(tmp_path / run).write("the", max_tokens=6) for run in ("folder", "file")
    ]
    assert texts[0] == texts[1]
    (hub / "n.bin").write_bytes(data)
    with pytest.raises(UserError, match=r"has several models: name one of m.bin, n.bin"):
        import_model(hub, tmp_path / "again")
