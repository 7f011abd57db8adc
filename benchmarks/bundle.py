"""Make a bundled model of a run: its weights in bytes, and a card with scores and samples.

python benchmarks/bundle.py pack en-de runs/en-de     # into limelight/models/en-de
python benchmarks/bundle.py card en-de runs/en-de     # measures it, and the run for comparison

The corpora are looked for, fetched or made as everywhere.
"""

import argparse
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limelight.data import registry
from limelight.data.input_files import raw_lines
from limelight.data.questions import QUESTIONS, make_questions
from limelight.draw.checker import read_objects
from limelight.draw.evaluate import Referee
from limelight.draw.examples import open_pictures
from limelight.draw.image_tokenizer import FOLDER
from limelight.evaluate.metrics import confusion_matrix
from limelight.evaluate.outputs import draw_confusion
from limelight.loading import LoadedModel, load
from limelight.recipe import recipe_from_run
from limelight.run.atomic import commit, sha256_of
from limelight.run.bundled_models import CARD, FACTS, MODELS
from limelight.run.folder import RunFolder
from limelight.run.int8_storage import SCALES, per_row
from limelight.run.log import read_log
from limelight.run.weights import WEIGHTS, read_weights, write_tensors
from limelight.tasks.classify import classify
from limelight.tasks.translate import Constraints
from limelight.training.console import Report
from limelight.workflows.evaluate import score_run

TEXTS = Path(__file__).parent / "cards"
PROMPTS: dict[str, list[str]] = json.loads((TEXTS / "prompts.json").read_text("utf-8"))
DRAWN = {f"{name}, %": name for name in ("objects", "relations", "pictures")}  # that are right
DIGITS = {"BLEU": 1, "chrF2": 1, "perplexity": 2, "bits per byte": 3, "top-1": 3, "top-5": 3}
DIGITS |= dict.fromkeys(DRAWN, 1) | dict.fromkeys(("accuracy", "macro F1", "exact match"), 3)
CONFUSION = "confusion.svg"  # of a classifier, beside its card
_LARGEST = 127
_BITS = 12  # of a scale; with the 7 of a byte they fit the 24 of a float32


@dataclass(frozen=True)
class Test:
    """What is measured, on what, and how to do it again."""

    on: str
    scores: tuple[str, ...]
    split: str = "test"
    corpus: str = ""  # whose texts are taken, instead of the recipe's
    options: tuple[str, ...] = ()

    def changes(self) -> list[str]:
        return [*([f"data.name={self.corpus}"] if self.corpus else []), *self.options]

    def command(self, name: str) -> str:
        words = [f"limelight evaluate {name}", *(["--split", self.split] * (self.split != "test"))]
        return " ".join([*words, *(f"--{change.replace('=', ' ')}" for change in self.changes())])


@dataclass(frozen=True)
class Model:
    """What is told of a model besides its numbers."""

    about: str
    licence: str
    attempt: str  # a command to try
    tests: tuple[Test, ...]
    training: str = ""  # options of the training command
    recipe: str = ""  # bundled-NAME if it is not named


BACK = ("data.tag=en", "data.reverse=true")
TRANSLATION = ("BLEU", "chrF2")
TATOEBA = "Tatoeba, 2,000 unseen sentences"
CAPTIONS = "Multi30k test_2016, image captions"
BOOKS = "the 5 validation books"
ASKED = {
    "where": "where somebody is",
    "carry": "where a thing is",
    "give": "who gave what to whom",
    "count": "how many things somebody has",
    "path": "the way between two places",
    "yes-no": "whether somebody is there",
}


def asked(task: str) -> "Test":
    """500 questions with the names and sentences of the test."""
    long = 4 if task == "path" else 5
    options = (f"data.toy={task}", f"data.toy_length={long}", "data.toy_examples=5000")
    return Test(f"500 questions: {ASKED[task]}", ("exact match",), options=options)


