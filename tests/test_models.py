"""The models that come with the package: small, whole, and what their cards say of them."""

import json
import re
import socket
import subprocess
import sys
from dataclasses import asdict

import pytest

import limelight
from benchmarks import bundle
from limelight.cli import main
from limelight.model.count import count_parameters
from limelight.recipe import load_recipe, recipe_from_run, recipe_names
from limelight.run.atomic import latest_valid
from limelight.run.bundled_models import CARD, MODELS, facts_of, find_run, model_names
from limelight.run.folder import RunFolder
from limelight.serve.server import named
from limelight.tasks.translate import Constraints
from limelight.workflows.train import train

NAMES = ["chat", "draw", "en-de", "fill", "helper", "language", "writer"]
LARGEST = 38_000_000  # bytes, all together
HOW = {
    "master_weights",
    "compile",
    "cuda_graphs",
    "seed",
}  # of [train]: the card's command has them


def card(name):
    return (MODELS / name / CARD).read_text("utf-8")


def rows(name, heading):
    """The tables of a card under a heading, row by row."""
    text = card(name).split(f"## {heading}")[1].split("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [row for row in cells if not set(row[0]) <= {"-", "|"}]


@pytest.fixture(scope="module")
def loaded():
    """All of them, loaded where nothing outside can be reached."""

    def refuse(*_, **__):
        raise AssertionError("loading a model must not need a network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "socket", refuse)
        return {name: limelight.load(name) for name in NAMES}


def test_there_are_seven_and_no_recipe_has_the_name_of_one():
    assert model_names() == NAMES
    assert not set(NAMES) & set(recipe_names())
    assert sum(facts_of(name)["bytes"] for name in NAMES) <= LARGEST


@pytest.mark.parametrize("name", NAMES)
def test_each_is_whole_and_has_as_many_parameters_as_it_says(loaded, name):
    folder, complaints = latest_valid(MODELS / name / "finished")
    assert folder is not None
    assert complaints == []
    parameters = sum(count_parameters(loaded[name].model).values())
    assert parameters == facts_of(name)["parameters"]
    assert loaded[name].step == int(folder.name.removeprefix("step-"))
    files = [path for path in (MODELS / name).rglob("*") if path.is_file()]
    drawn = {".svg"} if name == "language" else set()  # its confusion matrix
    assert {path.suffix for path in files} - drawn <= {
        *(".json", ".jsonl", ".md", ".safetensors", ".toml")
    }


@pytest.mark.parametrize("name", NAMES)
def test_its_recipe_is_the_one_that_makes_it_again(loaded, name):
    shipped, used = load_recipe(bundle.recipe_name(name)), recipe_from_run(find_run(name))
    assert used.name == shipped.name
    assert used.images == shipped.images
    for table in ("data", "tokenizer", "model", "train", "decode"):
        ours, theirs = asdict(getattr(shipped, table)), asdict(getattr(used, table))
        assert {k for k in ours if ours[k] != theirs[k]} <= HOW
    assert used.train.steps == loaded[name].step


@pytest.mark.parametrize("name", NAMES)
def test_the_card_is_complete_and_has_the_scores_of_the_file(name):
    text, facts = card(name), facts_of(name)
    for part in ("## Data", "## Training", "## Scores", "## Limits", "seed 1", "minutes on one"):
        assert part in text
    assert f"limelight train {bundle.recipe_name(name)}" in text
    assert f"{facts['parameters'] / 1e6:.1f} million parameters" in text
    told = [row[:3] for row in rows(name, "Scores")[1:]]
    assert told == [[s["name"], str(s["value"]), s["on"]] for s in facts["scores"]]
    assert all(f"`{score['command']}`" in text for score in facts["scores"])
    assert facts["try"].startswith("limelight ")
    licences = {
        "en-de": "CC BY 2.0 FR",
        "helper": "CC BY 2.0 FR",
        "language": "CC BY 2.0 FR",
        "chat": "CC BY 4.0",
        "draw": "Apache-2.0",
    }
    assert licences.get(name, "ublic domain in the USA") in text
    assert licences.get(name, "ublic domain in the USA") in facts["licence"]


@pytest.mark.parametrize("name", NAMES)
def test_the_card_is_what_its_template_makes(loaded, name):
    """All but scores and samples, which need the corpora; lines are wrapped by hand."""
    template = (bundle.TEXTS / f"{name}.md").read_text("utf-8")
    folder = RunFolder(MODELS / name)
    made = {
        "{shape}": bundle.shape(loaded[name], facts_of(name)["parameters"]),
        "{training}": bundle.training(name, bundle.KNOWN[name], folder),
        "{scores}": bundle.table(facts_of(name)["scores"]),
    }
    for field, text in made.items():
        template = template.replace(field, text)
    text = " ".join(card(name).split())
    parts = re.split(r"\{(?:packing|samples|signature)\}", " ".join(template.split()))
    assert len(parts) >= 3
    assert [part for part in parts if part.strip() not in text] == []
    assert bundle.packing("BLEU", 1, 2).partition(", BLEU")[0] in text


def test_the_readme_tells_the_scores_of_the_cards():
    readme = (MODELS.parents[1] / "README.md").read_text("utf-8")
    results = readme.split("\n## Results")[1].split("\n## ")[0]
    for name in NAMES:
        for score in facts_of(name)["scores"]:
            value = score["value"]
            shown = f"{value:.1%}" if score["name"].startswith("top-") else str(value)
            assert re.search(rf"(?<![\d.]){re.escape(shown)}(?!\d)", results), (name, score)


def test_the_card_of_en_de_shows_what_it_translates(loaded):
    assert loaded["en-de"].translate("I am hungry.").text == "Ich habe Hunger."
    shown = [row for row in rows("en-de", "Samples") if row[0] != "source"]
    assert len(shown) == 30
    for tag, first in (("de", 0), ("en", 15)):
        for source, told, _ in shown[first : first + 3]:
            assert loaded["en-de"].translate(source, constraints=Constraints(tag=tag)).text == told


def test_the_card_of_chat_shows_what_it_answers(loaded):
    shown = rows("chat", "The answers")[1:]
    assert len(shown) == 50
    assert shown[0][0] == "Hi how are you"
    assert "fine" in shown[0][1]
    for prompt, told in shown[:6]:
        assert loaded["chat"].chat().reply(prompt) == told


def test_the_card_of_fill_shows_what_it_fills_in(loaded):
    for text, told in rows("fill", "Samples")[1:]:
        best = loaded["fill"].fill(text).blanks[0][0].text
        assert re.match(rf"{re.escape(best)} \d+%", told)
    assert loaded["fill"].fill("Once upon a ___ there was a king.").blanks[0][0].text == "time"


def test_the_card_of_writer_shows_how_it_goes_on(loaded):
    prompt = "As Aliens entered our planet"
    told = re.search(rf"> \*\*{prompt}\*\*(.*)", card("writer"))[1]
    assert len(told.split()) > 50
    assert told.startswith(loaded["writer"].write(prompt, max_tokens=8).replace("\n", " "))


def test_the_card_of_language_shows_what_it_says_and_its_confusions(loaded):
    shown = rows("language", "Samples")[1:]
    assert len(shown) == 30
    for text, told, _ in shown:
        assert next(iter(loaded["language"].classify(text))) == told
    assert "](confusion.svg)" in card("language")
    drawn = (MODELS / "language" / bundle.CONFUSION).read_text("utf-8")
    assert drawn.startswith("<?xml")
    assert facts_of("language")["bytes"] < 1_000_000


def test_the_card_of_helper_shows_what_it_answers(loaded):
    helper, shown = loaded["helper"], rows("helper", "Samples")
    questions = [row for row in shown if len(row) == 4][1:]
    assert len(questions) == 12
    for paragraph, question, told, _ in questions:
        assert helper.ask(question, paragraph).text == told
    sentences = [row for row in shown if len(row) == 3][1:]
    assert len(sentences) == 20
    for text, told, _ in sentences[:5]:
        assert helper.paraphrase(text).text == told
    assert {"ask", "paraphrase"} <= {*helper.tasks}


def test_helper_finds_who_has_what_and_where():
    """Of texts that nobody generated; the control asks of another story."""
    helper = limelight.load("helper")
    story = "Ingrid went to the garden. Then Ingrid picked up the ball. Omar is in the kitchen."
    assert "garden" in helper.ask("Where is the ball?", story).text
    assert "kitchen" in helper.ask("Where is Omar?", story).text
    other = story.replace("garden", "school")
    assert "school" in helper.ask("Where is the ball?", other).text


def test_the_card_of_draw_shows_what_the_checker_reads(loaded):
    made = [line.strip("| ").split(" | ") for line in bundle.drawings(loaded["draw"])]
    assert rows("draw", "Samples") == [row for row in made if not set(row[0]) <= {"-", "|"}]
    assert len(made) == 14


def ask(monkeypatch, capsys, *arguments):
    """A command in this process: its exit code, and what it says."""
    monkeypatch.setattr(sys, "argv", ["limelight", *map(str, arguments)])
    code = 0
    try:
        main()
    except SystemExit as left:
        code = left.code or 0
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["translate", "en-de", "I am hungry."], "Ich habe Hunger."),
        (["translate", "en-de", "--tag", "en", "Ich habe Hunger."], "hungry"),
        (["chat", "chat", "Hi how are you"], "fine"),
        (["write", "writer", "The captain", "--max-tokens", "5"], "The captain"),
        (["fill", "fill", "Once upon a ___ there was a king."], "Once upon a time"),
        (["classify", "language", "Where is the Bahnhof?"], "English"),
        (["classify", "language", "Where is the Bahnhof?", "--words"], "\n  Where "),
        (["classify", "language", "Wo ist er?", "--words", "--json"], '"word": "Wo", "effect": '),
        (["paraphrase", "helper", "I would like to go home now."], "home"),
        (["score", "writer", "Once upon a time"], "-"),
        (["embed", "fill", "a ship"], "["),
        (["explain", "en-de", "I am hungry.", "--stop", "softmax"], "hungry"),
        (["info", "en-de"], "11.2M"),
        (["info", "draw"], "d_model 224"),
    ],
)
def test_every_command_takes_their_names(monkeypatch, capsys, arguments, words):
    code, out, _ = ask(monkeypatch, capsys, *arguments)
    assert code == 0
    assert words in out


