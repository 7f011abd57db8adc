"""Runs as people meet them: begun, gone on with, fine-tuned, loaded, evaluated, refused."""

import math
import os
import re
import shutil
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch._inductor import config as inductor

import limelight
from limelight import loading
from limelight.data.check import check
from limelight.data.config import DataConfig
from limelight.data.corpora import held_in
from limelight.data.token_store import open_or_build
from limelight.data.tokenizer import Tokenizer, TokenizerConfig
from limelight.errors import FailedError, UserError
from limelight.loading import load
from limelight.recipe import load_recipe, with_overrides
from limelight.run.folder import RunFolder
from limelight.workflows import train as experiment
from limelight.workflows import validation_decoding
from limelight.workflows.evaluate import evaluate_run, score_run, show
from limelight.workflows.train import train
from tests.training.samples import accept, hashes, labelled, log_of, texts, tiny, train_in


def change(recipe, **train):
    return replace(recipe, train=replace(recipe.train, **train))


def test_both_ends_are_to_be_had_from_the_package_itself():
    assert limelight.train is experiment.train
    assert limelight.load is loading.load


@pytest.mark.parametrize("given", ["name", "object"])
def test_changes_are_made_to_a_recipe_however_it_is_given(tmp_path, given):
    small = ["model.layers=1", "model.d_model=8", "model.heads=2"]
    small += ["train.steps=2", "train.warmup=1"]
    recipe = "reverse" if given == "name" else load_recipe("reverse")
    train(recipe, tmp_path, changes=small, silent=True)
    used = load(tmp_path).recipe
    assert (used.name, used.model.layers, used.train.steps) == ("reverse", 1, 2)
    with pytest.raises(UserError, match="there is no setting 'stepps': did you mean 'steps'"):
        train(recipe, tmp_path, changes=["train.stepps=3"])


CALLED_WRONGLY = {
    "a change alone": (("run", "train.steps=2"), "write ['train.steps=2']"),
    "no name": (("",), "run is empty: name a folder, or . for this one"),
    "no name at all": ((None,), "run=None must name a folder, as a str or a Path"),
}


@pytest.mark.parametrize("name", CALLED_WRONGLY)
@pytest.mark.parametrize("given", ["name", "object"])
def test_what_python_would_take_for_something_else_is_refused(tmp_path, monkeypatch, name, given):
    """A str for a list of its letters, an empty name for the folder that one is in."""
    monkeypatch.chdir(tmp_path)
    arguments, sentence = CALLED_WRONGLY[name]
    with pytest.raises(UserError, match=re.escape(sentence)):
        train("reverse" if given == "name" else tiny(), *arguments, silent=True)
    assert list(tmp_path.iterdir()) == []


def test_this_folder_can_be_named(tmp_path, monkeypatch):
    """The control."""
    monkeypatch.chdir(tmp_path)
    train(tiny(), ".", ["train.log-every=5"], silent=True)
    assert RunFolder(tmp_path).exists


def test_a_recipe_without_changes_is_what_it_was(tmp_path):
    """Even with files, corpora and a name that a path would cut."""
    corpora = DataConfig(kind="texts", corpora=(texts(tmp_path), texts(tmp_path)))
    recipe = replace(tiny("decoder-only", corpora, freeze=("target",)), name="a/b.toml")
    assert with_overrides(recipe, []) == recipe


# Going on


@pytest.mark.parametrize(
    ("schedule", "same"), [("paper", True), ("inverse-sqrt", True), ("cosine", False)]
)
def test_a_finished_run_goes_on_when_more_steps_are_asked_for(tmp_path, schedule, same):
    """As if it had been asked for all of them at once, if the schedule does not look at the end."""
    settings = {"schedule": schedule, "warmup": 5, "validate_every": 5, "checkpoint_every": 5}
    short, long = (tiny(**settings, steps=steps) for steps in (10, 20))
    train_in(tmp_path / "two", short)
    assert train_in(tmp_path / "two", long).state.step == 20
    train_in(tmp_path / "one", long)
    for part in ("checkpoints", "finished"):
        one, two = (hashes(tmp_path / run / part) for run in ("one", "two"))
        assert (one == two) == same
    assert (log_of(tmp_path / "one") == log_of(tmp_path / "two")) == same


