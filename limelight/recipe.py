"""One experiment as data: a TOML file, by its path or by the name of a bundled one.

Each table belongs to the part that uses it and is checked there. Overrides change any setting, by
value in Python ({"train.steps": 500}) or as text on the command line (`--train.steps 500`). The
recipe as it was finally used can be written down and read again.
"""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, get_origin

from pydantic import Field

from limelight.config import allow_old_names, config_class, current_name, with_settings
from limelight.data.config import DataConfig, ImageConfig, lists_to_tuples
from limelight.data.tokenizer import SMALLEST, TokenizerConfig
from limelight.decode.config import DecodeConfig
from limelight.errors import UserError, unknown_name
from limelight.model import AnyConfig, model_config
from limelight.run.folder import RunFolder
from limelight.training.config import TrainConfig

_SHIPPED = files("limelight") / "recipes"
Overrides = Mapping[str, Any] | Iterable[str]  # {"train.steps": 500}, or ["train.steps=500"]


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


def recipe_names() -> list[str]:
    """The bundled recipes."""
    return sorted(item.name.removesuffix(".toml") for item in _SHIPPED.iterdir())


def load_recipe(name: str, overrides: Overrides = ()) -> Recipe:
    """Read a recipe and change it; an error names the file and the key."""
    bundled = name in recipe_names()
    path = _SHIPPED / f"{name}.toml" if bundled else Path(name)
    try:
        if not (bundled or name.endswith(".toml") or path.is_file()):
            raise unknown_name("recipe", name, recipe_names())
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read the recipe {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not a text file in UTF-8 (byte {error.start})") from error
    return parse_recipe(name, text, overrides)


def parse_recipe(name: str, text: str, overrides: Overrides = ()) -> Recipe:
    """The recipe that this TOML describes, with these overrides."""
    with _errors_in(f"{name}:"):
        try:
            values = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # a hostile file may have endless digits
            raise UserError(str(error) or "nested too deeply") from error
        for key in values:
            if key not in ("about", "model", *TABLES):
                raise unknown_name("key", key, ("about", "model", *TABLES))
            if key != "about" and not isinstance(values[key], dict):
                raise UserError(f"{key} must be a table, [{key}], and not {values[key]!r}")
        if "model" not in values:
            raise UserError("there is no [model] table: a recipe says at least what the model is")
        for key, changed in _by_table(as_overrides(overrides)).items():
            owner = TABLES.get(key, object)
            new = {current_name(owner, setting) for setting in changed}
            kept = {
                k: v for k, v in values.get(key, {}).items() if current_name(owner, k) not in new
            }
            values[key] = kept | changed
        return _assemble(Path(name).name.removesuffix(".toml"), values)


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
            raise UserError(f"{one!r} is no change: write table.setting=value")
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
            raise UserError(f"{name!r} is no setting: write table.setting")
        if key not in ("model", *TABLES):
            raise unknown_name("table", key, ("model", *TABLES))
        tables.setdefault(key, {})[setting] = value
    return {key: lists_to_tuples(changed) for key, changed in tables.items()}


def recipe_from_run(run: RunFolder) -> Recipe:
    """The recipe as a run used it."""
    name = run.check()
    with allow_old_names():
        recipe = parse_recipe(str(run.path / "recipe.toml"), run.read_recipe())
    return replace(recipe, name=name)


def _assemble(name: str, values: Mapping[str, Any]) -> Recipe:
    """A recipe from its tables, each checked by the part that owns it."""
    parts: dict[str, Any] = {}
    for key, owner in TABLES.items():
        if key in values:
            with _errors_in(f"[{key}]"):
                parts[key] = owner(**lists_to_tuples(values[key]))
    model = dict(values["model"])
    if "tokenizer" in values:  # the tokenizer decides how many tokens there are
        model.setdefault("vocab", parts["tokenizer"].vocab)
    about = values.get("about", "")
    if not isinstance(about, str):
        raise UserError(f"about={about!r} must be text")
    with _errors_in("[model]"):
        config = model_config(**model)
    if "tokenizer" not in values and config.vocab < TokenizerConfig().vocab:
        parts["tokenizer"] = TokenizerConfig(vocab=max(SMALLEST, config.vocab))
    return _consistent(Recipe(name, config, about=about, **parts))


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
