"""Trained models at the terminal: lines in, lines out, in order; or a conversation.

What was asked for goes to standard output, all else to standard error. A line that cannot be read
has its own outcome, and does not stop the others.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict
from io import TextIOWrapper
from itertools import count
from pathlib import Path
from select import select
from typing import IO, TYPE_CHECKING, Any

from limelight.data.progress import counting
from limelight.data.tokenizer import valid_unicode
from limelight.decode.config import DecodeConfig
from limelight.errors import UserError
from limelight.files import with_filename
from limelight.loading import LoadedModel, load
from limelight.recipe import with_overrides
from limelight.tasks.chat import Conversation
from limelight.tasks.classify import classify
from limelight.tasks.embed import embed
from limelight.tasks.fill import fill
from limelight.tasks.score import Scored, score
from limelight.tasks.translate import (
    NO_CONSTRAINTS,
    AlternativeChoice,
    Constraints,
    InvalidLine,
    TokenProbability,
    Translation,
    alternative_choices,
    alternative_tokens,
    translate,
    widen_beam,
)
from limelight.tasks.write import refuse_beam, write

if TYPE_CHECKING:
    from rich.console import Console

    from limelight.explain.trace import Trace

BOM = b"\xef\xbb\xbf"  # with which some programs begin a file
LONGEST = 1_000_000  # bytes of a line: enough for a book's chapter, and little memory
TOGETHER = 4096  # lines that are read at once, at most


class InputLines:
    """What is to be answered: the arguments, or else standard input, line by line."""

    def __init__(self, texts: Iterable[str], stream: IO[bytes]) -> None:
        self.texts, self.stream = tuple(texts), stream
        self.problems = 0

    def __iter__(self) -> Iterator[str | InvalidLine]:
        for window in self.windows():
            yield from window

    def windows(self) -> Iterator[list[str | InvalidLine]]:
        """Lines that can be answered together: never is one kept waiting for the next to come."""
        if self.texts:
            yield [valid_unicode(text) for text in self.texts]
            return
        if self.stream.isatty():
            note("type a text, and Enter; Ctrl-D ends")
        at_a_terminal = self.stream.isatty() or sys.stdout.isatty()
        with nullcontext(ignore) if at_a_terminal else counting("answered") as progress:
            window, size = list[str | InvalidLine](), 0
            for number, line in enumerate(raw_lines(self.stream), start=1):
                window.append(self.read(number, line))
                size += len(line)
                if len(window) == TOGETHER or size > LONGEST or not more_waits(self.stream):
                    yield window
                    progress(len(window))
                    window, size = [], 0
            yield window

    def read(self, number: int, line: bytes) -> str | InvalidLine:
        """A line as text, or why it is none."""
        if number == 1:
            line = line.removeprefix(BOM)
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(line) > LONGEST:
            return InvalidLine(f"longer than {LONGEST:,} bytes")
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            return InvalidLine(f"not UTF-8 (byte {error.start + 1})")

    def note(self, number: int, text: str) -> None:
        """Something worth knowing of a line, and of which, where there are several."""
        kind = "text" if self.texts else "line"
        note(text if len(self.texts) == 1 else f"{kind} {number}: {text}")

    def complain(self, number: int, problem: str) -> None:
        """Say what is wrong with a line, and go on."""
        self.problems += 1
        self.note(number, problem)

    def refuse(self, number: int, line: InvalidLine, as_json: bool) -> None:
        """The outcome of a line that is no text."""
        say_json({"problem": line.why}) if as_json else say("")
        self.complain(number, line.why)

    def finish(self) -> None:
        """Leave with 1 if there were lines that could not be answered."""
        if self.problems:
            note(f"lines that could not be answered: {self.problems}")
            sys.stdout.flush()
            sys.exit(1)


def raw_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """The lines of a stream; of one that is too long, its beginning, which is too long as well."""
    while line := stream.readline(LONGEST + 1):
        rest = line
        while len(rest) > LONGEST and not rest.endswith(b"\n"):
            rest = stream.readline(LONGEST + 1)
        yield line


def more_waits(stream: IO[bytes]) -> bool:
    """Whether something can be read at once: of a file always, of a pipe what was written."""
    try:
        return bool(select([stream], [], [], 0)[0])
    except (OSError, ValueError):  # nothing that could be waited for
        return True


def ignore(_: int) -> None:
    """No sign of life where the answers themselves can be seen."""


def note(text: str) -> None:
    """Something worth knowing, beside the answer."""
    print(f"limelight: {text}", file=sys.stderr)


def say(text: str) -> None:
    """One line of the answer."""
    print(on_one_line(text), flush=True)


def on_one_line(text: str) -> str:
    """A text that takes no other's line."""
    return text.replace("\n", " ").replace("\r", " ")


