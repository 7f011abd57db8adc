"""The run folder: everything about one training, as data and never as code.

run.json           the format of this folder, and hashes of the next files
recipe.toml        the recipe as it was used
tokenizer.json     the tokenizer
classes.json       the names of the classes, for a classifier of texts
special_tokens.json, imported.json, chat_template.jinja, certificate.json: of an imported model
environment.json   versions, seed, device, hashes of the data
examples/          the examples that Python gave to the training, if it did
base.json          for LoRA: the model that the adapters are for, and the hash of its weights
image_tokenizer/   for a model that draws: the training of its image tokenizer, and its weights
reconstructions.png, samples.png    what the tokenizer rebuilds, and what the model draws
checkpoints/       the last ones, from which training resumes
finished/          the weights to be used, when training has ended
log.jsonl          what happened, line by line
curves.svg         the same, drawn
tensorboard/       the same for TensorBoard, where that is installed
loggers.json       ids of this run in Weights & Biases and MLflow
"""

import json
import platform
import sys
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from limelight.config import EXTENSION_FILES
from limelight.errors import UserError
from limelight.files import atomic_write, read_bounded
from limelight.run.atomic import find_damage, latest_valid, list_checkpoints

_FORMAT = 1
PARTS = (  # all that a training writes
    *("run.json", "recipe.toml", "tokenizer.json", "classes.json", "environment.json", "base.json"),
    *("special_tokens.json", "imported.json", "chat_template.jinja", "certificate.json"),
    *("checkpoints", "finished", "log.jsonl", "curves.svg", "tensorboard", "examples"),
    *("loggers.json", "wandb"),
    *("image_tokenizer", "reconstructions.png", "samples.png"),
)
_LARGEST_RECIPE, _LARGEST_TOKENIZER = 2**16, 2**25  # bytes
_LONGEST_LINE = 2**12  # characters: "a.a.a. ..." in one line can keep tomllib busy for hours
_HASHED = (
    *("recipe.toml", "tokenizer.json", "classes.json"),
    *("special_tokens.json", "imported.json", "chat_template.jinja"),
)


