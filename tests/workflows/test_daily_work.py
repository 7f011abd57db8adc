"""A person's own files, recipes and runs, through the command line in this process."""

import copy
import csv
import json
import lzma
import os
import pickle
import signal
import sys
import tomllib
import zipfile

import pyarrow.parquet
import pytest

import limelight
from limelight.cli import main
from limelight.data.config import DataConfig
from limelight.data.tokenizer import Tokenizer
from limelight.errors import AdjustedWarning, UserError
from limelight.recipe import load_recipe, recipe_names
from limelight.training import loop
from limelight.workflows.train import plan

TINY = [
    *("--model.layers", "1", "--model.d-model", "16", "--model.d-ff", "16", "--model.heads", "2"),
    *("--train.batch-tokens", "256", "--train.device", "cpu", "--train.precision", "float32"),
]


@pytest.fixture
def call(monkeypatch, capsys):
    """A command in this process; its status, output and messages."""

    def run(*words):
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["limelight", *map(str, words)])
        capsys.readouterr()
        try:
            main()
        except SystemExit as left:
            return left.code, *capsys.readouterr()
        return 0, *capsys.readouterr()

    return run


def recipe_in(folder):
    return tomllib.loads((folder / "recipe.toml").read_text())


# GPT on one text file


@pytest.mark.parametrize("kind", ["char", "bpe", "given"])
def test_a_gpt_learns_from_one_text_file_and_shows_samples(tmp_path, call, kind):
    text = "".join(f"Line {i}: the cat sat on the mat, and the dog ran.\n" for i in range(300))
    (tmp_path / "my.txt").write_text(text)
    vocab = ["--tokenizer.kind", kind, "--tokenizer.vocab", "300"]
    if kind == "given":
        Tokenizer.train("bpe", [text], 280).save(tmp_path / "t.json")
        vocab = ["--tokenizer.file", tmp_path / "t.json"]
    words = ["shakespeare-char", "--data.train", tmp_path / "my.txt", "--run", tmp_path / "run"]
    steps = ["--train.steps", "4", "--train.validate-every", "2", "--train.warmup", "1"]
    code, _, said = call("train", *words, *TINY, *vocab, *steps, "--model.max-len", "32")
    assert code == 0, said
    data = recipe_in(tmp_path / "run")["data"]
    assert (data["stream"], data["valid_tail"], data["name"]) == (True, 0.1, "")
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    samples = [entry["samples"] for entry in log if "samples" in entry]
    assert samples
    assert " -> " in samples[0][0]
    learned = Tokenizer.load(tmp_path / "run" / "tokenizer.json")
    assert len(learned) == {"char": 261, "given": 280}.get(kind, len(learned))
    code, out, said = call("evaluate", tmp_path / "run", "--split", "valid")
    assert (code, "bits per byte" in out) == (0, True), said


def test_a_text_file_is_a_stream_unless_the_recipe_says_else():
    def data(*changes):
        return load_recipe("gpt-small", ["data.train=a.txt.gz", *changes]).data

    assert (data().stream, data().valid_tail) == (True, 0.1)
    assert (data("data.valid=b.txt").stream, data("data.valid=b.txt").valid_tail) == (True, 0.0)
    for other in ("data.stream=false", "data.separator=###", "data.hold_out=0.1"):
        assert not data(other).stream
    assert not load_recipe("gpt-small", ["data.train=a.jsonl"]).data.stream
    assert not load_recipe("bert-small", ["data.train=a.txt"]).data.stream
    with pytest.raises(UserError, match="stream=true is for texts, each file one"):
        DataConfig(kind="texts", stream=True, hold_out=0.1)


# Recipes


def test_recipes_are_printed_and_their_settings_listed(call):
    code, out, _ = call("recipes", "reverse")
    assert code == 0
    assert tomllib.loads(out)["data"]["toy"] == "reverse"
    assert "'revers': did you mean 'reverse'" in call("recipes", "revers")[2]
    out = call("recipes", "--settings")[1]
    assert "warmup = 4000   (whole number from 0 to 2^40)" in out
    listed = json.loads(call("recipes", "--settings", "--json")[1])["settings"]
    assert {"name": "layers", "values": "whole number from 1 to 1,000", "default": "6"}.items() <= (
        next(one for one in listed["model"] if one["name"] == "layers").items()
    )
    out = call("train", "--help")[1]
    assert "label-smoothing" in out
    assert "limelight recipes --settings" in out