def visible(piece: str) -> str:
    """A piece that can be seen, even if it is nothing but a space or the end of a line."""
    return piece.strip() or repr(piece)


def say_json(facts: dict[str, Any]) -> None:
    """The same for programs."""
    print(json.dumps(facts, ensure_ascii=False), flush=True)


def opened(run: str, *others: str) -> LoadedModel:
    """The model. Text comes and goes as UTF-8, whatever the locale says."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
    return load(run, *others)


def ready(ability: str, run: str, *others: str) -> LoadedModel:
    """The model, if it can do that, where it is fastest."""
    loaded = opened(run, *others)
    loaded.require(ability)
    return loaded.to(precision=loaded.decode.precision)


def prepare(
    ability: str, run: str, changes: Iterable[str], others: Iterable[str] = ()
) -> tuple[LoadedModel, DecodeConfig]:
    """The same, and how it shall write."""
    refuse_others(changes)
    loaded = ready(ability, run, *others)
    config = with_overrides(loaded.recipe, changes).decode
    return loaded.to(precision=config.precision), config


def refuse_others(changes: Iterable[str]) -> None:
    """A trained model is what it is; only how it writes can be changed."""
    for change in changes:
        if not change.startswith("decode."):
            raise UserError(f"{change!r} cannot be changed any more: only [decode] can, in use")


def translate_lines(
    run: str,
    texts: tuple[str, ...],
    changes: list[str],
    others: tuple[str, ...] = (),
    nbest: int = 1,
    alternatives: bool = False,
    as_json: bool = False,
    wishes: Constraints = NO_CONSTRAINTS,
) -> None:
    """Every text's translation on a line of its own."""
    loaded, config = prepare("translate", run, changes, others)
    config = widen_beam(config, nbest)
    lines, numbers = InputLines(texts, sys.stdin.buffer), count(1)
    for window in lines.windows():
        for done in translate(loaded, window, config, nbest, wishes):
            number = next(numbers)
            if done.problem:
                lines.complain(number, done.problem)
            if done.parts > 1:
                without = ", without alternatives" if alternatives else ""
                told = f"too long for the model, so translated in {done.parts} parts{without}"
                lines.note(number, told)
            source = done.source if alternatives and done.outputs and done.parts == 1 else ""
            if as_json:
                choices = (
                    alternative_choices(loaded, source, config, constraints=wishes)
                    if source
                    else ()
                )
                show_translation_as_json(done, choices)
            else:
                pieces = (
                    alternative_tokens(loaded, source, config, constraints=wishes) if source else ()
                )
                show_translation(done, pieces, nbest)
    lines.finish()


def show_translation(
    done: Translation, pieces: Iterable[list[TokenProbability]], nbest: int
) -> None:
    """The text; or the n best with their scores; and below, for each token, what else could be."""
    if nbest == 1 or not done.outputs:
        say(done.text)
    for output in done.outputs if nbest > 1 else ():
        say(f"{output.score:.4f}\t{output.text}")
    for place in pieces:
        say("  " + "   ".join(f"{visible(c.piece)} {c.probability:.0%}" for c in place))


