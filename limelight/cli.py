"""The command line: a table from names to functions. Options come from the functions' types.

Everything heavy is imported inside the command that needs it, so that `--help` answers at once.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import tyro

from limelight import __version__
from limelight.errors import FailedError, UserError, explain_refusal, unknown

if TYPE_CHECKING:
    from rich.console import Console


Recipe = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
Run = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


def info(
    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE|RUN")],
    devices: int = 1,
    batch_tokens: int = 0,
    json: bool = False,
    set: tuple[str, ...] = (),
) -> None:
    """Sizes of a model: parameters by part, multiply-adds per token, memory. Nothing is allocated.

    Args:
        recipe: the name of a recipe or of a bundled model, a TOML file, or a run folder.
        devices: share the training state out over so many devices (full sharding).
        batch_tokens: tokens in each device's batch; 0 for one text of full length.
        json: print one JSON document.
        set: changes to the recipe, as model.layers=3; --model.layers 3 says the same.
    """
    from limelight.errors import unknown
    from limelight.recipe import load_recipe, recipe_names, recipe_of
    from limelight.run.bundled import find_run, is_run, model_names
    from limelight.run.log import summary

    # A misspelt name is refused before torch is imported.
    trained = {}
    if is_run(recipe):
        run = find_run(recipe)
        loaded, trained = recipe_of(run, set), {"trained": summary(run.log)}
    elif recipe.endswith(".toml") or Path(recipe).is_file() or recipe in recipe_names():
        loaded = load_recipe(recipe, set)
    else:
        raise unknown("recipe or model", recipe, [*recipe_names(), *model_names()])

    from limelight.info import describe, show

    tell({**describe(loaded, batch_tokens, devices), **trained}, show, json)


def data(
    action: Annotated[Literal["check"], tyro.conf.Positional],
    recipe: Recipe,
    json: bool = False,
    set: tuple[str, ...] = (),
) -> None:
    """Look at a recipe's data: counts, lengths, bad lines by reason, duplicates, leaks, alignment.

    Args:
        action: check.
        recipe: the name of a recipe, or a TOML file.
        json: print one JSON document.
        set: changes to the recipe, as data.train=FILE; --data.train FILE ... says the same.
    """
    from limelight.recipe import load_recipe

    loaded = load_recipe(recipe, set)

    from limelight.text.doctor import check, show
    from limelight.text.named import resolve

    tokens = loaded.train.batch_tokens
    batch_tokens = tokens if isinstance(tokens, int) else 4096
    data = resolve(loaded.data)
    tell(check(data, loaded.tokenizer, batch_tokens, loaded.model.max_len), show, json)


def train(
    recipe: Recipe,
    run: str,
    from_: Annotated[str, tyro.conf.arg(name="from", metavar="RUN")] = "",
    verify_resume: bool = False,
    set: tuple[str, ...] = (),
) -> None:
    """Train what a recipe describes. Say the same again to go on after an interruption.

    Leaves with 0 when it is done, with 130 (Ctrl-C) or 143 (SIGTERM) when it was asked to leave and
    has saved everything, with 1 when it cannot go on.

    Args:
        recipe: the name of a recipe, or a TOML file.
        run: the folder for all that comes of it.
        from_: begin with the weights and the tokenizer of this run, or of a bundled model.
        verify_resume: prove with a few steps that a resumed run equals an uninterrupted one.
        set: changes to the recipe, as train.steps=500; --train.steps 500 says the same.
    """
    from limelight.recipe import load_recipe

    check_folder(run)
    loaded = load_recipe(recipe, set)

    from limelight import experiment, proof

    if verify_resume:
        number = proof.verify_resume(loaded, run, from_ or None)
    else:
        number = experiment.train(loaded, run, start_from=from_ or None)
    if number:
        left = "nothing is proved yet; begin again" if verify_resume else "saved; go on"
        print(f"limelight: {left} with the same command ({run})", file=sys.stderr)
        sys.exit(128 + number)


def evaluate(
    run: Run,
    other: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN2]")] = "",
    split: Literal["train", "valid", "test"] = "test",
    json: bool = False,
    set: tuple[str, ...] = (),
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
    from limelight.evaluation import compare_runs, score_run, show

    told = compare_runs((run, other), split, set) if other else score_run(run, split, set)
    tell(told, show, json)


Texts = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT ...]")]


def translate(
    run: Run,
    text: Texts = (),
    beam: int | None = None,
    nbest: int = 1,
    alternatives: bool = False,
    temperature: float | None = None,
    seed: int | None = None,
    prefix: str = "",
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    tag: str = "",
    ensemble: tuple[str, ...] = (),
    json: bool = False,
    set: tuple[str, ...] = (),
) -> None:
    """Translate texts: from the arguments, or line by line from standard input, in order.

    Leaves with 1 if some lines could not be read.

    Args:
        run: a run folder, or the name of a bundled model (see `limelight models`).
        text: what to translate; without any, the lines of standard input.
        beam: how many translations are tried at once; 1 takes the likeliest token at every step.
        nbest: so many translations of each text, with their scores.
        alternatives: show what else could have come at every place.
        temperature: above 0 draws every token, the freer the higher.
        seed: of what is drawn.
        prefix: how the translation begins.
        include: words that it must have.
        exclude: words that it must not have.
        tag: what is asked of a model that learned several things, such as a direction.
        ensemble: run folders that translate together with the first.
        json: print one JSON document per line.
        set: changes to the recipe's [decode]; --decode.length-penalty 1.0 says the same.
    """
    changes = decoding(set, beam=beam, temperature=temperature, seed=seed)
    from limelight.commands import translate_lines
    from limelight.tasks.translate import Wishes

    wishes = Wishes(tag, prefix, include, exclude)
    translate_lines(run, text, changes, ensemble, nbest, alternatives, json, wishes)


def chat(
    run: Run,
    text: Texts = (),
    beam: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    tag: str = "",
    json: bool = False,
    set: tuple[str, ...] = (),
) -> None:
    """Talk with a model: at the terminal, or with arguments or lines as one side of it.

    At the terminal, /reset forgets what was said, /quit leaves, and Ctrl-C stops an answer.

    Args:
        run: a run folder, or the name of a bundled model (see `limelight models`).
        text: what is said, turn by turn.
        beam: how many answers are tried at once.
        temperature: above 0 draws every token, and shows it as it comes.
        seed: of what is drawn.
        tag: what is asked of a model that learned several things.
        json: print one JSON document per turn.
        set: changes to the recipe's [decode]; --decode.top-p 0.9 says the same.
    """
    changes = decoding(set, beam=beam, temperature=temperature, seed=seed)
    from limelight.commands import chat_on

    chat_on(run, text, changes, tag, json)


def write(
    run: Run,
    prompt: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[PROMPT ...]")
    ] = (),
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: tuple[str, ...] = (),
    json: bool = False,
    set: tuple[str, ...] = (),
) -> None:
    """Go on with a text, as a model that read many texts would.

    Args:
        run: a run folder, or the name of a bundled model (see `limelight models`).
        prompt: texts to go on with; without any, the lines of standard input, or a terminal.
        max_tokens: write so many tokens at most.
        temperature: above 0 draws every token, the freer the higher; 0 takes the likeliest.
        top_k: draw among so many tokens.
        top_p: draw among the likeliest tokens, which have this chance together.
        seed: of what is drawn.
        stop: texts at which to stop.
        json: print one JSON document per prompt.
        set: changes to the recipe's [decode]; --decode.min-p 0.05 says the same.
    """
    changes = decoding(
        set, max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
    )
    from limelight.commands import write_on

    write_on(run, prompt, changes, stop, json)


def fill(
    run: Run,
    text: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")],
    count: int = 5,
    json: bool = False,
) -> None:
    """Fill in the blanks of a text, written ___, with what could stand there.

    Args:
        run: a run folder, or the name of a bundled model (see `limelight models`).
        text: a text with one or more blanks, as "The ___ barks".
        count: so many candidates for each blank.
        json: print one JSON document.
    """
    from limelight.commands import fill_text

    fill_text(run, text, count, json)


def classify(run: Run, text: Texts = (), json: bool = False) -> None:
    """Which class each text belongs to, and how probably.

    Args:
        run: a run folder, or the name of a bundled model (see `limelight models`).
        text: what to classify; without any, the lines of standard input.
        json: print the probabilities of all classes, one JSON document per line.
    """
    from limelight.commands import classify_lines

    classify_lines(run, text, json)


def embed(run: Run, text: Texts = ()) -> None:
    """A vector for each text, one JSON list per line: texts that are alike have like vectors.

    Args:
        run: a run folder, or the name of a bundled model (see `limelight models`).
        text: what to embed; without any, the lines of standard input.
    """
    from limelight.commands import embed_lines

    embed_lines(run, text)


def score(run: Run, text: Texts = (), tag: str = "", json: bool = False) -> None:
    """The log-probability of each text; of a source, a tab and a target, that of the target.

    Args:
        run: a run folder, or the name of a bundled model (see `limelight models`).
        text: what to score; without any, the lines of standard input.
        tag: what is asked of a model that learned several things, such as a direction.
        json: print every token's, one JSON document per line.
    """
    from limelight.commands import score_lines

    score_lines(run, text, tag, json)


def serve(
    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")],
    host: str = "127.0.0.1",
    port: int = 8000,
    hosts: tuple[str, ...] = (),
    origins: tuple[str, ...] = (),
    set: tuple[str, ...] = (),
) -> None:
    """The page for your browser, and answers for programs, as OpenAI's interface gives them.

    What programs can ask for is told at /docs when it runs.

    Only this machine can reach it, unless --host says otherwise; then LIMELIGHT_API_KEY must be set
    in the environment. It ends in good order with Ctrl-C or SIGTERM, and logs to standard error.

    Args:
        runs: run folders, each a model called as its folder; or names of bundled models.
        host: the address to listen on.
        port: the port; 0 for any that is free.
        hosts: further names that the service is reached by, such as that of a proxy.
        origins: web pages elsewhere that may ask, as https://example.com.
        set: changes to the limits, as limits.queue=50; --limits.queue 50 says the same.
    """
    from limelight.serve.limits import limits_with
    from limelight.serve.server import serve

    if not runs:
        raise UserError("say which runs to serve: limelight serve RUN [RUN ...]")
    serve(runs, host, port, limits_with(set), hosts, origins)


def explain(
    run: Run,
    text: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")],
    target: str | None = None,
    stop: str = "",
    layer: int | None = None,
    head: int | None = None,
    word: str | None = None,
    follow: bool = False,
    figure: str = "",
    html: str = "",
    tag: str = "",
    json: bool = False,
    set: tuple[str, ...] = (),
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
    from limelight.commands import explain_text

    place = {"layer": layer, "head": head, "word": word}
    asked = "follow" if follow else stop
    files = {"figure": figure, "html": html}
    explain_text(terminal(), run, text, list(set), target, asked, place, files, json, tag)


def models(json: bool = False) -> None:
    """The models that come with Limelight; wherever a command asks for a RUN, their names will do.

    A run folder of your own with such a name comes first.

    Args:
        json: print one JSON document, with all scores and how they were measured.
    """
    from limelight.run.bundled import facts_of, model_names, show

    tell({"models": [facts_of(name) for name in model_names()]}, show, json)


def decoding(changes: tuple[str, ...], **options: float | None) -> list[str]:
    """Options that were given, as changes to the recipe's [decode]."""
    given = {name: value for name, value in options.items() if value is not None}
    return [*changes, *(f"decode.{name}={value}" for name, value in given.items())]


