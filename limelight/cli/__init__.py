"""The command line: a table from names to functions. Options come from the functions' types.

Everything heavy is imported inside the command that needs it, so that `--help` answers at once.
"""

import io
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from textwrap import fill as fill_line
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TextIO

import tyro

from limelight import __version__
from limelight.cli.parser import (
    Changes,
    Folder,
    Name,
    NumberOrRecipes,
    Phrases,
    Recipe,
    Run,
    Switch,
    Text,
    Texts,
    Whole,
    WholeOrRecipes,
    before_and_from_dashes,
    by_place,
    read_arguments,
    shown,
)
from limelight.errors import (
    FailedError,
    OlderWeightsWarning,
    RenamedWarning,
    UserError,
    describe_os_error,
    unknown_name,
)

if TYPE_CHECKING:
    from rich.console import Console


def info(
    recipe: Annotated[str, tyro.conf.Positional, by_place("RECIPE|RUN")],
    devices: Whole = 1,
    batch_tokens: Whole = 0,
    json: Switch = False,
    set: Changes = (),
) -> None:
    """Sizes of a model: parameters by part, multiply-adds per token, memory. Nothing is allocated.

    Args:
        recipe: the name of a recipe or of a bundled model, a TOML file, or a run folder.
        devices: share the training state out over so many devices (full sharding).
        batch_tokens: tokens in each device's batch; 0 for one text of full length.
        json: print one JSON document.
        set: changes to a recipe, as model.layers=3; --model.layers 3 says the same.
    """
    from limelight.errors import unknown_name
    from limelight.recipe import load_recipe, recipe_from_run, recipe_names
    from limelight.run.bundled_models import find_run, is_run, model_names
    from limelight.run.log import summary

    # A misspelt name is refused before torch is imported.
    trained = {}
    if is_run(recipe):
        run = find_run(recipe)
        if set:  # it would be told next to a training that it had no part in
            file = run.path / "recipe.toml"
            raise UserError(f"{set[0]!r} cannot be changed any more in a run: try it with {file}")
        loaded, trained = recipe_from_run(run), {"trained": summary(run.log)}
    elif recipe.endswith(".toml") or Path(recipe).is_file() or recipe in recipe_names():
        loaded = load_recipe(recipe, set)
    else:
        raise unknown_name("recipe or model", recipe, [*recipe_names(), *model_names()])

    from limelight.workflows.info import describe, show

    tell({**describe(loaded, batch_tokens, devices), **trained}, show, json)


def data(
    action: Annotated[Literal["check"], tyro.conf.Positional, by_place("check")],
    recipe: Recipe,
    json: Switch = False,
    set: Changes = (),
) -> None:
    """Look at a recipe's data: counts, lengths, bad lines by reason, duplicates, leaks, alignment.

    Leaves with 1 when there is nothing that can be used in one of its parts.

    Args:
        action: what to do with it.
        recipe: the name of a recipe (see `limelight recipes`), or a TOML file.
        json: print one JSON document.
        set: changes to the recipe, as data.train=FILE; --data.train FILE ... says the same.
    """
    from limelight.recipe import load_recipe

    loaded = load_recipe(recipe, set)

    from limelight.data.check import check, show
    from limelight.data.registry import resolve

    tokens = loaded.train.batch_tokens
    batch_tokens = tokens if isinstance(tokens, int) else 4096
    data = resolve(loaded.data)
    report = check(data, loaded.tokenizer, batch_tokens, loaded.model.max_len)
    tell(report, show, json)
    if not all(facts["tally"]["used"] for facts in report["splits"].values()):
        sys.stdout.flush()
        sys.exit(1)


