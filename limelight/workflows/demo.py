"""`limelight demo`: a tour. A translator, a writer, and a chatbot that learns before your eyes.

The first two come with the package. The third is trained here and now, and then we look inside it:
every number of that is its own. What the tour makes lies in one run folder; a tour that was
interrupted goes on with what is there.
"""

import re
import shutil
import sys
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import torch
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from limelight.errors import UserError, path_from_option
from limelight.explain.explanation import Explanation
from limelight.explain.focus import focus_on
from limelight.explain.render import terminal
from limelight.explain.render.html import as_html
from limelight.explain.stage import Heatmap
from limelight.explain.stages import stage_at
from limelight.files import atomic_write, cache_folder
from limelight.loading import LoadedModel, load
from limelight.run.atomic import check_disk_space, latest_valid, make_folder
from limelight.run.folder import RunFolder
from limelight.run.weights import step_of
from limelight.training.console import clock
from limelight.workflows.train import train

RECIPE = "greetings"
STEPS, STEPS_IF_QUICK = 500, 200
ROOM = 60_000_000  # bytes: more than all of it takes
_THREADS = 4  # more of them only get in each other's way in models this small

SENTENCE = "I want to buy a new car tomorrow."
BEGINNING = "As Aliens entered our planet"
QUESTION = "Hi how are you"
MORE_QUESTIONS = ("What is your name?", "tell me a joke", "Do you like music?", "good night")
STOPS = {
    "softmax": "While it reads: how much does each word look at each of the others?",
    "cross": "While it writes: which words of the question does it look at?",
    "classifier": "And then it chooses: of all words that it knows, which one comes next?",
}


def tour(console: Console, run: Path, quick: bool = False) -> int:
    """All of it: 0. Or a signal asked to leave while it learned: its number, all being saved."""
    begun = time.monotonic()
    torch.set_num_threads(min(torch.get_num_threads(), _THREADS))
    _prepare(run)
    _introduce(console, run, quick)
    _translate(console)
    _write(console, tokens=40 if quick else 100)
    left = _learn(console, run, STEPS_IF_QUICK if quick else STEPS)
    if left:
        return left
    chatbot = load(run)
    _ask(console, chatbot)
    explanation = _look_inside(console, chatbot)
    page = _keep_page(explanation, run)
    _say_what_next(console, run, page, clock(time.monotonic() - begun))
    return 0


def _prepare(run: Path) -> None:
    """Find out now, and not after minutes, whether there is a place for what will be made."""
    with path_from_option("--run"):
        make_folder(run)
    with path_from_option("LIMELIGHT_CACHE"):
        make_folder(cache_folder())
    check_disk_space(run, ROOM)
    folder = RunFolder(run)
    if folder.exists and folder.check() != RECIPE:
        raise UserError(
            f"{run} holds another run, of the recipe {folder.check()!r}: choose another folder for "
            "the tour with --run"
        )


def _introduce(console: Console, run: Path, quick: bool) -> None:
    """What is going to happen."""
    minutes = "about a minute" if quick else "a few minutes"
    console.print(Text("Limelight: the Transformer, whole and in the open.", "bold"))
    _paragraph(
        console,
        f"This is a tour of {minutes}. It ends by itself. Ctrl-C leaves it at any time, and the "
        f"same command goes on. What it makes goes into the folder {run}.",
    )


def _heading(console: Console, number: int, title: str) -> None:
    """A part of the tour begins."""
    console.print()
    console.rule(Text(f"{number}  {title}", "bold"), align="left", characters="═", style="magenta")


def _paragraph(console: Console, text: str, style: str = "") -> None:
    """Some words in between."""
    console.print(Text(text, style), width=min(console.width, terminal.WIDEST))


def _bundled(console: Console, name: str) -> LoadedModel | None:
    """A model that comes with the package; where it does not, that is said and the tour goes on."""
    try:
        return load(name)
    except UserError as error:
        _paragraph(console, f"(The model {name} is not to be had here: {error})", "yellow")
        return None


def _translate(console: Console) -> None:
    """A sentence, its translation, and which word looked at which."""
    _heading(console, 1, "It translates")
    translator = _bundled(console, "en-de")
    if translator is None:
        return
    done = translator.translate(SENTENCE)
    size = sum(p.numel() for p in translator.model.parameters())
    _paragraph(
        console, f"The model en-de ({size / 1e6:.1f} million parameters) reads English ...\n"
    )
    console.print(Text(f"  {SENTENCE}", "bold cyan"))
    _paragraph(console, "\n... and writes German:\n")
    console.print(Text(f"  {done.text}\n", "bold green"))
    grid = _alignment(translator.explain(SENTENCE, done.text))
    console.print(terminal.heat_map(grid, min(console.width, terminal.WIDEST)))
    _paragraph(
        console,
        "\nGerman has its words in another order. Nobody told the model which belongs to which: it "
        "has found that out from pairs of sentences, and looks where it needs to.",
    )


def _alignment(explanation: Explanation) -> Heatmap:
    """What each word that was written looked at in the source, in the layer that shows it best."""
    layers = [
        explanation.mean_attention("cross", layer + 1)[:-1, :-1]  # but for the ends
        for layer in range(explanation.config.layers)
    ]
    clearest = max(range(len(layers)), key=lambda layer: _clearness(layers[layer]))
    return Heatmap(
        f"How much each word looks at each, layer {clearest + 1}, mean of all heads",
        names=(f"decoder.{clearest}.cross.weights",),
        values=layers[clearest],
        rows=explanation.answers.labels[:-1],
        columns=explanation.source.labels[:-1],
        axes=("writes", "reads"),
        scale="share",
    )


