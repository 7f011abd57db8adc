"""Corpora that are made from raw public files: books become paragraphs, conversations turns.

Each maker has the path of the file to make and the raw files, and yields lines. The same input
gives the same file, whose hash the registry knows.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import permutations
from pathlib import Path
from random import Random
from unicodedata import normalize

from limelight.data.corpora import held_in
from limelight.data.input_files import opened, raw_lines

_SEED = 2017
_HELD = 2000  # English sentences for validation, and as many for the test
_BREAK = "* * *"  # a heading, or a break between scenes
# What the little chatbot of `greetings` says of itself is not true of a larger one.
_OTHERWISE = re.compile(
    r"thousand short|thousand lines|about a million|short sentences|64 tokens|said before|"
    r"short answers|minutes|each question is new|two layers|128",
    re.IGNORECASE,
)
_PLAIN = str.maketrans("\u2018\u2019\u201c\u201d\u00a0", "''\"\" ", "_=")  # and no marks of italics
_DASHES = str.maketrans({"\u2014": "--", "\u2015": "--", "\u2026": "..."})
_LIMITS = re.compile(
    r"\*\*\* ?(?:START|END) OF TH(?:E|IS) PROJECT GUTENBERG[^*]*\*\*\*|\*END\*[^\n]*\*END\*|"
    r"End of (?:the )?Project Gutenberg",
    re.IGNORECASE,
)
_ASIDE = re.compile(
    r"\[(?:Illustration|Footnote|Transcriber|Note)[^\]]*\]|\[\d+\]|\{\d+\}|<[^>]{1,80}>",
    re.IGNORECASE,
)
_HEADING = re.compile(
    r"(?:chapter|part|book|section|volume|letter)\b.*|[ivxlc]+\.?|\d+\.?|the end\.?|"
    r"[^a-z\"]*|.*[^.!?:;,\"')-]",
    re.IGNORECASE,
)
_LEFT_OUT = re.compile(  # credits, and a slur
    r"produced by|transcrib|proofread|gutenberg|e-?text|copyright|all rights reserved|"
    r"first published|http|www\.|\bnigg",
    re.IGNORECASE,
)
_Pair = tuple[str, str]
_Maker = Callable[[str, list[Path]], Iterator[str]]


def _stories(_: str, raw: list[Path]) -> Iterator[str]:
    """Books of Project Gutenberg: one paragraph a line, a blank line after each."""
    books = sorted(raw, key=lambda path: int(path.name.partition(".")[0]))
    Random(_SEED).shuffle(books)
    seen: set[str] = set()
    for number, path in enumerate(books):
        if number:
            yield "<|endoftext|>"
        for paragraph in _paragraphs(path):
            if len(paragraph) < 60 or paragraph not in seen:
                yield paragraph
                yield ""
                seen.add(paragraph)


def _paragraphs(path: Path) -> Iterator[str]:
    """The prose of a book, without what stands before and after it."""
    blocks = re.split(r"\n[ \t]*\n", _body(path))
    found = [text for text in map(_paragraph, blocks) if text]
    # The story begins where a long paragraph is followed by more prose.
    spans = (found[i : i + 6] for i in range(len(found)))
    begins = (
        len(span[0]) > 150 and span.count(_BREAK) < 2 and sum(map(len, span)) > 900
        for span in spans
    )
    before = _BREAK
    for text in found[next((i for i, begin in enumerate(begins) if begin), 0) :]:
        if not text == before == _BREAK:
            yield text
        before = text


def _body(path: Path) -> str:
    with opened(path) as file:
        raw = file.read()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("cp1252", "replace")
    text = max(_LIMITS.split("\n".join(text.splitlines())), key=len)
    return _ASIDE.sub("", normalize("NFC", text).translate(_PLAIN).translate(_DASHES))


def _paragraph(block: str) -> str:
    """A paragraph on one line, "* * *" for a heading, or nothing."""
    lines = [line for line in block.split("\n") if line.strip()]
    text = re.sub(r" ?--+ ?", " -- ", " ".join(block.split())).strip()
    text = re.sub(r" -- ([\"'])(?=\s|$)", r" --\1", text)
    text = re.sub(r"(?: ?\.){3}", "...", text)
    poem = len(lines) > 8 and all(line.startswith(" ") for line in lines)
    if poem or not text or _LEFT_OUT.search(text):
        return ""
    return _BREAK if len(text) < 80 and _is_heading(text) else text


def _is_heading(text: str) -> bool:
    return bool(_HEADING.fullmatch(text) or (text.isupper() and text[0] != '"'))


def _everyday(file: str, raw: list[Path]) -> Iterator[str]:
    """Tatoeba, split by distinct English sentence; no side of a held-out pair is trained on."""
    pairs = [line.split("\t")[:2] for line in _lines(raw[0])]
    by_english: dict[str, list[_Pair]] = {}
    for pair in dict.fromkeys((normalize("NFC", a), normalize("NFC", b)) for a, b in pairs):
        by_english.setdefault(_bare(pair[0]), []).append(pair)
    draw = Random(_SEED)
    sentences = sorted(by_english)
    draw.shuffle(sentences)
    seen: set[str] = set()  # German sides that are held out
    held: list[list[_Pair]] = [[], []]
    for sentence in sentences:
        split = next((s for s in held if len(s) < _HELD), None)
        if split is None:
            break
        found = by_english.pop(sentence)
        german = {_bare(pair[1]) for pair in found}
        if not german & seen:  # or the two held-out sets would share a German sentence
            split.append(draw.choice(found))
        seen |= german
    train = [pair for found in by_english.values() for pair in found if _bare(pair[1]) not in seen]
    draw.shuffle(train)
    splits = {"valid": held[0], "test": held[1], "train": train}
    return ("\t".join(pair) for pair in splits[file.split(".")[-2]])


def _languages(file: str, raw: list[Path]) -> Iterator[str]:
    """Sentences and their language, 100 of each for validation and as many for the test."""
    found: dict[str, set[str]] = {}
    languages = [path.name.partition(".")[0] for path in raw]
    for language, path in zip(languages, raw, strict=True):
        for line in _lines(path):
            found.setdefault(_tidy(line), set()).add(language)
    parts = {"valid": slice(100), "test": slice(100, 200), "train": slice(200, None)}
    draw, kept = Random(_SEED), list[str]()
    for language in languages:
        sentences = [one for one, its in found.items() if its == {language}]  # and of no other
        draw.shuffle(sentences)
        kept += [f"{one}\t{language}" for one in sentences[parts[Path(file).stem]]]
    draw.shuffle(kept)
    return iter(kept)


def _paraphrases(file: str, raw: list[Path]) -> Iterator[str]:
    """English sentences of Tatoeba that share a translation; no group of such is in two splits."""
    same: dict[str, dict[str, str]] = {}  # by translation; of those that differ in marks, one
    for path in raw:
        for line in _lines(path):
            english, other = map(_tidy, line.split("\t")[:2])
            same.setdefault(path.name + other, {}).setdefault(_bare(english), english)
    group: dict[str, str] = {}

    def first_of(sentence: str) -> str:
        while (before := group.setdefault(sentence, sentence)) != sentence:
            sentence = before
        return sentence

    for first, *others in same.values():
        group |= {first_of(other): first_of(first) for other in others}
    split = file.split(".")[-2]
    pairs = [
        (texts[a], texts[b])
        for texts in same.values()
        for a, b in permutations(texts, 2)
        if held_in(first_of(a), 0.05) == split
    ]
    found = dict(pairs).items() if split != "train" else dict.fromkeys(pairs)  # or each source once
    distinct = list(found)
    Random(_SEED).shuffle(distinct)
    return ("\t".join(pair) for pair in distinct)


def _bare(sentence: str) -> str:
    """A sentence without case, marks and spaces: what differs only in these is the same."""
    return re.sub(r"[\W_]+", "", sentence).casefold() or sentence


def _personas(_: str, raw: list[Path]) -> Iterator[str]:
    """Synthetic-Persona-Chat's table as JSON lines."""
    with raw[0].open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            talk = {f"persona{i}": row[f"user {i} personas"].split("\n") for i in (1, 2)}
            lines = row["Best Generated Conversation"].split("\n")
            turns = (re.sub(r"^User [12]: ?", "", line) for line in lines)
            yield _json({**talk, "turns": [turn for turn in turns if turn.strip()]})


