"""`limelight demo`: a tour. A translator, a writer, and a chatbot trained before your eyes.

The first two are bundled. The third is trained here and now, and then explained: every number shown
is its own. The tour keeps everything in one run folder; an interrupted tour resumes from it.
"""

import os
import re
import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from limelight.errors import UserError, path_from_option
from limelight.explain.explanation import Explanation
from limelight.explain.render import terminal
from limelight.explain.render.html import as_html
from limelight.explain.stage import Heatmap
from limelight.explain.stages import stage_at
from limelight.explain.starting_point import first_focus
from limelight.files import atomic_write, cache_folder
from limelight.loading import LoadedModel, load
from limelight.run.atomic import check_disk_space, latest_valid, make_folder
from limelight.run.folder import RunFolder
from limelight.run.weights import step_of
from limelight.training.console import clock
from limelight.workflows.train import train

RECIPE = "greetings"
STEPS, STEPS_IF_QUICK = 500, 200
DISK_SPACE = 60_000_000  # bytes: more than everything needs
_THREADS = 4  # more of them slow each other down in models this small

SENTENCE = "I want to buy a new car tomorrow."
BEGINNING = "As Aliens entered our planet"
QUESTION = "Hi how are you"
MORE_QUESTIONS = ("What is your name?", "tell me a joke", "Do you like music?", "good night")
STAGES = {
    "softmax": "While it reads: how much does each word attend to each of the others?",
    "cross": "While it writes: which words of the question does it attend to?",
    "classifier": "And then it chooses: which of all the words it knows comes next?",
}
_SUGGESTIONS = {
    "chat with your chatbot": "chat {run}",
    "see all stages of the explanation": 'explain {run} "what is your name"',
    "translate": 'translate en-de "Where is the station?"',
    "continue a story": 'write writer "Once upon a time"',
    "list the bundled models": "models",
    "serve models to a browser and programs": "serve en-de {run}",
    "train on your own pairs of texts": "train text-to-text --run runs/mine --data.train FILE",
    "everything else": "--help",
}


def tour(console: Console, run: Path, quick: bool = False) -> int:
    """All of it: returns 0, or the number of the signal that interrupted the training."""
    began = time.monotonic()
    torch.set_num_threads(min(torch.get_num_threads(), _THREADS))
    _check_folders(run)
    guide = _Guide(console, run)
    guide.say("Limelight: the Transformer, whole and in the open.", "bold")
    guide.say(
        f"This is a tour of {'about a minute' if quick else 'a few minutes'}. It ends by itself. "
        "Ctrl-C stops it at any time, and the same command resumes it. Its files go into the "
        f"folder {run}."
    )
    guide.translate()
    guide.write(tokens=40 if quick else 100)
    if signal := guide.train(STEPS_IF_QUICK if quick else STEPS):
        return signal
    chatbot = load(run)
    guide.ask(chatbot)
    explanation = guide.explain(chatbot)
    page = run / "explain.html"
    atomic_write(page, as_html(explanation, name=run.name).encode())
    guide.suggest(page, clock(time.monotonic() - began))
    return 0


def _check_folders(run: Path) -> None:
    """Find out now, and not after minutes, whether the tour can write its files."""
    with path_from_option("--run"):
        make_folder(run)
    with path_from_option("LIMELIGHT_CACHE"):
        make_folder(cache_folder())
    check_disk_space(run, DISK_SPACE)
    folder = RunFolder(run)
    if folder.exists and folder.check() != RECIPE:
        raise UserError(
            f"{run} holds another run, of the recipe {folder.check()!r}: choose another folder for "
            "the tour with --run"
        )