def show_translation_as_json(done: Translation, choices: Iterable[list[AlternativeChoice]]) -> None:
    """All that is known of a translation."""
    told = {"source": done.source, "text": done.text, "parts": done.parts}
    told |= {"outputs": [asdict(output) for output in done.outputs]}
    told |= {"problem": done.problem} if done.problem else {}
    if places := [list(map(asdict, place)) for place in choices]:
        told["alternatives"] = places
    say_json(told)


def answer_lines(
    texts: tuple[str, ...],
    answer: Callable[[Iterable[str]], Iterator[Any]],
    show: Callable[[Any], str],
    as_json: bool = True,
) -> None:
    """One outcome for every line: `show` shows what `answer` gives, and returns what is wrong."""
    lines, numbers = InputLines(texts, sys.stdin.buffer), count(1)
    for window in lines.windows():
        answers = answer([line for line in window if isinstance(line, str)])
        for line in window:
            number = next(numbers)
            if isinstance(line, InvalidLine):
                lines.refuse(number, line, as_json)
            elif problem := show(next(answers)):
                lines.complain(number, problem)
    lines.finish()


def classify_lines(run: str, texts: tuple[str, ...], as_json: bool) -> None:
    """Every text's likeliest class, a tab, and its probability."""
    loaded = ready("classify", run)

    def show(chances: dict[str, float]) -> str:
        best = next(iter(chances))
        say_json(chances) if as_json else say(f"{best}\t{chances[best]:.4f}")
        return ""

    answer_lines(texts, lambda readable: classify(loaded, readable), show, as_json)


def embed_lines(run: str, texts: tuple[str, ...]) -> None:
    """Every text's vector, as a list of numbers."""
    loaded = ready("embed", run)

    def show(vector: list[float]) -> str:
        say(json.dumps([round(value, 6) for value in vector]))
        return ""

    answer_lines(texts, lambda readable: embed(loaded, readable), show)


def score_lines(run: str, texts: tuple[str, ...], tag: str, as_json: bool) -> None:
    """Every text's log-probability; a source and its target have a tab between them."""
    loaded = ready("score", run)

    def show(scored: Scored) -> str:
        if as_json and scored.problem:
            say_json({"problem": scored.problem})
        elif as_json:
            numbers = {"tokens": scored.tokens, "logprobs": scored.logprobs}
            say_json({"score": scored.total, **numbers})
        else:
            say("" if scored.problem else f"{scored.total:.4f}")
        return scored.problem

    def answer(readable: Iterable[str]) -> Iterator[Scored]:
        return score(loaded, (tuple(line.split("\t")) for line in readable), tag)

    answer_lines(texts, answer, show, as_json)


def fill_text(run: str, text: str, most: int, as_json: bool) -> None:
    """The text with its blanks filled in, and below it what could stand in each of them."""
    filled = fill(ready("fill", run), text, most)
    if as_json:
        say_json(asdict(filled))
        return
    say(filled.text)
    for number, blank in enumerate(filled.blanks, start=1):
        found = "   ".join(f"{visible(one.text)} {one.probability:.1%}" for one in blank)
        say(f"  {number}: {found}")


