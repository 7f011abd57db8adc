"""One experiment as data: a TOML file, by its path or by the name of a bundled one.

Each table belongs to the part that uses it and is checked there. Overrides change any setting, by
value in Python ({"train.steps": 500}) or as text on the command line (`--train.steps 500`). The
recipe as it was finally used can be written down and read again.
"""

import json
import os
import re
import shlex
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, get_origin

from pydantic import Field

from limelight.config import (
    allow_old_names,
    config_class,
    current_name,
    settings_of_class,
    with_settings,
)
from limelight.data.config import SPLITS, DataConfig, ImageConfig, lists_to_tuples
from limelight.data.input_files import ending_of
from limelight.data.readers import kind_of
from limelight.data.registry import NAMED
from limelight.data.tokenizer import SMALLEST, TokenizerConfig
from limelight.decode.config import DecodeConfig
from limelight.errors import AdjustedWarning, UserError, unknown_name
from limelight.model import AnyConfig, model_config
from limelight.model.config import ModelConfig, RecurrentConfig
from limelight.run.folder import RunFolder
from limelight.training.config import TrainConfig

_SHIPPED = files("limelight") / "recipes"
Overrides = Mapping[str, Any] | Iterable[str]  # {"train.steps": 500}, or ["train.steps=500"]
_HAS_MODEL = re.compile(rb"^(\xef\xbb\xbf)?\s*(\[model\]|base\s*=)", re.MULTILINE)
_FOR_FILES = {  # by their kind: what they hold, and a recipe for files of one's own
    "texts": ("texts", "gpt-small"),
    "labelled": ("labelled texts", "classify"),
    "pairs": ("pairs", "text-to-text"),
    "dialogues": ("dialogues", "dialogue"),
}
_LAYOUT = {  # of [data]: how its own files are to be read
    *("encoding", "delimiter", "header", "columns", "separator", "stream", "valid_tail"),
}


@config_class
class _Published:
    """The published size of this model, to compare ours with."""

    parameters: Annotated[int, Field(ge=1, le=10**18)]  # how many they count
    source: str  # where they say so
    difference: str = ""  # why ours is another number


@dataclass(frozen=True)
class Recipe:
    """Everything that makes an experiment what it is."""

    name: str
    model: AnyConfig
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    images: ImageConfig | None = None  # for data.kind = "images" alone
    about: str = ""
    published: _Published | None = None


TABLES: dict[str, type[Any]] = {
    "data": DataConfig,
    "tokenizer": TokenizerConfig,
    "train": TrainConfig,
    "decode": DecodeConfig,
    "images": ImageConfig,
    "published": _Published,
}


def all_settings() -> dict[str, list[dict[str, str]]]:
    """Every setting of every table, with its values, default and meaning."""
    owners = {"data": DataConfig, "tokenizer": TokenizerConfig, "model": ModelConfig}
    owners |= {"model, recurrent": RecurrentConfig, "train": TrainConfig, "decode": DecodeConfig}
    return {
        table: [one._asdict() for one in settings_of_class(owner)]
        for table, owner in owners.items()
    }


def recipe_names() -> list[str]:
    """The bundled recipes."""
    return sorted(item.name.removesuffix(".toml") for item in _SHIPPED.iterdir())


def load_recipe(name: str, overrides: Overrides = ()) -> Recipe:
    """Read a recipe and change it; an error names the file and the key."""
    return parse_recipe(name, read_recipe_text(name), overrides)


