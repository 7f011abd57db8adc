"""Files made to do harm: nothing in them is executed, and they cost little memory and time."""

import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import zipfile

import pytest
import torch

from limelight.interop.sentencepiece import BYTE, NORMAL, UNKNOWN, SentencePieceModel, to_bytes
from tests.interop import test_fairseq, test_gguf, test_llama2c, test_marian

VARIANTS = 25  # of each kind of file
SECONDS = 20  # for one file; most need a hundredth of one


def read_all(folder):
    """For each file what came of it, in a process with little memory."""
    command = [sys.executable, "-m", "tests.interop.read_hostile", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return {
        name: (outcome, seconds)
        for name, outcome, seconds in map(json.loads, done.stdout.splitlines())
    }


class Payload:
    """A pickle of this runs a command."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def as_checkpoint(path, pickled):
    """An archive of torch with this pickle inside."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", pickled)
        archive.writestr("m/version", "3\n")
        archive.writestr("m/data/0", b"\0" * 64)


def tensor_pickle(offset=b"K\0", shape=b"K\4\x85", strides=b"K\1\x85", count=b"K\x10"):
    """{"model": {"w": a tensor}}, with whatever numbers are given as opcodes."""
    storage = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" + b"0X\3\0\0\0cpu" + count + b"tQ"
    build = (
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + offset + shape + strides + b"\x89}tR"
    )
    return b"\x80\2}X\5\0\0\0model}X\1\0\0\0w" + build + b"ss."


def pickles(marker):
    command = f"touch {marker}"
    spelled = f"X{chr(len(command))}\0\0\0{command}".encode()
    huge = struct.pack("<Q", 2**62)
    deep = b"\x80\2" + b"N" + b"\x85" * 300_000
    return {
        "reduce": pickle.dumps({"model": Payload(command)}),
        "reduce protocol 0": pickle.dumps({"model": Payload(command)}, protocol=0),
        "in a list of a list": pickle.dumps({"model": {"w": [[Payload(command)]]}}),
        "as a key": b"\x80\2}cposix\nsystem\n" + spelled + b"\x85RNs.",
        "inst": b"(S'" + command.encode() + b"'\niposix\nsystem\n.",
        "obj": b"\x80\2(cposix\nsystem\n" + spelled + b"o.",
        "newobj": b"\x80\2cbuiltins\nexec\nX\4\0\0\0exit\x85\x81.",
        "stack global": b"\x80\4\x8c\5posix\x8c\6system\x93" + spelled + b"\x85R.",
        "eval": b"\x80\2cbuiltins\neval\nX\6\0\0\0exit()\x85R.",
        "getattr": b"\x80\2cbuiltins\ngetattr\n(cos\nenviron\nX\5\0\0\0cleartRN\x85R.",
        "state": b"\x80\2ccodecs\nlookup\n)\x81}X\x0c\0\0\0__setstate__cposix\nsystem\nsb.",
        "extension": b"\x80\2\x82\1.",
        "rebuild of a function": b"\x80\2ctorch._utils\n_rebuild_tensor_v2\n(cos\nfork\nK\0)))tR.",
        "parameter of a function": b"\x80\2ctorch._utils\n_rebuild_parameter\n(cos\nfork\n)tR.",
        "size of a function": b"\x80\2ctorch\nSize\ncos\nfork\n\x85R.",
        "ordered dictionary": b"\x80\2ccollections\nOrderedDict\n]cos\nfork\na\x85R.",
        "huge memo": b"\x80\2Nr" + struct.pack("<I", 2**31 - 1) + b"}.",
        "huge text": b"\x80\4\x8d" + huge + b"x.",
        "huge bytes": b"\x80\5\x96" + huge + b"x.",
        "huge number": b"\x80\2\x8b" + struct.pack("<i", 2**31 - 1) + b"x.",
        "doubled tuples": b"\x80\2N" + b"2\x86" * 200_000 + b".",
        "deep key": b"\x80\2}" + deep[2:] + b"Ns.",
        "deep shape": tensor_pickle(shape=deep[2:]),
        "a list in itself": b"\x80\2]q\0h\0a.",
        "nothing on the stack": b"\x80\2R.",
        "no end": b"\x80\2" + b"N" * 1000,
        "negative shape": tensor_pickle(shape=b"J\xff\xff\xff\xff\x85"),
        "negative stride": tensor_pickle(strides=b"J\xff\xff\xff\xff\x85"),
        "negative offset": tensor_pickle(offset=b"J\xff\xff\xff\xff"),
        "beyond its memory": tensor_pickle(offset=b"K\x0e"),
        "one number a trillion times": tensor_pickle(
            shape=b"\x8a\6" + b"\0\0\0\0\0\1" + b"\x85", strides=b"K\0\x85"
        ),
        "more than the file has": tensor_pickle(
            count=b"\x8a\6" + b"\0\0\0\0\0\1", shape=b"K\x20\x85"
        ),
        "dimensions without strides": tensor_pickle(shape=b"K\2K\2\x86"),
        "a count that is a text": tensor_pickle(count=b"X\1\0\0\0a"),
    }


