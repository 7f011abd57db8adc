"""A run folder is data: whatever lies in it, nothing is run, and little time and memory spent."""

import ast
import io
import json
import os
import pickle
import pickletools
import shutil
import struct
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save, save_file

from limelight.data.tokenizer import LARGEST, Tokenizer
from limelight.model import build
from limelight.recipe import parse_recipe, write_recipe
from limelight.run.atomic import MANIFEST, commit, write_manifest
from limelight.run.folder import RunFolder
from limelight.run.weights import WEIGHTS
from tests.training.processes import ROOT, SECONDS, process

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
    assert {str(path): programs_read(path.read_text("utf-8")) for path in sources} == {
        str(path): [] for path in sources
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