def test_a_recipe_may_have_a_base(tmp_path, call):
    middle = tmp_path / "middle.toml"
    middle.write_text('base = "reverse"\nabout = "mine"\n[train]\nsteps = 7\n[model]\nlayers = 1\n')
    (tmp_path / "top.toml").write_text('base = "middle.toml"\n[data]\ntoy = "copy"\n')
    with pytest.warns(AdjustedWarning, match="warmup is 1 instead of 15, for a training of 7"):
        top = load_recipe(str(tmp_path / "top.toml"))
    base = load_recipe("reverse")
    assert (top.train.steps, top.model.layers, top.data.toy, top.about) == (7, 1, "copy", "mine")
    assert top.model.d_model == base.model.d_model
    assert top.train.learning_rate == base.train.learning_rate
    code, out, _ = call("recipes", tmp_path / "top.toml")
    assert (code, "base" in tomllib.loads(out), tomllib.loads(out)["train"]["steps"]) == (
        0,
        False,
        7,
    )
    for text, sentence in {
        'base = "revers"\n': "there is no base 'revers': did you mean 'reverse'",
        'base = "top.toml"\n': "leads back to this recipe",
        "base = 3\n": "base=3 must be text",
        'base = "reverse"\n[train]\nsteos = 3\n': "did you mean 'steps'",
    }.items():
        middle.write_text(text)
        code, _, said = call("info", tmp_path / "top.toml")
        assert (code, sentence in said) == (2, True), said
    files = tmp_path / "files.toml"
    files.write_text('base = "shakespeare-char"\n[data]\ntrain = ["my.txt"]\n')
    data = load_recipe(str(files)).data
    assert (data.name, data.kind, data.stream) == ("", "texts", True)
    assert all(load_recipe(name) for name in recipe_names())


# Runs


SHORT = [
    *TINY,
    "--model.max-len",
    "32",
    "--tokenizer.vocab",
    "300",
    "--train.checkpoint-every",
    "4",
]


def interrupt_at(monkeypatch, step, number):
    """Send a signal to this process when a training begins this step."""
    plain = loop.train_step

    def train_step(trainer, batches):
        if trainer.state.step == step:
            os.kill(os.getpid(), number)
        return plain(trainer, batches)

    monkeypatch.setattr(loop, "train_step", train_step)


def write_pairs(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "en", "de"), *rows])


def test_the_journey_from_a_csv_to_python(tmp_path, call, monkeypatch):
    """Check, train, a closed terminal, resumed elsewhere, evaluated, fine-tuned, compared, used."""
    rows = [(i, f"number {i}, please", f"Nummer {i}, bitte") for i in range(60)]
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
    write_pairs(here / "mine.csv", [*rows, (60, "", "leer")])
    monkeypatch.chdir(here)

    code, _, said = call("data", "check", "mine.csv")
    assert (code, "as with --data.columns en de" in said) == (2, True)
    columns = ["--data.columns", "en", "de"]
    code, out, _ = call("data", "check", "mine.csv", *columns)
    assert (code, "61 used" in out, "line 62 of mine.csv: | leer" in out) == (0, False, True)
    code, _, said = call("data", "check", "mine.txt")
    assert (code, f"mine.txt: there is no such file in {here}" in said) == (2, True), said

    train = ["train", "text-to-text", "--data.train", "mine.csv", *columns, "--run", "run"]
    usual = [*SHORT, "--data.hold-out", "0.1", "--steps", "8", "--lr", "0.01"]
    shorter = pytest.warns(
        AdjustedWarning, match="warmup is 1 instead of 1000, for a training of 8"
    )
    with monkeypatch.context() as patch, shorter:
        interrupt_at(patch, 3, signal.SIGHUP)
        code, _, said = call(*train, *usual)
    assert (code, "saved" in said) == (128 + signal.SIGHUP, True), said
    assert "train: 1 of" in said  # the line that cannot be used

    monkeypatch.chdir(elsewhere)
    code, _, said = call("resume", here / "run")
    assert code == 0, said
    assert "done: step 8, best validation loss" in said
    for word in ("curves.svg", "limelight translate", "limelight evaluate", "limelight serve"):
        assert word in said
    steps = [json.loads(line).get("step") for line in (here / "run" / "log.jsonl").open()]
    assert steps.count(3) <= 1  # it went on, and did not begin again
    stored = recipe_in(here / "run")
    assert stored["data"]["train"] == [str(here / "mine.csv")]
    assert stored["train"]["learning_rate"] == 0.01

    code, out, said = call("evaluate", here / "run", "--split", "valid")
    assert (code, "BLEU" in out) == (0, True), said
    (here / "mine.csv").rename(here / "other.csv")
    code, _, said = call("resume", here / "run", "--train.steps", "9")
    assert (code, f"cannot read {here / 'mine.csv'}: No such file" in said) == (2, True)

    tune = ["text-to-text", "--data.train", here / "other.csv", *columns, "--steps", "2"]
    code, _, said = call("train", *tune, "--run", "tuned", "--from", here / "run")
    assert code == 0, said
    assert recipe_in(elsewhere / "tuned")["model"]["d_model"] == 16  # not text-to-text's
    code, _, said = call("train", here / "run", *tune[1:], "--run", "again", "--data.hold-out", "0")
    assert code == 0, said
    assert "starting from" in said

    adapt = ["--train.lora-rank", "2", "--data.hold-out", "0.1", "--run", "adapted"]
    code, _, said = call("train", here / "run", *tune[1:], *adapt)
    assert (code, "parameters are trained" in said) == (0, True), said
    code, out, said = call("compare", here / "run", "adapted")
    assert code == 0, said
    assert "lora_rank" in out
    code, _, said = call("compare", here / "run")
    assert (code, "a comparison needs two runs" in said) == (2, True), said
    code, out, said = call("evaluate", "adapted", "--split", "valid")
    assert (code, "BLEU" in out) == (0, True), said

    model = limelight.load(here / "run")
    one, other = model.translate(["number 1", "number 2"], beam=1)
    assert (one.text, one.source) == (model.translate("number 1", beam=1).text, "number 1")
    assert "Nummer" in model.translate("number 2", include=["Nummer"]).text
    assert repr(model).count("\n") == 0
    assert repr(model).startswith("<text-to-text: encoder-decoder, ")
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.translate("number 2", beam=1) == other
    assert {"load", "train", "Constraints"} <= {*dir(limelight)}


