"""Tiny models, each trained for a moment: once for all tests, whichever process needs it first."""

import fcntl
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import limelight
from limelight.data.config import DataConfig
from limelight.data.tokenizer import TokenizerConfig
from limelight.model import model_config
from limelight.recipe import Recipe, load_recipe
from limelight.training.config import TrainConfig
from tests.training.samples import train_in

TOY = [
    "data.toy_length=3",
    "data.toy_examples=1500",
    "train.warmup=20",
    "train.grad_accumulation=1",
]
FAST = [  # what learns quickest
    *("model.norm_order=pre", "model.positions=rotary", "model.layers=1", "model.dropout=0"),
    *("train.schedule=inverse-sqrt", "train.learning_rate=0.01", "train.label_smoothing=0"),
    "train.clip_grad_norm=0",
]
LINES = [
    f"the {who} {does} {where}."
    for who in ("cat", "dog", "old man")
    for does in ("sleeps", "sits", "walks")
    for where in ("here", "by the river", "in a big house")
]
LONG = [f"{a}{b}" * 10 + a for a in "abcdef" for b in "uvwxyz"]  # 21 letters each
TALK = ["hello", "hello, who is there?", "a friend", "how are you?", "well", "good bye", "bye"]


def small(name, data, family, kind="char", steps=150, model=None, **train):
    """A recipe of a model that can be trained in a second."""
    shape = {"layers": 1, "d_model": 32, "max_len": 64, **(model or {})}
    if not family.startswith("recurrent"):
        shape = {"heads": 2, "d_ff": 32, "norm_order": "pre", "positions": "rotary", **shape}
    usual = {"batch_tokens": 256, "schedule": "inverse-sqrt", "learning_rate": 0.01, "warmup": 10}
    return Recipe(
        name,
        model_config(family=family, vocab=400, **shape),
        data,
        TokenizerConfig(kind=kind, vocab=400),
        TrainConfig(**{**usual, "steps": steps, "average_checkpoints": 0, **train}),
    )


def file_of(folder, name, lines):
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return {"train": (str(path),), "valid": (str(path),)}


DRAWS = {  # a model that draws, after a few steps
    "images.steps": 6,
    "images.decoder_steps": 2,
    "images.batch": 8,
    "images.channels": 8,
    "model.layers": 2,
    "model.d_model": 32,
    "model.heads": 2,
    "train.steps": 6,
    "train.warmup": 2,
    "train.learning_rate": 0.003,
    "train.batch_tokens": 640,
    "train.checkpoint_every": 2,
    "train.validate_every": 6,
    "train.log_every": 1,
}


def recipe_for(name, folder):  # noqa: PLR0911, PLR0912
    """What each of the models is."""
    texts = DataConfig(kind="texts", **file_of(folder, f"{name}.txt", LINES))
    match name:
        case "reverse":
            return load_recipe("reverse", [*TOY, *FAST, "train.steps=150"])
        case "other reverse":  # for ensembles: it has the same tokenizer, and less room
            short = ["train.steps=60", "train.seed=2", "model.max_len=32"]
            return load_recipe("reverse", [*TOY, *FAST, *short])
        case "gpt":
            return load_recipe("reverse-gpt", [*TOY, *FAST, "train.steps=150"])
        case "first letter":  # long sources and short answers, in a context that holds both
            pairs = [f"{text}\t{text[0]}" for text in LONG]
            data = DataConfig(**file_of(folder, "letters.tsv", pairs))
            return small(name, data, "decoder-only", model={"max_len": 32})
        case "lstm":
            return load_recipe("reverse-lstm", [*TOY, "model.d_model=64", "train.steps=60"])
        case "tagged" | "summaries":
            tags = {"tagged": ("back", "same"), "summaries": ("paraphrase", "summarise")}[name]
            toys = dict(zip(tags, ("reverse", "copy"), strict=True))
            parts = [
                DataConfig(toy=toy, tag=tag, toy_length=3, toy_examples=500)
                for tag, toy in toys.items()
            ]
            model = {"max_len": 32}
            return small(name, DataConfig(corpora=tuple(parts)), "encoder-decoder", model=model)
        case "writer":
            return small(name, texts, "decoder-only", steps=250, model={"max_len": 32})
        case "placed":  # a writer with a table of positions
            shape = {"max_len": 32, "positions": "learned"}
            return small(name, texts, "decoder-only", steps=40, model=shape)
        case "babbler":  # it has learned next to nothing, not even to end
            return small(name, texts, "decoder-only", steps=3)
        case "rnn":
            return small(name, texts, "recurrent-decoder-only", model={"max_len": 32})
        case "bert":
            return small(name, texts, "encoder-only", "word")
        case "uncased":  # one that reads small letters only
            return small(name, texts, "encoder-only", "uncased")
        case "spelling":  # a BERT whose tokens are characters
            return small(name, texts, "encoder-only", steps=5)
        case "classifier":
            pairs = [f"{line}\t{'cat' if 'cat' in line else 'other'}" for line in LINES]
            data = DataConfig(kind="labelled", **file_of(folder, "labels.tsv", pairs))
            return small(name, data, "encoder-only", "word", model={"classes": 2, "max_len": 16})
        case "chat":
            files = file_of(folder, "talk.txt", [" __eou__ ".join(TALK)])
            data = DataConfig(kind="dialogues", context_turns=3, **files)
            return small(name, data, "encoder-decoder", "bpe")
        case "draw":
            return load_recipe("shapes-small", DRAWS)
    raise ValueError(name)


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """`run("gpt")` is the folder of that model, trained when it is first asked for."""
    shared = tmp_path_factory.getbasetemp()
    if shared.name.startswith("popen-"):  # a process of several
        shared = shared.parent
    folder = shared / "trained"
    folder.mkdir(exist_ok=True)

    def trained(name: str) -> Path:
        path = folder / name.replace(" ", "-")
        with open(f"{path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (path / "finished").is_dir():
                recipe = recipe_for(name, folder)
                quiet = replace(recipe.train, validate_every=10_000, checkpoint_every=10_000)
                if recipe.data.kind == "images":
                    assert limelight.train(recipe, path, silent=True) == 0
                else:
                    train_in(path, replace(recipe, train=quiet))
        return path

    return trained


@pytest.fixture(scope="session")
def model(run):
    """`model("gpt")` is that model, loaded."""
    return cache(lambda name: limelight.load(run(name)))