KNOWN = {
    "en-de": Model(
        "Translates everyday sentences, English to German and (--tag en) back",
        "Apache-2.0; data: Tatoeba, CC BY 2.0 FR",
        'limelight translate en-de "I am hungry."',
        (
            Test(f"{TATOEBA}, English to German", TRANSLATION, corpus="everyday-en-de"),
            Test(f"{TATOEBA}, German to English", TRANSLATION, "test", "everyday-en-de", BACK),
            Test(f"{CAPTIONS}, English to German", TRANSLATION, corpus="multi30k-en-de"),
            Test(f"{CAPTIONS}, German to English", TRANSLATION, "test", "multi30k-en-de", BACK),
        ),
        " --train.cuda_graphs",
    ),
    "writer": Model(
        "Goes on with a story, as books of 1865 to 1965 would",
        "Apache-2.0; data: public domain in the USA (Project Gutenberg)",
        'limelight write writer "As Aliens entered our planet"',
        (Test(BOOKS, ("bits per byte",), "valid"),),
        " --train.compile --train.master-weights true",
    ),
    "fill": Model(
        "Fills in blanks",
        "Apache-2.0; data: public domain in the USA (Project Gutenberg)",
        'limelight fill fill "Once upon a ___ there was a king."',
        (Test(BOOKS, ("top-1", "top-5"), "valid"),),
        " --train.compile",
    ),
    "chat": Model(
        "Makes small talk",
        "Apache-2.0; data: Synthetic-Persona-Chat, CC BY 4.0; chatterbot-corpus, BSD",
        'limelight chat chat "Hi how are you"',
        (Test("50 unseen conversations", ("perplexity",), corpus="small-talk"),),
        " --from runs/chat-first",
        "bundled-chat-more",
    ),
    "language": Model(
        "Says which of 24 languages a sentence is written in",
        "Apache-2.0; data: Tatoeba, CC BY 2.0 FR",
        'limelight classify language "Jeg er sulten." --words',
        (Test("Tatoeba, 2,400 unseen sentences", ("accuracy", "macro F1")),),
    ),
    "helper": Model(
        "Answers questions about a short paragraph, and paraphrases",
        "Apache-2.0; data: generated by Limelight; Tatoeba, CC BY 2.0 FR",
        'limelight paraphrase helper "I would like to go home now."',
        (
            *map(asked, QUESTIONS),
            Test(
                "1,231 paraphrases of Tatoeba",
                ("chrF2",),
                corpus="paraphrases",
                options=("data.tag=paraphrase",),
            ),
        ),
        " --train.cuda_graphs",
        "text-tasks",
    ),
    "draw": Model(
        "Draws coloured shapes from a caption",
        "Apache-2.0; data: generated by Limelight",
        'limelight draw draw "a small red circle above a large blue square" -o out.png',
        (Test("1,000 captions of combinations never seen together", tuple(DRAWN)),),
        " --train.compile --train.seed 3",
        "shapes",
    ),
}


def main() -> None:
    wanted = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    wanted.add_argument("action", choices=["pack", "card"])
    wanted.add_argument("name", choices=list(KNOWN))
    wanted.add_argument("run", type=Path)
    told = wanted.parse_args()
    if told.action == "pack":
        pack_run(told.name, RunFolder(told.run))
    else:
        write_card(told.name, told.run)


def pack_run(name: str, run: RunFolder) -> None:
    """A run folder again, but smaller: one set of weights, in bytes."""
    model = RunFolder(MODELS / name)
    shutil.rmtree(model.path, ignore_errors=True)
    model.path.mkdir(parents=True)
    for file in ("recipe.toml", "tokenizer.json", "environment.json"):
        shutil.copyfile(run.path / file, model.path / file)
    log = run.log.read_text("utf-8").splitlines(keepends=True)
    model.log.write_text("".join(line for line in log if '"spike"' not in line), "utf-8")
    pack_weights(run, model)
    if (run.path / FOLDER).is_dir():  # of a model that draws
        pack_weights(RunFolder(run.path / FOLDER), RunFolder(model.path / FOLDER))
    model.begin(recipe_name(name))
    if (run.path / "classes.json").is_file():
        shutil.copyfile(run.path / "classes.json", model.path / "classes.json")
    model.write_json(FACTS, facts_of(KNOWN[name], model, []))
    sizes = [file.stat().st_size for file in model.path.rglob("*") if file.is_file()]
    print(f"{model.path}: {sum(sizes):,} bytes, weights {sha256_of(weights_of(model))}")


def pack_weights(run: RunFolder, model: RunFolder) -> None:
    folder, _ = run.weights()
    weights = quantize_rows(read_weights(folder / WEIGHTS))
    model.finished.mkdir(parents=True, exist_ok=True)
    commit(model.finished / folder.name, lambda place: write_tensors(place / WEIGHTS, weights))