def test_files_that_cannot_be_read_as_they_are_are_read_with_the_option_named(tmp_path, call):
    """UTF-16 in an archive, and a file of which most lines are no pairs."""
    lines = [f"number {i}, please\tNummer {i}, bitte\n" for i in range(8)]
    (tmp_path / "wide.tsv.xz").write_bytes(lzma.compress("".join(lines).encode("utf-16")))
    (tmp_path / "half.tsv").write_text("".join(lines) + "alone\n" * 9)
    words = ["train", "text-to-text", *SHORT, "--steps", "2", "--train.warmup", "1"]
    wide = [*words, "--data.train", tmp_path / "wide.tsv.xz", "--run", tmp_path / "wide"]
    code, _, said = call(*wide)
    assert (code, "read it with --data.encoding utf-16" in said) == (2, True), said
    assert call(*wide, "--data.encoding", "utf-16")[0] == 0
    half = [*words, "--data.train", tmp_path / "half.tsv", "--run", tmp_path / "half"]
    code, _, said = call(*half)
    assert (code, "9 not two columns" in said, "with --data.allow-bad" in said) == (2, True, True)
    code, _, said = call(*half, "--data.allow-bad")
    assert (code, "train: 9 of 17 lines cannot be used" in said) == (0, True), said


def test_the_bundled_translator_is_fine_tuned_by_its_name(tmp_path, call):
    rows = [(i, f"Good morning, number {i}.", f"Guten Morgen, Nummer {i}.") for i in range(20)]
    write_pairs(tmp_path / "mine.csv", rows)
    words = ["--data.train", tmp_path / "mine.csv", "--data.columns", "en", "de", "--steps", "1"]
    size = ["--train.batch-tokens", "128", "--train.device", "cpu", "--train.precision", "float32"]
    code, _, said = call("train", "en-de", *words, *size, "--run", tmp_path / "run")
    assert code == 0, said
    assert "starting from" in said
    stored = recipe_in(tmp_path / "run")
    assert (stored["data"]["corpora"], stored["data"]["tag"]) == ([], "de")
    theirs, ours = limelight.load("en-de"), limelight.load(tmp_path / "run")
    assert ours.tokenizer.hash == theirs.tokenizer.hash


OWN_LINES = {  # for each bundled model of texts: a file of one's own
    "writer": ("own.txt", "The cat sat on the mat.\n"),
    "fill": ("own.txt", "The cat sat on the mat.\n"),
    "language": ("own.tsv", "A good film.\tgood\nA bad film.\tbad\n"),
    "helper": ("own.tsv", "Where is Ann?\tin the kitchen\n"),
    "chat": ("own.jsonl", '{"turns": ["Hello.", "Hi there."]}\n'),
    "en-de": ("own.tsv", "Good morning.\tGuten Morgen.\n"),
}