def train(
    recipe: Recipe,
    run: Folder,
    from_: Annotated[str, tyro.conf.arg(name="from", metavar="RUN", help_behavior_hint="")] = "",
    verify_resume: Switch = False,
    set: Changes = (),
) -> None:
    """Train what a recipe describes. Say the same again to go on after an interruption.

    Leaves with 0 when it is done, with 130 (Ctrl-C) or 143 (SIGTERM) when it was asked to leave and
    has saved everything, with 1 when it cannot go on.

    Args:
        recipe: the name of a recipe (see `limelight recipes`), or a TOML file.
        run: the folder for all that comes of it.
        from_: begin with the weights and the tokenizer of this run, or of a bundled model.
        verify_resume: prove with a few steps that a resumed run equals an uninterrupted one.
        set: changes to the recipe, as train.steps=500; --train.steps 500 says the same.
    """
    from limelight.recipe import load_recipe

    check_folder(run)
    loaded = load_recipe(recipe, set)

    from limelight.workflows.train import train
    from limelight.workflows.verify_resume import verify_resume as prove

    if verify_resume:
        number = prove(loaded, run, from_ or None)
    else:
        number = train(loaded, run, start_from=from_ or None)
    if number:
        left = "nothing is proved yet; begin again" if verify_resume else "saved; go on"
        print(f"limelight: {left} with the same command ({run})", file=sys.stderr)
        sys.exit(128 + number)


def evaluate(
    run: Run,
    other: Annotated[str, tyro.conf.Positional, by_place("[RUN2]")] = "",
    split: Literal["train", "valid", "test"] = "test",
    json: Switch = False,
    set: Changes = (),
) -> None:
    """How good a trained model is on texts it has not seen, or whether it beats another one.

    Loss, perplexity and accuracy; BLEU, chrF and TER of translations, bits per byte of texts, F1 of
    classes. Of two runs, whether chance explains the difference (paired bootstrap).

    --data.test FILE ... takes texts of your own, whatever the run learned from.

    Args:
        run: a run folder, or the name of a bundled model (see `limelight models`).
        other: another one, to be compared with it.
        split: which texts.
        json: print one JSON document.
        set: changes to the recipe, as data.test=FILE; --data.test FILE ... says the same.
    """
    from limelight.workflows.evaluate import compare_runs, score_run, show

    told = compare_runs((run, other), split, set) if other else score_run(run, split, set)
    tell(told, show, json)


def translate(
    run: Run,
    text: Texts = (),
    beam: WholeOrRecipes = None,
    nbest: Whole = 1,
    alternatives: Switch = False,
    temperature: NumberOrRecipes = None,
    seed: WholeOrRecipes = None,
    prefix: Annotated[str, shown("TEXT")] = "",
    include: Phrases = (),
    exclude: Phrases = (),
    tag: Name = "",
    ensemble: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, shown("RUN")] = (),
    json: Switch = False,
    set: Changes = (),
) -> None:
    """Translate texts: the arguments, or the lines of standard input, in order.

    What is to be included or excluded may be a word, a part of one or several; capitals count.

    What is not said here is as the recipe's [decode] says. Leaves with 1 if some lines could not be
    read.

    Args:
        run: a run folder, or the name of a bundled model (see `limelight models`).
        text: what to translate; without any, the lines of standard input.
        beam: how many translations are tried at once; 1 takes the likeliest token at every step.
        nbest: so many translations of each text, with their scores; widens the beam to as many.
        alternatives: show what else could have come at every place.
        temperature: above 0 draws every token, the freer the higher, without a beam; 0 draws none.
        seed: of what is drawn; the same seed gives the same text.
        prefix: how the translation begins.
        include: what it must have; may be repeated, and needs a beam, so no temperature.
        exclude: what it must not have; may be repeated.
        tag: what is asked of a model that learned several things, such as a direction.
        ensemble: a run that translates together with the first; may be repeated.
        json: print one JSON document per line.
        set: changes to the recipe's [decode]; --decode.length-penalty 1.0 says the same.
    """
    changes = decoding(set, beam=beam, temperature=temperature, seed=seed)
    from limelight.cli.generate import translate_lines
    from limelight.tasks.translate import Constraints

    wishes = Constraints(tag, prefix, include, exclude)
    translate_lines(run, text, changes, ensemble, nbest, alternatives, json, wishes)