def write_on(
    run: str, prompts: tuple[str, ...], changes: list[str], stops: tuple[str, ...], as_json: bool
) -> None:
    """Go on with each prompt, showing the text as it is written."""
    loaded, config = prepare("write", run, changes)
    refuse_beam(None if config.beam == loaded.recipe.decode.beam else config.beam)

    def go_on(prompt: str) -> None:
        pieces = write(loaded, prompt, config, stops)
        if as_json:
            say_json({"prompt": prompt, "text": "".join(pieces)})
            return
        print(prompt, end="", flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
        print(flush=True)

    talk(prompts, go_on, "a text to go on with", as_json)


def chat_on(run: str, texts: tuple[str, ...], changes: list[str], tag: str, as_json: bool) -> None:
    """A conversation: what is said comes from the arguments or line by line."""
    loaded, config = prepare("chat", run, changes)
    conversation = Conversation(loaded, config, tag)

    def answer(text: str) -> None:
        if as_json:
            say_json({"text": text, "answer": conversation.reply(text)})
        elif not sys.stdout.isatty():
            say(conversation.reply(text))
        else:
            conversation.reply(text, lambda piece: print(on_one_line(piece), end="", flush=True))
            print(flush=True)
        if conversation.cut:
            note("too long for the model, so only its end was read")

    talk(texts, answer, "say something", as_json, conversation.reset)


def explain_text(
    console: "Console",
    run: str,
    text: str,
    changes: list[str],
    target: str | None = None,
    stop: str = "",
    place: dict[str, Any] | None = None,
    into: dict[str, str] | None = None,
    as_json: bool = False,
    tag: str = "",
) -> None:
    """A walk through the model with this text: drawn, as JSON, or into a file."""
    from limelight.explain.explanation import explain
    from limelight.explain.focus import focus_on
    from limelight.explain.render import figures, serialize, terminal
    from limelight.explain.stages import stop_at

    refuse_others(changes)
    loaded = opened(run).full_precision
    config, smoothing = (
        with_overrides(loaded.recipe, changes).decode,
        loaded.recipe.train.label_smoothing,
    )
    trace = explain(loaded, text, target, config, smoothing=smoothing, tag=tag)
    view = focus_on(trace, **(place or {}))
    figure, html = ((into or {}).get(kind, "") for kind in ("figure", "html"))
    if figure:
        figures.save(trace, Path(figure), *(None if x is None else x + 1 for x in view.asked))
        note(f"drawn into {figure}")
    if html:
        save_page(trace, Path(html), Path(run).resolve().name, place or {})
    if figure or html:
        return
    if as_json:
        print(serialize.as_json(serialize.manifest(trace)))
    elif stop:
        terminal.show(console, trace, [stop_at(trace, stop, view)])
    elif sys.stdin.isatty() and console.is_terminal:
        terminal.step_through(console, trace, trace.walk(**(place or {})), ask)
    else:
        terminal.show(console, trace, trace.walk(**(place or {})))


def save_page(trace: "Trace", path: Path, name: str, place: dict[str, Any]) -> None:
    """The walk as one file for a browser."""
    from limelight.explain.render.html import as_html

    page = as_html(trace, name, **place)
    with with_filename(path):
        path.write_text(page, encoding="utf-8")
    note(f"written into {path}, {len(page.encode()) / 1e6:.1f} MB: open it in a browser")


def talk(
    texts: tuple[str, ...],
    answer: Callable[[str], None],
    invitation: str,
    as_json: bool,
    reset: Callable[[], None] = lambda: None,
) -> None:
    """Answer the arguments, or the lines of a file, or a person at the terminal."""
    if texts or not sys.stdin.isatty():
        lines = InputLines(texts, sys.stdin.buffer)
        for number, line in enumerate(lines, start=1):
            if isinstance(line, InvalidLine):
                lines.refuse(number, line, as_json)
            else:
                answer(line)
        lines.finish()
        return
    with suppress(ImportError):
        import readline  # noqa: F401  (the arrow keys bring back what was typed before)
    commands = "/reset forgets all, /quit leaves, Ctrl-C stops an answer"
    note(f"{invitation}; {commands}")
    while (command := (text := ask()).strip().lower()) not in ("/quit", "/exit"):
        if command == "/reset":
            reset()
        elif re.fullmatch(r"/[a-z]+", command):
            note(f"there is no {command}: {commands}")
        elif command:
            try:
                answer(text)
            except KeyboardInterrupt:
                print(" ...", flush=True)


def ask(prompt: str = "> ") -> str:
    """What a person types next; the end of input means to leave, and Ctrl-C clears the line."""
    while True:
        try:
            return valid_unicode(input(prompt if sys.stdout.isatty() else ""))
        except EOFError:
            print()
            return "/quit"
        except KeyboardInterrupt:
            print()