CHANGES = {
    "train.batch_tokens": ({"batch_tokens": 44}, "40", "44"),
    "train.seed": ({"seed": 2}, "1", "2"),
    "train.schedule": (
        {"schedule": "linear", "learning_rate": 0.1},
        "paper",
        "linear",
    ),
    "train.ema": ({"ema": 0.9}, "0.0", "0.9"),
    "model.dropout": ({"model": {"dropout": 0.2}}, "0.1", "0.2"),
    "model.norm_order": ({"model": {"norm_order": "pre"}}, "post", "pre"),
    "data.toy": (
        {"data": DataConfig(toy="copy", toy_examples=60, toy_length=3)},
        "reverse",
        "copy",
    ),
}


@pytest.mark.parametrize("setting", CHANGES)
def test_a_change_that_would_make_it_another_run_is_refused(tmp_path, setting):
    changes, before, now = CHANGES[setting]
    train_in(tmp_path, tiny(warmup=9))
    sentence = rf"was begun with {re.escape(setting)} = {before}, and this is {now}: resume it as"
    left = hashes(tmp_path)
    with pytest.raises(UserError, match=sentence):
        train_in(tmp_path, tiny(warmup=9, **changes))
    assert hashes(tmp_path) == left


def test_changes_that_alter_no_step_are_allowed(tmp_path):
    train_in(tmp_path, tiny())
    train_in(
        tmp_path,
        tiny(steps=12, log_every=3, validate_every=4, checkpoint_every=2, keep_checkpoints=3),
    )
    assert load(tmp_path).step == 12
    assert (tmp_path / "recipe.toml").read_text().count("log_every = 3") == 1


def test_data_that_has_changed_is_refused(tmp_path):
    recipe = tiny("decoder-only", texts(tmp_path))
    train_in(tmp_path / "run", recipe)
    with (tmp_path / "train.txt").open("a") as file:
        file.write("one more line\n")
    with pytest.raises(UserError, match=r"the data of .* has changed since it was begun"):
        train_in(tmp_path / "run", change(recipe, steps=12))
    texts(tmp_path)  # brought back
    assert train_in(tmp_path / "run", change(recipe, steps=12)).state.step == 12


