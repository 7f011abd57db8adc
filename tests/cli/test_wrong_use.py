"""What can go wrong for a person, with every command: a sentence, an exit code, no traceback.

A command that is new here needs a line in `RIGHT`; then all of this is asked of it too.
"""

import errno
import io
import json
import os
import shlex
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from limelight.cli import COMMANDS, main
from limelight.errors import RenamedWarning
from tests.tiny_demo import shorten
from tests.training.processes import TINY

RIGHT = {  # each command as it should be; {name} is the folder of a tiny model, {new} a new one
    "ask": ["{reverse}", "ab", "--context={story}"],
    "chat": ["{reverse}", "abc"],
    "classify": ["{classifier}", "the cat sleeps"],
    "completion": ["bash"],
    "course": ["{new}", "--no-start"],
    "data": ["check", "greetings"],
    "demo": ["--quick", "--run={new}"],
    "draw": ["{draw}", "a red box", "-o={new}.png"],
    "embed": ["{bert}", "the cat"],
    "evaluate": ["{reverse}"],
    "explain": ["{reverse}", "abc"],
    "export": ["{reverse}", "{new}", "--to=ctranslate2"],
    "fill": ["{bert}", "the ___ sleeps here."],
    "compare": ["{reverse}", "{writer}"],
    "import": ["{reverse}", "{new}"],
    "info": ["gpt2-124m"],
    "lab": [],
    "models": [],
    "paraphrase": ["{reverse}", "abc"],
    "recipes": [],
    "resume": ["{new}"],
    "score": ["{writer}", "the cat sleeps"],
    "search": ["{bert}", "the cat", "{bert}/recipe.toml"],
    "serve": ["{reverse}", "--port={busy}"],
    "site": ["{new}", "{reverse}"],
    "summarise": ["{reverse}", "abc"],
    "sweep": ["reverse", "--run={new}", *TINY, "--train.steps=2", "--train.seed=1..2"],
    "train": ["reverse", "--run={new}", *TINY, "--train.steps=6"],
    "translate": ["{reverse}", "abc"],
    "write": ["{writer}", "the cat", "--max-tokens=5"],
}
COMPUTE = [
    "ask",
    "chat",
    "classify",
    "draw",
    "embed",
    "evaluate",
    "explain",
    "fill",
    "paraphrase",
    "score",
    "search",
    "summarise",
    "translate",
    "write",
]
MANY_TEXTS = {
    "site",
    "ask",
    "paraphrase",
    "summarise",
    "evaluate",
    "chat",
    "classify",
    "compare",
    "data",
    "embed",
    "score",
    "search",
    "serve",
    "translate",
    "write",
}
ELSEWHERE = {"import", "resume", "serve", "sweep"}  # used rightly in tests of their own


