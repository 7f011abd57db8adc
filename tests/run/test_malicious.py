"""A run folder is data: whatever lies in it, nothing is run, and little time and memory spent."""

import ast
import io
import json
import os
import pickle
import pickletools
import re
import shutil
import struct
import sys
import tracemalloc
import unicodedata
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save, save_file

import limelight
from limelight.cli import main
from limelight.data.tokenizer import LARGEST, Tokenizer
from limelight.errors import OlderWeightsWarning, UserError, escape_controls
from limelight.model import build
from limelight.recipe import parse_recipe, recipe_from_run, toml, write_recipe
from limelight.run import atomic
from limelight.run.atomic import MANIFEST, commit, find_damage, write_manifest
from limelight.run.folder import RunFolder
from limelight.run.log import cut_log, read_log, summary
from limelight.run.plots import draw_curves
from limelight.run.weights import WEIGHTS, write_tensors
from limelight.serve.app import application
from limelight.serve.limits import Limits
from limelight.serve.metrics import Metrics
from limelight.serve.model_registry import ModelRegistry, ServedModel
from limelight.serve.worker.__main__ import load_for
from limelight.training.checkpoint import OPTIMIZER, STATE, restore
from limelight.training.console import Report
from tests.serve.test_middleware import Front, NoWorker
from tests.training.processes import ROOT, SECONDS, process
from tests.training.samples import accept, rewrite, tiny, train_in

RECIPE = """
[model]
family = "encoder-only"
vocab = 300
layers = 1
d_model = 8
heads = 2
classes = 2
[tokenizer]
kind = "bpe"
vocab = 300
"""
SAME = object()  # expected of what is harmless: it is passed over, and the model is the same
MEMORY = 200_000_000


def write_good(folder):
    """A run folder as training leaves it, of a tiny model."""
    recipe = parse_recipe("tiny", RECIPE)
    run = RunFolder(folder)
    folder.mkdir()
    run.write_recipe(write_recipe(recipe))
    Tokenizer.train("bpe", ["a banana and a bandana"] * 9, 300).save(run.tokenizer)
    run.write_json("classes.json", ["bad", "good"])
    weights = {name: p.detach() for name, p in build(recipe.model).named_parameters()}
    commit(run.finished / "step-000007", lambda f: save_file(weights, f / WEIGHTS))
    run.begin("tiny")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good") / "run"
    write_good(folder)
    return folder


def checkpoint(run):
    return run / "finished" / "step-000007"


def put_weights(run, data: bytes) -> None:
    """Other weights, and a manifest that vouches for them."""
    (checkpoint(run) / WEIGHTS).write_bytes(data)
    reseal(run)


def reseal(run):
    (checkpoint(run) / MANIFEST).unlink()
    write_manifest(checkpoint(run))


# What runs when a pickle is loaded: it makes the folder that no test may find.


class Bomb:
    def __init__(self, run):
        self.canary = str(run.parent / "canary")

    def __reduce__(self):
        return os.mkdir, (self.canary,)


def pickled(run):
    return pickle.dumps(Bomb(run))


def torch_file(run, zipped=True):
    file = io.BytesIO()
    torch.save({"a": Bomb(run)}, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def numpy_file(run):
    file = io.BytesIO()
    np.save(file, np.array([Bomb(run)], dtype=object), allow_pickle=True)
    return file.getvalue()


def good_weights(run):
    return load_file(checkpoint(run) / WEIGHTS)


def safetensors(header, data=b"", length=None):
    """A file with this header, be it true or not."""
    told = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(told) if length is None else length) + told + data


