"""Commands that train and measure: demo, train, evaluate."""

import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

from limelight.cli import io
from limelight.cli import parser as arg
from limelight.errors import END_SIGNALS, UserError


def train(
    recipe: Annotated[str, arg.Argument("RECIPE", positional=True)] = "",
    *,
    run: arg.Folder,
    from_: Annotated[str, arg.Argument("RUN")] = "",
    verify_resume: arg.Switch = False,
    set: arg.Settings = (),
) -> None:
    """Train the model that a recipe describes, or resume an interrupted run.

    Exits with status 0 when training is complete. Ctrl-C, SIGTERM and a terminal that is closed
    (SIGHUP, unless under nohup) save everything and exit with status 130, 143 and 129. To resume,
    run the same command again, or leave the recipe out.

    Args:
        recipe: a recipe by name (see `limelight recipes`), or a TOML file; without it, resume
        run: the folder for everything that training writes
        from_: start with the weights and the tokenizer of this run or bundled model
        verify_resume: prove with a few steps that a resumed run equals an uninterrupted one
    """
    _interrupt_on_signals()

    from limelight.recipe import load_recipe, recipe_from_run, with_overrides

    if recipe:
        loaded = load_recipe(recipe, arg.overrides(set))
    else:
        from limelight.run.folder import RunFolder

        folder = RunFolder(Path(run))
        if not folder.exists:
            raise UserError(f"{run} has no run to resume: name a RECIPE to start one there")
        loaded = with_overrides(recipe_from_run(folder), arg.overrides(set))

    from limelight.workflows.train import train
    from limelight.workflows.verify_resume import verify_resume as verify

    if verify_resume:
        stopped_by = verify(loaded, run, from_ or None)
    else:
        stopped_by = train(loaded, run, start_from=from_ or None)
    if stopped_by:
        state = "nothing is verified yet" if verify_resume else "saved"
        io.note(f"{state}; run the same command again to continue ({run})")
        sys.exit(128 + stopped_by)


def _interrupt_on_signals() -> None:
    """Let every signal that asks to end do what Ctrl-C does, while no training catches it.

    So a start, or the end of a run, is interrupted in good order and with its own exit status.
    """

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    for number in END_SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:  # not ignored, as SIGHUP is under nohup
            signal.signal(number, interrupt)


def evaluate(
    run: arg.Run,
    other: Annotated[str, arg.Argument("RUN2", positional=True)] = "",
    split: Annotated[Literal["train", "valid", "test"], arg.Argument("train|valid|test")] = "test",
    json: arg.Json = False,
    set: arg.Settings = (),
) -> None:
    """Measure a trained model on held-out texts, or compare two models.

    Prints loss, perplexity and accuracy; BLEU, chrF and TER of translations; bits per byte of
    texts; F1 of classes. For two runs, a paired bootstrap says whether chance explains the
    difference.

    --data.test FILE ... evaluates your own texts, whatever the model was trained on.

    Args:
        other: a second run or bundled model to compare with
        split: the texts to use
    """
    from limelight.workflows.evaluate import compare_runs, score_run, show

    how = (split, arg.overrides(set))
    report = compare_runs((run, other), *how) if other else score_run(run, *how)
    io.print_report(report, show, json)


def demo(quick: arg.Switch = False, run: arg.Folder = "runs/demo") -> None:
    """Take a tour of a few minutes: translate, write, train a chat model, and look inside it.

    After an interruption, run the same command again to continue.

    Args:
        quick: a tour of about a minute
        run: the folder for everything that the tour writes
    """
    from limelight.workflows.demo import tour

    if stopped_by := tour(io.terminal(), Path(run), quick):
        sys.stdout.flush()
        io.note("saved; run the same command again to continue")
        sys.exit(128 + stopped_by)