def chat(
    run: Run,
    text: Texts = (),
    beam: WholeOrRecipes = None,
    temperature: NumberOrRecipes = None,
    seed: WholeOrRecipes = None,
    tag: Name = "",
    json: Switch = False,
    set: Changes = (),
) -> None:
    """Talk with a model: at the terminal, or with arguments or lines as one side of it.

    At the terminal, /reset forgets what was said, /quit leaves, and Ctrl-C stops an answer. What is
    not said here is as the recipe's [decode] says.

    Args:
        run: a run folder, or the name of a bundled model (see `limelight models`).
        text: what is said, turn by turn.
        beam: how many answers are tried at once; 1 takes the likeliest token at every step.
        temperature: above 0 draws every token, without a beam, and shows it at once; 0 draws none.
        seed: of what is drawn; the same seed gives the same text.
        tag: what is asked of a model that learned several things.
        json: print one JSON document per turn.
        set: changes to the recipe's [decode]; --decode.top-p 0.9 says the same.
    """
    changes = decoding(set, beam=beam, temperature=temperature, seed=seed)
    from limelight.cli.generate import chat_on

    chat_on(run, text, changes, tag, json)


def write(
    run: Run,
    prompt: Annotated[tuple[str, ...], tyro.conf.Positional, by_place("[PROMPT ...]")] = (),
    max_tokens: Annotated[int | None, shown("N", "the recipe's, or 200")] = None,
    temperature: NumberOrRecipes = None,
    top_k: WholeOrRecipes = None,
    top_p: NumberOrRecipes = None,
    seed: WholeOrRecipes = None,
    stop: Phrases = (),
    json: Switch = False,
    set: Changes = (),
) -> None:
    """Go on with a text, as a model that read many texts would.

    What is not said here is as the recipe's [decode] says.

    Args:
        run: a run folder, or the name of a bundled model (see `limelight models`).
        prompt: texts to go on with; without any, the lines of standard input, or a terminal.
        max_tokens: write so many tokens at most; 0 means 200.
        temperature: above 0 draws every token, the freer the higher; 0 takes the likeliest.
        top_k: draw among so many tokens; 0 means all.
        top_p: draw among the likeliest tokens, which have this chance together; 1 means all.
        seed: of what is drawn; the same seed gives the same text.
        stop: a text at which to stop; may be repeated.
        json: print one JSON document per prompt.
        set: changes to the recipe's [decode]; --decode.min-p 0.05 says the same.
    """
    changes = decoding(
        set, max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
    )
    from limelight.cli.generate import write_on

    write_on(run, prompt, changes, stop, json)


def fill(
    run: Run,
    text: Text,
    count: Whole = 5,
    json: Switch = False,
) -> None:
    """Fill in the blanks of a text, written ___, with what could stand there.

    Args:
        run: a run folder, or the name of a bundled model (see `limelight models`).
        text: a text with one or more blanks, as "The ___ barks".
        count: so many candidates for each blank.
        json: print one JSON document.
    """
    from limelight.cli.generate import fill_text

    fill_text(run, text, count, json)


def classify(run: Run, text: Texts = (), json: Switch = False) -> None:
    """Which class each text belongs to, and how probably.

    Args:
        run: a run folder, or the name of a bundled model (see `limelight models`).
        text: what to classify; without any, the lines of standard input.
        json: print the probabilities of all classes, one JSON document per line.
    """
    from limelight.cli.generate import classify_lines

    classify_lines(run, text, json)


def embed(run: Run, text: Texts = ()) -> None:
    """A vector for each text, one JSON list per line: texts that are alike have like vectors.

    Args:
        run: a run folder, or the name of a bundled model (see `limelight models`).
        text: what to embed; without any, the lines of standard input.
    """
    from limelight.cli.generate import embed_lines

    embed_lines(run, text)


