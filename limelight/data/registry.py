"""Public corpora by name: found where you keep them, or downloaded once; proved either way.

A file is known by the SHA-256 of its content, packed or not: a score on another text is another
score. Only `greetings` comes with the package: mind the licences of the others.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from limelight.data.config import DataConfig
from limelight.data.download import extract, fetch
from limelight.data.readers import PACKED, raw_lines
from limelight.errors import UserError, unknown_name
from limelight.files import atomic_write, cache_folder


@dataclass(frozen=True)
class _CorpusSpec:
    """What the files of a corpus are, where they come from, and under which terms."""

    licence: str
    origin: str
    parts: tuple[tuple[str, ...], ...]  # to train on, each as `DataConfig.train` has it
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # how the files are to be read
    shipped: bool = False  # lies beside this module: no folder to name, no hash to know


@dataclass(frozen=True)
class Download:
    """An address that gives a file, alone or as a member of a .zip or .tgz archive."""

    url: str
    member: str = ""
    tried: bool = False  # whether somebody has seen it give this very file


def _in_both(stem: str, source: str, target: str) -> tuple[str, str]:
    """Two parallel files, which differ in the language at their end."""
    return f"{stem}.{source}", f"{stem}.{target}"


def _multi30k(source: str, target: str) -> _CorpusSpec:
    """Image captions, one direction of three languages."""
    train, valid, test = (
        _in_both(f"multi30k/{split}", source, target)
        for split in ("train", "val", "test_2016_flickr")
    )
    licence = "research use; cite Elliott et al. 2016"
    return _CorpusSpec(licence, "github.com/multi30k/dataset", (train,), valid, test)


def _tatoeba(language: str, date: str) -> _CorpusSpec:
    """Everyday sentences from English."""
    return _CorpusSpec(
        "CC BY 2.0 FR: tatoeba.org, manythings.org/anki",
        f"manythings.org/anki as of {date}; what lies there now is another corpus",
        ((f"tatoeba/anki.en-{language}.tsv",),),
        settings={"hold_out": 0.02},
    )


NAMED = {
    "greetings": _CorpusSpec(
        "Apache-2.0, written for Limelight",
        "comes with the package",
        (("greetings.tsv",),),
        ("greetings.valid.tsv",),
        shipped=True,
    ),
    "multi30k-en-de": _multi30k("en", "de"),
    "multi30k-de-en": _multi30k("de", "en"),
    "multi30k-en-fr": _multi30k("en", "fr"),
    "wmt14-en-de": _CorpusSpec(
        "research use; see statmt.org/wmt14",
        "statmt.org; newstest2014 as text from a bucket of TensorFlow's",
        (
            _in_both("wmt/europarl-v7.de-en", "en", "de"),
            _in_both("wmt/commoncrawl.de-en", "en", "de"),
            _in_both("wmt/news-commentary-v9.de-en", "en", "de"),
        ),
        _in_both("wmt/newstest2013", "en", "de"),
        _in_both("wmt/newstest2014", "en", "de"),
    ),
    "tatoeba-en-de": _tatoeba("de", "2018-05-13"),
    "tatoeba-en-fr": _tatoeba("fr", "2019-04-08"),
    "everyday-en-de": _CorpusSpec(
        "CC BY 2.0 FR: tatoeba.org, manythings.org/anki",
        "tatoeba-en-de, split by sentence with benchmarks/bundled_data.py",
        (("everyday/en-de.train.tsv",),),
        ("everyday/en-de.valid.tsv",),
        ("everyday/en-de.test.tsv",),
    ),
    "stories": _CorpusSpec(
        "public domain in the USA (Project Gutenberg)",
        "173 books from github.com/GITenberg, put together and cleaned",
        (("prose/stories-train.txt",),),
        ("prose/stories-valid.txt",),
        settings={"kind": "texts", "separator": "<|endoftext|>", "max_chars": 2**24},
    ),
    "tinyshakespeare": _CorpusSpec(
        "public domain",
        "github.com/karpathy/char-rnn",
        (("prose/tinyshakespeare.txt",),),
        settings={"kind": "texts", "valid_tail": 0.1, "max_chars": 2**24},
    ),
    "sst2": _CorpusSpec(
        "research use; cite Socher et al. 2013",
        "github.com/forest-snow/alps, 60,614 of the 67,349 training lines that GLUE has",
        (("classify/sst2.train.tsv",),),
        ("classify/sst2.dev.tsv",),
        settings={"kind": "labelled", "header": True},
    ),
    "dailydialog": _CorpusSpec(
        "CC BY-NC-SA 4.0, non-commercial",
        "github.com/Ls-Dai, data of a project there; other copies are in other forms",
        (("dialogue/dailydialog.train.txt",),),
        ("dialogue/dailydialog.validation.txt",),
        settings={"kind": "dialogues"},
    ),
    "synthetic-persona-chat": _CorpusSpec(
        "CC BY 4.0",
        "github.com/google-research-datasets/Synthetic-Persona-Chat, turned into JSON lines",
        (("dialogue/synthetic-persona-chat.valid.jsonl",),),
        settings={"kind": "dialogues", "hold_out": 0.05},
    ),
    "small-talk": _CorpusSpec(
        "CC BY 4.0 (Synthetic-Persona-Chat)",
        "synthetic-persona-chat, split with benchmarks/bundled_data.py",
        (("small-talk/personas.train.jsonl",),),
        ("small-talk/personas.valid.jsonl",),
        ("small-talk/personas.test.jsonl",),
        settings={"kind": "dialogues"},
    ),
    "small-talk-short": _CorpusSpec(
        "Apache-2.0 (our greetings) and BSD (ChatterBot's corpus)",
        "the package chatterbot-corpus 1.3.3, with benchmarks/bundled_data.py",
        (("small-talk/short.train.jsonl",),),
        settings={"kind": "dialogues"},
    ),
}

SHA256 = {  # of the unpacked content, of every file of which a copy has been in hand
    "multi30k/train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "multi30k/train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "multi30k/train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "multi30k/val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "multi30k/val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "multi30k/val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "multi30k/test_2016_flickr.en": (
        "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182"
    ),
    "multi30k/test_2016_flickr.de": (
        "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16"
    ),
    "multi30k/test_2016_flickr.fr": (
        "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6"
    ),
    "wmt/newstest2013.en": "ace268a1d9724ca76f6d8e5c720ffdc08f01bdce45630ed8b269dc7918e1c16e",
    "wmt/newstest2013.de": "d7ea35ab91ff3709e03ad9cb6bf5b4f2cc775cd2d72efd5254c4aec5e69663ca",
    "wmt/newstest2014.en": "7294bccf2879a97b3706b95c9595f1459617a8ee7130d5d8581c910e69736971",
    "wmt/newstest2014.de": "ae5d110486bc33d7175e9e28c7d0051eb3e5fcd2166dd93371089852c091a20e",
    "tatoeba/anki.en-de.tsv": "a79c90b3cd3102decffa49cc00fb6f20023974f2ae5c4782515bebe133fcc07b",
    "tatoeba/anki.en-fr.tsv": "0bb85dbaa1c896844649094d7eaf2e34bee34e84fe362b26ce7e8f2e12aae104",
    "prose/stories-train.txt": "d93f3c0644d29a82e26e32e961defeb046cf89bad0c224a3784e55f6d53cb358",
    "prose/stories-valid.txt": "66f0442bddd07372dffb8a7f55f05cb4e46087e19c283aa2d4c8e7ba59df9662",
    "prose/tinyshakespeare.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    "classify/sst2.train.tsv": "920e317b2c52e12cd22db1da2c6708312bd7dc4f3712b9bbf1b50ee6c2c792ba",
    "classify/sst2.dev.tsv": "54a9c12c77e402fc14d6a66a506f24d999f596b0176eb777c972cccc2f9cc4b0",
    "dialogue/dailydialog.train.txt": (
        "71633bd5fdb0b09dd82215b131b56432cf7329a0fe50bc8adec168713d350d1a"
    ),
    "dialogue/dailydialog.validation.txt": (
        "2ad64701fe3a4449e7a6ee7cdc6c2a71c80f77b8a34f708ac0532395f499081c"
    ),
    "dialogue/synthetic-persona-chat.valid.jsonl": (
        "142cccd697652e04aa44cd91df71a636779e97bcb31111881077c1bebe499a04"
    ),
    "everyday/en-de.train.tsv": "ba153bbc32ea4bfa4bb6706e6dbd23d1cdb271ac6741b1cd5b47c78881dcf323",
    "everyday/en-de.valid.tsv": "428a53bfc526b8bc2838c4bb7a9d12c3f624bf8b90f613c87dbcc29dc2daafd8",
    "everyday/en-de.test.tsv": "6664d73b11d9ae7f8818d4415203ed51ebe299c76736cbabfced65509d12b274",
    "small-talk/personas.train.jsonl": (
        "6484ea8a996fa089d283e2c4f00bafe0bc7d27f68b611ab94b4c1b9a4f2f3692"
    ),
    "small-talk/personas.valid.jsonl": (
        "c8fd6c2ed82ff00589a09e914fe03ab24e14506cbc8ab708b19a79a992e0e399"
    ),
    "small-talk/personas.test.jsonl": (
        "b98ff13993d2c0a1fac4e70f413a31482c1f405b0a29b1c2fe7b1c7e7f67d3ae"
    ),
    "small-talk/short.train.jsonl": (
        "ad78afc1c9c994f42a436a4aa11b935c92df28ca251b73ec302a979dd3b6f2f7"
    ),
}

LINES = {  # as `wc -l` counts them, where others tell it and no copy has been in hand
    **dict.fromkeys(_in_both("wmt/europarl-v7.de-en", "en", "de"), 1_920_209),
    **dict.fromkeys(_in_both("wmt/commoncrawl.de-en", "en", "de"), 2_399_123),
    **dict.fromkeys(_in_both("wmt/news-commentary-v9.de-en", "en", "de"), 201_288),
}

_GITHUB = "https://raw.githubusercontent.com"
_MULTI30K = f"{_GITHUB}/multi30k/dataset/master/data/task1/raw"
_CHAR_RNN = f"{_GITHUB}/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e"
_STATMT = "https://www.statmt.org"
_NEWSTEST2014 = (
    "https://storage.googleapis.com/tf-perf-public/official_transformer/test_data/newstest2014.tgz"
)

SOURCES = {
    "prose/tinyshakespeare.txt": Download(f"{_CHAR_RNN}/data/tinyshakespeare/input.txt"),
    **{
        f"multi30k/{split}.{language}": Download(f"{_MULTI30K}/{split}.{language}.gz")
        for split in ("train", "val", "test_2016_flickr")
        for language in ("en", "de", "fr")
    },
    **{
        f"wmt/{Path(stem).name}.{language}": Download(url, f"{stem}.{language}")
        for url, stem in (
            (f"{_STATMT}/wmt13/training-parallel-europarl-v7.tgz", "training/europarl-v7.de-en"),
            (f"{_STATMT}/wmt13/training-parallel-commoncrawl.tgz", "commoncrawl.de-en"),
            (f"{_STATMT}/wmt14/training-parallel-nc-v9.tgz", "training/news-commentary-v9.de-en"),
            (f"{_STATMT}/wmt14/dev.tgz", "dev/newstest2013"),
            (_NEWSTEST2014, "newstest2014"),
        )
        for language in ("en", "de")
    },
}


def with_registry_defaults(data: DataConfig) -> DataConfig:
    """The same with what is known of a named corpus, whether its files are there or not."""
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
    """The same with real files in place of a name; of one split alone, only what that one needs."""
    if data.corpora:
        each = [resolve(corpus, only) for corpus in data.corpora]
        return replace(data, corpora=tuple(part for one in each for part in one.corpora or (one,)))
    if not data.name:
        return data
    data = with_registry_defaults(data)
    corpus = NAMED[data.name]
    cut_off = bool(data.hold_out or data.valid_tail)  # then the other splits are parts of the first

    def found(split: str, files: tuple[str, ...]) -> tuple[str, ...]:
        wanted = only in ("", split) or (split == "train" and cut_off)
        return tuple(str(find(data.name, file)) for file in files) if wanted else ()

    # What is small comes first: if it is not to be had, nobody waits for what is large.
    splits: dict[str, Any] = {s: found(s, getattr(corpus, s)) for s in ("valid", "test")}
    parts = tuple(found("train", files) for files in corpus.parts)
    data = replace(data, name="")
    if len(parts) == 1 or not parts[0]:
        return replace(data, train=parts[0], **splits)
    corpora = tuple(replace(data, train=part) for part in parts)
    return replace(data, corpora=corpora, **splits)


def find(name: str, file: str) -> Path:
    """A file of a corpus, proved to be the one we mean: your own, or the one downloaded."""
    if NAMED[name].shipped:
        return Path(__file__).parent / file
    own = os.environ.get("LIMELIGHT_DATA")
    for root in [Path(own), downloads()] if own else [downloads()]:
        for ending in ("", *PACKED):
            path = root / f"{file}{ending}"
            if path.is_file():
                _verify_sha256(path, file, root)
                return path
    needs = (
        f"the corpus {name} ({NAMED[name].licence}) needs {file}, which is neither under "
        f"LIMELIGHT_DATA ({own or 'not set'}) nor under {downloads()}"
    )
    source = SOURCES.get(file)
    if source is None:
        raise UserError(
            f"{needs}; there is no address to download it from. It comes from {NAMED[name].origin}"
        )
    try:
        return _download(file, source)
    except UserError as error:
        address = "its address" if source.tried else "an address that nobody has tried yet"
        raise UserError(f"{needs}; the download from {address} failed: {error}") from error


def downloads() -> Path:
    """Where downloaded files lie, under the same names as under LIMELIGHT_DATA."""
    return cache_folder() / "data"


def _download(file: str, source: Download) -> Path:
    """Bring a file here, and with it all others from the same archive; each is proved first."""
    if not source.member:
        ending = Path(source.url).suffix
        path = downloads() / (f"{file}{ending}" if ending in PACKED else file)
        fetch(source.url, path, partial(_accept, file=file))
        return path
    archive = cache_folder() / "archives" / source.url.partition("://")[2]
    fetch(source.url, archive)
    for other, its in SOURCES.items():
        if its.url == source.url:
            extract(archive, its.member, downloads() / other, partial(_accept, file=other))
    archive.unlink(missing_ok=True)
    return downloads() / file


def _accept(path: Path, file: str) -> None:
    """Prove what has come, and of a file that was never in hand remember for good what it was."""
    digest = _verify_sha256(path, file, downloads())
    if file not in SHA256:
        _write_note(downloads() / f"{file}.sha256", f"{digest}  {Path(file).name}\n")


def _verify_sha256(path: Path, file: str, root: Path) -> str:
    """The SHA-256 of a file's content, which must be the one we know or the one noted beside it."""
    digest, lines = cached_sha256(path)
    note = root / f"{file}.sha256"
    known, told = SHA256.get(file, digest), ""
    if file not in SHA256 and note.is_file():
        known, told = note.read_text("utf-8").partition(" ")[0], f" as {note} says"
    if digest != known:
        raise UserError(f"{path} is not the file we know (SHA-256 {digest}, not {known}{told})")
    if lines != LINES.get(file, lines):
        raise UserError(f"{path} has {lines:,} lines, not the {LINES[file]:,} it is known for")
    return digest


def cached_sha256(path: Path) -> tuple[str, int]:
    """SHA-256 and lines of a file, unpacked; what has not changed since is not read again."""
    stat = path.stat()  # the inode and not the name: a download is read before it has its name
    seen = f"{stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns} {path.suffix}"
    note = cache_folder() / "hashes" / sha256(seen.encode()).hexdigest()
    with suppress(OSError, ValueError):
        known, count = note.read_text("ascii").split()
        return known, int(count)
    digest, lines = sha256(), 0
    for line in raw_lines(path):
        digest.update(line)
        lines += line.endswith(b"\n")
    with suppress(OSError):  # a folder that cannot be written to only costs the reading
        _write_note(note, f"{digest.hexdigest()} {lines}")
    return digest.hexdigest(), lines


def _write_note(note: Path, text: str) -> None:
    """Write a small file so that nobody ever sees half of it."""
    note.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(note, text.encode())
