"""The command line: a table from names to functions. Options come from the functions' types.

Everything heavy is imported inside the command that needs it, so that `--help` answers at once.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from limelight.errors import UserError

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
        recipe: the name of a recipe, a TOML file, or a run folder.
        devices: share the training state out over so many devices (full sharding).
        batch_tokens: tokens in each device's batch; 0 for one text of full length.
        json: print one JSON document.
        set: changes to the recipe, as model.layers=3; --model.layers 3 says the same.
    """
    from limelight.recipe import load_recipe, recipe_of
    from limelight.run.folder import RunFolder
    from limelight.run.log import summary

    # A misspelt name is refused before torch is imported.
    run = RunFolder(Path(recipe))
    loaded = recipe_of(run, set) if run.path.is_dir() else load_recipe(recipe, set)
    trained = {"trained": summary(run.log)} if run.path.is_dir() else {}

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
        from_: begin with the weights and the tokenizer of this run.
        verify_resume: prove with a few steps that a resumed run equals an uninterrupted one.
        set: changes to the recipe, as train.steps=500; --train.steps 500 says the same.
    """
    from limelight.recipe import load_recipe

    loaded = load_recipe(recipe, set)

    from limelight import experiment
    from limelight.training.loop import FailedError

    try:
        if verify_resume:
            number = experiment.verify_resume(loaded, run, from_ or None)
        else:
            number = experiment.train(loaded, run, start_from=from_ or None)
    except FailedError as error:
        print(f"limelight: {error}", file=sys.stderr)
        sys.exit(1)
    if number:
        left = "nothing is proved yet; begin again" if verify_resume else "saved; go on"
        print(f"limelight: {left} with the same command ({run})", file=sys.stderr)
        sys.exit(128 + number)


def evaluate(
    run: Run,
    split: Literal["train", "valid", "test"] = "test",
    json: bool = False,
    set: tuple[str, ...] = (),
) -> None:
    """How good a trained model is: loss, perplexity and accuracy on texts it has not seen.

    Args:
        run: a run folder.
        split: which texts.
        json: print one JSON document.
        set: changes to the recipe, as data.test=FILE; --data.test FILE ... says the same.
    """
    from limelight.experiment import evaluate_run, show_scores

    tell(evaluate_run(run, split, set), show_scores, json)


def demo() -> None:
    """Build a tiny Transformer and watch one attention step with its true numbers."""
    from limelight.demo import run

    run(terminal())


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
    "data": data,
    "demo": demo,
    "evaluate": evaluate,
    "info": info,
    "train": train,
}


LISTS = ("data.train", "data.valid", "data.test", "data.columns", "train.freeze")


def gather_changes(arguments: list[str]) -> list[str]:
    """`--train.steps 500` becomes `--set train.steps=500`: any setting of a recipe is an option.

    A setting takes one value, a list of files all that follow, and a bare one means true.
    """
    others: list[str] = []
    changes: list[str] = []
    left = list(arguments)
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
    return [*others, "--set", *changes] if changes else others


def main() -> None:
    """Run the command; a user's mistake is answered with a sentence and exit code 2."""
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="limelight",
            description="The Transformer, whole and in the open.",
            args=gather_changes(sys.argv[1:]),
        )
        sys.stdout.flush()
    except UserError as error:
        print(f"limelight: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("limelight: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader (`head`, a pager) has seen enough; Python must not try to write the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"limelight: {error}", file=sys.stderr)
        sys.exit(1)