def _small_talk(file: str, raw: list[Path]) -> Iterator[str]:
    """Conversations of two people, a twentieth for validation and another for the test."""
    talks = [json.loads(line)["turns"] for line in _lines(raw[0])]
    distinct = list(dict.fromkeys(tuple(map(_tidy, talk)) for talk in talks))
    Random(_SEED).shuffle(distinct)
    part = len(distinct) // 20
    splits = {"valid": slice(part), "test": slice(part, 2 * part), "train": slice(2 * part, None)}
    splits["more"] = slice(None)  # of another file, whose conversations are all for training
    return (_json({"turns": turns}) for turns in distinct[splits[file.split(".")[-2]]])


def _short_talk(_: str, raw: list[Path]) -> Iterator[str]:
    """The package's greetings, but for what only its little chatbot may say; ChatterBot's talks."""
    for line in _lines(Path(__file__).with_name("greetings.tsv")):
        source, target = line.split("\t")
        if not _OTHERWISE.search(target):
            yield _json({"turns": [source, target]})
    for path in raw:
        for turns in _conversations(_lines(path)):
            if len(turns) > 1:
                yield _json({"turns": list(map(_tidy, turns))})


def _conversations(lines: Iterable[str]) -> list[list[str]]:
    """The lists of lists in a YAML file of ChatterBot's."""
    found: list[list[str]] = []
    for line in lines:
        if line.startswith("- - "):
            found.append([line[4:]])
        elif line.startswith("  - "):
            found[-1].append(line[4:])
        elif line.startswith("    "):
            found[-1][-1] += " " + line.strip()
    return [[re.sub(r"^(['\"])(.*)\1$", r"\2", turn) for turn in turns] for turns in found]


def _tidy(turn: str) -> str:
    """A turn on one line, with plain quotes."""
    return " ".join(normalize("NFC", turn).replace("\u2019", "'").split())


def _json(facts: object) -> str:
    return json.dumps(facts, ensure_ascii=False)


def _lines(path: Path) -> list[str]:
    return [line.decode().removesuffix("\n") for line in raw_lines(path)]


MAKERS: dict[str, _Maker] = {
    "stories": _stories,
    "everyday": _everyday,
    "personas": _personas,
    "small-talk": _small_talk,
    "short-talk": _short_talk,
    "languages": _languages,
    "paraphrases": _paraphrases,
}