def score(run: Run, text: Texts = (), tag: Name = "", json: Switch = False) -> None:
    """The log-probability of each text; of a source, a tab and a target, that of the target.

    Args:
        run: a run folder, or the name of a bundled model (see `limelight models`).
        text: what to score; without any, the lines of standard input.
        tag: what is asked of a model that learned several things, such as a direction.
        json: print every token's, one JSON document per line.
    """
    from limelight.cli.generate import score_lines

    score_lines(run, text, tag, json)


def serve(
    runs: Annotated[tuple[str, ...], tyro.conf.Positional, by_place("RUN [RUN ...]")],
    host: Annotated[str, tyro.conf.arg(metavar="ADDRESS")] = "127.0.0.1",
    port: Whole = 8000,
    hosts: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, shown("NAME")] = (),
    origins: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, shown("URL")] = (),
    set: Changes = (),
) -> None:
    """The page for your browser, and answers for programs, as OpenAI's interface gives them.

    What programs can ask for is told at /docs when it runs.

    Only this machine can reach it, unless --host says otherwise; then LIMELIGHT_API_KEY must be set
    in the environment. It ends in good order with Ctrl-C or SIGTERM, and logs to standard error.

    Args:
        runs: run folders, each a model called as its folder; or names of bundled models.
        host: the address to listen on.
        port: the port; 0 for any that is free.
        hosts: a further name that the service is reached by, as a proxy's; may be repeated.
        origins: web pages elsewhere that may ask, as https://example.com; may be repeated.
        set: changes to the limits, as limits.queue=50; --limits.queue 50 says the same.
    """
    from limelight.serve.limits import limits_with
    from limelight.serve.server import serve

    serve(runs, host, port, limits_with(set), hosts, origins)


def explain(
    run: Run,
    text: Text,
    target: Annotated[str | None, shown("TEXT")] = None,
    stop: Name = "",
    layer: Annotated[int | None, shown("N")] = None,
    head: Annotated[int | None, shown("N")] = None,
    word: Annotated[str | None, shown("WORD")] = None,
    follow: Switch = False,
    figure: Annotated[str, shown("FILE")] = "",
    html: Annotated[str, shown("FILE")] = "",
    tag: Name = "",
    json: Switch = False,
    set: Changes = (),
) -> None:
    """Walk through a trained model with a text of your own; every number is the model's.

    At a terminal it goes stop by stop; into a pipe or a file it prints all of them.

    Args:
        run: a run folder, or the name of a bundled model (see `limelight models`).
        text: what the model reads; for one that fills in blanks, write ___ for a missing word.
        target: take this for what follows, instead of what the model would write.
        stop: only this one, such as scores, softmax, cross, loop, teacher or beam.
        layer: look at this layer, counted from 1.
        head: look at this head, counted from 1.
        word: look at this word.
        follow: each word that is written, with its candidates and what it looked at.
        figure: draw the attention into this file, .svg, .png or .pdf.
        html: write the walk into this file, a page for a browser that needs nothing else.
        tag: what is asked of a model that learned several things, such as a direction.
        json: print the manifest: tokens, steps, every value's shape and range, checks.
        set: changes to the recipe's [decode]; --decode.beam 1 says the same.
    """
    one_way_to_look({"--follow": follow, "--stop": stop, "--json": json, "--html": html})
    one_way_to_look({"--follow": follow, "--stop": stop, "--json": json, "--figure": figure})
    place = {"layer": layer, "head": head, "word": word}
    asked_place = [f"--{name}" for name, value in place.items() if value is not None]
    if json and asked_place:
        raise UserError(f"--json tells of all layers, heads and words: leave {asked_place[0]} out")
    if figure and not html and word is not None:
        raise UserError("--figure draws all words: leave --word out")

    from limelight.cli.generate import explain_text

    asked = "follow" if follow else stop
    files = {"figure": figure, "html": html}
    explain_text(terminal(), run, text, list(set), target, asked, place, files, json, tag)


def one_way_to_look(ways: dict[str, object]) -> None:
    """Nothing that was asked for is dropped without a word."""
    given = [option for option, value in ways.items() if value]
    if len(given) > 1:
        raise UserError(f"{given[0]} and {given[1]} are two ways to look: choose one")


