"""Commands of models that turn texts into texts: ask, paraphrase, summarise."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

from limelight.cli import io
from limelight.cli import parser as arg
from limelight.errors import UserError

if TYPE_CHECKING:
    from limelight.tasks.translate import InvalidLine, Translation


def ask(
    run: arg.Run,
    question: Annotated[tuple[str, ...], arg.Argument("QUESTION", positional=True)] = (),
    context: arg.File = "",
    beam: arg.Beam = None,
    json: arg.JsonLines = False,
    set: arg.DecodeSettings = (),
) -> None:
    """Answer questions about a paragraph.

    The bundled model helper learned it for short stories of who is where and has what. Exits with
    status 1 if a question cannot be answered.

    Args:
        question: the questions; without any, the lines of stdin
        context: the file with the paragraph; without one, stdin
    """
    lines = io.InputLines(question, json, file=None)
    loaded, config = io.load_for("ask", run, arg.overrides(set, beam=beam))

    from limelight.tasks.text_to_text import ask

    if not context and not question:
        raise UserError("questions and paragraph cannot both be read from stdin: --context FILE")
    told = io.read_text(context)
    with lines.opened("ask", loaded):
        _print_each(lines, partial(ask, loaded, context=told, config=config), "answered", json)


def paraphrase(
    run: arg.Run,
    text: arg.Texts = (),
    beam: arg.Beam = None,
    temperature: arg.Temperature = None,
    seed: arg.Seed = None,
    input: arg.Input = "",
    output: arg.Output = "",
    json: arg.JsonLines = False,
    set: arg.DecodeSettings = (),
) -> None:
    """Say each text in other words.

    Of all that a beam finds, the best one that differs from the text is printed. The bundled model
    helper learned it for English sentences.
    """
    lines = io.InputLines(text, json, input, output)
    overrides = arg.overrides(set, beam=beam, temperature=temperature, seed=seed)
    loaded, config = io.load_for("paraphrase", run, overrides)

    from limelight.tasks.text_to_text import paraphrase

    with lines.opened("paraphrase", loaded, json=json, **asdict(config)):
        _print_each(lines, partial(paraphrase, loaded, config=config), "paraphrased", json)


def summarise(
    run: arg.Run,
    text: arg.Texts = (),
    document: arg.File = "",
    beam: arg.Beam = None,
    input: arg.Input = "",
    output: arg.Output = "",
    json: arg.JsonLines = False,
    set: arg.DecodeSettings = (),
) -> None:
    """Summarise each text, with a model that learned it.

    No bundled model has learned it: import one (limelight import google/pegasus-xsum DIR), or
    train the recipe text-to-text on your own. A text that is too long is summarised in parts.

    Args:
        document: summarise this file as one text
    """
    whole = (io.read_text(document),) if document else ()
    lines = io.InputLines((*text, *whole), json, input, output)
    loaded, config = io.load_for("summarise", run, arg.overrides(set, beam=beam))

    from limelight.tasks.text_to_text import summarise

    with lines.opened("summarise", loaded, json=json, **asdict(config)):
        _print_each(lines, partial(summarise, loaded, config=config), "summarised", json)


def _print_each(
    lines: io.InputLines,
    answer: "Callable[[Iterable[str | InvalidLine]], Iterator[Translation]]",
    done: str,
    json: bool,
) -> None:
    for found in lines.outcomes(answer):
        if found.problem:
            lines.complain(found.problem)
        if found.parts > 1:
            lines.note(f"too long for the model, so {done} in {found.parts} parts, each alone")
        if json:
            io.print_translation(found)
        else:
            io.print_line(found.text)
