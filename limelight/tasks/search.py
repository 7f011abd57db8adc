"""Search files by meaning: embed every line or paragraph once, keep the vectors, rank them all.

The index is a folder for each model. For each file it has a record, written last, and parts of
some thousand texts with their vectors. A file is known by its content: an unchanged one is not
read again, and of a changed one only new texts are embedded. A part is complete or absent,
so a killed process loses at most one.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b, sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from limelight.data.input_files import archive_of, cached_sha256, find_files, raw_lines
from limelight.data.progress import counting
from limelight.data.spans import Span, spans_of
from limelight.data.tokenizer import Tokenizer, valid_unicode
from limelight.errors import UserError, check_count
from limelight.files import atomic_folder, atomic_write, cache_folder, lock_file, sync
from limelight.run.atomic import make_folder, remove_atomically, remove_stale_temp
from limelight.run.weights import hash_weights
from limelight.tasks.embed import embed, token_states
from limelight.tasks.text_model import TextModel, add_special_tokens, in_batches, is_cut

_FORMAT = 1  # of the index
_PART = 2**14  # texts
_TEXT = np.dtype([("hash", "S24"), ("line", "<i8"), ("end", "<i8")])  # its end in texts.bin
_SAME = 1e-6  # in float32: equal texts are not counted as better
_ROUNDING = 1e-4  # more than float32 can be off in the dot product of two unit vectors

_Vectors = NDArray[np.float32]
_Located = tuple[str, int]  # a text, and the line that it begins in
_Known = dict[bytes, _Vectors]  # by the hash of a text


class Query:
    """What to search for, and how many texts to find; with `near`, others than that text."""

    def __init__(self, text: str, top: int = 10, near: bool = False) -> None:
        check_count("top", top, 10_000)
        self.text, self.top, self.near = valid_unicode(text).strip(), top, near
        if not self.text:
            raise UserError("the query is empty: say what to search for")


@dataclass(frozen=True)
class Match:
    """A text that was found: its cosine to the query, and where it begins."""

    score: float
    file: str
    line: int
    text: str


@dataclass(frozen=True)
class TokenSimilarity:
    """The cosine of every token of a query (rows) with every token of a text, in their contexts.

    Spans say where the tokens stand, in characters and without spaces; None: spelled otherwise.
    """

    query: tuple[str, ...]
    text: tuple[str, ...]
    cosines: tuple[tuple[float, ...], ...]
    query_spans: tuple[Span | None, ...]
    text_spans: tuple[Span | None, ...]

    @property
    def closest(self) -> list[int]:
        """For each token of the query the number of the most similar one of the text."""
        return [max(range(len(row)), key=row.__getitem__) for row in self.cosines if row]

    @property
    def best(self) -> list[tuple[str, str, float]]:
        """For each token of the query the most similar one of the text."""
        pairs = enumerate(self.closest)
        return [(self.query[i], self.text[j], self.cosines[i][j]) for i, j in pairs]


@dataclass(frozen=True)
class FileIndex:
    """The texts of a file with their vectors, part by part."""

    path: Path
    parts: tuple[Path, ...]
    skipped: int  # lines that are not UTF-8
    cut: int  # texts that are longer than the model reads

    def vectors(self) -> Iterator[_Vectors]:
        for part in self.parts:
            yield _load(part / "vectors.npy")

    def texts(self, part: int) -> Any:
        return _load(self.parts[part] / "texts.npy")

    def match(self, part: int, row: int, score: float) -> Match:
        texts = self.texts(part)
        begin = int(texts["end"][row - 1]) if row else 0
        with (self.parts[part] / "texts.bin").open("rb") as file:
            file.seek(begin)
            text = file.read(int(texts["end"][row]) - begin).decode()
        return Match(score, str(self.path), int(texts["line"][row]), text)


def search(
    trained: TextModel,
    query: str,
    files: Iterable[str],
    top: int = 10,
    *,
    near: bool = False,
    paragraphs: bool = False,
    index: str | Path | None = None,
) -> list[Match]:
    """The lines, or paragraphs, most similar to a query; with `near`, without that text itself."""
    wanted = Query(query, top, near)
    return ranked(trained, wanted, update_index(trained, files, paragraphs, index))


def ranked(trained: TextModel, query: Query, files: Sequence[FileIndex]) -> list[Match]:
    """The texts of an index that are most similar to a query."""
    (vector,) = embed(trained, [query.text])
    places = [(file, part) for file in files for part in range(len(file.parts))]
    vectors = (each for file in files for each in file.vectors())
    own = _hash(query.text)
    usable = (file.texts(part)["hash"] != own for file, part in places) if query.near else None
    found = top_rows(vectors, vector, query.top, usable)
    return [places[i][0].match(places[i][1], row, score) for score, i, row in found]


def rank_texts(
    trained: TextModel, query: str, texts: Sequence[str], top: int
) -> list[tuple[float, int]]:
    """Of texts that are not in files, the score and the number of the most similar ones."""
    own, *others = embed(trained, [query, *texts])
    return [(score, row) for score, _, row in top_rows([np.array(others, np.float32)], own, top)]


def top_rows(
    blocks: Iterable[_Vectors],
    query: Sequence[float],
    count: int,
    usable: Iterator[NDArray[np.bool_]] | None = None,
) -> list[tuple[float, int, int]]:
    """Score, block and row of the best vectors: exact, in the order of the rows among equals.

    Every block is scored in float32. What could still be among the best is scored again in
    float64, each row in the same way, so that neither blocks nor threads decide.
    """
    exact = np.asarray(query, np.float64)
    floor, found = -np.inf, list[tuple[float, int, int]]()
    for number, block in enumerate(blocks):
        rough = block @ exact.astype(np.float32)
        if usable is not None:
            rough[~next(usable)] = -np.inf
        if len(rough) > count:
            floor = max(floor, float(np.partition(rough, -count)[-count]))
        rows = np.flatnonzero((rough >= floor - _ROUNDING) & (rough > -np.inf))
        scores = (block[rows].astype(np.float64) * exact).sum(axis=1)
        new = zip((-scores).tolist(), [number] * len(rows), rows.tolist(), strict=True)
        found = sorted([*found, *new])[:count]
        if len(found) == count:
            floor = max(floor, -found[-1][0])
    return [(-score, number, row) for score, number, row in found]


def ranks_of_partners(
    trained: TextModel, texts: Iterable[str], partners: Iterable[str]
) -> list[int]:
    """For each text, how many of all partners are more similar to it than its own: 0 is right."""
    targets = np.array(list(embed(trained, partners)), np.float32)
    own, ranks = enumerate(embed(trained, texts)), list[int]()
    while some := list(islice(own, 1024)):
        scores = np.array([vector for _, vector in some], np.float32) @ targets.T
        wanted = scores[np.arange(len(some)), [i for i, _ in some]][:, None]
        ranks += (scores > wanted + _SAME).sum(axis=1).tolist()
    return ranks


def why(trained: TextModel, query: str, text: str) -> TokenSimilarity:
    """Which tokens of a text are similar to which of a query."""
    tokenizer, texts = trained.tokenizer.source, [valid_unicode(each) for each in (query, text)]
    rows = [add_special_tokens(trained, each) for each in texts]
    special = set(tokenizer.special_ids)
    kept = [[i for i, token in enumerate(row) if token not in special] for row in rows]
    ids = [[row[i] for i in own] for row, own in zip(rows, kept, strict=True)]
    asked, read = (tuple(p.strip() or p for p in tokenizer.pieces(own)) for own in ids)
    spans = (_bare_spans(tokenizer, *each) for each in zip(ids, texts, strict=True))
    states: dict[int, torch.Tensor] = {}
    with torch.inference_mode():
        for batch, tokens, real in in_batches(trained, rows):
            for i, each in zip(batch, token_states(trained, tokens, real), strict=True):
                states[i] = F.normalize(each[: len(rows[i])][kept[i]].double(), dim=-1)
    cosines = (states[0] @ states[1].T).tolist()
    return TokenSimilarity(asked, read, tuple(map(tuple, cosines)), *spans)


def _bare_spans(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> tuple[Span | None, ...]:
    """Where tokens stand, without the space that belongs to most of them."""
    found = spans_of(tokenizer, ids, text)
    return tuple(span and _without_spaces(text, *span) for span in found)


def _without_spaces(text: str, start: int, end: int) -> Span:
    part = text[start:end]
    bare = part.strip()
    start += part.find(bare) if bare else 0
    return (start, start + len(bare)) if bare else (start, end)


def update_index(
    trained: TextModel,
    files: Iterable[str],
    paragraphs: bool = False,
    index: str | Path | None = None,
) -> list[FileIndex]:
    """The index of these files, up to date; what is gone or changed leaves the folder."""
    trained.require("embed")
    paths = find_files(files)
    if not paths:
        raise UserError("there is nothing to search: name files, or folders of them")
    folder = Path(index or cache_folder() / "search") / _fingerprint(trained)
    make_folder(folder)
    with (folder / ".lock").open("w", encoding="utf-8") as lock:
        lock_file(lock)
        remove_stale_temp(folder)
        known: _Known = {}
        found = [_index_file(trained, path, paragraphs, folder, known) for path in paths]
        _remove_vanished(folder)
    return found


def _fingerprint(trained: TextModel) -> str:
    """Of all that decides a vector: the weights, the tokenizer, and how texts are read."""
    how = (_FORMAT, trained.tokenizer.hash, trained.pooling, trained.max_tokens, trained.kind)
    return sha256(repr((*how, hash_weights(trained.model))).encode()).hexdigest()[:32]


def _index_file(
    trained: TextModel, path: Path, paragraphs: bool, folder: Path, known: _Known
) -> FileIndex:
    own = sha256(f"{path.absolute()}\n{paragraphs}".encode()).hexdigest()[:16]
    name = f"{own}-{cached_sha256(path)[0][:32]}"
    record = folder / f"{name}.json"
    facts = _read_record(record)
    parts = [folder / f"{name}-{i:06d}" for i in range(facts.get("parts", 0))]
    if not facts or not all(part.is_dir() for part in parts):
        facts = _build_parts(trained, path, paragraphs, folder / name, known)
        record_of = {"path": str(path.absolute()), **facts}
        atomic_write(record, json.dumps(record_of).encode())
        for other in folder.glob(f"{own}-*"):  # of the file as it was, finished or not
            if not other.name.startswith(name):
                _remove(other)
        parts = [folder / f"{name}-{i:06d}" for i in range(facts["parts"])]
    return FileIndex(path, tuple(parts), facts["skipped"], facts["cut"])


def _read_record(record: Path) -> dict[str, Any]:
    """What is known of a file; nothing if there is no record, or a damaged one."""
    try:
        return dict(json.loads(record.read_bytes()))
    except (FileNotFoundError, ValueError):
        return {}


def _build_parts(
    trained: TextModel, path: Path, paragraphs: bool, name: Path, known: _Known
) -> dict[str, int]:
    """Write the parts that are not there yet."""
    facts = {"parts": 0, "skipped": 0, "cut": 0}
    texts = _read_texts(path, paragraphs, facts)
    with counting(f"embedding {path.name}") as progress:
        while some := list(islice(texts, _PART)):
            part = name.with_name(f"{name.name}-{facts['parts']:06d}")
            facts["parts"] += 1
            facts["cut"] += sum(is_cut(trained, text) for text, _ in some)
            if not part.is_dir():
                if not known:
                    _read_known(name.parent, known)
                _write_part(trained, part, some, known)
            progress(len(some))
    return facts


def _read_texts(path: Path, paragraphs: bool, facts: dict[str, int]) -> Iterator[_Located]:
    """Lines that are not blank, or paragraphs between blank lines, with the number of the line."""
    block: list[str] = []
    begin = 0
    for number, raw in enumerate(raw_lines(path), start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            facts["skipped"] += 1
            continue
        if line:
            begin = begin if block else number
            block.append(line)
        if block and not (paragraphs and line):
            yield " ".join(block), begin
            block = []
    if block:
        yield " ".join(block), begin


def _read_known(folder: Path, known: _Known) -> None:
    """The vectors of all texts that the index has, whatever file they are in."""
    for texts in folder.glob("*/texts.npy"):
        _add_known(texts.parent, known)


def _add_known(part: Path, known: _Known) -> None:
    vectors = np.asarray(_load(part / "vectors.npy"))  # rows that stay on the disk
    known.update(zip(_load(part / "texts.npy")["hash"].tolist(), vectors, strict=True))


def _load(path: Path) -> Any:
    """An array on the disk, of which only what is used is read."""
    try:
        return np.lib.format.open_memmap(path, mode="r")  # which reads no pickles
    except (ValueError, EOFError) as error:
        damaged = path.parent.parent
        raise UserError(f"{path} is damaged: delete {damaged} to build it again") from error


def _write_part(trained: TextModel, part: Path, some: list[_Located], known: _Known) -> None:
    hashes = [_hash(text) for text, _ in some]
    new = {key: text for key, (text, _) in zip(hashes, some, strict=True) if key not in known}
    made = dict(zip(new, embed(trained, new.values()), strict=True))
    encoded = [text.encode() for text, _ in some]
    table = np.zeros(len(some), _TEXT)
    table["hash"], table["line"] = hashes, [line for _, line in some]
    table["end"] = np.cumsum([len(text) for text in encoded])
    with atomic_folder(part) as unfinished:
        vectors = [made[key] if key in made else known[key] for key in hashes]
        np.save(unfinished / "vectors.npy", np.array(vectors, np.float32))
        np.save(unfinished / "texts.npy", table)
        (unfinished / "texts.bin").write_bytes(b"".join(encoded))
        for file in unfinished.iterdir():
            sync(file)
    _add_known(part, known)


def _hash(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=12).hexdigest().encode()


def _remove_vanished(folder: Path) -> None:
    """Delete what is known of files that are not there any more."""
    for record in folder.glob("*.json"):
        path = Path(_read_record(record).get("path", record / "damaged"))
        if not (archive_of(path) or path).exists():
            for one in [record, *folder.glob(f"{record.stem}-*")]:
                _remove(one)


def _remove(path: Path) -> None:
    with suppress(PermissionError):  # on Windows, while another process reads it
        remove_atomically(path)