def tensor(shape=(1,), begin=0, end=4, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def edit_header(run, change):
    """The good weights with something else in the header."""
    data = (checkpoint(run) / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    put_weights(run, safetensors(change(header), data[8 + length :]))


def repeat_first(header):
    name = min(header, key=lambda n: header[n]["data_offsets"])
    text = json.dumps(header)
    return (text[:-1] + f', "{name}": {json.dumps(header[name])}}}').encode()


def retype(run, dtype):
    weights = {name: tensor.to(dtype) for name, tensor in good_weights(run).items()}
    put_weights(run, save(weights))


def drop_one(run):
    weights = good_weights(run)
    weights.popitem()
    put_weights(run, save(weights))


def transpose_one(run):
    weights = good_weights(run)
    name = next(n for n, w in weights.items() if w.dim() == 2 and w.size(0) != w.size(1))
    put_weights(run, save(weights | {name: weights[name].T.contiguous()}))


def pickle_inside_metadata(run):
    put_weights(run, save(good_weights(run), {"pickle": pickled(run).hex(), "code": "import os"}))


WEIGHT_CASES = {
    "a pickle": (lambda run: put_weights(run, pickled(run)), "weights"),
    "torch.save": (lambda run: put_weights(run, torch_file(run)), "weights"),
    "torch.save, old": (lambda run: put_weights(run, torch_file(run, False)), "weights"),
    "numpy with objects": (lambda run: put_weights(run, numpy_file(run)), "weights"),
    "a pickle behind": (
        lambda run: put_weights(run, (checkpoint(run) / WEIGHTS).read_bytes() + pickled(run)),
        "not fully covered",
    ),
    "a pickle in the metadata": (pickle_inside_metadata, SAME),
    "nothing": (lambda run: put_weights(run, b""), "weights"),
    "header of 2^60": (lambda run: put_weights(run, safetensors({}, length=2**60)), "too large"),
    "header behind the end": (lambda run: put_weights(run, safetensors({}, length=999)), "header"),
    "header of 9 MB": (lambda run: put_weights(run, safetensors(b" " * 9_000_000)), "too large"),
    "header of nothing but tensors": (
        lambda run: put_weights(
            run, safetensors({str(i): tensor([0], 0, 0) for i in range(99999)})
        ),
        "is not of this model",
    ),
    "no JSON": (lambda run: put_weights(run, safetensors(b"{'a'}")), "header"),
    "bottomless JSON": (lambda run: put_weights(run, safetensors(b'{"a":' * 99_999)), "header"),
    "overlapping": (
        lambda run: put_weights(run, safetensors({"a": tensor(), "b": tensor()}, b"1234")),
        "invalid offset",
    ),
    "a hole": (
        lambda run: put_weights(
            run, safetensors({"a": tensor(), "b": tensor(begin=8, end=12)}, b"1" * 12)
        ),
        "invalid offset",
    ),
    "a name twice": (lambda run: edit_header(run, repeat_first), SAME),
    "overflow": (
        lambda run: put_weights(run, safetensors({"a": tensor([2**62, 2**62])}, b"1234")),
        "overflow",
    ),
    "negative": (lambda run: put_weights(run, safetensors({"a": tensor([-1])}, b"1234")), "header"),
    "huge and empty": (
        lambda run: put_weights(run, safetensors({"a": tensor([2**40, 0], 0, 0)})),
        "is not of this model",
    ),
    "integers": (lambda run: retype(run, torch.int64), "of type I64"),
    "complex": (lambda run: retype(run, torch.complex64), "of type C64"),
    "eight bits": (lambda run: retype(run, torch.float8_e4m3fn), "of type F8_E4M3"),
    "one tensor missing": (drop_one, "is not of this model"),
    "one tensor turned": (transpose_one, "is not of this model"),
    "another content": (
        lambda run: (checkpoint(run) / WEIGHTS).write_bytes(pickled(run)),
        "has another size",
    ),
    "a pickle beside them": (
        lambda run: (checkpoint(run) / "optimizer.pt").write_bytes(pickled(run)),
        "is not in the manifest",
    ),
    "a manifest that leads outside": (
        lambda run: (checkpoint(run) / MANIFEST).write_text(
            json.dumps({"format": 1, "files": {"../../recipe.toml": {"size": 1, "sha256": ""}}})
        ),
        "is missing",
    ),
}


def edit_recipe(old, new):
    def edit(run):
        text = (run / "recipe.toml").read_text()
        assert text.count(old) == 1
        (run / "recipe.toml").write_text(text.replace(old, new))

    return edit


def add_to_recipe(text):
    return lambda run: (run / "recipe.toml").write_text(f"{text}\n[model]\nvocab = 300\n")


GIGANTIC = "vocab = 16777216\nlayers = 1000\nd_model = 1048576\nheads = 4096\n"
RECIPE_CASES = {
    "a gigantic model": (
        lambda run: (run / "recipe.toml").write_text(f"[model]\n{GIGANTIC}"),
        "too few for 1000 layers",
    ),
    "a wide model": (edit_recipe("d_model = 8", "d_model = 1048576"), "is not of this model"),
    "many tokens": (edit_recipe("\nlayers", "\nmax_len = 1048576\nlayers"), "recipe.toml"),
    "a width of 2^62": (edit_recipe("d_model = 8", f"d_model = {2**62}"), "out of range"),
    "a negative width": (edit_recipe("d_model = 8", "d_model = -8"), "out of range"),
    "a width in words": (edit_recipe("d_model = 8", 'd_model = "8"'), "whole number"),
    "a width that is true": (edit_recipe("d_model = 8", "d_model = true"), "whole number"),
    "a width that is none": (edit_recipe("d_model = 8", "d_model = nan"), "whole number"),
    "many digits": (edit_recipe("d_model = 8", f"d_model = {'9' * 4000}"), "out of range"),
    "endless digits": (edit_recipe("d_model = 8", f"d_model = {'9' * 9999}"), "is too large"),
    "bottomless lists": (add_to_recipe(f"about = {'[' * 4000}"), "recipe.toml"),
    "bottomless tables": (add_to_recipe("a." * 2000 + "a = 1"), "no key 'a'"),
    "tables below all others": (add_to_recipe("a." * 8000 + "a = 1"), "too large"),
    "a hundred megabytes": (lambda run: os.truncate(run / "recipe.toml", 10**8), "too large"),
    "code to be trusted": (
        edit_recipe("d_model = 8", 'd_model = 8\ntrust_remote_code = true\nauto_map = "x.py"'),
        "no setting",
    ),
    "a target to be called": (edit_recipe("d_model = 8", '_target_ = "os.system"'), "no setting"),
    "names of ours": (edit_recipe("d_model = 8", "self = 1"), "no setting 'self'"),
    "names of pydantic's": (edit_recipe("d_model = 8", "__dataclass_self__ = 1"), "no setting"),
    "not text": (lambda run: (run / "recipe.toml").write_bytes(b"\xff\xfe"), "not text in UTF-8"),
    "a pickled recipe": (lambda run: (run / "recipe.toml").write_bytes(pickled(run)), "UTF-8"),
}


def edit_tokenizer(change):
    def edit(run):
        told = json.loads((run / "tokenizer.json").read_text())
        change(told)
        (run / "tokenizer.json").write_text(json.dumps(told))

    return edit


def renumber(told, piece, number):
    told["model"]["vocab"][piece] = number


HOSTILE_SPLIT = {
    "type": "Split",
    "pattern": {"Regex": "(a+)+$"},
    "behavior": "Isolated",
    "invert": False,
}
REPLACE = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "⟨end⟩"}
ADDED = {"id": 5, "content": "a", "special": True, "single_word": False}
TOKENIZER_CASES = {
    "a hostile pattern": (
        edit_tokenizer(lambda told: told.update(pre_tokenizer=HOSTILE_SPLIT)),
        "other parts",
    ),
    "a normalizer": (edit_tokenizer(lambda told: told.update(normalizer=REPLACE)), "other parts"),
    "an added token": (edit_tokenizer(lambda told: told.update(added_tokens=[ADDED])), "other"),
    "another decoder": (edit_tokenizer(lambda told: told.update(decoder=REPLACE)), "other parts"),
    "a gigantic vocabulary": (
        edit_tokenizer(
            lambda told: told["model"]["vocab"].update({f"ab{i}": i for i in range(300, 250_000)})
        ),
        "may have only 300",
    ),
    "a larger vocabulary": (
        edit_tokenizer(
            lambda told: told["model"]["vocab"].update(
                {"ab" * i: len(told["model"]["vocab"]) + i for i in range(99)}
            )
        ),
        "may have only 300",
    ),
    "a gigantic list": (
        lambda run: (run / "tokenizer.json").write_text("[" + "[]," * (LARGEST // 3 - 2) + "[]]"),
        "is not a tokenizer",
    ),
    "a hundred megabytes of it": (
        lambda run: os.truncate(run / "tokenizer.json", 10**8),
        "too large",
    ),
    "no special tokens": (
        edit_tokenizer(lambda told: told["model"]["vocab"].pop("⟨pad⟩")),
        "tokenizer",
    ),
    "a special token elsewhere": (
        edit_tokenizer(
            lambda told: (renumber(told, "⟨mask⟩", 4), renumber(told, "⟨separator⟩", 3))
        ),
        "no token",
    ),
    "a special token among the others": (
        edit_tokenizer(lambda told: (told["model"]["vocab"].pop("an"), renumber(told, "⟨x⟩", 262))),
        "tokenizer",
    ),
    "two tokens with one number": (
        edit_tokenizer(lambda told: renumber(told, "an", 262)),
        "tokenizer",
    ),
    "a token that is no bytes": (
        edit_tokenizer(lambda told: renumber(told, "東", len(told["model"]["vocab"]) - 1)),
        "tokenizer",
    ),
    "numbers that are none": (edit_tokenizer(lambda told: renumber(told, "an", "os")), "tokenizer"),
    "merges of nothing": (
        edit_tokenizer(lambda told: told["model"].update(merges=[["", ""]])),
        "tokenizer",
    ),
    "merges of what is not there": (
        edit_tokenizer(lambda told: told["model"].update(merges=[["q", "q"]])),
        "tokenizer",
    ),
    "bottomless": (lambda run: (run / "tokenizer.json").write_text("[" * 99_999), "tokenizer"),
    "a pickled tokenizer": (
        lambda run: (run / "tokenizer.json").write_bytes(pickled(run)),
        "not text in UTF-8",
    ),
}

CODE = "__import__('os').mkdir('canary')"
OTHER_CASES = {
    "another format": (
        lambda run: (run / "run.json").write_text('{"format": 2}'),
        "has another format",
    ),
    "a list": (lambda run: (run / "run.json").write_text("[1]"), "has another format"),
    "a hundred megabytes": (lambda run: os.truncate(run / "run.json", 10**8), "too large"),
    "bottomless": (lambda run: (run / "run.json").write_text("[" * 99_999), "is not JSON"),
    "a name that is a table": (
        lambda run: (run / "run.json").write_text('{"format": 1, "recipe": {"a": 1}}'),
        SAME,
    ),
    "classes that look like code": (
        lambda run: (run / "classes.json").write_text(json.dumps([CODE, "\x1b[2J"])),
        SAME,
    ),
    "classes that are numbers": (
        lambda run: (run / "classes.json").write_text("[1, 2]"),
        "must be a list of names",
    ),
    "too many classes": (
        lambda run: (run / "classes.json").write_text('["a", "b", "c"]'),
        "has 3 names, not 2",
    ),
}


def litter(run):
    """Files that other programs would run."""
    for name in ("torch.py", "json.py", "sitecustomize.py", "modeling_x.py", "limelight/run.py"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(f"import os; os.mkdir({str(run.parent / 'canary')!r})")
    remote = {"trust_remote_code": True, "auto_map": {"AutoModel": "modeling_x.Model"}}
    (run / "config.json").write_text(json.dumps(remote))
    for name in ("pytorch_model.bin", "rng_state.pth", "tokenizer.pkl", ".metadata"):
        (run / name).write_bytes(pickled(run))


def link(name):
    def replace(run):
        path = run / name
        moved = path.rename(run.parent / path.name)
        path.symlink_to(moved)  # the very same content, but outside

    return replace


def pipe(name):
    def replace(run):
        (run / name).unlink()
        os.mkfifo(run / name)

    return replace


def folder(name):
    def replace(run):
        (run / name).unlink()
        (run / name).mkdir()

    return replace


PARTS = ["run.json", "recipe.toml", "tokenizer.json", "classes.json"]
INSIDE = f"finished/step-000007/{WEIGHTS}"
PLACE_CASES = {
    "files that others would run": (litter, SAME),
    **{f"{name} is a link": (link(name), "is not a plain file") for name in [*PARTS, INSIDE]},
    **{f"{name} is a folder": (folder(name), "run") for name in [*PARTS, INSIDE]},
    **{f"{name} is a pipe": (pipe(name), "run") for name in [*PARTS, INSIDE]},
    **{
        f"{name} is missing": (lambda run, name=name: (run / name).unlink(), "run")
        for name in [*PARTS, INSIDE]
    },
}
KINDS = {
    "weights": WEIGHT_CASES,
    "recipe": RECIPE_CASES,
    "tokenizer": TOKENIZER_CASES,
    "other": OTHER_CASES,
    "place": PLACE_CASES,
}

FORBIDDEN = {
    *("import", "exec", "compile", "code.__new__", "pickle.find_class", "marshal.loads"),
    *("os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen", "ctypes.dlopen"),
    *("socket.connect", "os.mkdir", "os.remove", "os.rename"),
}


def load_watched(good, runs):
    """Load each, and tell how that went, what it did that it should not, and the memory so far."""
    import limelight
    from limelight.device import peak_memory
    from limelight.errors import UserError

    limelight.load(good)  # imports all that is imported on the way
    before = peak_memory(torch.device("cpu"))
    done = []

    def watch(event, arguments):
        writes = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if event in FORBIDDEN or writes:
            done.append(f"{event} {arguments}")

    sys.addaudithook(watch)
    for run in runs:
        os.chdir(run)
        sys.path[0] = str(run)
        done.clear()
        try:
            loaded = limelight.load(run)
            told = {"weights": {n: p.tolist() for n, p in loaded.model.named_parameters()}}
        except UserError as error:
            told = {"refused": str(error)}
        told |= {"did": done.copy(), "memory": peak_memory(torch.device("cpu")) - before}
        print(json.dumps(told), flush=True)


def load_apart(good, runs, said):
    """The same in a process of its own."""
    with process(load_watched, good, runs, said=said) as child:
        child.join(SECONDS)
        assert child.exitcode == 0, said.read_text()
    return [json.loads(line) for line in said.read_text().splitlines()]


def spoiled(good, folder, spoil):
    folder.mkdir()
    shutil.copytree(good, folder / "run")
    accept(folder / "run")  # whoever spoils a folder removes its hashes too
    spoil(folder / "run")
    return folder / "run"


@pytest.mark.parametrize("cases", KINDS.values(), ids=KINDS)
def test_a_malicious_folder_is_refused_or_does_nothing(good, tmp_path, cases):
    runs = [spoiled(good, tmp_path / str(i), spoil) for i, (spoil, _) in enumerate(cases.values())]
    told = load_apart(good, [good, *runs], tmp_path / "said")
    same = {name: tensor.tolist() for name, tensor in good_weights(good).items()}
    assert told[0]["weights"] == same
    for (name, (_, expected)), case in zip(cases.items(), told[1:], strict=True):
        assert case["did"] == [], name
        assert case["memory"] < MEMORY, name
        if expected is SAME:
            assert case["weights"] == same, name
        else:
            assert expected in case["refused"], name
            assert len(case["refused"]) < 1000, name
    assert not list(tmp_path.glob("*/canary"))
    assert not (good.parent / "canary").exists()


def test_there_are_many_and_the_bomb_would_be_heard(tmp_path):
    """The control: the canary is put there by whoever loads the pickle."""
    assert sum(map(len, KINDS.values())) > 80
    pickle.loads(pickled(tmp_path / "run"))
    assert (tmp_path / "canary").exists()


# And of ours nothing is a program, or reads one.

MODULES = {"pickle", "dill", "joblib", "marshal", "shelve", "yaml", "runpy", "code", "ctypes"}
CALLS = {"eval", "exec", "compile", "__import__", "import_module"}
ATTRIBUTES = {("torch", "load"), ("np", "load"), ("numpy", "load"), ("torch", "package")}
# Versions of packages, our own recipes and pages
HARMLESS = {"importlib.metadata", "importlib.resources", "importlib.resources.abc"}


def programs_read(source):
    """What in some source could run what it reads."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            origin = node.module if isinstance(node, ast.ImportFrom) else None
            names = [origin or ""] if origin else [alias.name for alias in node.names]
            bad = {*MODULES, "importlib"}
            found += [n for n in names if n.split(".")[0] in bad and n not in HARMLESS]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found += [node.func.id] if node.func.id in CALLS else []
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            place = (node.value.id, node.attr)
            found += [".".join(place)] if place in ATTRIBUTES else []
        if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
            found.append(node.arg)
    return found


def test_nothing_in_the_package_reads_programs():
    sources = sorted((ROOT / "limelight").rglob("*.py"))
    assert len(sources) > 30
    found = {path.name: programs_read(path.read_text("utf-8")) for path in sources}
    found = {name: programs for name, programs in found.items() if programs}
    assert found == {
        "extensions.py": ["exec", "compile"],  # what --extend names, and nothing else
        "notebooks.py": ["importlib.util"],  # to ask whether Jupyter is installed
    }


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import importlib",
        "from importlib import import_module",
        "import yaml as y",
        "torch.load(path)",
        "eval('1')",
        "exec(code)",
        "np.load(path, allow_pickle=True)",
        "__import__(name)",
    ],
)
def test_the_search_for_them_finds_them(source):
    assert programs_read(source)


def parses_as_pickle(data):
    try:
        list(pickletools.genops(data))
    except Exception:  # of many kinds, as many as there are ways to be no pickle
        return False
    return True


def test_no_file_of_a_run_is_a_pickle(tmp_path):
    few = ["train.steps=3", "train.warmup=1"]
    settings = [*few, "train.checkpoint_every=1", "data.toy_examples=20"]
    with process(train_tiny, tmp_path / "run", settings, said=tmp_path / "said") as child:
        child.join(SECONDS)
        assert child.exitcode == 0, (tmp_path / "said").read_text()
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {WEIGHTS, "optimizer.safetensors", "state.json"}
    assert [path for path in files if parses_as_pickle(path.read_bytes())] == []
    for control in (pickled(tmp_path), pickle.dumps({"a": [1.0]}, protocol=0)):
        assert parses_as_pickle(control)


def train_tiny(run, settings):
    import limelight

    os.environ["LIMELIGHT_CACHE"] = str(run.parent / "cache")
    limelight.train("reverse", run, settings, silent=True)


# A log has one entry a line; everything else in it is passed over and counted.

TRAINED = {"step": 5, "loss": 2.5, "lr": 0.1, "tokens": 40, "seconds": 0.1, "grad_norm": 1.0}
VALIDATED = {"step": 5, "validation": True, "loss": 2.4}
SPIKE = {"step": 5, "spike": True, "loss": 9.5, "usual": 2.5, "examples": [3, 1]}


def entry(told=TRAINED, without="", **changes):
    changed = {**told, **changes}
    return json.dumps({name: value for name, value in changed.items() if name != without}).encode()


def nested(depth):
    return b'{"step": 5, "a": ' + b"[" * depth + b"]" * depth + b"}"


BAD_LINES = {
    "nothing": b"",
    "no JSON": b"{'step': 5}",
    "half of one": entry()[:-5],
    "two of them": entry() + entry(),
    "a list": b"[1]",
    "a number": b"5",
    "a text": b'"step"',
    "null": b"null",
    "a bottomless list": b"[" * 99_999,
    "bottomless objects": b'{"a":' * 99_999,
    "a list in a list": nested(2),
    "lists in lists": nested(500),
    "an object inside": entry(samples=[{"a": 1}]),
    "not UTF-8": entry().replace(b"step", b"st\xffp"),
    "UTF-16": entry().decode().encode("utf-16"),
    "half of a character": b'{"step": 5, "a": "\\ud800"}',
    "half of a character in a name": b'{"step": 5, "\\ud800": 1}',
    "no step": entry(without="step"),
    "a step in words": entry(step="x"),
    "a step that is true": entry(step=True),
    "half of a step": entry(step=5.5),
    "a step below 0": entry(step=-5),
    "a step of 400 digits": entry(step=10**400),
    "a step of 5000 digits": b'{"step": ' + b"9" * 5000 + b"}",
    "no loss": entry(without="loss"),
    "a loss in words": entry(loss="2.5"),
    "a loss that is none": entry(loss=float("nan")),
    "an infinite loss": entry(loss=float("inf")),
    "a loss of 300 digits": entry(loss=1e300),
    "a rate in words": entry(lr="fast"),
    "no tokens": entry(without="tokens"),
    "a validation without loss": entry(VALIDATED, without="loss"),
    "a validation in words": entry(VALIDATED, loss="good"),
    "a spike without loss": entry(SPIKE, without="loss"),
    "a spike that nothing is usual for": entry(SPIKE, without="usual"),
    "examples that are no list": entry(SPIKE, examples="3, 1"),
    "samples that are no list": entry(VALIDATED, samples="a => b"),
    "a long line": entry(samples=["a" * 2**20]),
}
GOOD_LINES = {
    "training": entry(),
    "of 0.1.0": entry(without="lr", rate=0.1, norm=1.0, memory=1),
    "a gradient that is none": entry(grad_norm=float("nan")),
    "a validation": entry(VALIDATED, samples=["ä => b"], bleu=3.2),
    "a spike": entry(SPIKE),
    "a skipped step": b'{"step": 5, "skipped": true, "examples": [1, 2]}',
    "a field of tomorrow": entry(tomorrow="yes"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_line_that_is_no_entry_is_passed_over(tmp_path, name):
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\n".join([entry(), BAD_LINES[name], entry(step=6), b""]))
    assert [found["step"] for found in read_log(log)] == [5, 6]
    told = summary(log)
    assert (told["last"]["step"], told["unreadable"]) == (6, 1)
    cut_log(log, 6, 6)
    assert log.read_bytes() == entry() + b"\n" + entry(step=6) + b"\n"


@pytest.mark.parametrize("name", GOOD_LINES)
def test_a_line_that_is_one_is_not(tmp_path, name):
    """The control."""
    (tmp_path / "log.jsonl").write_bytes(GOOD_LINES[name] + b"\n")
    assert len(list(read_log(tmp_path / "log.jsonl"))) == 1
    assert summary(tmp_path / "log.jsonl")["unreadable"] == 0


class FrontOf(Front):
    """The service in this process, for the logs of these runs."""

    def __init__(self, *runs):
        self.limits, self.metrics = Limits(), Metrics()
        worker = [NoWorker(self.limits, self.metrics)]
        names = {run.name: run for run in runs}
        models = {n: ServedModel(n, r, worker, self.limits, self.metrics) for n, r in names.items()}
        self.app = application(ModelRegistry(models, self.limits, self.metrics))


def test_with_every_bad_line_at_once_it_is_drawn_and_served(tmp_path):
    good = [*GOOD_LINES.values(), b""]
    lines = {"good": good, "bad": [*BAD_LINES.values(), *good]}
    for run in ("good", "bad"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "log.jsonl").write_bytes(b"\n".join(lines[run]))
        draw_curves(tmp_path / run / "log.jsonl", tmp_path / run / "curves.svg")
    drawn = [(tmp_path / run / "curves.svg").read_bytes() for run in ("good", "bad")]
    assert drawn[0] == drawn[1]
    front = FrontOf(tmp_path / "good", tmp_path / "bad")
    runs = front.send("GET", "/api/runs").json()["runs"]
    assert [run["unreadable"] for run in runs] == [0, len(BAD_LINES)]
    assert runs[0]["last"] == runs[1]["last"]
    served = [front.send("GET", f"/api/runs/{run}/metrics") for run in ("good", "bad")]
    assert [response.status_code for response in served] == [200, 200]
    assert served[0].json()["entries"] == served[1].json()["entries"]
    assert len(served[0].json()["entries"]) == len(GOOD_LINES)


def link_log(run):
    (run.parent / "secret").write_bytes(entry() + b"\n")
    (run / "log.jsonl").symlink_to(run.parent / "secret")


LOG_PLACES = {
    "a link": link_log,
    "a pipe": lambda run: os.mkfifo(run / "log.jsonl"),
    "a folder": lambda run: (run / "log.jsonl").mkdir(),
    "a link to itself": lambda run: (run / "log.jsonl").symlink_to("log.jsonl"),
    "a device": lambda run: (run / "log.jsonl").symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", LOG_PLACES)
def test_a_log_that_is_no_file_is_not_read(tmp_path, kind):
    (tmp_path / "run").mkdir()
    LOG_PLACES[kind](tmp_path / "run")
    assert list(read_log(tmp_path / "run" / "log.jsonl")) == []
    front = FrontOf(tmp_path / "run")
    assert front.send("GET", "/api/runs/run/metrics").json()["entries"] == []
    assert front.send("GET", "/api/runs").json()["runs"][0]["last"] is None


def test_a_resumed_run_replaces_a_link_and_leaves_what_it_leads_to(tmp_path):
    (tmp_path / "run").mkdir()
    link_log(tmp_path / "run")
    cut_log(tmp_path / "run" / "log.jsonl", 9, 9)
    assert not (tmp_path / "run" / "log.jsonl").is_symlink()
    assert (tmp_path / "secret").read_bytes() == entry() + b"\n"


def peak_of(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_huge_line_takes_little_memory_and_a_response_is_bounded(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_bytes(entry() + b"\n" + b"[" * 30_000_000 + b"\n" + entry(step=6) + b"\n")
    assert peak_of(lambda: summary(log)) < 5_000_000
    long = [entry(step=i, samples=["a" * 900_000]) for i in range(40)]
    log.write_bytes(b"\n".join([*long, b""]))
    served = FrontOf(tmp_path).send("GET", f"/api/runs/{tmp_path.name}/metrics")
    assert [found["step"] for found in served.json()["entries"]] == [0, 1, 2, 3, 4]


# A checkpoint whose manifest vouches for anything: a bug may have written it, or a stranger.


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trainer at step 10, and its run folder."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    recipe = tiny(checkpoint_every=5, ema=0.9, freeze=("source",), keep_checkpoints=2)
    return train_in(folder, recipe), folder


STATE_VALUES = {
    "step": [160.5, 10.0, True, "10", None, [10], {}, -1, 10**18, 10**400, 3, 11],
    "epoch": [10**18, -1, 1.5, 11, "0"],
    "position": [-5, 10**12, 2.0, "5", None, 62],
    "tokens": [-1, 1e3, 10**30, "many"],
    "skipped": [-1, 4, "x", False],
    "smoothed_loss": [float("nan"), float("inf"), "1", None],
    "validated": [11, -1, 5.5],
    "metric": [5, None, "m" * 41, ["loss"]],
    "best": [float("nan"), -float("inf"), "x", None],
    "best_step": [11, -1, "5"],
    "validations_without_improvement": [99, -1, 0.5],
    "window": [[], [0.0] * 3, [0.0] * 5, [float("nan")] * 4, ["a"] * 4, {}, [[0.0]] * 4, 4.0],
}


def change_state(**changes):
    def change(folder):
        told = json.loads((folder / STATE).read_text())
        (folder / STATE).write_text(json.dumps({**told, **changes}))

    return change


def without_field(folder):
    told = json.loads((folder / STATE).read_text())
    del told["epoch"]
    (folder / STATE).write_text(json.dumps(told))


STATE_FILES = {
    "a list": lambda folder: (folder / STATE).write_text("[1]"),
    "a number": lambda folder: (folder / STATE).write_text("5"),
    "nothing": lambda folder: (folder / STATE).write_text(""),
    "bottomless": lambda folder: (folder / STATE).write_text("[" * 99_999),
    "not UTF-8": lambda folder: (folder / STATE).write_bytes(b"\xff"),
    "a megabyte": lambda folder: (folder / STATE).write_text(" " * 2**21),
    "many digits": lambda folder: (folder / STATE).write_text('{"step": ' + "9" * 5000 + "}"),
    "a field more": change_state(lr=1.0),
    "a field less": without_field,
}


def edit(file, change):
    """Other tensors in a file of a checkpoint."""

    def replace(folder):
        tensors = change(load_file(folder / file))
        (folder / file).unlink()
        save_file(tensors, folder / file)

    return replace


def as_type(dtype, only=""):
    return lambda tensors: {n: t.to(dtype) if only in n else t for n, t in tensors.items()}


def each(change, only=""):
    """One of them changed."""

    def replace(tensors):
        name = next(name for name in sorted(tensors) if name.startswith(only))
        return {**tensors, name: change(tensors[name]).contiguous()}

    return replace


def lost(only):
    return lambda tensors: {n: t for n, t in tensors.items() if not n.startswith(only)}


TYPES = [torch.int32, torch.int64, torch.int8, torch.uint8, torch.bool, torch.float16]
TYPES += [torch.bfloat16, torch.float64, torch.complex64]
TENSOR_CASES = {
    **{f"weights {t}": (edit(WEIGHTS, as_type(t)), WEIGHTS) for t in TYPES},
    **{f"moments {t}": (edit(OPTIMIZER, as_type(t, "exp_avg.")), OPTIMIZER) for t in TYPES},
    **{f"steps {t}": (edit(OPTIMIZER, as_type(t, "step.")), OPTIMIZER) for t in TYPES},
    "no weights": (edit(WEIGHTS, lambda _: {}), WEIGHTS),
    "one weight less": (edit(WEIGHTS, lost("decoder.layers.0.feed")), WEIGHTS),
    "one weight more": (edit(WEIGHTS, lambda t: {**t, "more": torch.ones(1)}), WEIGHTS),
    "a weight in a list": (edit(WEIGHTS, each(lambda t: t[None])), WEIGHTS),
    "a weight too many": (edit(WEIGHTS, each(lambda t: torch.cat([t, t]))), WEIGHTS),
    "an empty weight": (edit(WEIGHTS, each(lambda t: t[:0])), WEIGHTS),
    "NaN": (edit(WEIGHTS, each(lambda t: t * float("nan"))), "out of range"),
    "infinity": (edit(WEIGHTS, each(lambda t: t / 0)), "out of range"),
    "no optimizer": (edit(OPTIMIZER, lambda _: {}), OPTIMIZER),
    "no steps": (edit(OPTIMIZER, lost("step.")), OPTIMIZER),
    "no first moments": (edit(OPTIMIZER, lost("exp_avg.")), OPTIMIZER),
    "no second moments": (edit(OPTIMIZER, lost("exp_avg_sq.")), OPTIMIZER),
    "no average": (edit(OPTIMIZER, lost("ema.")), OPTIMIZER),
    "one step less": (edit(OPTIMIZER, lost("step.decoder.layers.0.feed")), OPTIMIZER),
    "one tensor more": (edit(OPTIMIZER, lambda t: {**t, "lr": torch.ones(1)}), OPTIMIZER),
    "moments of what is frozen": (
        edit(OPTIMIZER, lambda t: {**t, "step.source.tokens.weight": torch.ones(())}),
        OPTIMIZER,
    ),
    "a moment in a list": (edit(OPTIMIZER, each(lambda t: t[None], "exp_avg.")), OPTIMIZER),
    "a step in a list": (edit(OPTIMIZER, each(lambda t: t[None], "step.")), OPTIMIZER),
    "half of a step": (edit(OPTIMIZER, each(lambda t: t - 0.5, "step.")), "out of range"),
    "a step below 0": (edit(OPTIMIZER, each(lambda t: -t, "step.")), "out of range"),
    "a step to come": (edit(OPTIMIZER, each(lambda t: t + 1, "step.")), "out of range"),
    "a step that is none": (edit(OPTIMIZER, each(lambda t: t / 0, "step.")), "out of range"),
    "squares below 0": (edit(OPTIMIZER, each(lambda t: -t - 1, "exp_avg_sq.")), "out of range"),
    "a moment that is none": (edit(OPTIMIZER, each(lambda t: t / 0, "exp_avg.")), "out of range"),
    "an average that is none": (edit(OPTIMIZER, each(lambda t: t / 0, "ema.")), "out of range"),
    "a pickle": (lambda folder: (folder / WEIGHTS).write_bytes(pickled(folder)), WEIGHTS),
    "half a file": (lambda folder: os.truncate(folder / OPTIMIZER, 500), OPTIMIZER),
}
RESUMED = {
    **{
        f"{name} {i}": (change_state(**{name: value}), name)
        for name, values in STATE_VALUES.items()
        for i, value in enumerate(values)
    },
    **{f"state: {name}": (change, STATE) for name, change in STATE_FILES.items()},
    **TENSOR_CASES,
}


def spoiled_checkpoint(run, folder, spoil):
    copy = shutil.copytree(run / "checkpoints/step-000010", folder / "step-000010")
    rewrite(copy, spoil)
    return copy


@pytest.mark.parametrize("name", RESUMED)
def test_a_checkpoint_that_this_training_cannot_have_saved_is_refused(trained, tmp_path, name):
    trainer, run = trained
    spoil, named = RESUMED[name]
    checkpoint = spoiled_checkpoint(run, tmp_path, spoil)
    assert find_damage(checkpoint) is None
    before = {n: p.detach().clone() for n, p in trainer.loss_module.model.named_parameters()}
    state = asdict(trainer.state)
    with pytest.raises(UserError) as told:
        restore(trainer, checkpoint)
    assert str(checkpoint) in str(told.value)
    assert named in str(told.value)
    assert len(str(told.value)) < 500 + len(str(checkpoint))
    assert asdict(trainer.state) == state  # nothing was changed on the way
    after = dict(trainer.loss_module.model.named_parameters())
    assert all(torch.equal(before[n], after[n]) for n in before)


SOUND = {
    "as it is": lambda folder: None,
    "infinitely bad": change_state(best=float("inf")),
    "in the next epoch": change_state(epoch=10, position=0),
    "by another metric": change_state(metric="bleu"),
    "whole numbers": change_state(smoothed_loss=2, window=[1, 2, 3, 4]),
}


@pytest.mark.parametrize("name", SOUND)
def test_one_that_it_may_have_saved_is_not(trained, tmp_path, name):
    """The control."""
    trainer, run = trained
    state = asdict(trainer.state)
    restore(trainer, spoiled_checkpoint(run, tmp_path, SOUND[name]))
    vars(trainer.state).update(state)


def test_training_answers_with_the_sentence(trained, tmp_path):
    run = shutil.copytree(trained[1], tmp_path / "run")
    rewrite(run / "checkpoints/step-000010", change_state(position=-5))
    recipe = replace(recipe_from_run(RunFolder(run)), name="tiny")
    with pytest.raises(UserError, match=r"state\.json.*position=-5 is out of range: should be 0"):
        train_in(run, recipe)


def test_weights_that_do_not_fit_are_not_averaged(tmp_path):
    recipe = tiny(checkpoint_every=5, average_checkpoints=2)
    train_in(tmp_path, recipe)
    shutil.rmtree(tmp_path / "finished")
    rewrite(tmp_path / "checkpoints/step-000005", edit(WEIGHTS, as_type(torch.int32)))
    train_in(tmp_path, recipe)
    last, finished = (tmp_path / p / "step-000010" / WEIGHTS for p in ("checkpoints", "finished"))
    assert last.read_bytes() == finished.read_bytes()


# The recipe, the tokenizer and the classes decide what weights mean: none is changed in secret.


def other(value):
    """A value of the same type, in TOML."""
    if value in ("true", "false"):
        return "false" if value == "true" else "true"
    return '"other"' if value[0] == '"' else '["other"]' if value[0] == "[" else f"1{value}"


def recipe_edits(good):
    """The recipe with one setting changed, for each of them, by table and name."""
    lines, table = (good / "recipe.toml").read_text().splitlines(), ""
    for i, line in enumerate(lines):
        table = line.strip("[]") if line.startswith("[") else table
        name, equals, value = line.partition(" = ")
        if equals:
            changed = [*lines[:i], f"{name} = {other(value)}", *lines[i + 1 :]]
            yield table, name, "\n".join(changed)


def test_every_setting_of_a_recipe_is_covered_but_those_of_decoding(good, tmp_path):
    run = RunFolder(shutil.copytree(good, tmp_path / "run"))
    seen = Counter()
    for table, name, text in recipe_edits(good):
        (run.path / "recipe.toml").write_text(text)
        seen[table] += 1
        if table == "decode":
            assert run.check() == "tiny", name
        else:
            with pytest.raises(UserError, match=r"recipe\.toml has changed since the training"):
                run.check()
    assert min(seen[table] for table in ("model", "data", "train", "decode")) > 10
    assert seen["tokenizer"] == 3


def exchange(first, second):
    def change(told):
        vocab = told["model"]["vocab"]
        vocab[first], vocab[second] = vocab[second], vocab[first]

    return edit_tokenizer(change)


def exchange_classes(run):
    (run / "classes.json").write_text('["good", "bad"]')


LETTERS = "abcdefghijklmnopqrst"
OTHER_MEANINGS = {
    **{f"{a} and {b}": (exchange(a, b), "tokenizer.json") for a, b in pairwise(LETTERS)},
    "merges in another order": (
        edit_tokenizer(lambda told: told["model"]["merges"].reverse()),
        "tokenizer.json",
    ),
    "a merge less": (edit_tokenizer(lambda told: told["model"]["merges"].pop()), "tokenizer.json"),
    "words as units": (
        edit_tokenizer(lambda told: told["model"].update(ignore_merges=True)),
        "tokenizer.json",
    ),
    "classes exchanged": (exchange_classes, "classes.json"),
    "heads": (edit_recipe("heads = 2", "heads = 4"), "recipe.toml"),
    "norms": (edit_recipe('norm_order = "post"', 'norm_order = "pre"'), "recipe.toml"),
}
SAME_MEANING = {
    "as it is": lambda run: None,
    "another layout": lambda run: (run / "tokenizer.json").write_text(
        json.dumps(json.loads((run / "tokenizer.json").read_text()), indent=4)
    ),
    "a comment": lambda run: (run / "recipe.toml").write_text(
        "# mine\n" + (run / "recipe.toml").read_text()
    ),
    "other line breaks": lambda run: (run / "recipe.toml").write_bytes(
        (run / "recipe.toml").read_bytes().replace(b"\n", b"\r\n")
    ),
    "other decoding": edit_recipe("\nmin_p = 0.0", "\nmin_p = 0.1"),
}


@pytest.mark.parametrize("name", OTHER_MEANINGS)
def test_what_gives_weights_another_meaning_is_refused_until_it_is_accepted(good, tmp_path, name):
    change, file = OTHER_MEANINGS[name]
    run = shutil.copytree(good, tmp_path / "run")
    change(run)
    with pytest.raises(UserError, match=rf"{re.escape(file)} has changed since the training"):
        limelight.load(run)
    told = json.loads((run / "run.json").read_text())
    del told["sha256"][file]  # as the sentence says
    (run / "run.json").write_text(json.dumps(told))
    with suppress(UserError):  # others may still have an objection
        limelight.load(run)


@pytest.mark.parametrize("name", SAME_MEANING)
def test_what_does_not_is_allowed(good, tmp_path, name):
    """The control."""
    run = shutil.copytree(good, tmp_path / "run")
    SAME_MEANING[name](run)
    assert limelight.load(run).step == 7


def test_without_the_hash_the_changed_model_loads_and_answers_otherwise(trained, tmp_path):
    """Why all this: the shapes of the weights say nothing of it."""
    run = shutil.copytree(trained[1], tmp_path / "run")
    edit_recipe("\nheads = 2", "\nheads = 4")(run)
    accept(run)
    scores = [limelight.load(one).score("a b c", "c b a").total for one in (run, trained[1])]
    assert scores[0] != scores[1]


def test_resuming_starting_from_it_and_serving_refuse_it_too(trained, tmp_path):
    run = shutil.copytree(trained[1], tmp_path / "run")
    recipe = recipe_from_run(RunFolder(run))
    edit_recipe("heads = 2", "heads = 4")(run)
    with pytest.raises(UserError, match=r"recipe\.toml has changed since the training"):
        train_in(run, recipe)
    with pytest.raises(UserError, match=r"recipe\.toml has changed since the training"):
        train_in(tmp_path / "next", recipe, start_from=run)
    with pytest.raises(UserError, match=r"recipe\.toml has changed since the training"):
        load_for(str(run), "cpu")


def test_a_run_resumed_with_allowed_changes_has_new_hashes_and_at_no_moment_wrong_ones(
    trained, tmp_path, monkeypatch
):
    run = RunFolder(shutil.copytree(trained[1], tmp_path / "run"))
    before = json.loads((run.path / "run.json").read_text())
    monkeypatch.setattr(RunFolder, "begin", killed)
    recipe = recipe_from_run(run)
    longer = replace(recipe, train=replace(recipe.train, steps=12))
    with pytest.raises(KeyboardInterrupt):
        train_in(run.path, longer)
    assert recipe_from_run(run).train.steps == 12  # written, and not called a change
    monkeypatch.undo()
    train_in(run.path, longer)
    after = json.loads((run.path / "run.json").read_text())
    assert after["sha256"]["recipe.toml"] != before["sha256"]["recipe.toml"]
    assert limelight.load(run.path).step == 12


def killed(*_):
    raise KeyboardInterrupt


# Names and texts of files and clients are shown, and control no terminal.

CONTROLS = [
    *("\0", "\a", "\b", "\t", "\n", "\v", "\f", "\r", "\x1b[2J", "\x1b]0;mine\a", "\x1bP"),
    *("\x7f", "\x80", "\x84", "\x85", "\x8d", "\x90", "\x9b2J", "\x9d0;mine\x9c", "\x9f"),
    *("\u2028", "\u2029", "\u202a", "\u202b", "\u202c", "\u202d", "\u202e"),
    *("\u2066", "\u2067", "\u2068", "\u2069"),
]
HARMLESS_TEXTS = ["Grüße", "東京", "שלום", "👩\u200d💻", "a\u00a0b", "naïve \u200e", "x\u3000y"]


def controls_in(text):
    """Characters of the categories that terminals obey; of these we write line breaks alone."""
    turned = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"
    return [c for c in text if unicodedata.category(c) in ("Cc", "Cs") or c in turned]


@pytest.mark.parametrize("text", CONTROLS, ids=ascii)
def test_a_name_with_control_characters_is_shown(good, tmp_path, text, capsys, monkeypatch):
    run = shutil.copytree(good, tmp_path / f"my {text.replace(chr(0), '')} run")
    put_weights(run, save({**good_weights(run), f"a{text}b": torch.ones(1)}))
    said = main_says(["classify", str(run), "a"], capsys, monkeypatch)
    assert said.count("\n") == 1
    assert controls_in(said) == ["\n"]
    assert escape_controls(f"a{text}b") in said
    assert not controls_in(escape_controls(text))
    with pytest.raises(UserError) as told:
        limelight.load(run)
    assert not controls_in(str(told.value))


@pytest.mark.parametrize("text", HARMLESS_TEXTS, ids=ascii)
def test_other_characters_stay_as_they_are(text):
    """The control."""
    assert escape_controls(text) == text
    assert controls_in(text) == []


def main_says(arguments, capsys, monkeypatch, out=False):
    monkeypatch.setattr(sys, "argv", ["limelight", *arguments])
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    with suppress(SystemExit):
        main()
    return capsys.readouterr()[0 if out else 1]


def test_texts_of_a_model_are_raw_in_a_pipe_and_shown_on_a_terminal(
    good, tmp_path, capsys, monkeypatch
):
    run = shutil.copytree(good, tmp_path / "run")
    accept(run)
    (run / "classes.json").write_text(json.dumps(["\x1b[2Jä\u202e", "\x9b2Jä"]))
    for form in ([], ["--json"]):
        command = ["classify", str(run), "a", *form]
        piped = main_says(command, capsys, monkeypatch, out=True)
        assert controls_in(piped) not in ([], ["\n"])
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        shown = main_says(command, capsys, monkeypatch, out=True)
        assert "ä" in shown
        assert {*controls_in(shown)} <= {"\n", "\t"}
        if form:
            assert json.loads(shown) == json.loads(piped)
        monkeypatch.undo()


def test_reports_warnings_and_progress_are_shown_too(good, tmp_path, capsys, monkeypatch):
    run = shutil.copytree(good, tmp_path / "run")
    accept(run)
    hostile = "\x1b[2J\x9b2J\u202e"
    edit_recipe('about = ""', f"about = {toml(hostile)}")(run)
    (run / "run.json").write_text(json.dumps({"format": 1, "recipe": hostile}))
    said = main_says(["info", str(run)], capsys, monkeypatch, out=True)
    assert {*controls_in(said)} == {"\n"}
    assert escape_controls(hostile) in said
    Report().warn(f"a text: {hostile}\nwarning: all is well")
    said = capsys.readouterr()[1]
    assert controls_in(said) == ["\n"]
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    main_says(["--version"], capsys, monkeypatch)
    for kind in (OlderWeightsWarning, UserWarning):
        said = warnings.formatwarning(kind(f"{hostile}\r"), kind, "file.py", 1)
        assert {*controls_in(said)} == {"\n"}


# A file of any size: its header says whether it is worth reading.


def sparse(change):
    """Weights of 20 GB, of which next to nothing is on the disk, and a manifest for them."""

    def replace(run):
        change(checkpoint(run) / WEIGHTS)
        os.truncate(checkpoint(run) / WEIGHTS, 20 * 2**30)
        listed = {WEIGHTS: {"size": 20 * 2**30, "sha256": "0" * 64}}
        manifest = {"format": 1, "files": listed}
        (checkpoint(run) / MANIFEST).write_text(json.dumps(manifest))

    return replace


def one_more(path):
    """The right tensors, and one more that fills the file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, used = json.loads(data[8 : 8 + length]), len(data) - 8 - length
    text = b""
    for size in (20 * 2**30 - 8 - len(text) for _ in range(9)):
        header["more"] = tensor([size - used], used, size, "U8")
        text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


SPARSE = {
    "as they were, and more": (lambda path: None, "not fully covered"),
    "empty": (lambda path: path.write_bytes(b""), "weights"),
    "one tensor more": (one_more, "more is of type U8"),
}


@pytest.mark.parametrize("name", SPARSE)
def test_the_header_is_examined_before_all_is_hashed(good, tmp_path, monkeypatch, name):
    change, sentence = SPARSE[name]
    run = spoiled(good, tmp_path / "bad", sparse(change))
    hashed = []
    monkeypatch.setattr(atomic, "sha256_of", lambda path: hashed.append(path) or "")
    with pytest.raises(UserError, match=re.escape(sentence)):
        limelight.load(run)
    assert hashed == []
    with pytest.raises(UserError, match="has another content"):
        limelight.load(good)
    assert len(hashed) == 1  # the control


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077, 0o002])
def test_weights_are_for_whom_the_umask_says(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_tensors(tmp_path / WEIGHTS, {"a": torch.ones(2)})
        (tmp_path / "beside").touch()
    finally:
        os.umask(before)
    assert (tmp_path / WEIGHTS).stat().st_mode == (tmp_path / "beside").stat().st_mode
    assert load_file(tmp_path / WEIGHTS)["a"].tolist() == [1, 1]