def quantize_rows(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as bytes and scales, everything else in float32."""
    packed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        tensor = tensor.detach().float()  # noqa: PLW2901
        if tensor.dim() >= 2:
            scales = _scales_of(tensor.flatten(1))
            packed[name + SCALES] = scales
            packed[name] = (tensor / per_row(scales, tensor)).round().to(torch.int8)
        else:
            packed[name] = tensor.contiguous()
    return packed


def _scales_of(matrix: Tensor) -> Tensor:
    """For each row the smallest scale of 12 bits that reaches its largest number with 127."""
    most = matrix.abs().amax(dim=1).double() / _LARGEST
    fraction, power = torch.frexp(most)
    scales = torch.ldexp(torch.ceil(fraction * 2**_BITS) / 2**_BITS, power)
    return torch.where(most > 0, scales, 1.0).float()


def recipe_name(name: str) -> str:
    return KNOWN[name].recipe or f"bundled-{name}"


def weights_of(model: RunFolder) -> Path:
    return model.weights()[0] / WEIGHTS


def write_card(name: str, run: Path) -> None:
    """Measure the packed model, and the run that it was; write both files."""
    known, model = KNOWN[name], RunFolder(MODELS / name)
    all_told = [measured(model.path, test) for test in known.tests]
    scores = [
        {"name": score, "value": round(told[score], DIGITS[score])}
        | {"on": test.on, "command": test.command(name)}
        for test, told in zip(known.tests, all_told, strict=True)
        for score in test.scores
    ]
    first = known.tests[0].scores[0]
    before = measured(run, known.tests[0])[first]
    facts = facts_of(known, model, scores)
    model.write_json(FACTS, facts)
    loaded = load(model.path)
    text = (
        (TEXTS / f"{name}.md")
        .read_text("utf-8")
        .format(
            shape=shape(loaded, facts["parameters"]),
            training=training(name, known, model),
            scores=table(scores),
            signature=all_told[0].get("signature", ""),
            packing=packing(first, before, all_told[0][first]),
            samples="\n".join(SAMPLES[name](loaded)),
        )
    )
    model.write(CARD, text)


def packing(score: str, before: float, after: float) -> str:
    """What it costs to store weights in bytes."""
    return (
        "Weights are stored in int8 with one scale per row. Before quantisation, "
        f"{score} on the first row was {before:.4f}; now it is {after:.4f}."
    )


def facts_of(known: Model, model: RunFolder, scores: list[dict[str, Any]]) -> dict[str, Any]:
    """What programs are told."""
    return {
        "about": known.about,
        "licence": known.licence,
        "try": known.attempt,
        "parameters": sum(p.numel() for p in load(model.path).model.parameters()),
        "scores": scores,
    }


def measured(run: Path, test: Test) -> dict[str, Any]:
    """The numbers of one test, by name."""
    told = score_run(run, test.split, test.changes(), silent=True)
    if "drawn" in told:
        return {score: 100 * told["drawn"][name] for score, name in DRAWN.items()}
    numbers = {score: told["scores"][score]["score"] for score in told["scores"]}
    signatures = {"signature": told["scores"]["BLEU"]["signature"]} if "BLEU" in numbers else {}
    others = {"perplexity": told.get("perplexity"), "exact match": told.get("exact")}
    return {**numbers, **others, **signatures}


def shape(loaded: LoadedModel, parameters: int) -> str:
    config = loaded.recipe.model
    return (
        f"{config.family}, {config.layers} layers of {config.d_model}, {parameters / 1e6:.1f} "
        f"million parameters, {config.vocab:,} tokens, texts of up to {config.max_len} tokens."
    )


def training(name: str, known: Model, run: RunFolder) -> str:
    """The command, and what came of it."""
    recipe, told = recipe_from_run(run), run.read_json("environment.json")
    lines = list(read_log(run.log))
    last = [line for line in lines if "lr" in line][-1]
    valid = [line for line in lines if line.get("validation")][-1]
    epochs = f"{last['epoch'] + 1} epochs" if last["epoch"] else "less than one epoch"
    return (
        f"`limelight train {recipe_name(name)} --run runs/{name}{known.training}` with seed "
        f"{recipe.train.seed}: {last['step']:,} steps, {epochs}, "
        f"{last['seconds'] / 60:.1f} minutes on one {told['device']} shared with other runs "
        f"(torch {told['versions']['torch']}, {recipe.train.batch_tokens:,} tokens per step). "
        f"Validation loss {valid['loss']:.3f}. The recipe is `limelight/recipes/"
        f"{recipe_name(name)}.toml`."
    )


def table(scores: list[dict[str, Any]]) -> str:
    rows = ["| score | | on | measured with |", "|---|---|---|---|"]
    rows += [f"| {s['name']} | {s['value']} | {s['on']} | `{s['command']}` |" for s in scores]
    return "\n".join(rows)


def translations(loaded: LoadedModel) -> Iterator[str]:
    file = registry.find("everyday-en-de", registry.NAMED["everyday-en-de"].test[0])
    pairs = [line.decode().rstrip("\n").split("\t") for line in raw_lines(file)][:15]
    for tag, column in (("de", 0), ("en", 1)):
        yield from ("", "| source | translation | reference |", "|---|---|---|")
        for pair in pairs:
            done = loaded.translate(pair[column], constraints=Constraints(tag=tag))
            yield f"| {pair[column]} | {done.text} | {pair[1 - column]} |"


def stories(loaded: LoadedModel) -> Iterator[str]:
    for prompt in PROMPTS["writer"]:
        yield f"> **{prompt}**{' '.join(loaded.write(prompt, max_tokens=120).split(chr(10)))}\n"


def blanks(loaded: LoadedModel) -> Iterator[str]:
    yield from ("| text | candidates |", "|---|---|")
    for text in PROMPTS["fill"]:
        found = ", ".join(f"{c.text} {c.probability:.0%}" for c in loaded.fill(text).blanks[0])
        yield f"| {text} | {found} |"


def answers(loaded: LoadedModel) -> Iterator[str]:
    yield from ("| prompt | answer |", "|---|---|")
    for prompt in PROMPTS["chat"]:
        yield f"| {prompt} | {loaded.chat().reply(prompt)} |"


def drawings(loaded: LoadedModel) -> Iterator[str]:
    """What the checker reads in the first pictures, from left to right."""
    pictures = open_pictures(loaded.recipe, loaded.device, Report(silent=True))
    referee = Referee(pictures, loaded.tokenizer, loaded.image_tokenizer, loaded.decode)
    captions, drawn, verdicts = referee.judged(loaded.model, 12, "test")
    yield from ("| caption | what the checker reads | right |", "|---|---|---|")
    for caption, found, verdict in zip(captions, read_objects(drawn), verdicts, strict=True):
        objects = ", ".join(map(str, sorted(found, key=lambda one: one.x)))
        yield f"| {caption} | {objects} | {'yes' if verdict.exact else 'no'} |"


def classes(loaded: LoadedModel) -> Iterator[str]:
    """The first sentences of the test; and a picture of all confusions."""
    file = registry.find("languages", registry.NAMED["languages"].test[0])
    rows = [line.decode().rstrip("\n").split("\t") for line in raw_lines(file)]
    found = [max(each, key=each.get) for each in classify(loaded, [text for text, _ in rows])]
    matrix = confusion_matrix(found, [label for _, label in rows])
    draw_confusion({"language": matrix}, MODELS / "language" / CONFUSION)
    yield from ("| sentence | predicted | language |", "|---|---|---|")
    for (text, label), guess in list(zip(rows, found, strict=True))[:30]:
        yield f"| {text} | {guess} | {label} |"


def questions_and_paraphrases(loaded: LoadedModel) -> Iterator[str]:
    """Two questions of each task, and the first sentences to paraphrase, of the tests."""
    yield from ("| paragraph | question | answer | right answer |", "|---|---|---|---|")
    for task in QUESTIONS:
        for source, answer in islice(make_questions(task, "test", 5), 2):
            question, end, paragraph = source.partition("? ")
            told = loaded.ask(question + end.strip(), paragraph).text
            yield f"| {paragraph} | {question}? | {told} | {answer} |"
    file = registry.find("paraphrases", registry.NAMED["paraphrases"].test[0])
    yield from ("", "| sentence | paraphrase | in the corpus |", "|---|---|---|")
    for line in islice(raw_lines(file), 20):
        text, reference = line.decode().rstrip("\n").split("\t")
        yield f"| {text} | {loaded.paraphrase(text).text} | {reference} |"


SAMPLES = {
    "helper": questions_and_paraphrases,
    "language": classes,
    "en-de": translations,
    "writer": stories,
    "fill": blanks,
    "chat": answers,
    "draw": drawings,
}


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    main()