def models(json: Switch = False) -> None:
    """The models that come with Limelight; wherever a command asks for a RUN, their names will do.

    A run folder of your own with such a name comes first.

    Args:
        json: print one JSON document, with all scores and how they were measured.
    """
    from limelight.run.bundled_models import facts_of, model_names, show

    tell({"models": [facts_of(name) for name in model_names()]}, show, json)


def recipes(json: Switch = False) -> None:
    """The recipes that come with Limelight; `train` and `info` take their names.

    Args:
        json: print one JSON document.
    """
    from limelight.recipe import load_recipe, recipe_names

    shipped = [load_recipe(name) for name in recipe_names()]
    facts = [{"name": r.name, "about": r.about, "family": r.model.family} for r in shipped]
    tell({"recipes": facts}, show_recipes, json)


def show_recipes(facts: dict[str, Any], console: "Console") -> None:
    """Each with a line, and how to learn more."""
    in_columns({recipe["name"]: recipe["about"] for recipe in facts["recipes"]}, console)
    console.print(
        "\nlimelight info NAME tells what one weighs, "
        "and limelight train NAME --run FOLDER trains it."
    )


def decoding(changes: tuple[str, ...], **options: float | None) -> list[str]:
    """Options that were given, as changes to the recipe's [decode]."""
    given = {name: value for name, value in options.items() if value is not None}
    return [*changes, *(f"decode.{name}={value}" for name, value in given.items())]


def demo(
    quick: Switch = False,
    run: Folder = "runs/demo",
) -> None:
    """A tour of a few minutes: it translates, writes, learns to chat, and explains itself.

    Say the same again to go on after an interruption.

    Args:
        quick: a tour of about a minute.
        run: the folder for what it makes.
    """
    check_folder(run)

    from limelight.workflows.demo import tour

    if number := tour(terminal(), Path(run), quick):
        leave("saved; go on with the same command", 128 + number)


def check_folder(run: str) -> None:
    """An empty name, as of a variable that is not set, would be the folder that one is in."""
    if not run:
        raise UserError("--run is empty: name a folder, or . for this one")


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional],
) -> None:
    """Print a script with which your shell completes commands and options when you press Tab.

    For bash:

    limelight completion bash > ~/.local/share/bash-completion/completions/limelight

    For zsh, where FOLDER is one of your $fpath:

    limelight completion zsh > FOLDER/_limelight

    For fish:

    limelight completion fish > ~/.config/fish/completions/limelight.fish

    Args:
        shell: bash, zsh or fish.
    """
    ask_tyro(["--tyro-write-completion", shell, "-"])


def tell(
    facts: dict[str, Any], show: Callable[[dict[str, Any], "Console"], None], as_json: bool
) -> None:
    """What a command found out: one JSON document for programs, or drawn for people."""
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        show(facts, terminal())


def terminal() -> "Console":
    """Standard output as rich draws on it."""
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1; `main` knows that nothing is wrong

    return Terminal(highlight=False)


COMMANDS: dict[str, Callable[..., None]] = {
    "chat": chat,
    "classify": classify,
    "completion": completion,
    "data": data,
    "demo": demo,
    "embed": embed,
    "evaluate": evaluate,
    "explain": explain,
    "fill": fill,
    "info": info,
    "models": models,
    "recipes": recipes,
    "score": score,
    "serve": serve,
    "train": train,
    "translate": translate,
    "write": write,
}


def run_command(arguments: list[str]) -> None:
    """The command that the arguments name."""
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        show_commands(terminal())
        return
    if name == "--version":
        print(f"limelight {__version__}")
        return
    if name.startswith("-"):
        raise UserError(f"limelight has no option {name}: see limelight --help")
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS)
    if {"-h", "--help"} & set(before_and_from_dashes(arguments)[0]):
        show_help(name)
    else:
        COMMANDS[name](**read_arguments(name, COMMANDS[name], arguments[1:]))