@pytest.mark.parametrize(
    ("command", "near"), [("translate", "en-de"), ("info", "en-de"), ("evaluate", "en-de")]
)
def test_a_misspelt_name_is_answered_with_the_right_one(monkeypatch, capsys, command, near):
    text = ["Hello."] if command == "translate" else []
    code, out, complaint = ask(monkeypatch, capsys, command, "en-dee", *text)
    assert (code, out) == (2, "")
    assert f"did you mean {near!r}?" in complaint
    assert "Traceback" not in complaint


def test_the_service_takes_their_names():
    assert named(["en-de", "chat"]) == {n: (MODELS / n).resolve() for n in ("en-de", "chat")}


def test_they_can_be_evaluated_and_trained_further(monkeypatch, capsys, tmp_path):
    pairs = [("I am hungry.", "Ich habe Hunger."), ("Good morning.", "Guten Morgen.")]
    (tmp_path / "own.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs * 5))
    code, out, _ = ask(
        monkeypatch, capsys, "evaluate", "en-de", "--data.test", tmp_path / "own.tsv", "--json"
    )
    assert code == 0
    assert json.loads(out)["scores"]["BLEU"]["score"] > 50
    own = ["data.corpora=[]", f"data.train={tmp_path / 'own.tsv'}", "train.steps=2"]
    few = ["train.warmup=1", "train.batch_tokens=200", "train.learning_rate=0.0001"]
    assert train("bundled-en-de", tmp_path / "mine", [*own, *few], "en-de", silent=True) == 0
    mine = limelight.load(tmp_path / "mine")
    assert mine.translate("I am hungry.").text == "Ich habe Hunger."
    assert RunFolder(tmp_path / "mine").read_json("environment.json")["from"] == "en-de"


def test_the_list_for_people_and_for_programs():
    listed = [sys.executable, "-m", "limelight", "models"]
    people, programs = (
        subprocess.run([*listed, *more], capture_output=True, text=True, check=True).stdout
        for more in ([], ["--json"])
    )
    told = json.loads(programs)["models"]
    assert [model["name"] for model in told] == NAMES
    for model in told:
        assert model == facts_of(model["name"])
        assert model["about"] in " ".join(people.split())
        assert all(str(score["value"]) in people for score in model["scores"])