def versions() -> dict[str, str]:
    """Of what a result may depend on, for `environment.json`."""
    ours = sys.modules["limelight"]  # perhaps a checkout that pip never installed
    others = {name: version(name) for name in ("torch", "tokenizers", "numpy", "safetensors")}
    return {"limelight": ours.__version__, "python": platform.python_version(), **others}


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run's files, and how they are read and written."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def finished(self) -> Path:
        return self.path / "finished"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer.json"

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def curves(self) -> Path:
        return self.path / "curves.svg"

    @property
    def exists(self) -> bool:
        return (self.path / "run.json").is_file()

    @property
    def is_imported(self) -> bool:
        """Whether its tokenizer is somebody else's: a published model, or one trained from it."""
        return (self.path / "special_tokens.json").is_file()

    def import_files(self) -> dict[str, str]:
        """What is known of an imported model, by file; a run that starts from it keeps them."""
        names = ("imported.json", "chat_template.jinja")
        return {n: read_bounded(self.path / n) for n in names if (self.path / n).is_file()}

    def begin(self, recipe: str, extensions: Mapping[str, str] | None = None) -> None:
        """Make this a run folder; called last, when everything else is written."""
        there = [name for name in _HASHED if (self.path / name).exists()]
        hashes = {name: self.hash_of(name) for name in there}
        meta: dict[str, Any] = {"format": _FORMAT, "recipe": recipe, "sha256": hashes}
        self.write_json("run.json", meta | ({"extend": extensions} if extensions else {}))

    def hash_of(self, name: str) -> str:
        """SHA-256 of the values in a file, however they are laid out; [decode] may be edited."""
        recipe = name == "recipe.toml"
        text = self.read_recipe() if recipe else read_bounded(self.path / name, _LARGEST_TOKENIZER)
        with suppress(ValueError, RecursionError):  # whoever reads it will say what is wrong
            values = tomllib.loads(text) if recipe else json.loads(text)
            if recipe:
                values.pop("decode", None)
            text = json.dumps(values, sort_keys=True, default=str)
        return sha256(text.encode()).hexdigest()

    def meta(self) -> dict[str, Any]:
        """The content of run.json; anything but a run folder of this format is rejected."""
        if not self.exists:
            raise UserError(f"{self.path} is not a run folder: it has no run.json")
        meta = self.read_json("run.json")
        if not isinstance(meta, dict) or meta.get("format") != _FORMAT:
            raise UserError(
                f"{self.path} has another format than this version of limelight reads "
                f"({_FORMAT}): its run.json says {meta!s:.80}"
            )
        return meta

    def check(self) -> str:
        """The name of its recipe; files that were edited after training are rejected."""
        meta = self.meta()
        known = meta.get("sha256", {})  # runs of 0.1.0 and the bundled models have none
        if not isinstance(known, dict):
            raise UserError(f"{self.path / 'run.json'}: sha256 must be a table, not {known!s:.80}")
        for name in _HASHED:
            if name in known and known[name] != self.hash_of(name):
                if self.meta() != meta:  # a trainer writes both files just now
                    return self.check()
                raise UserError(
                    f"{self.path / name} has changed since the training, and the weights may give "
                    "wrong answers with it: bring it back. If the change is meant, delete "
                    f"{name} from sha256 in {self.path / 'run.json'}"
                )
        return str(meta.get("recipe", self.path.name))

    def check_extensions(self) -> None:
        """The files that its recipe needs must be loaded; a folder itself never brings code."""
        needed = self.meta().get("extend", {})
        if not isinstance(needed, dict):
            raise UserError(f"{self.path / 'run.json'}: extend must be a table, not {needed!s:.80}")
        for name, before in needed.items():
            if name not in EXTENSION_FILES:
                raise UserError(
                    f"{self.path} was trained with {name!a:.80}, a Python file that is not part of "
                    f"it: give yours with --extend FILE, or in Python with limelight.extend"
                )
            if EXTENSION_FILES[name] != before:
                raise UserError(
                    f"{self.path} was trained with another {name}: its SHA-256 was {before!s:.12}, "
                    f"and that of yours is {EXTENSION_FILES[name]:.12}; bring the old file back"
                )

    def write(self, name: str, text: str) -> None:
        atomic_write(self.path / name, text.encode())

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, json.dumps(value, indent=1, ensure_ascii=False) + "\n")

    def write_recipe(self, text: str) -> None:
        self.check_recipe(text)
        if self.exists:  # the hash is of the old text; until `begin` there is none
            self.write_json("run.json", {**self.meta(), "sha256": {}})
        self.write("recipe.toml", text)

    def read_recipe(self) -> str:
        text = read_bounded(self.path / "recipe.toml", _LARGEST_RECIPE)
        self.check_recipe(text)
        return text

    def check_recipe(self, text: str) -> None:
        """Reject what would take very long to parse."""
        longest = max(map(len, text.splitlines()), default=0)
        if len(text) > _LARGEST_RECIPE or longest > _LONGEST_LINE:
            raise UserError(
                f"{self.path / 'recipe.toml'} is too large: it may have {_LARGEST_RECIPE:,} "
                f"characters, and a line {_LONGEST_LINE:,}"
            )

    def read_json(self, name: str) -> Any:
        text = read_bounded(self.path / name)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{self.path / name} is not JSON: {error}") from error

    def environment(self) -> dict[str, Any]:
        found = self.read_json("environment.json")
        if not isinstance(found, dict):
            raise UserError(f"{self.path / 'environment.json'} is not what a run writes")
        return found

    def weights(self, examine: Callable[[Path], object] = lambda _: None) -> tuple[Path, list[str]]:
        """The folder of the finished weights or the newest ones, and what damage was skipped."""
        warnings: list[str] = []
        for parent in (self.finished, self.checkpoints):
            folder, skipped = latest_valid(parent, examine)
            warnings += [f"{parent.name}/{sentence}" for sentence in skipped]
            if folder is not None:
                return folder, warnings
        raise UserError("; ".join([f"{self.path} has no weights yet", *warnings]))

    def steps(self) -> list[int]:
        """The training steps of which it has weights, the first one first."""
        folders = (*list_checkpoints(self.finished), *list_checkpoints(self.checkpoints))
        return sorted({int(folder.name.removeprefix("step-")) for folder in folders})

    def weights_at(self, step: int, examine: Callable[[Path], object] = lambda _: None) -> Path:
        """The folder of one step's weights: of its checkpoint, or else of the finished model."""
        both = (*list_checkpoints(self.finished), *list_checkpoints(self.checkpoints))
        there = {int(folder.name.removeprefix("step-")): folder for folder in both}
        if step not in there:
            nearest = sorted(sorted(there, key=lambda kept: abs(kept - step))[:10])
            kept = f"it has {', '.join(map(str, nearest))}" if nearest else "it has no weights yet"
            raise UserError(f"{self.path} has no checkpoint of step {step}: {kept}")
        if (why := find_damage(there[step], examine)) is None:
            return there[step]
        if not there[step].is_dir():  # pruned just now
            return self.weights_at(step, examine)
        raise UserError(f"{there[step]} is damaged: {why}")
