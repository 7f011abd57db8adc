"""Commands that train and measure: demo, train, sweep, compare, evaluate."""

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
        recipe: a recipe by name (see `limelight recipes`), a TOML file, or a bundled model or run
            to fine-tune on --data.train FILE ...; without it, resume
        run: the folder for everything that training writes
        from_: start with the weights, [model] and tokenizer of this run or bundled model
        verify_resume: prove with a few steps that a resumed run equals an uninterrupted one
    """
    _interrupt_on_signals()

    from limelight.recipe import recipe_from_run, with_overrides

    start: str | Path | None = from_ or None
    if recipe:
        from limelight.workflows.train import plan

        loaded, start = plan(recipe, arg.overrides(set), start)
    else:
        from limelight.run.folder import RunFolder

        folder = RunFolder(Path(run))
        if not folder.exists:
            raise UserError(f"{run} has no run to resume: name a RECIPE to start one there")
        loaded = with_overrides(recipe_from_run(folder), arg.overrides(set))

    from limelight.workflows.train import train
    from limelight.workflows.verify_resume import verify_resume as verify

    if verify_resume:
        stopped_by = verify(loaded, run, start)
    else:
        stopped_by = train(loaded, run, start_from=start)
    if stopped_by:
        state = "nothing is verified yet" if verify_resume else "saved"
        io.note(f"{state}; run the same command again to continue ({run})")
        sys.exit(128 + stopped_by)


def resume(
    run: Annotated[str, arg.Argument("RUN", "a run folder", positional=True)],
    set: arg.Settings = (),
) -> None:
    """Resume an interrupted run, from any directory: limelight train --run RUN.

    --train.steps N makes the training longer.
    """
    train(run=run, set=set)


def _interrupt_on_signals() -> None:
    """Let every signal that asks to end do what Ctrl-C does, while no training catches it.

    So a start, or the end of a run, is interrupted in good order and with its own exit status.
    """

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    for number in END_SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:  # not ignored, as SIGHUP is under nohup
            signal.signal(number, interrupt)


def sweep(
    recipe: arg.Recipe,
    *,
    run: arg.Folder,
    jobs: arg.Int = 1,
    from_: Annotated[str, arg.Argument("RUN")] = "",
    set: arg.Settings = (),
) -> None:
    """Train all combinations of some settings, and compare them.

    --train.seed 1..3 --model.layers 2,4 are six trainings, each in a folder of its own below --run.
    One that fails does not stop the others, and the command exits with status 1 at the end. The
    same command again, or one with more values, skips what has finished and resumes the rest.

    Args:
        run: the folder for all trainings
        jobs: trainings at the same time; they share the processor's cores
        from_: start each with the weights and the tokenizer of this run or bundled model
        set: change a setting; values with commas and ranges like 1..3 are tried one by one
    """
    _interrupt_on_signals()

    from limelight.workflows.compare import compare, show
    from limelight.workflows.sweep import parse_grid, sweep

    if stopped_by := sweep(recipe, run, parse_grid(set), jobs, from_):
        io.note(f"saved; run the same command again to continue ({run})")
        sys.exit(128 + stopped_by)
    show(compare([run]), io.terminal())


def compare(
    runs: Annotated[tuple[str, ...], arg.Argument("RUN", positional=True)],
    metric: Annotated[str, arg.Argument("NAME", fallback="the runs' own")] = "",
    output: arg.Folder = "",
    json: arg.Json = False,
) -> None:
    """Compare trainings by their logs: mean and spread over seeds, significance, size and time.

    Runs that differ only in their seed form a group. To compare two models on the same texts, use
    limelight evaluate RUN RUN2.

    Args:
        runs: run folders, or the folder of a sweep
        metric: rank by loss, perplexity, accuracy, exact, bleu or chrf2 of the last validation
        output: write compare.html and compare.svg into this folder (a sweep's own by default)
    """
    from limelight.workflows.compare import compare, show

    io.print_report(compare(runs, metric, output), show, json)


def evaluate(
    runs: Annotated[tuple[str, ...], arg.Argument("RUN", positional=True)],
    split: Annotated[Literal["train", "valid", "test"], arg.Argument("train|valid|test")] = "test",
    metric: Annotated[
        tuple[Literal["exact", "rouge", "comet"], ...], arg.Argument("exact|rouge|comet")
    ] = (),
    output: arg.File = "",
    json: arg.Json = False,
    set: arg.Settings = (),
) -> None:
    """Measure a trained model on held-out texts, or compare several models.

    Prints loss, perplexity and accuracy; BLEU, chrF and TER of translations; bits per byte of
    texts; precision, recall, F1 and confusions of classes. For several runs, a paired bootstrap
    says whether chance explains the difference to the first.

    --data.test FILE ... evaluates your own texts, whatever the model was trained on.

    Args:
        runs: a run folder or a bundled model; several are compared
        split: the texts to use
        metric: a further metric of translations and answers; repeat it for several
        output: write sources, references and the models' answers into this .tsv, .csv or
            .jsonl file; for a classifier also a picture of the confusion matrix beside it
    """
    from limelight.workflows.evaluate import compare_runs, score_run, show

    how = (split, arg.overrides(set), False, metric, output)
    report = compare_runs(runs, *how) if len(runs) > 1 else score_run(runs[0], *how)
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
