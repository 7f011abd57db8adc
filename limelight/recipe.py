"""One experiment as data: a TOML file, by its path or by the name of one in the package."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from limelight.errors import UserError, unknown
from limelight.model import AnyConfig, model_config
from limelight.settings import table

SHIPPED = files("limelight") / "recipes"
TABLES = ("model", "published")


@table
class Published:
    """What others say of this model, to hold our count against."""

    parameters: Annotated[int, Field(ge=1, le=10**18)]
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
    try:
        if not name.endswith(".toml") and not path.is_file():
            raise unknown("recipe", name, recipe_names())
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read the recipe {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not a text file in UTF-8 (byte {error.start})") from error
    return parse_recipe(name, text)


def parse_recipe(name: str, text: str) -> Recipe:
    """The recipe that this TOML describes."""
    try:
        values = parse_toml(text)
        for key in values:
            if key not in ("about", *TABLES):
                raise unknown("key", key, ("about", *TABLES))
        for key in TABLES:
            if not isinstance(values.get(key, {}), dict):
                raise UserError(f"{key} must be a table, [{key}], and not {values[key]!r}")
        if "model" not in values:
            raise UserError("there is no [model] table: a recipe says at least what the model is")
        return Recipe(
            name=Path(name).name.removesuffix(".toml"),
            model=model_config(**values["model"]),
            about=str(values.get("about", "")),
            published=Published(**values["published"]) if "published" in values else None,
        )
    except UserError as error:
        raise UserError(f"{name}: {error}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """TOML as a dict; a hostile file (endless digits, bottomless nesting) is only a wrong one."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(str(error) or "nested too deeply") from error
