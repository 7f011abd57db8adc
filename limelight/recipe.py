"""One experiment as data: a TOML file, by its path or by the name of one in the package."""

import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from limelight.errors import UserError, unknown
from limelight.model import AnyConfig, model_config

SHIPPED = files("limelight") / "recipes"


@dataclass(frozen=True)
class Published:
    """What others say of this model, to hold our count against."""

    parameters: int
    source: str
    difference: str = ""  # why ours is another number


@dataclass(frozen=True)
class Recipe:
    """A recipe as far as it goes today: what the model looks like, and what is known of it."""

    name: str
    model: AnyConfig
    about: str = ""
    published: Published | None = None


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(item.name.removesuffix(".toml") for item in SHIPPED.iterdir())


def load_recipe(name: str) -> Recipe:
    """Read a recipe; every mistake in it is named with its file and its key."""
    if name in recipe_names():
        return parse_recipe(name, (SHIPPED / f"{name}.toml").read_text(encoding="utf-8"))
    path = Path(name)
    if not name.endswith(".toml") and not path.is_file():
        raise unknown("recipe", name, recipe_names())
    try:
        return parse_recipe(name, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the recipe {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not a text file in UTF-8 (byte {error.start})") from error


def parse_recipe(name: str, text: str) -> Recipe:
    """The recipe that this TOML describes."""
    try:
        tables: dict[str, Any] = tomllib.loads(text)
        only_known("key", tables, ("about", "model", "published"))
        if "model" not in tables:
            raise UserError("there is no [model] table: a recipe says at least what the model is")
        return Recipe(
            name=Path(name).name.removesuffix(".toml"),
            model=model_config(**table(tables, "model")),
            about=str(tables.get("about", "")),
            published=published(table(tables, "published")) if "published" in tables else None,
        )
    except (tomllib.TOMLDecodeError, UserError) as error:
        raise UserError(f"{name}: {error}") from error


def published(values: dict[str, Any]) -> Published:
    """The [published] table."""
    only_known("key in [published]", values, [field.name for field in fields(Published)])
    for key, kind in (("parameters", int), ("source", str)):
        if not isinstance(values.get(key), kind):
            raise UserError(f"[published] needs {key}, {kind.__name__}: got {values.get(key)!r}")
    return Published(**values)


def table(tables: dict[str, Any], name: str) -> dict[str, Any]:
    """One table of the file."""
    values = tables[name]
    if not isinstance(values, dict):
        raise UserError(f"{name} must be a table, [{name}], and not {values!r}")
    return values


def only_known(kind: str, values: dict[str, Any], known: list[str] | tuple[str, ...]) -> None:
    """Refuse a misspelt key, with the nearest right one."""
    for key in values:
        if key not in known:
            raise unknown(kind, key, known)
