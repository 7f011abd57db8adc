"""Public corpora by name, found under the folder that LIMELIGHT_DATA names.

The hashes are of the files as they lay before us; a file that differs is refused, because a score
on another text is another score. None of these texts comes with the package: mind their licences.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import file_digest
from pathlib import Path
from typing import Any

from limelight.errors import UserError, unknown
from limelight.text.config import DataConfig


@dataclass(frozen=True)
class Named:
    """Where a corpus lies, what its files are, and under which terms."""

    licence: str
    train: tuple[str, ...]
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # how the files are to be read


def multi30k(source: str, target: str) -> Named:
    """Image captions, one direction of three languages."""
    train, valid, test = (
        tuple(f"multi30k/{split}.{language}.gz" for language in (source, target))
        for split in ("train", "val", "test_2016_flickr")
    )
    return Named("research use; cite Elliott et al. 2016", train, valid, test)


NAMED = {
    "multi30k-en-de": multi30k("en", "de"),
    "multi30k-de-en": multi30k("de", "en"),
    "multi30k-en-fr": multi30k("en", "fr"),
    "tatoeba-en-de": Named(
        "CC BY 2.0 FR: tatoeba.org, manythings.org/anki",
        ("tatoeba/anki.en-de.tsv.xz",),
        settings={"hold_out": 0.02},
    ),
    "tatoeba-en-fr": Named(
        "CC BY 2.0 FR: tatoeba.org, manythings.org/anki",
        ("tatoeba/anki.en-fr.tsv.xz",),
        settings={"hold_out": 0.02},
    ),
    "stories": Named(
        "public domain in the USA (Project Gutenberg)",
        ("prose/stories-train.txt.xz",),
        ("prose/stories-valid.txt.xz",),
        settings={"kind": "texts", "separator": "<|endoftext|>", "longest": 2**24},
    ),
    "tinyshakespeare": Named(
        "public domain",
        ("prose/tinyshakespeare.txt.xz",),
        settings={"kind": "texts", "tail": 0.1, "longest": 2**24},
    ),
    "sst2": Named(
        "research use; cite Socher et al. 2013",
        ("classify/sst2.train.tsv.xz",),
        ("classify/sst2.dev.tsv.xz",),
        settings={"kind": "labelled", "header": True},
    ),
    "dailydialog": Named(
        "CC BY-NC-SA 4.0, non-commercial",
        ("dialogue/dailydialog.train.txt.xz",),
        ("dialogue/dailydialog.validation.txt.xz",),
        settings={"kind": "dialogues"},
    ),
    "synthetic-persona-chat": Named(
        "CC BY 4.0",
        ("dialogue/synthetic-persona-chat.valid.jsonl.xz",),
        settings={"kind": "dialogues", "hold_out": 0.05},
    ),
}

SHA256 = {
    "multi30k/train.en.gz": "e1d89f49b9f003db6bb35c24382eb56531fec4e3840cb704cf36f0c0e192b62d",
    "multi30k/train.de.gz": "d71259ddb13479e1c9cac315c123493b7e97d2c996465b76d885a80a9e8daccd",
    "multi30k/train.fr.gz": "41e4a42abcf242f69c88814fe0f8df106d877f0b07482c841f6063e3ed739039",
    "multi30k/val.en.gz": "0a9a01b4fd231cafeebea18983300016112dc919d3b26c5c74f6d6f388936aeb",
    "multi30k/val.de.gz": "c7c5fd8dde71846406de776f1c342f0c1e95e1c375e3bea7d52a77faec72e965",
    "multi30k/val.fr.gz": "9ccb4038b407530093f76c4aa5e955842303e96b0bdef3c626a0c8320d450f36",
    "multi30k/test_2016_flickr.en.gz": (
        "4f32cb8118b90cd5189d141e34791f70c245315e17065ecf9b2af6ab57e747cf"
    ),
    "multi30k/test_2016_flickr.de.gz": (
        "d9747e9ef1c1bf36bf4a0e43c0d0fba58cc55d6b2b8e388cc863cba02b043fea"
    ),
    "multi30k/test_2016_flickr.fr.gz": (
        "aaa466eae473f1807a1b4a1683e18b6bba1234aee4ebf70e04bbc11d1e87d2be"
    ),
    "tatoeba/anki.en-de.tsv.xz": "aa6815002b155d14315ac44d6fdc90a8741e31f57a683febb6e718e0d840b10e",
    "tatoeba/anki.en-fr.tsv.xz": "62a66fa85205362f1043ec23087cdaca244e67c5fb82354c7e4d2d25d04ac664",
    "prose/stories-train.txt.xz": (
        "2e4eae62ccae6051672e52ba5a0d5449260fe3ce5e8ce6b5bc95d23cee4efbaa"
    ),
    "prose/stories-valid.txt.xz": (
        "826d52d8b03404f53c9631e1e3133da8d3eca2b4680f0ddb0282681824496ae3"
    ),
    "prose/tinyshakespeare.txt.xz": (
        "21b40ccf4999c004256d116655824719001352dbc22636354d9cd0c645d03a4a"
    ),
    "classify/sst2.train.tsv.xz": (
        "cee06de1abd189a137391b91c0644cd1c06bdd84edc62442fb804d6d06450ba8"
    ),
    "classify/sst2.dev.tsv.xz": "10259db6f6ebc89c4872544e51d2406e30362b6a231e535f30e801a1ce7ef072",
    "dialogue/dailydialog.train.txt.xz": (
        "78cb6e97abf4bfbe7208b86bf17a99e22e71d89e0c2f181f242d9db016df3c1c"
    ),
    "dialogue/dailydialog.validation.txt.xz": (
        "89f02518e19ccca8d1bbdbde17385060090552aedd5506ed83ca72c621620ceb"
    ),
    "dialogue/synthetic-persona-chat.valid.jsonl.xz": (
        "4d9671d8cebb2978bba85ef04d251ff44654a2bbddc5f41316cfec6a4ae90982"
    ),
}


def resolve(data: DataConfig) -> DataConfig:
    """The same with real files in place of a name."""
    if not data.name:
        return data
    if data.name not in NAMED:
        raise unknown("corpus", data.name, NAMED)
    corpus = NAMED[data.name]
    splits = {
        split: tuple(str(find(data.name, corpus, file)) for file in getattr(corpus, split))
        for split in ("train", "valid", "test")
    }
    defaults = DataConfig()
    ours = {k: v for k, v in corpus.settings.items() if getattr(data, k) == getattr(defaults, k)}
    return replace(data, **{**ours, **splits, "name": ""})


def find(name: str, corpus: Named, file: str) -> Path:
    """A file of a corpus, proved to be the one we mean."""
    root = os.environ.get("LIMELIGHT_DATA")
    path = Path(root or ".") / file
    if root is None or not path.is_file():
        place = "is not set" if root is None else f"is {root}, which has no such file"
        raise UserError(
            f"the corpus {name} ({corpus.licence}) needs {file} under the folder that the "
            f"environment variable LIMELIGHT_DATA names; it {place}"
        )
    with path.open("rb") as content:
        digest = file_digest(content, "sha256").hexdigest()
    if digest != SHA256[file]:
        raise UserError(f"{path} is not the file we know (SHA-256 {digest}, not {SHA256[file]})")
    return path