def test_data_of_the_same_size_and_time_is_still_other_data(tmp_path):
    """Anybody can set the time of a file, as copying programs do."""
    recipe = tiny("decoder-only", texts(tmp_path))
    train_in(tmp_path / "run", recipe)
    file = tmp_path / "train.txt"
    before = file.stat()
    file.write_bytes(file.read_bytes().replace(b"a", b"z"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = file.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    with pytest.raises(UserError, match=r"the data of .* has changed since it was begun"):
        train_in(tmp_path / "run", change(recipe, steps=12))


def test_a_failed_start_leaves_nothing_that_the_next_one_would_take(tmp_path):
    """Neither a run nor a tokenizer: the recipe may be another when it is tried again."""
    with pytest.raises(UserError, match="cannot learn from pairs"):
        train_in(tmp_path / "run", tiny("encoder-only"))
    assert not RunFolder(tmp_path / "run").exists
    words = replace(
        tiny("decoder-only", texts(tmp_path)), tokenizer=TokenizerConfig(kind="word", vocab=270)
    )
    words = replace(words, model=replace(words.model, vocab=270))
    train_in(tmp_path / "run", words)
    assert len(load(tmp_path / "run").tokenizer) == 270


def test_a_text_may_give_fewer_tokens_than_were_asked_for(tmp_path):
    recipe = tiny("decoder-only", texts(tmp_path))
    recipe = replace(recipe, tokenizer=TokenizerConfig(kind="bpe", vocab=2000))
    recipe = replace(recipe, model=replace(recipe.model, vocab=2000))
    train_in(tmp_path / "run", recipe)
    loaded = load(tmp_path / "run")
    assert (
        loaded.recipe.model.vocab == loaded.recipe.tokenizer.vocab == len(loaded.tokenizer) < 2000
    )
    assert train_in(tmp_path / "run", change(recipe, steps=12)).state.step == 12
    assert evaluate_run(tmp_path / "run", "valid", silent=True)["step"] == 12


def test_a_model_that_knows_too_few_tokens_is_refused(tmp_path):
    with pytest.raises(UserError, match="has 261 tokens, but the model knows only 200"):
        train_in(tmp_path, tiny(model={"vocab": 200}))


# Families and their data


@pytest.mark.parametrize(
    ("family", "kind", "model"),
    [
        ("encoder-only", "pairs", {}),
        ("encoder-only", "texts", {"classes": 2}),
        ("encoder-decoder", "texts", {}),
        ("encoder-decoder", "labelled", {}),
        ("decoder-only", "labelled", {}),
        ("recurrent-encoder-decoder", "texts", {}),
        ("recurrent-decoder-only", "labelled", {}),
    ],
)
def test_what_a_family_cannot_learn_from_is_refused(tmp_path, family, kind, model):
    data = {"pairs": lambda _: None, "texts": texts, "labelled": labelled}[kind](tmp_path)
    sentence = "model.classes is 2, which is for labelled texts" if model else "cannot learn from"
    with pytest.raises(UserError, match=sentence):
        train_in(tmp_path / "run", tiny(family, data, model))
    assert not RunFolder(tmp_path / "run").exists


def test_a_language_model_may_be_asked_for_more_than_its_positions_hold(tmp_path):
    """What it writes after a validation ends where its positions end, but training goes on."""
    toy = DataConfig(toy="reverse", toy_examples=60, toy_length=7)
    recipe = tiny("decoder-only", toy, {"positions": "learned"}, validate_every=5)
    assert train_in(tmp_path, recipe).state.step == 10


def test_a_compiler_that_is_not_there_is_missed_before_anything_is_begun(tmp_path):
    sentence = r"compile=true needs a C\+\+ compiler, .* set --train.compile false"
    nothing = inductor.patch({"cpp.cxx": ("/nowhere/g++",)})
    with nothing, pytest.raises(UserError, match=sentence):
        train_in(tmp_path, tiny(compile=True))
    assert train_in(tmp_path, tiny()).state.step == 10


def test_nothing_that_fits_is_nothing_to_train_on(tmp_path):
    """And nothing is begun, so that the mistake can be mended."""
    with pytest.raises(UserError, match="no example fits the model, whose max_len is 1"):
        train_in(tmp_path, tiny(model={"max_len": 1}))
    assert train_in(tmp_path, tiny()).state.step == 10


UNUSABLE = {
    "empty": (b"", "data.train holds none"),
    "one column": (b"a\nb\n", r"one column, as in 'a', and pairs need 2"),
    "three columns": (b"a\tb\tc\n", "choose them, as with --data.columns 1 2"),
    "no UTF-8": (b"\xff\xfe\n", "1 invalid UTF-8"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_data_without_one_usable_line_is_refused_and_can_be_mended(tmp_path, name):
    content, sentence = UNUSABLE[name]
    file = tmp_path / "pairs.tsv"
    file.write_bytes(content)
    recipe = tiny(data=DataConfig(train=(str(file),)))
    with pytest.raises(UserError, match=sentence):
        train_in(tmp_path / "run", recipe)
    file.write_text("a b\tb a\nc\tc\n")
    assert train_in(tmp_path / "run", recipe).state.step == 10


NOT_THERE = {  # the files that are named, and what is said of them
    "none": ({}, "the recipe names no data to train on: use --data.train FILE ..., or --data.name"),
    "only to validate with": ({"valid": ["good.tsv"]}, "the recipe names no data to train on"),
    "missing": ({"train": ["nowhere.tsv"]}, "/nowhere.tsv: No such file or directory"),
    "missing on one side": ({"train": ["good.en", "no.de"]}, "/no.de: No such file"),
    "missing to validate with": (
        {"train": ["good.tsv"], "valid": ["nowhere.tsv"]},
        "/nowhere.tsv: No such file or directory",
    ),
    "empty": ({"train": ["empty.tsv"]}, "/empty.tsv is empty"),
    "empty on both sides": ({"train": ["empty.en", "empty.de"]}, "/empty.en is empty"),
}


@pytest.mark.parametrize("name", NOT_THERE)
@pytest.mark.parametrize("among", [False, True])
def test_data_that_is_not_there_is_told_before_anything_is_made(
    tmp_path, monkeypatch, capsys, name, among
):
    """Neither a folder nor a tokenizer; also among several corpora."""
    monkeypatch.chdir(tmp_path)
    for file in ("good.tsv", "good.en", "empty.tsv", "empty.en", "empty.de"):
        (tmp_path / file).write_text("a b\tb a\n" * 4 if "good" in file else "")
    files, sentence = NOT_THERE[name]
    data = DataConfig(**{split: tuple(names) for split, names in files.items()})
    data = DataConfig(corpora=(data, data)) if among else data
    with pytest.raises(UserError, match=re.escape(sentence)):
        train(tiny(data=data), "runs/new")
    assert not (tmp_path / "runs").exists()
    assert capsys.readouterr().err == ""


def test_an_empty_file_among_others_is_in_nobodys_way(tmp_path):
    """The control: there is something to learn from, though less than there could be."""
    (tmp_path / "good.tsv").write_text("a b\tb a\n" * 4)
    (tmp_path / "empty.tsv").write_text("")
    good, empty = (DataConfig(train=(str(tmp_path / f"{n}.tsv"),)) for n in ("good", "empty"))
    train(tiny(data=DataConfig(corpora=(good, empty))), tmp_path / "corpora", silent=True)
    no_valid = replace(good, valid=empty.train)
    train(tiny(data=no_valid), tmp_path / "valid", silent=True)


def test_that_all_is_held_out_is_told(tmp_path):
    line = next(f"{i}" for i in range(100) if held_in(f"{i}", 0.4) == "valid")
    (tmp_path / "one.tsv").write_text(f"{line}\tb\n")
    data = DataConfig(train=(str(tmp_path / "one.tsv"),), hold_out=0.4)
    with pytest.raises(UserError, match="to train on: all are held out for other splits"):
        train(tiny(data=data), tmp_path / "run", silent=True)


def test_lines_that_are_not_learned_from_are_told(tmp_path, capsys):
    good, bad = tmp_path / "good.tsv", tmp_path / "bad.tsv"
    good.write_text("a b\tb a\n" * 4)
    bad.write_text("a b\tb a\n" * 4 + "alone\n")
    for file, warned in ((good, False), (bad, True)):
        data = DataConfig(train=(str(file),), valid=(str(file),))
        train(tiny(data=data), tmp_path / file.stem)
        told = " ".join(capsys.readouterr().err.split())
        for split in ("train", "valid"):
            sentence = f"{split}: 1 of 5 lines cannot be used (1 not two columns)"
            assert (sentence in told) is warned


def test_data_of_which_most_is_unusable_is_refused_unless_that_is_meant(tmp_path, capsys):
    """By lines that cannot be read, and by examples that the model cannot read, together."""
    file = tmp_path / "pairs.tsv"
    bad = ["alone", "also alone", "", "a" * 40 + "\tb"]
    recipe = tiny(data=DataConfig(train=(str(file),)), steps=2)
    for good, refused in ((4, False), (3, True)):
        file.write_text("\n".join(["a b\tb a"] * good + bad) + "\n")
        if not refused:  # the control: a half is enough, and what is lost is said
            train(recipe, tmp_path / "run")
            told = " ".join(capsys.readouterr().err.split())
            assert "train: 3 of 8 lines cannot be used (3 not two columns)" in told
            assert "train: 1 of 5 examples are longer than max_len=32, and left out" in told
            continue
        reasons = r"4 of 7 lines cannot be used \(3 not two columns, 1 longer than max_len=32\)"
        with pytest.raises(
            UserError,
            match=f"{reasons}, and 3 are left .*: line 4 of pairs.tsv, .*--data.allow-bad",
        ):
            train(recipe, tmp_path / "refused", silent=True)
        train(change(recipe, max_unusable=1.0), tmp_path / "refused", silent=True)
    file.write_text("\talone\n")
    with pytest.raises(UserError, match="there is no example to train on"):
        train(change(recipe, max_unusable=1.0), tmp_path / "none", silent=True)


def test_texts_that_a_classifier_reads_in_part_are_counted(tmp_path, capsys):
    """Both special tokens are read too: of max_len=8, six are left for a text."""
    data = labelled(tmp_path)  # a letter, and up to 16 more: 12 of 18 have more than 6
    recipe = tiny("encoder-only", data, {"classes": 2, "max_len": 8}, steps=2)
    train(recipe, tmp_path / "run")
    told = " ".join(capsys.readouterr().err.split())
    for split in ("train", "valid"):
        assert f"{split}: 12 of 18 examples are longer than max_len=8, and cut to it" in told
    scores = score_run(tmp_path / "run", "valid", silent=True)
    assert (scores["examples"], scores["too_long"], scores["truncated"]) == (18, 0, 12)
    show(scores, Console(stderr=True))
    assert "12 texts were cut to what the model reads" in capsys.readouterr().err
    checked = check(data, recipe.tokenizer, 100, 8)
    assert checked["tokens"]["over_max_len"] == checked["tokens"]["truncated"] == 12
    assert any("12 examples are longer" in w and "cut to it" in w for w in checked["warnings"])
    # The control: all of them fit.
    recipe = with_overrides(recipe, {"model.max_len": 19})
    train(recipe, tmp_path / "long")
    assert "longer than" not in capsys.readouterr().err
    assert evaluate_run(tmp_path / "long", "valid", silent=True)["truncated"] == 0
    assert check(data, recipe.tokenizer, 100, 19)["tokens"]["over_max_len"] == 0


def test_samples_are_of_sources_that_fit_and_uncut(tmp_path):
    """A source longer than half of the context is shown in full; one that is too long, not."""
    rows = ["a" * 40, "ab" * 10, "ba" * 10]
    (tmp_path / "pairs.tsv").write_text("".join(f"{row}\tc\n" for row in rows * 4))
    file = (str(tmp_path / "pairs.tsv"),)
    recipe = tiny("decoder-only", DataConfig(train=file, valid=file), steps=1, batch_tokens=99)
    train_in(tmp_path / "run", recipe)
    (samples,) = (entry["samples"] for entry in log_of(tmp_path / "run") if "samples" in entry)
    assert [sample.split(" -> ")[0] for sample in samples] == [repr(rows[i]) for i in (1, 2, 1)]


def test_patience_needs_a_validation_text_that_can_be_used(tmp_path, capsys):
    (tmp_path / "train.tsv").write_text("a b\tb a\n" * 4)
    (tmp_path / "valid.tsv").write_text("alone\t\n")
    data = DataConfig(train=(str(tmp_path / "train.tsv"),), valid=(str(tmp_path / "valid.tsv"),))
    with pytest.raises(UserError, match="patience=2 needs validation texts"):
        train_in(tmp_path / "run", tiny(data=data, patience=2))
    train(tiny(data=data), tmp_path / "run")
    said = " ".join(capsys.readouterr().err.split())
    assert "no validation text can be used" in said
    last = [entry for entry in log_of(tmp_path / "run") if "lr" in entry][-1]
    assert f"done: step 10, training loss {last['loss']:.4f}; see" in said


@pytest.mark.parametrize("name", ["recipe.toml", "tokenizer.json", "log.jsonl", "checkpoints"])
def test_files_that_are_no_runs_are_not_written_over(tmp_path, name):
    if name == "checkpoints":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("mine")
    before = sorted(tmp_path.iterdir())
    for _ in range(2):
        with pytest.raises(UserError, match=f"is no run, and has a {name} that would be lost"):
            train_in(tmp_path, tiny())
    assert sorted(tmp_path.iterdir()) == before
    assert name == "checkpoints" or (tmp_path / name).read_text() == "mine"


def test_what_a_failed_start_left_is_in_nobodys_way(tmp_path, monkeypatch):
    def fails(*_):
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "begin", fails)
        with pytest.raises(PermissionError):
            train_in(tmp_path, tiny())
    assert (tmp_path / "recipe.toml").exists()
    assert not RunFolder(tmp_path).exists
    assert train_in(tmp_path, tiny()).state.step == 10


def test_fewer_steps_than_were_taken_are_refused(tmp_path):
    train_in(tmp_path, tiny(steps=6))
    recipe = (tmp_path / "recipe.toml").read_text()
    with pytest.raises(UserError, match=r"has done 6 steps already, and --train\.steps is 5"):
        train_in(tmp_path, tiny(steps=5))
    assert (tmp_path / "recipe.toml").read_text() == recipe
    assert train_in(tmp_path, tiny(steps=6)).state.step == 6
    assert train_in(tmp_path, tiny(steps=7)).state.step == 7


def test_what_is_finished_last_counts_even_with_fewer_steps(tmp_path, capsys):
    """Somebody took the checkpoints away, and began again."""
    train(tiny(steps=6), tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    capsys.readouterr()
    train(tiny(steps=4), tmp_path)
    assert "no checkpoint is left to resume from: beginning again" in capsys.readouterr().err
    assert [folder.name for folder in (tmp_path / "finished").iterdir()] == ["step-000004"]
    assert load(tmp_path).step == 4


@pytest.mark.parametrize("content", ["[]", "3", '"a"'])
def test_a_damaged_environment_is_told(tmp_path, content):
    train_in(tmp_path, tiny(steps=2))
    (tmp_path / "environment.json").write_text(content)
    with pytest.raises(UserError, match=r"environment\.json is not what a run writes"):
        train_in(tmp_path, tiny(steps=3))
    (tmp_path / "environment.json").unlink()
    with pytest.raises(UserError, match=r"cannot read .*environment\.json: No such file"):
        train_in(tmp_path, tiny(steps=3))


# Fine-tuning


@pytest.fixture
def pretrained(tmp_path):
    train_in(tmp_path / "bert", tiny("encoder-only", texts(tmp_path), batch_tokens=128))
    return tmp_path / "bert"


def parameters(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_a_pretrained_encoder_becomes_a_classifier(tmp_path, pretrained):
    recipe = tiny("encoder-only", labelled(tmp_path), {"classes": 2})
    begun = {}
    train_in(
        tmp_path / "run",
        recipe,
        start_from=pretrained,
        touch=lambda trainer: begun.update(parameters(trainer.loss_module.model)),
    )
    origin, tuned = load(pretrained), load(tmp_path / "run")
    theirs = parameters(origin.model)
    taken = [name for name in begun if name in theirs and torch.equal(begun[name], theirs[name])]
    assert set(taken) == {name for name in begun if not name.startswith("text_head.")}
    assert {name for name in theirs if name not in begun} == {
        name for name in theirs if name.startswith("masked_head.")
    }
    assert tuned.tokenizer.hash == origin.tokenizer.hash
    assert tuned.classes == ("one", "two")
    assert not torch.equal(
        parameters(tuned.model)["source.tokens.weight"], theirs["source.tokens.weight"]
    )


def test_without_the_other_model_it_would_begin_elsewhere(tmp_path, pretrained):
    """The control; and a run that was begun from another goes on without being told again."""
    recipe = tiny("encoder-only", labelled(tmp_path), {"classes": 2}, ema=0.5, freeze=("encoder",))
    train_in(tmp_path / "tuned", recipe, start_from=pretrained)
    train_in(tmp_path / "fresh", recipe)
    assert hashes(tmp_path / "tuned" / "finished") != hashes(tmp_path / "fresh" / "finished")
    train_in(tmp_path / "tuned", change(recipe, steps=15))
    whole = change(recipe, steps=15)
    train_in(tmp_path / "whole", whole, start_from=pretrained)
    assert hashes(tmp_path / "tuned" / "finished") == hashes(tmp_path / "whole" / "finished")


def test_another_shape_is_refused_with_both(tmp_path, pretrained):
    recipe = tiny("encoder-only", labelled(tmp_path), {"classes": 2, "d_model": 16})
    sentence = r"source.tokens.weight is \(261, 16\) in this recipe and \(261, 8\) in the model"
    with pytest.raises(UserError, match=sentence):
        train_in(tmp_path / "run", recipe, start_from=pretrained)
    deeper = tiny("encoder-only", labelled(tmp_path), {"classes": 2, "layers": 2})
    with pytest.raises(UserError, match=r"encoder.layers.1.* in this recipe and missing in the"):
        train_in(tmp_path / "run", deeper, start_from=pretrained)


OTHER_MEANINGS = {  # weights of the same shapes, read in another way
    "heads": ({"heads": 4}, "model.heads is 4 in this recipe and 2 in the model to start from"),
    "positions": ({"positions": "rotary"}, "model.positions is rotary .* and sinusoidal in"),
    "activation": ({"activation": "gelu"}, "model.activation is gelu .* and relu in the model"),
}


@pytest.mark.parametrize("name", OTHER_MEANINGS)
def test_weights_that_would_mean_something_else_are_refused(tmp_path, pretrained, name):
    model, sentence = OTHER_MEANINGS[name]
    recipe = tiny("encoder-only", labelled(tmp_path), {"classes": 2, **model})
    with pytest.raises(UserError, match=sentence):
        train_in(tmp_path / "run", recipe, start_from=pretrained)
    assert not RunFolder(tmp_path / "run").exists


def test_only_a_part_of_a_deeper_model_is_refused(tmp_path):
    train_in(tmp_path / "deep", tiny(model={"layers": 2}))
    with pytest.raises(UserError, match=r"model.layers is 1 in this recipe and 2 in the model"):
        train_in(tmp_path / "run", tiny(), start_from=tmp_path / "deep")


def test_a_run_goes_on_from_where_it_came(tmp_path, pretrained):
    """It cannot be begun from another afterwards, nor from none as long as it has no weights."""
    recipe = tiny("encoder-only", labelled(tmp_path), {"classes": 2})
    run = tmp_path / "run"
    train_in(run, recipe, start_from=pretrained)
    shutil.copytree(pretrained, tmp_path / "other")
    with pytest.raises(UserError, match=r"was begun from .*bert, and this is from .*other: resume"):
        train_in(run, change(recipe, steps=12), start_from=tmp_path / "other")
    assert train_in(run, change(recipe, steps=12)).state.step == 12
    assert train_in(run, change(recipe, steps=14), start_from=pretrained).state.step == 14
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match=r"has saved nothing yet: use --from .*bert again"):
        train_in(run, recipe)
    train_in(tmp_path / "fresh", recipe)
    with pytest.raises(UserError, match=r"was begun from no other run, and this is from .*bert"):
        train_in(tmp_path / "fresh", recipe, start_from=pretrained)


def test_labels_that_the_model_has_no_classes_for_are_refused(tmp_path):
    recipe = tiny("encoder-only", labelled(tmp_path), {"classes": 3})
    with pytest.raises(UserError, match=r"classes is 3, but the data has 2 labels: one, two"):
        train_in(tmp_path / "run", recipe)


# What comes out


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only", "recurrent-encoder-decoder"])
def test_what_is_loaded_is_what_was_trained(tmp_path, family):
    trainer = train_in(tmp_path, tiny(family))
    loaded = load(tmp_path)
    tokens = torch.randint(5, 261, (3, 9))
    inputs = [tokens] if family == "decoder-only" else [tokens, tokens[:, :5]]
    with torch.no_grad():
        assert torch.equal(loaded.model(*inputs), trainer.loss_module.model.eval()(*inputs))
    assert not loaded.model.training
    assert loaded.step == 10
    assert loaded.recipe.train == trainer.config
    assert loaded.tokenizer.hash == Tokenizer.load(tmp_path / "tokenizer.json").hash


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_model_is_loaded_in_the_type_that_it_was_trained_in(tmp_path, precision):
    trainer = train_in(tmp_path, tiny(precision=precision))
    trained, loaded = parameters(trainer.loss_module.model), parameters(load(tmp_path).model)
    assert {tensor.dtype for tensor in loaded.values()} == {getattr(torch, precision)}
    assert all(torch.equal(loaded[name], trained[name]) for name in trained)


def test_weights_of_another_shape_are_refused_with_both(tmp_path):
    train_in(tmp_path, tiny())
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("d_ff = 8", "d_ff = 9"))
    accept(tmp_path)
    with pytest.raises(UserError, match=r"is \(8,\) in the file and \(9,\) in the model"):
        load(tmp_path)


def logits_after(loaded, source, written):
    """A score for each token of an answer and for what follows it, all computed anew."""
    tokenizer = loaded.tokenizer
    if loaded.recipe.model.family == "encoder-decoder":
        read = ([*source, tokenizer.end], [tokenizer.start, *written])
    else:
        read = ([tokenizer.start, *source, tokenizer.separator, *written],)
    with torch.no_grad():
        return loaded.model(*(torch.tensor([tokens]) for tokens in read))[0, -len(written) - 1 :]


def write_plainly(loaded, source, longest):
    """The likeliest token again and again."""
    written = []
    while len(written) < longest:
        token = int(logits_after(loaded, source, written)[-1].argmax())
        if token == loaded.tokenizer.end:
            break
        written.append(token)
    return written


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only"])
def test_evaluation_is_what_one_counts_by_hand(tmp_path, family):
    toy = DataConfig(toy="copy", toy_examples=100, toy_length=2)
    wider = {"d_model": 32, "dropout": 0.0}
    train(tiny(family, toy, wider, steps=80, learning_rate=0.3), tmp_path, silent=True)
    scores = evaluate_run(tmp_path, "test", silent=True)
    loaded = load(tmp_path)
    store = open_or_build(toy, "test", loaded.tokenizer, tmp_path / "stores")
    surprise = right = asked = exact = 0
    for i in range(len(store)):
        source, target = (column[i].tolist() for column in store.columns)
        answers = torch.tensor([*target, loaded.tokenizer.end])
        logits = logits_after(loaded, source, target)
        surprise -= float(logits.log_softmax(-1)[range(len(answers)), answers].sum())
        right += int((logits.argmax(-1) == answers).sum())
        asked += len(answers)
        exact += write_plainly(loaded, source, 8) == target
    assert scores["examples"] == len(store) == 10
    assert scores["loss"] == pytest.approx(surprise / asked, rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(surprise / asked), rel=1e-4)
    assert scores["accuracy"] == right / asked
    assert scores["exact"] == exact / len(store)
    assert 0 < scores["accuracy"] < 1
    assert (scores["exact"] > 0) == (family == "encoder-decoder")  # the other is slower to learn


def test_evaluation_asks_for_every_answer_and_for_few_at_once(tmp_path, monkeypatch):
    """Training looks at the first 200 only, and says so; those too long are not asked for."""
    toy = DataConfig(toy="copy", toy_examples=6000, toy_length=12)
    recipe = tiny(data=toy, model={"max_len": 12}, steps=1, batch_tokens=2000)
    asked = []

    def greedy_decode(model, tokenizer, sources, limit):
        """Right for the first 200."""
        before = sum(asked)
        asked.append(len(sources))
        return [s if before + i < 200 else [] for i, s in enumerate(sources)]

    monkeypatch.setattr(validation_decoding, "_greedy_decode", greedy_decode)
    train_in(tmp_path, recipe)
    assert asked == [100, 100, 3]  # and samples
    assert log_of(tmp_path)[-1]["exact"] == 1
    asked.clear()
    scores = evaluate_run(tmp_path, "valid", silent=True)
    assert scores["too_long"] > 0
    assert sum(asked) == scores["examples"] == 600 - scores["too_long"]
    assert max(asked) == 100
    assert scores["exact"] == 200 / scores["examples"]


def test_a_split_that_is_not_there_is_refused(tmp_path):
    recipe = tiny("encoder-only", labelled(tmp_path), {"classes": 2})
    train_in(tmp_path / "run", recipe)
    assert evaluate_run(tmp_path / "run", "valid", silent=True)["accuracy"] >= 0.5
    with pytest.raises(UserError, match="there is no test split"):
        evaluate_run(tmp_path / "run", silent=True)
    other = [f"data.test={tmp_path / 'valid.tsv'}"]
    assert evaluate_run(tmp_path / "run", "test", other, silent=True)["examples"] == 18


def train_and_move(folder, elsewhere):
    """A training whose folder is moved before its first checkpoint; what it warned of."""
    warned = []

    def touch(trainer):
        trainer.report.begin = lambda *_: folder.rename(elsewhere)
        trainer.report.warn = warned.append

    with pytest.raises(FailedError) as failed:
        train_in(folder, tiny(steps=4, checkpoint_every=2, validate_every=4), touch=touch)
    saving = [one for one in warned if "TensorBoard" not in one and "tensorboard" not in one]
    return [*saving, str(failed.value)]


# TensorBoard, where it is installed, writes in a thread that dies of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_folder_that_was_moved_is_not_called_a_full_disk(tmp_path):
    first, last = train_and_move(tmp_path / "run", tmp_path / "elsewhere")
    why = f"could not be saved: {tmp_path}/run is no longer there; move it back"
    assert first == f"step 2 {why}. Training continues"
    assert last == f"step 4 {why}, and run the same command again"
    (tmp_path / "elsewhere").rename(tmp_path / "run")  # as the sentence asks
    train_in(tmp_path / "run", tiny(steps=4, checkpoint_every=2, validate_every=4))


def test_a_full_disk_is(tmp_path, monkeypatch):
    """The control."""
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(FailedError, match=r"bytes are to be written and 0 are free; free some spa"):
        train_in(tmp_path / "run", tiny(steps=2))