@pytest.mark.parametrize("name", OWN_LINES)
def test_each_bundled_model_is_fine_tuned_by_its_name_on_a_file(tmp_path, call, name):
    """Nothing that it says of its own data is said of another file."""
    file, lines = OWN_LINES[name]
    (tmp_path / file).write_text(lines * 12)
    words = ["train", name, "--data.train", tmp_path / file, "--run", tmp_path / "run"]
    few = ["--train.steps", "1", "--train.batch-tokens", "64", "--train.compile", "false"]
    code, _, said = call(*words, *few, "--train.device", "cpu", "--train.precision", "float32")
    assert (code, "starting from" in said) == (0, True), said
    stored = recipe_in(tmp_path / "run")
    expected = {"writer": "texts", "fill": "texts", "language": "labelled", "chat": "dialogues"}
    assert stored["data"]["kind"] == expected.get(name, "pairs")
    assert (stored["data"]["stream"], stored["data"]["valid_tail"] > 0) == (name == "writer",) * 2
    assert stored["model"]["classes"] == (2 if name == "language" else 0)
    tasks = {"writer": "write", "language": "classify", "helper": "ask", "en-de": "translate"}
    assert f"  limelight {tasks.get(name, name)} {tmp_path / 'run'} " in said


def test_what_a_run_says_of_its_files_is_not_said_of_others(tmp_path, call):
    write_pairs(tmp_path / "a.csv", [(i, f"text {i}", f"Text {i}") for i in range(30)])
    columns = ["--data.columns", "en", "de", "--data.hold-out", "0.2"]
    words = ["text-to-text", "--data.train", tmp_path / "a.csv", *columns, "--steps", "1", *TINY]
    code, _, said = call("train", *words, "--tokenizer.vocab", "280", "--run", tmp_path / "a")
    assert code == 0, said
    (tmp_path / "b.tsv").write_text("text 1\tText 1\n" * 9)
    recipe, _ = plan(str(tmp_path / "a"), [f"data.train={tmp_path / 'b.tsv'}"])
    assert (recipe.data.columns, recipe.data.hold_out) == ((), 0.2)
    told = [f"data.train={tmp_path / 'b.tsv'}", "data.columns=2", "data.columns=1"]
    assert plan(str(tmp_path / "a"), told)[0].data.columns == ("2", "1")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--epochs", "3"],
            "there is no --epochs: training is counted in steps: use --train.steps",
        ),
        (["--train.epochs=3"], "there is no --train.epochs: training is counted in steps"),
        (["--batch-size", "8"], "batches are counted in tokens: use --train.batch-tokens N"),
        (["--steps"], "--train.steps needs a value"),
        (["--hold-out", "0.1"], "train has no option --hold-out: did you mean --data.hold-out?"),
        (["--train.hold-out", "0.1"], "there is no train.hold_out: use data.hold_out"),
        (["--lr", "fast"], "learning_rate='fast' must be a number"),
    ],
)
def test_what_people_type_works_or_names_the_setting(tmp_path, call, words, sentence):
    code, _, said = call("train", "reverse", "--run", tmp_path / "run", *words)
    assert (code, sentence in said) == (2, True), said


def test_a_command_names_only_settings_that_it_takes(call):
    said = call("write", "writer", "Once", "--precision", "int8")[2]
    assert "write has no option --precision: did you mean --decode.precision?" in said
    assert "see limelight write --help" in call("write", "writer", "Once", "--freeze", "x")[2]