def read_recipe_text(name: str) -> str:
    """The TOML of a recipe, as it stands in its file."""
    bundled = name in recipe_names()
    path = _SHIPPED / f"{name}.toml" if bundled else Path(name)
    try:
        if not (bundled or name.endswith(".toml") or path.is_file()):
            raise unknown_name("recipe", name, recipe_names())
        if not (bundled or name.endswith(".toml") or _may_be_recipe(Path(name))):
            raise _data_for_recipe(name)
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read the recipe {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not a text file in UTF-8 (byte {error.start})") from error


def _may_be_recipe(path: Path) -> bool:
    """Whether a file of any ending has what every recipe has, near its beginning."""
    with path.open("rb") as file:
        return bool(_HAS_MODEL.search(file.read(2**20)))


def _data_for_recipe(name: str) -> UserError:
    """For a file of data in the place of a recipe: the recipe that would train on it."""
    try:
        what, recipe = _FOR_FILES[kind_of(DataConfig(train=(name,)))]
    except UserError as error:
        return UserError(f"{name} is no recipe; as --data.train: {error}")
    return UserError(
        f"{name} is a file of {what}, and no recipe: to train on it, limelight train {recipe} "
        f"--data.train {shlex.quote(name)} --run FOLDER"
    )


def recipe_for_files(files: Iterable[str], overrides: Overrides = ()) -> Recipe:
    """A recipe for files alone, to check them: their kind is guessed unless it is given."""
    changes = {"data.train": tuple(files), **as_overrides(overrides)}
    if "data.kind" not in changes:
        how = _by_table(changes)["data"]
        columns = how.pop("columns", ())  # as many as its kind needs, which is not known yet
        changes["data.kind"] = kind_of(DataConfig(**how), columns)
    return parse_recipe("files", "[tokenizer]\n[model]\nmax_len = 4096\n", changes)


def parse_recipe(name: str, text: str, overrides: Overrides = (), stored: bool = False) -> Recipe:
    """The recipe that this TOML describes, with these overrides.

    One that is stored in a run says every setting. What its data made of them is not kept for other
    data: the layout of files, and the number of classes.
    """
    with _errors_in(f"{name}:"):
        values = _read_tables(name, text, ())
        if "model" not in values:
            raise UserError("there is no [model] table: a recipe says at least what the model is")
        changes = _by_table(as_overrides(overrides))
        if stored and _has_origin(changes.get("data", {})):
            values = _without_layout(values)
        values = _changed(values, changes)
        return _assemble(Path(name).name.removesuffix(".toml"), values)


def _read_tables(name: str, text: str, above: tuple[str, ...]) -> dict[str, Any]:
    """The tables of a TOML file, put into those of its `base`, a recipe by name or path."""
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a hostile file may have endless digits
        raise UserError(str(error) or "nested too deeply") from error
    words = ("about", "base")
    for key in values:
        if key not in (*words, "model", *TABLES):
            raise unknown_name("key", key, (*words, "model", *TABLES))
        if key in words and not isinstance(values[key], str):
            raise UserError(f"{key}={values[key]!r} must be text")
        if key not in words and not isinstance(values[key], dict):
            raise UserError(f"{key} must be a table, [{key}], not {values[key]!r}")
    if not (base := values.pop("base", "")):
        return values
    path = base if base in recipe_names() else str(Path(name).parent / base)
    if path in above or Path(path).resolve() == Path(name).resolve():
        raise UserError(f"base={base!r} leads back to this recipe: a recipe cannot be its own base")
    if path != base and not Path(path).is_file():
        raise unknown_name("base", base, recipe_names())
    with _errors_in(f"in its base {base}:"):
        inherited = _read_tables(path, read_recipe_text(path), (*above, path))
    inherited.pop("published", None)  # the size of another model
    return _changed(inherited, values)


def _changed(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with some settings changed, under their old names too."""
    values = dict(values)
    for key, changed in changes.items():
        if not isinstance(changed, dict):
            values[key] = changed
            continue
        owner, before = TABLES.get(key, object), values.get(key, {})
        new = {current_name(owner, setting) for setting in changed}
        if key == "data" and _has_origin(changed):
            before = _without_origin(before, new)
        if key == "data" and changed.get("valid"):  # which are then not held out of the others
            before = {k: v for k, v in before.items() if k != "hold_out"}
        values[key] = {k: v for k, v in before.items() if current_name(owner, k) not in new}
        values[key] |= changed
        if key == "train" and "steps" in new and "warmup" not in new:
            values[key] |= _shorter_warmup(values[key])
    return values


def _shorter_warmup(train: dict[str, Any]) -> dict[str, int]:
    """A warm-up that ends within a training that was made shorter: a tenth of it."""
    steps, warmup = train["steps"], train.get("warmup", TrainConfig.warmup)
    if not (isinstance(steps, int) and isinstance(warmup, int) and 1 <= steps <= warmup):
        return {}
    shorter = min(steps - 1, max(1, steps // 10))
    many = f"{steps} step{'s' * (steps > 1)}"
    change = f"warmup is {shorter} instead of {warmup}, for a training of {many}"
    warnings.warn(f"{change}: --train.warmup changes it", AdjustedWarning, stacklevel=2)
    return {"warmup": shorter}


def _has_origin(data: Mapping[str, Any]) -> bool:
    """Whether changes of [data] name other examples to train on."""
    return bool(data.get("train") or data.get("corpora"))


def _without_layout(values: dict[str, Any]) -> dict[str, Any]:
    """Tables without what was said, or counted, of the files that they were made for."""
    data, model = dict(values.get("data", {})), dict(values["model"])
    model.pop("classes", None)
    gone = {k for k in data if current_name(DataConfig, k) in _LAYOUT}
    if not data.get("hold_out"):  # a share that was wanted is wanted of other files too
        gone.add("hold_out")
    return {**values, "data": {k: v for k, v in data.items() if k not in gone}, "model": model}


def _without_origin(data: dict[str, Any], given: set[str]) -> dict[str, Any]:
    """[data] without where its examples came from, for files or corpora instead."""
    files = () if "train" in given else SPLITS
    origins = {"name", "hub", "toy", "toy_examples", "toy_length", "corpora", *files} - given
    kinds = [data, *data.get("corpora", ())]
    names = [NAMED[one["name"]].settings for one in kinds if one.get("name") in NAMED]
    usual = DataConfig.kind  # beside a name it stands for the kind of the corpus
    known = [one["kind"] for one in [*kinds, *names] if one.get("kind", usual) != usual]
    kind = {"kind": known[0]} if known else {}
    return {key: value for key, value in data.items() if key not in origins} | kind


def with_overrides(recipe: Recipe, overrides: Overrides) -> Recipe:
    """A recipe with these settings changed."""
    with _errors_in(f"{recipe.name}:"):
        parts: dict[str, Any] = {}
        for key, changed in _by_table(as_overrides(overrides)).items():
            part = getattr(recipe, key)
            with _errors_in(f"[{key}]"):
                parts[key] = with_settings(part, changed) if part else TABLES[key](**changed)
        return _consistent(replace(recipe, **parts))


def as_overrides(overrides: Overrides) -> dict[str, Any]:
    """Overrides by value, whether they are given so or as text."""
    if isinstance(overrides, str):  # would be read as one override for each of its letters
        raise UserError(
            f"changes={overrides!r} is a str, and no list of them: write [{overrides!r}]"
        )
    if not isinstance(overrides, Mapping):
        return parse_overrides(overrides)
    return {name.replace("-", "_"): value for name, value in overrides.items()}


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """Read "table.setting=value", each as its setting's type wants it; a list has one for each."""
    found: dict[str, Any] = {}
    for one in texts:
        name, equals, raw = one.partition("=")
        name = name.replace("-", "_")
        if not (equals and "." in name):
            raise UserError(f"{one!r} is not a change: write table.setting=value")
        kind = _type_of(*name.split(".", 1))
        if get_origin(kind) is tuple:
            found[name] = (*found.get(name, ()), raw)
        else:
            found[name] = raw if kind is str else _parse_value(raw)
    return found


def _by_table(overrides: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = {}
    for name, value in overrides.items():
        key, dot, setting = name.partition(".")
        if not dot:
            raise UserError(f"{name!r} is not a setting: write table.setting")
        if key not in ("model", *TABLES):
            raise unknown_name("table", key, ("model", *TABLES))
        owners = tables_with(setting)
        if key in TABLES and owners and key not in owners:
            raise UserError(f"there is no {name}: use {owners[0]}.{setting}")
        tables.setdefault(key, {})[setting] = value
    return {key: lists_to_tuples(changed) for key, changed in tables.items()}


def tables_with(setting: str) -> list[str]:
    """The tables of a recipe that have a setting of this name."""
    owners: dict[str, type[Any]] = {**TABLES, "model": ModelConfig}
    return [
        table
        for table, owner in owners.items()
        if current_name(owner, setting) in {field.name for field in fields(owner)}
    ]


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """A recipe that means the same files from any directory."""

    def absolute(data: DataConfig) -> DataConfig:
        names = {split: getattr(data, split) for split in SPLITS}
        found: dict[str, Any] = {k: tuple(map(os.path.abspath, v)) for k, v in names.items()}
        return with_settings(data, found | {"corpora": tuple(map(absolute, data.corpora))})

    file = recipe.tokenizer.file and os.path.abspath(recipe.tokenizer.file)
    tokenizer = replace(recipe.tokenizer, file=file)
    return replace(recipe, data=absolute(recipe.data), tokenizer=tokenizer)


def with_model_of(recipe: Recipe, origin: Recipe, overrides: Overrides = ()) -> Recipe:
    """A recipe to go on with another's model: its [model] and tokenizer, unless overrides differ.

    Dropout and the heads for a new task stay those of the recipe.
    """
    own = ("dropout", "attention_dropout", "classes", "masked_head", "sentence_pairs")
    told = {name.partition(".")[2] for name in as_overrides(overrides) if name[:6] == "model."}
    kept = [name for name in {*own, *told} if hasattr(recipe.model, name)]
    kept = [name for name in kept if hasattr(origin.model, name)]
    model = with_settings(origin.model, {name: getattr(recipe.model, name) for name in kept})
    return _consistent(replace(recipe, model=model, tokenizer=origin.tokenizer))


def recipe_from_run(run: RunFolder, overrides: Overrides = ()) -> Recipe:
    """The recipe as a run used it, with these overrides."""
    name = run.check()
    run.check_extensions()
    with allow_old_names():
        path = str(run.path / "recipe.toml")
        recipe = parse_recipe(path, run.read_recipe(), overrides, stored=True)
    return replace(recipe, name=name)


def _assemble(name: str, values: Mapping[str, Any]) -> Recipe:
    """A recipe from its tables, each checked by the part that owns it."""
    parts: dict[str, Any] = {}
    family = str(values["model"].get("family", ""))
    values = {**values, "data": _as_stream(values.get("data", {}), family)}
    for key, owner in TABLES.items():
        if key in values:
            with _errors_in(f"[{key}]"):
                parts[key] = owner(**lists_to_tuples(values[key]))
    model = dict(values["model"])
    if "tokenizer" in values:  # the tokenizer decides how many tokens there are
        model.setdefault("vocab", parts["tokenizer"].vocab)
    about = values.get("about", "")
    with _errors_in("[model]"):
        config = model_config(**model)
    if "tokenizer" not in values and config.vocab < TokenizerConfig().vocab:
        parts["tokenizer"] = TokenizerConfig(vocab=max(SMALLEST, config.vocab))
    return _consistent(Recipe(name, config, about=about, **parts))


def _as_stream(data: dict[str, Any], family: str) -> dict[str, Any]:
    """[data] where a GPT reads a .txt as one text, and validates with its end, unless it says else.

    The recipe in a run folder says it all, so nothing is added there.
    """
    said = {"stream", "separator", "valid_tail", "tail", "hold_out", "corpora"} & data.keys()
    texts = data.get("kind") == "texts" and family.endswith("decoder-only")
    files = data.get("train", ())
    if said or not texts or not files or any(ending_of(Path(str(f))) != ".txt" for f in files):
        return data
    return {**data, "stream": True, **({} if data.get("valid") else {"valid_tail": 0.1})}


def _consistent(recipe: Recipe) -> Recipe:
    """The recipe, if its tables fit together."""
    family = recipe.model.family
    if recipe.tokenizer.kind == "uncased" and family != "encoder-only":
        raise UserError(
            f"tokenizer.kind='uncased' knows no capitals, and family={family!r} should write them: "
            "choose 'bpe', or family='encoder-only'"
        )
    if recipe.tokenizer.vocab > max(recipe.model.vocab, SMALLEST):
        raise UserError(
            f"the tokenizer may learn {recipe.tokenizer.vocab} tokens, but the model knows only "
            f"{recipe.model.vocab}: change model.vocab with tokenizer.vocab, or leave it out"
        )
    if recipe.data.kind == "images":
        return _with_image_tokens(recipe)
    if recipe.images is not None:
        raise UserError(f"[images] belongs to data.kind='images', not to {recipe.data.kind!r}")
    return recipe


def _with_image_tokens(recipe: Recipe) -> Recipe:
    """The model reads captions and pictures: their vocabulary and length follow from the rest."""
    images, model = recipe.images or ImageConfig(), recipe.model
    if model.family != "decoder-only":
        raise UserError(
            f"family={model.family!r} cannot draw: a caption is continued with the tokens of its "
            "picture by family='decoder-only'"
        )
    vocab = recipe.tokenizer.vocab + images.codes
    sized = replace(model, vocab=vocab, max_len=images.positions)
    return replace(recipe, images=images, model=sized)


@contextmanager
def _errors_in(where: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{where} {error}") from error


def _type_of(key: str, setting: str) -> Any:
    """The type of a setting, or None where there is no such setting: that is rejected later."""
    if key not in TABLES:
        return None  # no setting of [model] is text or a list
    types = {field.name: field.type for field in fields(TABLES[key])}
    return types.get(current_name(TABLES[key], setting))


def _parse_value(raw: str) -> Any:
    """A value as TOML reads it, or else the text itself."""
    try:
        return raw if "\n" in raw else tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):
        return raw


def write_recipe(recipe: Recipe) -> str:
    """The recipe as TOML; read again it is the same."""
    lines = [f"about = {toml(recipe.about)}"]
    for key in ("data", "images", "tokenizer", "model", "train", "decode", "published"):
        part = getattr(recipe, key)
        if part is not None:
            lines += ["", f"[{key}]", *(f"{k} = {toml(v)}" for k, v in asdict(part).items())]
    return "\n".join(lines) + "\n"


def toml(value: object) -> str:
    """A value in TOML: as in JSON, but that TOML wants DEL escaped and no pairs of surrogates."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        line = "[" + ", ".join(map(toml, value)) + "]"
        return line if len(line) < 80 else "[" + "".join(f"\n  {toml(v)}," for v in value) + "\n]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
