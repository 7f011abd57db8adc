"""Make the data that two of the bundled models learn from, out of raw public files.

python benchmarks/bundled_data.py --tatoeba anki.en-de.tsv.xz \\
    --personas synthetic-persona-chat.valid.jsonl.xz --chatterbot chatterbot_corpus-1.3.3.whl

The files go where Limelight looks for named corpora (its cache, or --out), under the names
`everyday-en-de` (Tatoeba, CC BY 2.0 FR), `small-talk` (Synthetic-Persona-Chat, CC BY 4.0) and
`small-talk-short` (our own greetings, and ChatterBot's corpus, BSD). The same input gives the same
files, whose hashes the package knows. ChatterBot's corpus is the wheel of that name:
`pip download --no-deps chatterbot-corpus==1.3.3`.
"""

import argparse
import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from unicodedata import normalize

import yaml

from limelight.data import registry
from limelight.data.input_files import raw_lines

SEED = 2017
HELD = 2000  # English sentences for validation, and as many for the test
TOPICS = ("greetings", "conversations", "botprofile", "food", "health")
# What the little chatbot of `greetings` says of itself is not true of this model.
OTHERWISE = re.compile(
    r"thousand short|thousand lines|about a million|short sentences|64 tokens|said before|"
    r"short answers|minutes|each question is new|two layers|128",
    re.IGNORECASE,
)

Pair = tuple[str, str]


def main() -> None:
    wanted = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    wanted.add_argument("--tatoeba", type=Path, required=True)
    wanted.add_argument("--personas", type=Path, required=True)
    wanted.add_argument("--chatterbot", type=Path, required=True)
    wanted.add_argument("--out", type=Path, default=registry.downloads())
    told = wanted.parse_args()
    everyday(told.tatoeba, told.out / "everyday")
    small_talk(told.personas, told.chatterbot, told.out / "small-talk")


def everyday(raw: Path, out: Path) -> None:
    """Tatoeba, split by distinct English sentence; no side of a held-out pair is trained on."""
    pairs = [tuple(line.split("\t")[:2]) for line in read(raw)]
    pairs = list(dict.fromkeys((normalize("NFC", a), normalize("NFC", b)) for a, b in pairs))
    by_english: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_english.setdefault(bare(pair[0]), []).append(pair)
    draw = Random(SEED)
    sentences = sorted(by_english)
    draw.shuffle(sentences)
    seen: set[str] = set()  # German sides that are held out
    held: list[list[Pair]] = [[], []]
    for sentence in sentences:
        split = next((s for s in held if len(s) < HELD), None)
        if split is None:
            break
        found = by_english.pop(sentence)
        german = {bare(pair[1]) for pair in found}
        if not german & seen:  # or the two held-out sets would share a German sentence
            split.append(draw.choice(found))
        seen |= german
    train = [pair for found in by_english.values() for pair in found if bare(pair[1]) not in seen]
    draw.shuffle(train)
    for name, split in zip(("valid", "test", "train"), (*held, train), strict=True):
        write(out / f"en-de.{name}.tsv", ("\t".join(pair) for pair in split))


def bare(sentence: str) -> str:
    """A sentence without case, marks and spaces: what differs only in these is the same."""
    return re.sub(r"[\W_]+", "", sentence).casefold() or sentence


def small_talk(personas: Path, chatterbot: Path, out: Path) -> None:
    """Conversations of two people, every twentieth held out; and short exchanges."""
    talks = [json.loads(line)["turns"] for line in read(personas)]
    talks = [list(turns) for turns in dict.fromkeys(tuple(map(tidy, talk)) for talk in talks)]
    Random(SEED).shuffle(talks)
    twentieth = len(talks) // 20
    splits = {"valid": talks[:twentieth], "test": talks[twentieth : 2 * twentieth]}
    for name, split in {**splits, "train": talks[2 * twentieth :]}.items():
        write(out / f"personas.{name}.jsonl", as_json(split))
    write(out / "short.train.jsonl", as_json([*greetings(), *chats(chatterbot)]))


def greetings() -> Iterator[list[str]]:
    """The package's own exchanges, but for what only the little chatbot may say of itself."""
    for line in read(Path(registry.__file__).parent / "greetings.tsv"):
        source, target = line.split("\t")
        if not OTHERWISE.search(target):
            yield [source, target]


def chats(wheel: Path) -> Iterator[list[str]]:
    """ChatterBot's conversations of a few topics."""
    with zipfile.ZipFile(wheel) as files:
        for topic in TOPICS:
            text = files.read(f"chatterbot_corpus/data/english/{topic}.yml").decode()
            for turns in yaml.safe_load(text)["conversations"]:
                if len(turns) > 1:
                    yield [tidy(str(turn)) for turn in turns]


def tidy(turn: str) -> str:
    """A turn on one line, with plain quotes."""
    return " ".join(normalize("NFC", turn).replace("\u2019", "'").split())


def as_json(talks: Iterable[list[str]]) -> Iterator[str]:
    return (json.dumps({"turns": turns}, ensure_ascii=False) for turns in talks)


def read(path: Path) -> list[str]:
    return [line.decode().removesuffix("\n") for line in raw_lines(path)]


def write(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines)
    path.write_text(text, encoding="utf-8", newline="\n")
    print(f"{path}: {text.count(chr(10)):,} lines, SHA-256 {registry.cached_sha256(path)[0]}")


if __name__ == "__main__":
    main()
