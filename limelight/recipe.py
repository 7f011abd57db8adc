"""One experiment as data: a TOML file, by its path or by the name of one in the package.

Each table belongs to the part that uses it and is checked there. Any setting can be changed from
outside (`--train.steps 500`), and the recipe as it was finally used can be written down and read
again.
"""

import json
import tomllib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, get_origin

from pydantic import Field

from limelight.config import config_class, current_name
from limelight.data.config import DataConfig, lists_to_tuples
from limelight.data.tokenizer import SMALLEST, TokenizerConfig
from limelight.decode.config import DecodeConfig
from limelight.errors import RenamedWarning, UserError, unknown_name
from limelight.model import AnyConfig, model_config
from limelight.model.config import FAMILIES
from limelight.run.folder import RunFolder
from limelight.training.config import TrainConfig

SHIPPED = files("limelight") / "recipes"


@config_class
class _Published:
    """What others say of this model, to hold our count against."""

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
    about: str = ""
    published: _Published | None = None


TABLES: dict[str, type[Any]] = {
    "data": DataConfig,
    "tokenizer": TokenizerConfig,
    "train": TrainConfig,
    "decode": DecodeConfig,
    "published": _Published,
}


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(item.name.removesuffix(".toml") for item in SHIPPED.iterdir())


def load_recipe(name: str, changes: Iterable[str] = ()) -> Recipe:
    """Read a recipe and change it ("train.steps=500"); mistakes are named with file and key."""
    if name in recipe_names():
        text = (SHIPPED / f"{name}.toml").read_text(encoding="utf-8")
        return parse_recipe(name, text, changes)
    path = Path(name)
    try:
        if not name.endswith(".toml") and not path.is_file():
            raise unknown_name("recipe", name, recipe_names())
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read the recipe {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not a text file in UTF-8 (byte {error.start})") from error
    return parse_recipe(name, text, changes)


def parse_recipe(name: str, text: str, changes: Iterable[str] = ()) -> Recipe:
    """The recipe that this TOML describes, with these changes."""
    try:
        values = _parse_toml(text)
        for key in values:
            if key not in ("about", "model", *TABLES):
                raise unknown_name("key", key, ("about", "model", *TABLES))
            if key != "about" and not isinstance(values[key], dict):
                raise UserError(f"{key} must be a table, [{key}], and not {values[key]!r}")
        if "model" not in values:
            raise UserError("there is no [model] table: a recipe says at least what the model is")
        _apply_overrides(values, changes)
        return _assemble(Path(name).name.removesuffix(".toml"), values)
    except UserError as error:
        raise UserError(f"{name}: {error}") from error


def with_overrides(recipe: Recipe, changes: Iterable[str]) -> Recipe:
    """A recipe that was read before, with these changes."""
    made = parse_recipe(recipe.name, write_recipe(recipe), changes)
    return replace(made, name=recipe.name)


def recipe_from_run(run: RunFolder) -> Recipe:
    """The recipe as a run used it."""
    name = run.check()
    with warnings.catch_warnings():  # nobody is asked to edit a run folder's old names
        warnings.simplefilter("ignore", RenamedWarning)
        recipe = parse_recipe(str(run.path / "recipe.toml"), run.read_recipe())
    return replace(recipe, name=name)


def _parse_toml(text: str) -> dict[str, Any]:
    """TOML as a dict; a hostile file (endless digits, bottomless nesting) is only a wrong one."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(str(error) or "nested too deeply") from error


def _assemble(name: str, values: Mapping[str, Any]) -> Recipe:
    """A recipe from its tables, each checked by the part that owns it."""
    parts = {
        key: _checked(key, lambda owner=owner, key=key: owner(**lists_to_tuples(values[key])))
        for key, owner in TABLES.items()
        if key in values
    }
    model = dict(values["model"])
    if "tokenizer" in values:  # how many tokens there are is the tokenizer's to say
        model.setdefault("vocab", parts["tokenizer"].vocab)
    about = values.get("about", "")
    if not isinstance(about, str):
        raise UserError(f"about={about!r} must be text")
    config = _checked("model", lambda: model_config(**model))
    if "tokenizer" not in values and config.vocab < TokenizerConfig().vocab:
        parts["tokenizer"] = TokenizerConfig(vocab=max(SMALLEST, config.vocab))
    recipe = Recipe(name, config, about=about, **parts)
    if recipe.tokenizer.kind == "uncased" and config.family != "encoder-only":
        raise UserError(
            f"tokenizer.kind='uncased' knows no capitals, and family={config.family!r} should "
            "write them: take 'bpe', or family='encoder-only'"
        )
    if recipe.tokenizer.vocab > max(recipe.model.vocab, SMALLEST):
        raise UserError(
            f"the tokenizer may learn {recipe.tokenizer.vocab} tokens, but the model knows only "
            f"{recipe.model.vocab}: change model.vocab with tokenizer.vocab, or leave it out"
        )
    return recipe


def _checked(key: str, build: Any) -> Any:
    """What `build` gives; its complaint with the table's name in front."""
    try:
        return build()
    except UserError as error:
        raise UserError(f"[{key}] {error}") from error


def as_list(changes: Iterable[str]) -> list[str]:
    """Changes as a list; one alone would be taken for as many as it has letters."""
    if isinstance(changes, str):
        raise UserError(f"changes={changes!r} is a str, and no list of them: write [{changes!r}]")
    return list(changes)


def _apply_overrides(values: dict[str, Any], changes: Iterable[str]) -> None:
    """Apply "table.setting=value", in the tables as they were read."""
    lists: dict[tuple[str, str], list[str]] = {}
    for one in as_list(changes):
        place, equals, raw = one.partition("=")
        key, dot, setting = place.replace("-", "_").partition(".")
        if not (equals and dot):
            raise UserError(f"{one!r} is no change: write table.setting=value")
        if key not in ("model", *TABLES):
            raise unknown_name("table", key, ("model", *TABLES))
        target = values.setdefault(key, {})
        kind = _type_of(key, setting, values)
        if get_origin(kind) is tuple:
            target[setting] = lists.setdefault((key, setting), [])
            target[setting].append(raw)
        else:
            target[setting] = raw if kind is str else _parse_value(raw)


def _type_of(key: str, setting: str, values: Mapping[str, Any]) -> Any:
    """The type of a setting, or None where there is no such setting: that is refused later."""
    family = str(values["model"].get("family", "encoder-decoder"))
    owner = TABLES[key] if key != "model" else FAMILIES.get(family)
    if owner is None:
        return None
    return {f.name: f.type for f in fields(owner)}.get(current_name(owner, setting))


def _parse_value(raw: str) -> Any:
    """A value as TOML would read it, or else the text as it stands."""
    try:
        return raw if "\n" in raw else tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):
        return raw


def write_recipe(recipe: Recipe) -> str:
    """The recipe as TOML; read again it is the same."""
    lines = [f"about = {toml(recipe.about)}"]
    for key in ("data", "tokenizer", "model", "train", "decode", "published"):
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