@dataclass
class _Guide:
    console: Console
    run: Path
    part: int = 0

    def heading(self, title: str) -> None:
        self.part += 1
        self.console.print()
        text = Text(f"{self.part}  {title}", "bold")
        self.console.rule(text, align="left", characters="═", style="magenta")

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style), width=min(self.console.width, terminal.WIDEST))

    def bundled(self, name: str) -> LoadedModel | None:
        """A bundled model; if it is missing, say so and let the tour go on."""
        try:
            return load(name)
        except UserError as error:
            self.say(f"(The model {name} is not available here: {error})", "yellow")
            return None

    def translate(self) -> None:
        self.heading("It translates")
        if (translator := self.bundled("en-de")) is None:
            return
        done = translator.translate(SENTENCE)
        size = sum(p.numel() for p in translator.model.parameters()) / 1e6
        self.say(f"The model en-de ({size:.1f} million parameters) reads English ...\n")
        self.console.print(Text(f"  {SENTENCE}", "bold cyan"))
        self.say("\n... and writes German:\n")
        self.console.print(Text(f"  {done.text}\n", "bold green"))
        heatmap = _alignment(translator.explain(SENTENCE, done.text))
        self.console.print(terminal.heat_map(heatmap, min(self.console.width, terminal.WIDEST)))
        self.say(
            "\nGerman has another word order. Nobody gave the model pairs of words: from pairs of "
            "sentences it has learned which words belong together."
        )

    def write(self, tokens: int) -> None:
        self.heading("It writes")
        if (writer := self.bundled("writer")) is None:
            return
        self.say(
            "The model writer was trained on stories. It continues one, token by token, each "
            "sampled from its probabilities:\n"
        )
        self.console.print(Text(f"  {BEGINNING}", "bold cyan"), end="")
        flow(self.console, writer.stream(BEGINNING, max_tokens=tokens), 2 + cell_len(BEGINNING))

    def train(self, steps: int) -> int:
        """Train or resume the chatbot unless it has enough steps; returns what `train` does."""
        self.heading("It learns")
        finished, _ = latest_valid(RunFolder(self.run).finished)
        if finished is not None and step_of(finished) >= steps:
            self.say(
                f"{self.run} holds a chatbot from an earlier tour, trained for {step_of(finished)} "
                "steps. Remove that folder to see it train again."
            )
            return 0
        self.say(
            "Now a model that knows nothing yet. A new Transformer learns to chat from a thousand "
            "bundled exchanges. At intervals it answers greetings that it has never seen: watch "
            "its loss fall and, more slowly, its answers get better.\n"
        )
        return train(RECIPE, self.run, [f"train.steps={steps}"])

    def ask(self, chatbot: LoadedModel) -> None:
        self.heading("It answers")
        self.say("Each question is asked once, and the answers are not picked:\n")
        talk = Table.grid(padding=(0, 2))
        for question in (QUESTION, *MORE_QUESTIONS):
            talk.add_row("  you", Text(question, "bold cyan"))
            talk.add_row("  it", Text(chatbot.chat().reply(question), "bold green"))
        self.console.print(talk)

    def explain(self, chatbot: LoadedModel) -> Explanation:
        self.heading("It explains itself")
        explanation = chatbot.explain(QUESTION)
        self.say(
            f"How did it come to {chatbot.chat().reply(QUESTION)!r}? These are three stages of the "
            "forward pass, with the numbers that were computed for this answer.\n"
        )
        terminal.introduce(self.console, explanation)
        focus = first_focus(explanation, None, None, None)
        for name, question in STAGES.items():
            self.console.print()
            self.say(question, "italic")
            terminal.show_stage(self.console, explanation, stage_at(explanation, name, focus))
        return explanation

    def suggest(self, page: Path, duration: str) -> None:
        self.heading("What next")
        self.say(
            f"That was the tour, which took {duration} (min:s). All stages of the explanation are "
            "in an interactive page that needs no network. Open it in a browser:\n"
        )
        self.console.print(Text(f"  {page}", "bold"), soft_wrap=True)
        self.say("\nSome things to try:\n")
        for what, command in _SUGGESTIONS.items():
            line = f"    {_how_to_call()} {command.format(run=self.run)}"
            self.console.print(Text(f"  {what}"))
            self.console.print(Text(line, "bold"), soft_wrap=True)  # in one line, to be copied


def _alignment(explanation: Explanation) -> Heatmap:
    """Cross-attention of the layer with the sharpest weights, without the end tokens."""
    numbers = range(1, explanation.config.layers + 1)
    layers = {n: explanation.mean_attention("cross", n)[:-1, :-1] for n in numbers}
    best = max(layers, key=lambda n: layers[n].max(dim=-1).values.mean().item())
    return Heatmap(
        f"How much each word attends to each, layer {best}, mean of all heads",
        names=(f"decoder.{best - 1}.cross.weights",),
        values=layers[best],
        rows=explanation.answers.labels[:-1],
        columns=explanation.source.labels[:-1],
        axes=("writes", "reads"),
        scale="share",
    )


def flow(console: Console, pieces: Iterable[str], column: int) -> None:
    """Print a text while it is generated, with line breaks between words."""
    width, pending = min(console.width, terminal.WIDEST), ""
    for piece in chain(pieces, ["\n"]):
        *words, pending = re.split(r"(?<=\S)(?=\s)", pending + piece)
        for word in words:
            blank, text = re.fullmatch(r"(\s*)(.*)", word, re.DOTALL).groups()  # type: ignore[union-attr]
            if "\n" in blank or column + len(blank) + cell_len(text) > width:
                console.out("\n  ", end="")
                blank, column = "", 2
            console.out(f"{blank}{text}", style="green", highlight=False, end="")
            column += len(blank) + cell_len(text)
    console.print()


def _how_to_call() -> str:
    """The command as it can be typed here: it may not be on the path."""
    if shutil.which("limelight"):
        return "limelight"
    beside = Path(sys.executable).with_name("limelight")
    if not beside.is_file():
        return "python -m limelight"
    return str(beside).removeprefix(f"{Path.cwd()}{os.sep}")
