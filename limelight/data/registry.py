"""Public corpora by name: found where you keep them, or downloaded or made once; verified always.

`corpora.toml` lists them. A file is known by the SHA-256 of its content, packed or not: a score on
another text is another score. Only `greetings` is bundled: mind the licences of the others.
"""

import os
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from limelight.data.config import DataConfig, lists_to_tuples
from limelight.data.download import build_file, extract, fetch
from limelight.data.input_files import PACKED, cached_sha256
from limelight.data.prepare import MAKERS
from limelight.errors import UserError, unknown_name
from limelight.files import atomic_write, cache_folder


@dataclass(frozen=True)
class _CorpusSpec:
    licence: str
    origin: str
    train: tuple[list[str], ...]  # the files of each part
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # how to read the files
    shipped: bool = False  # bundled beside this module: no folder to name, no hash to know


@dataclass(frozen=True)
class Download:
    """An address that gives a file, alone or as a member of a .zip, .whl or .tgz archive."""

    url: str
    member: str = ""


def _addresses(listed: str) -> list[Download]:
    """Where to download a file; of a public git repository, two hosts have every commit."""
    address, _, member = listed.partition("#")
    if not address.startswith("github:"):
        return [Download(address, member)]
    name, commit, path = re.split("[@:]", quote(address.removeprefix("github:"), safe="/@:"))
    urls = (
        f"https://raw.githubusercontent.com/{name}/{commit}/{path}",
        f"https://cdn.jsdelivr.net/gh/{name}@{commit}/{path}",
    )
    return [Download(url, member) for url in urls]


def _read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(name).read_text("utf-8"))


_LISTED = _read_toml("corpora.toml")
_BOOKS = {
    split: {
        f"prose/books/{number}.txt": {"sha256": sha256, "from": [f"{name}@{commit}:{file}"]}
        for number, (repository, commit, file, sha256) in books.items()
        for name in (f"github:GITenberg/{repository}",)
    }
    for split, books in _read_toml("books.toml").items()
}
_FILES: dict[str, dict[str, Any]] = _LISTED["files"] | _BOOKS["train"] | _BOOKS["valid"]
NAMED = {name: _CorpusSpec(**lists_to_tuples(each)) for name, each in _LISTED["corpora"].items()}
SHA256 = {name: each["sha256"] for name, each in _FILES.items() if "sha256" in each}
LINES = {name: each["lines"] for name, each in _FILES.items() if "lines" in each}
SOURCES = {
    name: tuple(download for listed in each["from"] for download in _addresses(listed))
    for name, each in _FILES.items()
    if "from" in each
}
MADE = {  # how files are made, and of which
    name: (each["made"], tuple(_BOOKS[each["books"]] if "books" in each else each["of"]))
    for name, each in _FILES.items()
    if "made" in each
}


def with_registry_defaults(data: DataConfig) -> DataConfig:
    """Add the settings of a named corpus, whether its files are there or not."""
    if data.corpora:
        return replace(data, corpora=tuple(map(with_registry_defaults, data.corpora)))
    if not data.name:
        return data
    if data.name not in NAMED:
        raise unknown_name("corpus", data.name, NAMED)
    known, defaults = NAMED[data.name].settings, DataConfig()
    ours = {k: v for k, v in known.items() if getattr(data, k) == getattr(defaults, k)}
    return replace(data, **ours)


def resolve(data: DataConfig, only: str = "") -> DataConfig:
    """Replace a corpus's name by its files, found or downloaded; with `only`, for that split."""
    if data.corpora:
        each = [resolve(corpus, only) for corpus in data.corpora]
        return replace(data, corpora=tuple(part for one in each for part in one.corpora or (one,)))
    if not data.name:
        return data
    data = with_registry_defaults(data)
    corpus = NAMED[data.name]
    cut_off = bool(data.hold_out or data.valid_tail)  # then the other splits are parts of the first

    def found(split: str, files: Iterable[str]) -> tuple[str, ...]:
        wanted = only in ("", split) or (split == "train" and cut_off)
        return tuple(str(find(data.name, file)) for file in files) if wanted else ()

    # The small ones first: if one is not available, nobody waits for the large ones.
    splits: dict[str, Any] = {s: found(s, getattr(corpus, s)) for s in ("valid", "test")}
    parts = tuple(found("train", files) for files in corpus.train)
    data = replace(data, name="")
    if len(parts) == 1 or not parts[0]:
        return replace(data, train=parts[0], **splits)
    return replace(data, corpora=tuple(replace(data, train=part) for part in parts), **splits)