def _clearness(weights: torch.Tensor) -> float:
    """How much of the attention goes to one word, on the average."""
    return weights.max(dim=-1).values.mean().item()


def _write(console: Console, tokens: int) -> None:
    """A text that goes on."""
    _heading(console, 2, "It writes")
    writer = _bundled(console, "writer")
    if writer is None:
        return
    _paragraph(
        console,
        "The model writer has read stories. It goes on with the beginning of one, token by token, "
        "each drawn from those that could come next:\n",
    )
    console.print(Text(f"  {BEGINNING}", "bold cyan"), end="")
    pieces = writer.stream(BEGINNING, max_tokens=tokens)
    flow(console, pieces, column=2 + cell_len(BEGINNING))


def flow(console: Console, pieces: Iterable[str], column: int, style: str = "green") -> None:
    """A text as it is being written, broken between words where the line ends."""
    width, pending = min(console.width, terminal.WIDEST), ""
    for piece in chain(pieces, ["\n"]):
        *words, pending = re.split(r"(?<=\S)(?=\s)", pending + piece)
        for word in words:
            blank, text = re.fullmatch(r"(\s*)(.*)", word, re.DOTALL).groups()  # type: ignore[union-attr]
            if "\n" in blank or column + len(blank) + cell_len(text) > width:
                console.out("\n  ", end="")
                blank, column = "", 2
            console.out(f"{blank}{text}", style=style, highlight=False, end="")
            column += len(blank) + cell_len(text)
    console.print()


def _learn(console: Console, run: Path, steps: int) -> int:
    """Train the chatbot, or go on with it, or take it as it is. As `train` says: 0, or a signal."""
    _heading(console, 3, "It learns")
    finished, _ = latest_valid(RunFolder(run).finished)
    if finished is not None and step_of(finished) >= steps:
        _paragraph(
            console,
            f"In {run} there is a chatbot already, from an earlier tour: it has learned for "
            f"{step_of(finished)} steps. Remove that folder to see it learn anew.",
        )
        return 0
    _paragraph(
        console,
        "Now one that knows nothing yet. A new Transformer learns to chat from a thousand "
        "exchanges that come with the package. Every now and then it is asked something that it "
        "has not seen: watch its answers get better, and its loss fall.\n",
    )
    return train(RECIPE, run, [f"train.steps={steps}"])


def _ask(console: Console, chatbot: LoadedModel) -> None:
    """A few questions, with the answers as they are."""
    _heading(console, 4, "It answers")
    _paragraph(console, "Each question is asked once, and the answers are not picked:\n")
    talk = Table.grid(padding=(0, 2))
    for question in (QUESTION, *MORE_QUESTIONS):
        talk.add_row("  you", Text(question, "bold cyan"))
        talk.add_row("  it", Text(chatbot.chat().reply(question), "bold green"))
    console.print(talk)


def _look_inside(console: Console, chatbot: LoadedModel) -> Explanation:
    """Three stops of the walk through the model, with its own numbers."""
    _heading(console, 5, "It explains itself")
    explanation = chatbot.explain(QUESTION)
    _paragraph(
        console,
        f"How did it come to {chatbot.chat().reply(QUESTION)!r}? These are three of the stations "
        "of the way, with the numbers that were computed for this answer.\n",
    )
    terminal.introduce(console, explanation)
    view = focus_on(explanation, None, None, None)
    for name, what in STOPS.items():
        console.print()
        _paragraph(console, what, "italic")
        terminal.show_stage(console, explanation, stage_at(explanation, name, view))
    return explanation


def _keep_page(explanation: Explanation, run: Path) -> Path:
    """The whole walk as one file for a browser."""
    page = run / "explain.html"
    atomic_write(page, as_html(explanation, name=run.name).encode())
    return page


def _say_what_next(console: Console, run: Path, page: Path, took: str) -> None:
    """Where to go from here."""
    _heading(console, 6, "What next")
    _paragraph(
        console,
        f"That was the tour, in {took} minutes. All stops of the explanation, to be pointed at and "
        "clicked through, are in a page that needs no network. Open it in a browser:\n",
    )
    console.print(Text(f"  {page}", "bold"), soft_wrap=True)
    _paragraph(console, "\nSome things to try:\n")
    call = _how_to_call()
    for what, command in {
        "talk with your chatbot": f"chat {run}",
        "the whole walk, eighteen stops": f'explain {run} "what is your name"',
        "translate what you like": 'translate en-de "Where is the station?"',
        "let it write": 'write writer "Once upon a time"',
        "all models that came along": "models",
        "serve them to a browser and programs": f"serve en-de {run}",
        "train on your own pairs of texts": "train text-to-text --run runs/mine --data.train FILE",
        "everything else": "--help",
    }.items():
        console.print(Text(f"  {what}"))
        console.print(Text(f"    {call} {command}", "bold"), soft_wrap=True)  # to be copied whole


def _how_to_call() -> str:
    """The command as it can be typed here: it may not be on the path."""
    if shutil.which("limelight"):
        return "limelight"
    beside = Path(sys.executable).with_name("limelight")
    if beside.is_file():
        inside = beside.is_relative_to(Path.cwd())
        return str(beside.relative_to(Path.cwd()) if inside else beside)
    return "python -m limelight"