def demo(quick: bool = False, run: str = "runs/demo") -> None:
    """A tour of a few minutes: it translates, writes, learns to chat, and explains itself.

    Say the same again to go on after an interruption.

    Args:
        quick: a tour of about a minute.
        run: the folder for what it makes.
    """
    check_folder(run)

    from limelight.demo import tour

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

    bash:  limelight completion bash > ~/.local/share/bash-completion/completions/limelight

    zsh:   limelight completion zsh > FOLDER/_limelight, where FOLDER is one of your $fpath

    fish:  limelight completion fish > ~/.config/fish/completions/limelight.fish

    Args:
        shell: bash, zsh or fish.
    """
    run_command(["--tyro-write-completion", shell, "-"])


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
    "score": score,
    "serve": serve,
    "train": train,
    "translate": translate,
    "write": write,
}


LISTS = ("data.train", "data.valid", "data.test", "data.columns", "train.freeze")


def gather_changes(arguments: list[str]) -> list[str]:
    """`--train.steps 500` becomes `--set train.steps=500`: any setting of a recipe is an option.

    A setting takes one value, a list of files all that follow, and a bare one means true. What
    follows a bare `--` is text, whatever it looks like.
    """
    others: list[str] = []
    changes: list[str] = []
    end = arguments.index("--") if "--" in arguments else len(arguments)
    left, texts = arguments[:end], arguments[end:]
    while left:
        argument = left.pop(0)
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or ("." not in name and name != "set"):
            others.append(argument)
            continue
        values = [value] if equals else []
        many = name in ("set", *LISTS)
        while not equals and left and not left[0].startswith("--") and (many or not values):
            values.append(left.pop(0))
        changes += values if name == "set" else [f"{name}={v}" for v in values or ["true"]]
    return [*others, *(["--set", *changes] if changes else []), *texts]


def run_command(arguments: list[str]) -> None:
    """The command that the arguments name."""
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        show_commands(terminal())
        return
    if name == "--version":
        print(f"limelight {__version__}")
        return
    if not name.startswith("-") and name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="limelight", args=gather_changes(arguments))


def show_commands(console: "Console") -> None:
    """All commands, each with the first line of what it says of itself."""
    from rich.table import Table
    from rich.text import Text

    console.print(
        "usage: limelight COMMAND ...\n\n"
        "The Transformer of 'Attention Is All You Need', whole and in the open.\n"
    )
    table = Table.grid(padding=(0, 2))
    for name, command in COMMANDS.items():
        table.add_row(Text(f"  {name}", "bold"), Text((command.__doc__ or "").splitlines()[0]))
    console.print(table)
    console.print(
        "\nNew here? limelight demo is a tour of a few minutes. limelight COMMAND --help tells all "
        "about a command, and limelight completion teaches your shell to complete them."
    )


def open_what_is_closed() -> None:
    """A program that starts us may have closed our standard streams; then nothing is there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def main() -> None:
    """Run the command; what goes wrong is told in a sentence, and in the exit code.

    2: something impossible was asked for. 1: it was possible, but the work failed.
    """
    open_what_is_closed()
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
        leave(explain_refusal(error), 1)
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
    from limelight.training.device import is_out_of_memory

    return is_out_of_memory(error)