def find(name: str, file: str) -> Path:
    """A file of a corpus, verified: your own, or one that is downloaded or made."""
    if NAMED[name].shipped:
        return Path(__file__).parent / file
    own = os.environ.get("LIMELIGHT_DATA")
    for root in [Path(own), downloads()] if own else [downloads()]:
        for ending in ("", *PACKED):
            path = root / f"{file}{ending}"
            if path.is_file():
                _verify_sha256(path, file, root)
                return path
    if file in MADE:
        return _make(name, file)
    failures = []
    for source in SOURCES[file]:
        try:
            return _download(file, source)
        except UserError as error:
            failures.append(str(error))
    first = SOURCES[file][0]
    unpacked = f", unpack {first.member} from it" if first.member else ""
    raise UserError(
        f"the corpus {name} ({NAMED[name].licence}) needs {file}, which is neither under "
        f"LIMELIGHT_DATA ({own or 'not set'}) nor under {downloads()}, and no address gives it: "
        f"{'; '.join(failures)}. Without a network, get {first.url} on another machine{unpacked} "
        f"and save it as {_path_of(file, first)}"
    )


def _make(name: str, file: str) -> Path:
    """Make a file of others, which are found or downloaded."""
    maker, others = MADE[file]
    sources = [find(name, other) for other in others]

    def write(part: Path) -> None:
        print(f"making {file}", file=sys.stderr)
        with part.open("w", encoding="utf-8", newline="\n") as made:
            made.writelines(f"{line}\n" for line in MAKERS[maker](file, sources))

    build_file(downloads() / file, write, partial(_accept, file=file))
    return downloads() / file


def downloads() -> Path:
    """The folder of downloaded files, laid out like LIMELIGHT_DATA."""
    return cache_folder() / "data"


def _download(file: str, source: Download) -> Path:
    """Download a file, and with it all others from the same archive; each is verified first."""
    if not source.member:
        path = _path_of(file, source)
        fetch(source.url, path, partial(_accept, file=file))
        return path
    archive = cache_folder() / "archives" / source.url.partition("://")[2]
    fetch(source.url, archive)
    for other, sources in SOURCES.items():
        for its in sources:
            if its.url == source.url:
                extract(archive, its.member, downloads() / other, partial(_accept, file=other))
    archive.unlink(missing_ok=True)
    return downloads() / file


def _path_of(file: str, source: Download) -> Path:
    ending = "" if source.member else Path(source.url).suffix
    return downloads() / (f"{file}{ending}" if ending in PACKED else file)


def _accept(path: Path, file: str) -> None:
    """Verify a download. The first copy of a file without a known hash sets it for good."""
    digest = _verify_sha256(path, file, downloads())
    if file not in SHA256:
        note = downloads() / f"{file}.sha256"
        note.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(note, f"{digest}  {Path(file).name}\n".encode())


def _verify_sha256(path: Path, file: str, root: Path) -> str:
    digest, lines = cached_sha256(path)
    note = root / f"{file}.sha256"
    known, says = SHA256.get(file, digest), ""
    if file not in SHA256 and note.is_file():
        known, says = note.read_text("utf-8").partition(" ")[0], f" as {note} says"
    if digest != known and digest not in _FILES.get(file, {}).get("also", ()):
        raise UserError(
            f"{path} is not the file of this corpus (SHA-256 {digest}, not {known}{says})"
        )
    if lines != LINES.get(file, lines):
        raise UserError(f"{path} has {lines:,} lines, not the {LINES[file]:,} it is known for")
    return digest
