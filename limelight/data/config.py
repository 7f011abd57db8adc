"""Where examples come from, as data: the [data] and [images] tables of a recipe."""

import codecs
import math
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field

from limelight.config import Count, Fraction, Positive, Size, config_class
from limelight.data.tokenizer import SPECIAL
from limelight.errors import UserError, unknown_name

NO_DATA = "the recipe names no data to train on: use --data.train FILE ..., or --data.name"
SPLITS = ("train", "valid", "test")
_Kind = Literal["pairs", "texts", "labelled", "dialogues", "images"]
_ENCODINGS = ("utf-8", "utf-16", "latin-1", "cp1252", "cp1251", "shift_jis", "gb18030", "big5")
_Toy = Literal["", "reverse", "copy", "sort", "where", "carry", "give", "count", "path", "yes-no"]
KEYS = {  # what an example of each kind has, and so a line of JSON
    "pairs": ("source", "target"),
    "texts": ("text",),
    "labelled": ("text", "label"),
    "dialogues": ("turns",),
    "images": ("image", "caption"),
}


def _from_tables(values: object) -> object:
    if not isinstance(values, list | tuple):
        return values
    return tuple(DataConfig(**lists_to_tuples(v)) if isinstance(v, dict) else v for v in values)


def lists_to_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """TOML's lists as tuples, which cannot be changed."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}


_Level = Annotated[int, Field(ge=2, le=256)]  # values that a number of the code can have
_Corpora = Annotated[tuple["DataConfig", ...], BeforeValidator(_from_tables)]


@config_class
class DataConfig:
    """Where examples come from: files, a hub, a toy that makes its own, or several corpora."""

    RENAMED: ClassVar[dict[str, str]] = {
        "longest": "max_chars",
        "history": "context_turns",
        "tail": "valid_tail",
        "swap": "reverse",
    }

    kind: _Kind = "pairs"  # sources and targets; texts; labelled texts; conversations; images
    name: str = ""  # a public corpus that `limelight.data.registry` knows, instead of files
    hub: str = ""  # a dataset of the Hugging Face hub, "name" or "name:configuration", instead
    train: tuple[str, ...] = ()  # files, folders or globs; pairs: two parallel texts, or tables
    valid: tuple[str, ...] = ()  # for validation during training
    test: tuple[str, ...] = ()  # for `limelight evaluate`
    toy: _Toy = ""  # made instead of files: letters, or questions about a paragraph
    toy_examples: Count = 10_000  # for training; a tenth of it for each of valid and test
    toy_length: Annotated[int, Field(ge=2, le=1000)] = 10  # letters, or sentences, at most
    scenes: Literal["", "shapes", "emoji"] = ""  # images: made without end, instead of files
    scene_objects: Literal[2, 3] = 3  # shapes: different objects in a scene, at most
    hold_out: Fraction = 0.0  # this share of the training sources becomes valid, as much test
    stream: bool = False  # texts: each file is one text, of any size; else each line is one
    valid_tail: Fraction = 0.0  # texts: the file is one text, and this share of its end is valid
    encoding: str = ""  # of the files, as "latin-1" or "utf-16"; without one UTF-8
    delimiter: str = ""  # between columns; without one "," in .csv and a tab elsewhere
    header: bool = False  # .csv, .tsv: the first line names the columns, whatever the names
    columns: tuple[str, ...] = ()  # which to use, by name ("a.b" for b inside a) or as 1, 2, ...
    separator: str = ""  # texts: the line between two documents; without one each line is a text
    context_turns: Size = 3  # dialogues: how many turns before an answer are its source
    max_chars: Size = 100_000  # characters; longer ones are rejected
    reverse: bool = False  # pairs: learn the other direction
    tag: str = ""  # a token of this name goes before every source: what is asked of the model
    weight: Positive = 1.0  # how often an epoch has each example; 0.5: one half, drawn every time
    corpora: _Corpora = ()  # read together

    def __post_init__(self) -> None:
        self.check_where()
        self.check_splits()
        self.check_files()
        if self.reverse and self.kind != "pairs":
            raise UserError(f"reverse=true turns pairs around, not kind={self.kind!r}")
        if self.tag in SPECIAL or not all(c.isalnum() or c in "-_" for c in self.tag):
            wanted = f"must be letters, digits, - or _, and none of {', '.join(SPECIAL)}"
            raise UserError(f"tag={self.tag!r} {wanted}")
        several = self.kind == "pairs" and len(self.columns) > 2  # references of valid or test
        if self.columns and len(self.columns) != len(KEYS[self.kind]) and not several:
            wanted = " and ".join(KEYS[self.kind])
            raise UserError(f"columns={self.columns} must name where to find {wanted}")
        self.check_corpora()

    def check_where(self) -> None:
        if self.toy and (self.train or self.valid or self.test):
            raise UserError(f"toy={self.toy!r} makes its own examples: drop train, valid, test")
        if self.toy and self.kind != "pairs":
            raise UserError(f"toy={self.toy!r} makes pairs, not kind={self.kind!r}")
        if self.scenes and self.kind != "images":
            raise UserError(f"scenes={self.scenes!r} are kind='images', not kind={self.kind!r}")
        if self.scenes and (self.valid or self.test or (self.train and self.scenes == "shapes")):
            raise UserError(
                f"scenes={self.scenes!r} makes its own pictures: drop train, valid, test"
            )
        origins = ("name", "hub", "toy", *SPLITS)
        for own in ("name", "hub"):
            others = [other for other in origins if other != own and getattr(self, other)]
            if getattr(self, own) and others:
                raise UserError(
                    f"{own}={getattr(self, own)!r} has its own files: leave {', '.join(others)} "
                    f"out, or set --data.{own} '' and, with --data.kind, what your files hold"
                )

    def check_splits(self) -> None:
        if self.hold_out > 0.4:
            raise UserError(f"hold_out={self.hold_out} leaves little to train on: at most 0.4")
        if self.valid_tail and (self.kind != "texts" or self.valid or self.hold_out):
            raise UserError(
                f"valid_tail={self.valid_tail} is for one file of texts, with no valid or hold_out"
            )
        if self.hold_out and (self.valid or self.test):
            raise UserError(f"hold_out={self.hold_out} makes valid and test: name no such files")

    def check_files(self) -> None:
        if self.stream and (self.kind != "texts" or self.separator or self.hold_out):
            raise UserError(
                "stream=true is for texts, each file one, with no separator or hold_out"
            )
        if len(self.delimiter.replace("\\t", "\t")) > 1:
            raise UserError(f"delimiter={self.delimiter!r} must be one character, as ';'")
        try:
            codecs.lookup(self.encoding or "utf-8")
        except (LookupError, ValueError) as error:
            raise unknown_name("encoding", self.encoding, _ENCODINGS) from error

    def check_corpora(self) -> None:
        if not self.corpora:
            return
        if self.name or self.hub or self.toy or self.train:
            raise UserError("corpora are read instead of name, hub, toy and train: leave those out")
        for corpus in self.corpora:
            if corpus.corpora:
                raise UserError("a corpus among corpora has none of its own")
            if corpus.kind != self.kind:
                raise UserError(f"corpora are of one kind, not of {corpus.kind} and {self.kind}")


@config_class
class ImageConfig:
    """How pictures become tokens that follow their caption, and how that is learned."""

    size: Literal[32, 64] = 32  # pixels on a side
    levels: Annotated[tuple[_Level, ...], Field(min_length=1, max_length=8)] = (8, 5, 5, 5)  # FSQ
    channels: Annotated[int, Field(ge=4, le=1024)] = 128  # of the image tokenizer's convolutions
    steps: Count = 0  # of the image tokenizer's training; 0: a quarter of train.steps
    decoder_steps: Count = 0  # after these its decoder alone is trained, while tokens stay the same
    batch: Size = 256  # pictures in a batch of it
    learning_rate: Positive = 4e-3  # its peak
    caption_tokens: Annotated[int, Field(ge=1, le=1024)] = 24  # longest caption; shorter are padded
    caption_dropout: Fraction = 0.1  # share of captions left empty, for classifier-free guidance

    @property
    def codes(self) -> int:
        """Different image tokens."""
        return math.prod(self.levels)

    @property
    def tokens(self) -> int:
        """Tokens of a picture, one for each patch of 4 x 4 pixels."""
        return (self.size // 4) ** 2

    @property
    def positions(self) -> int:
        """Tokens that are read: caption, separator, and all of the picture but the last."""
        return self.caption_tokens + self.tokens


def tags_of(data: DataConfig) -> tuple[str, ...]:
    """The tags that begin sources, each once, in order."""
    return tuple(dict.fromkeys(part.tag for part in (data, *data.corpora) if part.tag))


def files_of(data: DataConfig, split: str) -> tuple[str, ...]:
    """The files that a split is read from; a held-out part is read from the training files."""
    part = data.hold_out or (data.valid_tail and split == "valid")
    return data.train if part else cast(tuple[str, ...], getattr(data, split))


def num_columns(data: DataConfig) -> int:
    """Texts per example: a source and a target, or one (a label is no text)."""
    return 2 if data.kind in ("pairs", "dialogues") else 1