class Outcome:
    """What became of a command."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def is_one_sentence(self, *codes):
        """For a person: the last line says what is wrong, and nothing looks like a crash."""
        said = self.err.strip().splitlines()
        assert self.code in codes, (self.code, self.err)
        assert "Traceback" not in self.err
        assert said[-1].startswith("limelight: ")
        assert len(said[-1].split()) > 3
        return said[-1]


@pytest.fixture
def limelight(run, tmp_path, tmp_path_factory, monkeypatch, capsys):
    """Run a command here, with its names filled in."""
    story = tmp_path_factory.mktemp("story") / "story.txt"
    story.write_text("c d\n")
    shorten(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments):
        names = {name: run(name) for name in ("reverse", "writer", "bert", "classifier", "draw")}
        names |= {"new": tmp_path / "new", "busy": 0, "story": story}
        monkeypatch.setattr(sys, "argv", ["limelight", *(a.format(**names) for a in arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as left:
            code = left.code or 0
        return Outcome(code, *capsys.readouterr())

    return call


def test_every_command_is_here():
    assert set(RIGHT) == set(COMMANDS)


@pytest.mark.parametrize("command", sorted(RIGHT.keys() - ELSEWHERE))
def test_used_rightly_nothing_is_wrong(limelight, command):
    """The control for all that follows."""
    done = limelight(command, *RIGHT[command])
    assert done.code == 0, done.err
    assert "limelight: " not in done.err
    assert done.out or command == "train"


def test_training_without_a_recipe_resumes(limelight):
    assert limelight("train", "reverse", "--run={new}", *TINY, "--train.steps=4").code == 0
    done = limelight("train", "--run={new}", "--train.steps=6")
    assert done.code == 0
    assert "resuming from step 4" in done.err


def test_the_service_is_started_as_asked(limelight, run, monkeypatch):
    asked = {}

    def serve(runs, host, port, limits, hosts=(), origins=(), device="auto", frames=()):
        asked.update(host=host, port=port, hosts=hosts, origins=origins, device=device)
        asked["frames"] = frames
        asked["queue"] = limits.queue

    monkeypatch.setattr("limelight.serve.server.serve", serve)
    words = [
        "serve",
        "{reverse}",
        "--port=0",
        "--device",
        "cpu",
        "--allowed-hosts",
        "a",
        "--hosts=b",
    ]
    words += ["--allowed-origins", "http://c", "--embed-from", "http://d"]
    with pytest.warns(RenamedWarning, match="--hosts is now called --allowed-hosts"):
        assert limelight(*words, "--limits.queue", "5").code == 0
    assert asked == {
        "host": "127.0.0.1",
        "port": 0,
        "hosts": ("a", "b"),
        "origins": ("http://c",),
        "frames": ("http://d",),
        "device": "cpu",
        "queue": 5,
    }


# Names


@pytest.mark.parametrize("command", sorted(RIGHT))
def test_a_misspelt_command_gets_the_right_one(limelight, command):
    wrong = command[0] + command[2] + command[1] + command[3:]
    done = limelight(wrong, *RIGHT[command])
    assert done.is_one_sentence(2).endswith(f"no command '{wrong}': did you mean '{command}'?")


@pytest.mark.parametrize(
    "command",
    sorted(RIGHT.keys() - {"completion", "course", "demo", "lab", "models", "recipes", "site"}),
)
def test_a_model_or_recipe_that_is_not_there_is_named(limelight, command):
    wrong = [a if i or a == "check" else "nowhere" for i, a in enumerate(RIGHT[command])]
    wrong = ["check", "nowhere"] if command == "data" else wrong
    done = limelight(command, *wrong)
    assert "nowhere" in done.is_one_sentence(2)
    assert done.out == ""


def test_a_site_needs_runs_that_are_there_and_have_names_of_their_own(limelight, tmp_path):
    assert "nowhere" in limelight("site", "{new}", "nowhere").is_one_sentence(2)
    said = limelight("site", "{new}", "{reverse}", "{reverse}").is_one_sentence(2)
    assert "two of the runs are called reverse" in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", sorted(RIGHT))
def test_a_misspelt_option_is_named(limelight, command):
    done = limelight(command, *RIGHT[command], "--helpp")
    sentence = f"{command} has no option --helpp: did you mean --help?"
    assert done.is_one_sentence(2).endswith(sentence)


@pytest.mark.parametrize("command", sorted(RIGHT))
def test_an_argument_too_many_or_too_few_is_told(limelight, command):
    """What stands behind a command is either taken or refused, and never left out silently."""
    if command not in MANY_TEXTS:
        too_many = limelight(command, *RIGHT[command], "one", "two", "three").is_one_sentence(2)
        assert " is one too many: " in too_many
    if RIGHT[command] and command not in ("course", "demo"):
        too_few = limelight(command).is_one_sentence(2)
        assert too_few.endswith(f": see limelight {command} --help")
        assert f"{command} needs " in too_few


# Places


def place_that_is_a_file(tmp_path):
    """Where nobody can write, not even root."""
    (tmp_path / "file").write_text("", "utf-8")
    return tmp_path / "file" / "new"


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "reverse", *TINY, "--run={place}"],
        ["train", "reverse", *TINY, "--run={place}", "--verify-resume"],
        ["demo", "--quick", "--run={place}"],
        ["explain", "{reverse}", "abc", "--figure={place}.svg"],
        ["explain", "{reverse}", "abc", "--html={place}.html"],
    ],
)
def test_a_place_that_cannot_be_written_to_is_named(limelight, tmp_path, arguments):
    place = place_that_is_a_file(tmp_path)
    done = limelight(*(a.replace("{place}", str(place)) for a in arguments))
    sentence = done.is_one_sentence(1, 2)
    assert str(place.parent) in sentence
    assert "choose another place" in sentence
    if "--run={place}" in arguments:
        assert sentence.endswith("(--run says where)")


@pytest.mark.parametrize("command", ["train", "demo"])
def test_an_empty_name_is_not_taken_for_this_folder(limelight, tmp_path, command):
    """As in `limelight demo --run "$FOLDER"` where nobody has set it."""
    given = [a for a in RIGHT[command] if not a.startswith("--run")]
    assert "--run is empty" in limelight(command, *given, "--run=").is_one_sentence(2)
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_without_data_leaves_no_folder(limelight, tmp_path):
    done = limelight("train", "text-to-text", "--run={new}", "--train.steps=6")
    assert "the recipe names no data to train on: use --data.train" in done.is_one_sentence(2)
    assert list(tmp_path.iterdir()) == []


SAID = [f"{who} {does} {where}" for who in ("cats", "dogs") for does in ("sit", "sleep", "run")
        for where in ("here", "there", "in the house", "by the river", "on a hill")]  # fmt: skip
DATA = {  # in the place of a recipe: what it holds, and the recipe that fits
    "my.txt": ("texts", "gpt-small", SAID),
    "my texts.txt": ("texts", "gpt-small", SAID),
    "my.tsv": ("pairs", "text-to-text", [f"{a}\t{a}!" for a in SAID]),
    "my.csv": ("labelled texts", "classify", [f"{a},{a[:4]}" for a in SAID]),
    "my.jsonl": ("pairs", "text-to-text", [json.dumps({"source": a, "target": a}) for a in SAID]),
    "talk.jsonl": ("dialogues", "dialogue", [json.dumps({"turns": [a, "oh", a]}) for a in SAID]),
}


@pytest.mark.parametrize("name", DATA)
def test_a_file_of_data_is_no_recipe_but_one_fits(limelight, tmp_path, name):
    """And what is said to be typed instead works, with a smaller model."""
    what, recipe, lines = DATA[name]
    (tmp_path / name).write_text("\n".join(lines))
    for given in (("train", name, "--run={new}"), ("info", name)):
        said = limelight(*given).is_one_sentence(2)
        file = shlex.quote(name)
        instead = f"limelight train {recipe} --data.train {file} --run FOLDER"
        is_data = f"{name} is a file of {what}, and no recipe"
        assert said == f"limelight: {is_data}: to train on it, {instead}"
    assert [path.name for path in tmp_path.iterdir()] == [name]
    words = [word.replace("FOLDER", "{new}") for word in shlex.split(instead)[1:]]
    small = ("--model.layers=1", "--model.d-model=16", "--model.heads=2", "--tokenizer.vocab=300")
    done = limelight(*words, *small, "--train.steps=2")
    assert done.code == 0, done.err


def test_a_file_that_neither_is_a_recipe_nor_can_be_read_is_told(limelight, tmp_path):
    (tmp_path / "my.txt").write_text("hello\n", "utf-16")
    said = limelight("train", "my.txt", "--run={new}").is_one_sentence(2)
    assert said.startswith("limelight: my.txt is no recipe; as --data.train: my.txt is in UTF-16")


def test_a_recipe_may_have_any_ending(limelight, tmp_path):
    (tmp_path / "mine.txt").write_text('about = "mine"\nbase = "reverse"\n')
    assert limelight("train", "mine.txt", "--run={new}", *TINY, "--train.steps=2").code == 0
    (tmp_path / "mine.txt").write_text("[model]\nlayers =\n")
    said = limelight("train", "mine.txt", "--run={new}").is_one_sentence(2)
    assert "mine.txt: Invalid value (at line 2" in said


@pytest.mark.parametrize("command", ["data", "evaluate", "train", "demo"])
def test_a_cache_that_cannot_be_written_to_is_named(limelight, tmp_path, monkeypatch, command):
    place = place_that_is_a_file(tmp_path)
    monkeypatch.setenv("LIMELIGHT_CACHE", str(place))
    done = limelight(command, *RIGHT[command])
    if command == "data":
        assert done.code == 0  # it needs none
    else:
        assert str(place.parent) in (sentence := done.is_one_sentence(1, 2))
        assert sentence.endswith("(LIMELIGHT_CACHE says where)")
        assert done.out == ""  # nobody sits through half a tour for that


class FullDisk(io.RawIOBase):
    """A file to which nothing can be written any more."""

    def writable(self):
        return True

    def write(self, _):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fileno(self):
        return self.descriptor


@pytest.mark.parametrize("command", sorted(RIGHT.keys() - ELSEWHERE - {"train"}))
def test_output_into_a_full_disk(limelight, monkeypatch, tmp_path, command):
    """As in `limelight info gpt2-124m > /full/disk/file`."""
    full = FullDisk()
    full.descriptor = os.open(tmp_path / "descriptor", os.O_CREAT | os.O_WRONLY)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(full), "utf-8"))
    done = limelight(command, *RIGHT[command])
    assert "No space left on device; free some space" in done.is_one_sentence(1)


@pytest.mark.system  # Linux alone has such a folder
@pytest.mark.parametrize("command", ["train", "demo"])
def test_where_the_system_makes_no_folders(limelight, command):
    given = [a for a in RIGHT[command] if not a.startswith("--run")]
    sentence = limelight(command, *given, "--run=/proc/new").is_one_sentence(1)
    assert "/proc/new: no folder can be made there; choose another place (--run" in sentence


@pytest.mark.system  # Linux alone has such a file
def test_the_same_for_a_process():
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "limelight", "info", "gpt2-124m"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    Outcome(done.returncode, "", done.stderr).is_one_sentence(1)
    assert len(done.stderr.splitlines()) == 1  # Python itself has nothing to add


# Memory


PRODUCTS = [(F, "linear"), (F, "embedding"), (torch, "addmm"), (torch, "addmv")]
OUT_OF_MEMORY = {
    "of a GPU": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    "of the machine": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"),
}


@pytest.mark.parametrize("command", [*COMPUTE, "train", "demo"])
@pytest.mark.parametrize("kind", ["of a GPU", "of the machine"])
def test_too_little_memory_is_told_with_what_to_do(limelight, run, monkeypatch, command, kind):
    def no_room(*_, **__):
        raise OUT_OF_MEMORY[kind]

    for name in ("reverse", "writer", "bert", "classifier"):
        run(name)  # there is room for these
    for package, part in PRODUCTS:
        monkeypatch.setattr(package, part, no_room)
    sentence = limelight(command, *RIGHT[command]).is_one_sentence(1)
    assert "memory" in sentence
    advice = "--train.batch-tokens" if command == "train" else "a smaller model"
    assert advice in sentence


def test_another_failure_is_not_taken_for_it(limelight, monkeypatch):
    """A mistake of ours must be seen, with all that helps to find it."""

    def broken(*_, **__):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(F, "linear", broken)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        limelight("explain", "{reverse}", "abc")


# No terminal


@pytest.mark.parametrize("command", sorted(RIGHT.keys() - ELSEWHERE))
@pytest.mark.parametrize("closed", ["stdin", "stdout", "stderr"])
def test_a_closed_stream_harms_nobody(limelight, monkeypatch, command, closed):
    monkeypatch.setattr(sys, closed, None)
    done = limelight(command, *RIGHT[command])
    assert done.code == 0, done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", ["chat", "classify", "embed", "score", "translate", "write"])
def test_nothing_to_read_is_nothing_to_answer(limelight, monkeypatch, command):
    """Neither texts nor a terminal: standard input is at its end."""
    monkeypatch.setattr(sys, "stdin", None)
    done = limelight(command, RIGHT[command][0])
    assert (done.code, done.out, done.err) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["haeds"], "did you mean 'heads'?"),
        (["heads", "en-ed"], "did you mean 'en-de'?"),
        (["ablate", "revers"], "did you mean 'reverse'?"),
        (["gradient", "en-de"], "lab gradient takes no run or recipe, as 'en-de'"),
        (["diagnose"], "lab diagnose examines a RECIPE: name one"),
        (["heads", "nowhere/at-all"], "is not a run folder"),
    ],
)
def test_what_an_experiment_cannot_examine_is_named(limelight, words, sentence):
    done = limelight("lab", *words, "--run={new}")
    assert sentence in done.is_one_sentence(2)
    assert done.out == ""