def test_nothing_in_a_pickle_is_executed(tmp_path):
    marker, files = tmp_path / "executed", tmp_path / "files"
    files.mkdir()
    made = pickles(marker)
    for i, pickled in enumerate(made.values()):
        as_checkpoint(files / f"{i:02}.pt", pickled)
        legacy = [
            pickle.dumps(x, 2) for x in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})
        ]
        (files / f"{i:02}-old.pt").write_bytes(b"".join(legacy) + pickled + pickle.dumps(["0"], 2))
    found = read_all(files)
    assert len(found) == 2 * len(made)
    names = [name for name in made for _ in range(2)]
    for name, (outcome, seconds) in zip(names, found.values(), strict=True):
        assert outcome.startswith("refused: "), (name, outcome)
        assert seconds < SECONDS, name
    assert not marker.exists()
    pickle.loads(made["reduce"])  # which shows that the payload is one
    assert marker.exists()


def good_files(folder):
    """A good file of each kind."""
    state = test_fairseq.random_state(False, False, False)
    new = test_fairseq.save(folder / "new.pt", state).read_bytes()
    old = io.BytesIO()
    torch.save(
        torch.load(folder / "new.pt", weights_only=False), old, _use_new_zipfile_serialization=False
    )
    tiny = {
        "vocab_size": 20,
        "n_layer": 1,
        "n_embd": 8,
        "n_head": 2,
        "block_size": 9,
        "bias": False,
    }
    torch.save({"model_args": tiny, "model": nanogpt_state(tiny)}, folder / "nano.ckpt")
    weights, arrays = test_llama2c.random_weights(), test_marian.random_arrays()
    rounded = [name for name in arrays if arrays[name].shape[0] > 1]
    pieces = [("<unk>", 0.0, UNKNOWN), *((p, -2.0, NORMAL) for p in ("▁", "▁the", "a", "b", "q"))]
    pieces += [(f"<0x{i:02X}>", 0.0, BYTE) for i in range(256)]
    codes = f"{test_fairseq.dictionary(test_fairseq.PIECES)}====={test_fairseq.CODES}"
    return {
        "new.pt": new,
        "old.pt": old.getvalue(),
        "nano.ckpt": (folder / "nano.ckpt").read_bytes(),
        "m.gguf": test_gguf.write(folder / "m.gguf").read_bytes(),
        "m.marian": test_marian.write(
            folder / "m.bin", arrays, test_marian.SETTINGS, rounded
        ).read_bytes(),
        "l0.bin": test_llama2c.write(folder / "l0", weights, 0, True).read_bytes(),
        "l1.bin": test_llama2c.write(folder / "l1", weights, 1, False).read_bytes(),
        "l.tok": test_llama2c.write_tokenizer(folder / "l.tok")[0].read_bytes(),
        "m.spm": to_bytes(SentencePieceModel(pieces, byte_fallback=True)),
        "m.codes": codes.encode(),
    }


def nanogpt_state(args):
    d, head = args["n_embd"], "_orig_mod.transformer"
    shapes = {"ln_1": (d,), "ln_2": (d,), "attn.c_attn": (3 * d, d), "attn.c_proj": (d, d)}
    shapes |= {"mlp.c_fc": (4 * d, d), "mlp.c_proj": (d, 4 * d)}
    state = {f"{head}.h.0.{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    state |= {f"{head}.wte.weight": torch.randn(args["vocab_size"], d)}
    state |= {f"{head}.wpe.weight": torch.randn(args["block_size"], d)}
    return state | {
        f"{head}.ln_f.weight": torch.ones(d),
        "_orig_mod.lm_head.weight": state[f"{head}.wte.weight"],
    }


HUGE = [2**31 - 1, 2**32 - 1, 2**62, 2**64 - 1, 0]


def damaged(data, draw):
    """The same file: cut off, with other bytes, or with an absurd number where sizes stand."""
    kind = draw.randrange(4)
    header = min(len(data), 4000)
    if kind == 0:
        return data[: draw.randrange(len(data))]
    changed = bytearray(data)
    if kind == 1:
        for _ in range(draw.randrange(1, 8)):
            changed[draw.randrange(header)] = draw.randrange(256)
    elif kind == 2:
        at = draw.randrange(max(1, header - 8))
        changed[at : at + 8] = struct.pack("<Q", draw.choice(HUGE))
    else:
        at = draw.randrange(header)
        changed[at : at + draw.randrange(1, 64)] = b""
    return bytes(changed)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    good, draw = good_files(tmp_path_factory.mktemp("good")), random.Random(0)
    for name, data in good.items():
        stem, _, kind = name.partition(".")
        (folder / f"{stem}-good.{kind}").write_bytes(data)
        for i in range(VARIANTS):
            (folder / f"{stem}-{i:02}.{kind}").write_bytes(damaged(data, draw))
    return read_all(folder)


def test_good_files_are_read(outcomes):
    good = {name: outcome for name, (outcome, _) in outcomes.items() if "-good" in name}
    assert {*good.values()} == {"read"}, good
    assert len(good) == 10


def test_damaged_files_are_read_or_refused_with_a_sentence(outcomes):
    assert len(outcomes) == 10 * (VARIANTS + 1)
    for name, (outcome, seconds) in outcomes.items():
        assert outcome == "read" or outcome.startswith("refused: "), (name, outcome)
        assert seconds < SECONDS, name
    kinds = {name.partition("-")[0] + name.rpartition(".")[2] for name in outcomes}
    for kind in kinds:  # every kind of file was refused a few times
        refused = [
            n
            for n, (outcome, _) in outcomes.items()
            if n.startswith(kind[:1]) and outcome != "read"
        ]
        assert len(refused) > VARIANTS // 4, kind
