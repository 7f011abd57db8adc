"""Commands that train and measure: demo, train, evaluate."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from limelight.cli.io import note, print_report, terminal
from limelight.cli.parser import (
    NO_SETTINGS,
    Argument,
    Folder,
    Json,
    Run,
    Settings,
    Switch,
    overrides,
)
from limelight.errors import UserError


def train(
    run: Folder,
    recipe: Annotated[str, Argument("RECIPE", positional=True)] = "",
    from_: Annotated[str, Argument("RUN")] = "",
    verify_resume: Switch = False,
    set: Settings = NO_SETTINGS,
) -> None:
    """Train the model that a recipe describes, or resume an interrupted run.

    Exits with status 0 when training is complete. Ctrl-C and SIGTERM save everything and exit with
    status 130 and 143. To resume, run the same command again, or leave the recipe out.

    Args:
        run: the folder for everything that training writes
        recipe: a recipe by name (see `limelight recipes`), or a TOML file; without it, resume
        from_: start with the weights and the tokenizer of this run or bundled model
        verify_resume: prove with a few steps that a resumed run equals an uninterrupted one
        set: change a setting of the recipe; --train.steps 500 is short for --set train.steps=500
    """
    from limelight.recipe import load_recipe, recipe_from_run, with_overrides

    _check_folder(run)
    if recipe:
        loaded = load_recipe(recipe, overrides(set))
    else:
        from limelight.run.folder import RunFolder

        loaded = with_overrides(recipe_from_run(RunFolder(Path(run))), overrides(set))

    from limelight.workflows.train import train
    from limelight.workflows.verify_resume import verify_resume as verify

    if verify_resume:
        signal = verify(loaded, run, from_ or None)
    else:
        signal = train(loaded, run, start_from=from_ or None)
    if signal:
        state = "nothing is verified yet" if verify_resume else "saved"
        note(f"{state}; run the same command again to continue ({run})")
        sys.exit(128 + signal)


def _check_folder(run: str) -> None:
    if not run:  # a variable that is not set; the path would be the current folder
        raise UserError("--run is empty: name a folder, or . for the current one")


def evaluate(
    run: Run,
    other: Annotated[str, Argument("RUN2", positional=True)] = "",
    split: Literal["train", "valid", "test"] = "test",
    json: Json = False,
    set: Settings = NO_SETTINGS,
) -> None:
    """Measure a trained model on held-out texts, or compare two models.

    Prints loss, perplexity and accuracy; BLEU, chrF and TER of translations; bits per byte of
    texts; F1 of classes. For two runs, a paired bootstrap says whether chance explains the
    difference.

    --data.test FILE ... evaluates your own texts, whatever the model was trained on.

    Args:
        other: a second run or bundled model to compare with
        split: the texts to use
        set: change a setting; --data.test FILE ... is short for --set data.test=FILE ...
    """
    from limelight.workflows.evaluate import compare_runs, score_run, show

    if other:
        report = compare_runs((run, other), split, overrides(set))
    else:
        report = score_run(run, split, overrides(set))
    print_report(report, show, json)


def demo(quick: Switch = False, run: Folder = "runs/demo") -> None:
    """Take a tour of a few minutes: translate, write, train a chat model, and look inside it.

    After an interruption, run the same command again to continue.

    Args:
        quick: a tour of about a minute
        run: the folder for everything that the tour writes
    """
    _check_folder(run)

    from limelight.workflows.demo import tour

    if signal := tour(terminal(), Path(run), quick):
        sys.stdout.flush()
        note("saved; run the same command again to continue")
        sys.exit(128 + signal)