def test_two_runs_are_evaluated_with_references_rouge_and_a_command(tmp_path, call, monkeypatch):
    """Without a validation, too: what comes next is said, and works."""
    monkeypatch.chdir(tmp_path)
    texts = [f"the number {i}" for i in range(10)]
    for name, ending in {"en": "", "de": " bitte", "de2": " danke"}.items():
        (tmp_path / f"t.{name}").write_text("".join(f"{text}{ending}\n" for text in texts))
    rows = "".join(f"{text}\t{text} bitte\n" for text in texts)
    (tmp_path / "pairs.tsv").write_text(f"english\tgerman\n{rows}")
    for name, seed in (("a", "1"), ("b", "2")):
        words = ["--data.train", "pairs.tsv", "--steps", "2", "--train.warmup", "1", *SHORT]
        code, _, said = call("train", "text-to-text", *words, "--train.seed", seed, "--run", name)
        assert (code, f"  limelight evaluate {name} --data.test FILE\n" in said) == (0, True), said
        assert "line 1 of pairs.tsv looks like a header (english | german): if it is, add" in said
    code, _, said = call("evaluate", "a")
    sentence = "there is no test split: use --data.test FILE ... or --split train"
    assert (code, sentence in said) == (2, True), said
    code, _, said = call("compare", "a", "b")
    assert (code, "a has no validation in its log: train with --data.valid FILE" in said) == (
        2,
        True,
    )

    ask = ["evaluate", "a", "b", "--data.test", "t.en", "t.de", "t.de2", "--decode.beam", "1"]
    ask += ["--metric", "rouge", "--metric", "comet"]
    code, _, said = call(*ask)
    assert (code, "comet needs the command comet-score on the PATH: install" in said) == (2, True)
    (tmp_path / "bin").mkdir()
    script = f"#!{sys.executable}\nimport sys\ntexts = open(sys.argv[sys.argv.index('-t') + 1])\n"
    script += "for i, _ in enumerate(texts):\n    print(f'x\\tSegment {i}\\tscore: 0.{i % 10}')\n"
    (tmp_path / "bin" / "comet-score").write_text(script)
    (tmp_path / "bin" / "comet-score").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    code, out, said = call(*ask, "--output", "out.csv")
    assert code == 0, said
    for word in ("BLEU", "ROUGE-L", "COMET", "nrefs:2", "0.4500 (0.", "not significant"):
        assert word in out
    with (tmp_path / "out.csv").open(newline="") as file:
        names, first, *_ = csv.reader(file)
    assert names == ["source", "reference", "reference_2", "a", "b"]
    assert first[:3] == ["the number 0", "the number 0 bitte", "the number 0 danke"]
    (tmp_path / "t.de2").write_text("short\n")
    code, _, said = call(*ask)
    assert (code, "t.en has 10 lines and t.de2 has 1: they cannot be parallel" in said) == (2, True)
    code, _, said = call("evaluate", "a", "--data.test", "t.en", "t.de", "--output", "out.xlsx")
    assert (code, "the output out.xlsx must end in .tsv, .csv, .jsonl" in said) == (2, True)


def test_files_of_every_form_are_checked_at_once(tmp_path, call):
    """A folder with tables and an archive, globs of parallel texts, a text with tabs."""
    rows = [(f"number {i}", f"Nummer {i}") for i in range(20)]
    names = [{"source": a, "target": b} for a, b in rows]
    (tmp_path / "in").mkdir()
    write_pairs(tmp_path / "mine.csv", [(i, *row) for i, row in enumerate(rows)])
    lines = "".join(f"{a}\t{b}\n" for a, b in rows)
    (tmp_path / "in" / "a.tsv").write_text(lines)
    (tmp_path / "b.txt").write_text(lines)
    (tmp_path / "in" / "c.json").write_text(json.dumps(names))
    (tmp_path / "in" / "d.jsonl").write_text("".join(json.dumps(one) + "\n" for one in names))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(names), tmp_path / "in" / "e.parquet")
    with zipfile.ZipFile(tmp_path / "in" / "f.zip", "w") as archive:
        archive.writestr("inside.tsv", lines)
    for i in range(2):
        (tmp_path / f"x{i}.en").write_text("".join(f"{a}\n" for a, _ in rows))
        (tmp_path / f"x{i}.de").write_text("".join(f"{b}\n" for _, b in rows))
    (tmp_path / "short.de").write_text("eins\n")

    def used(*words):
        code, out, said = call("data", "check", *words, "--json")
        assert code == 0, said
        report = json.loads(out)
        return report["kind"], report["splits"]["train"]["tally"]["used"]

    assert used(tmp_path / "in") == ("pairs", 5 * 20)
    assert used(tmp_path / "b.txt") == ("pairs", 20)
    assert used(tmp_path / "*.en", tmp_path / "x*.de") == ("pairs", 2 * 20)
    assert used(tmp_path / "mine.csv", "--data.columns", "en", "de") == ("pairs", 20)
    code, _, said = call("data", "check", tmp_path / "x0.en", tmp_path / "short.de")
    assert (code, "x0.en has 20 lines and" in said, "cannot be parallel" in said) == (2, True, True)
    code, out, _ = call("data", "check", tmp_path / "in" / "a.tsv", tmp_path / "in" / "d.jsonl")
    assert (code, "line 1 of d.jsonl, as line 1 of a.tsv: number 0 | Nummer 0" in out) == (0, True)


def test_there_must_be_a_run_to_resume(tmp_path, call):
    code, _, said = call("resume", tmp_path)
    assert (code, "has no run to resume" in said) == (2, True)