def show_help(name: str) -> None:
    """The help of a command. tyro folds its lines, but not what the command says of itself."""
    with suppress(SystemExit), redirect_stdout(Drawn(sys.stdout)) as drawn:
        ask_tyro([name, "--help"])
    width = shutil.get_terminal_size().columns
    for line in drawn.getvalue().splitlines():
        drawn_by_tyro = any(sign in line for sign in "│─\x1b")
        print(line if drawn_by_tyro else fill_line(line, width, break_on_hyphens=False))


class Drawn(io.StringIO):
    """What goes to a stream, kept; with the colours and lines that would be seen there."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream

    def isatty(self) -> bool:
        """Whether a person looks on."""
        return self.stream.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Which characters there are."""
        return self.stream.encoding


def ask_tyro(arguments: list[str]) -> None:
    """Have tyro draw the help of a command, or write a script that completes all of them."""
    short = (tyro.conf.FlagCreatePairsOff,)  # --no-json is understood, but helps nobody
    tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="limelight", args=arguments, config=short)


def show_commands(console: "Console") -> None:
    """All commands, each with the first line of what it says of itself."""
    console.print(
        "usage: limelight COMMAND ...\n\n"
        "The Transformer of 'Attention Is All You Need', whole and in the open.\n"
    )
    first_lines = {name: (call.__doc__ or "").splitlines()[0] for name, call in COMMANDS.items()}
    in_columns(first_lines, console)
    console.print(
        "\nNew here? limelight demo is a tour of a few minutes. limelight COMMAND --help tells all "
        "about a command, and limelight completion teaches your shell to complete them."
    )


def in_columns(lines: dict[str, str], console: "Console") -> None:
    """Names, and what each is."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, line in lines.items():
        table.add_row(Text(f"  {name}", "bold"), Text(line))
    console.print(table)


def open_what_is_closed() -> None:
    """A program that starts us may have closed our standard streams; then nothing is there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def tell_warnings_plainly() -> None:
    """Our own warnings are sentences like all others; those of libraries stay Python's."""
    usual = warnings.formatwarning

    def plainly(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if issubclass(category, OlderWeightsWarning | RenamedWarning):
            return f"limelight: {message}\n"
        return usual(message, category, filename, lineno, line)

    warnings.formatwarning = plainly


def main() -> None:
    """Run the command; what goes wrong is told in a sentence, and in the exit code.

    2: something impossible was asked for. 1: it was possible, but the work failed.
    """
    open_what_is_closed()
    tell_warnings_plainly()
    try:
        run_command(sys.argv[1:])
        sys.stdout.flush()
    except UserError as error:
        leave(str(error), 2)
    except FailedError as error:
        leave(str(error), 1)
    except KeyboardInterrupt:
        leave("interrupted", 130)
    except BrokenPipeError:
        write_no_more()  # the reader (`head`, a pager) has seen enough
    except OSError as error:
        leave(describe_os_error(error), 1)
    except (RuntimeError, MemoryError) as error:
        if not ran_out_of_memory(error):
            raise
        leave(NO_MEMORY, 1)


NO_MEMORY = (
    "there is not enough memory for this: close other programs that use it, give a shorter text or "
    "fewer at a time, or a smaller model. Where it was the GPU's, CUDA_VISIBLE_DEVICES= before the "
    "command keeps to the CPU"
)


def leave(sentence: str, code: int) -> NoReturn:
    """The last words, for a person, and the exit code, for a program."""
    try:
        sys.stdout.flush()  # what was said before comes first
    except OSError:
        write_no_more()
    print(f"limelight: {sentence}", file=sys.stderr)
    sys.exit(code)


def write_no_more() -> None:
    """Nobody takes what is written; Python must not try once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether that is what happened. If torch says so, it is there already."""
    if isinstance(error, MemoryError):
        return True
    from limelight.device import is_out_of_memory

    return is_out_of_memory(error)
