"""What commands read and print: models, lines, reports, conversations.

Data goes to stdout, everything else to stderr. A line that cannot be answered gets its own outcome
and does not stop the others.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from io import TextIOWrapper
from os.path import isfile
from pathlib import Path
from select import select
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any

from limelight.errors import UserError, escape_controls
from limelight.files import bounded_lines, discard_output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment

    from limelight.cli.output_file import OutputFile
    from limelight.decode.config import DecodeConfig
    from limelight.loading import LoadedModel
    from limelight.tasks.translate import AlternativeChoice, InvalidLine, Translation

_BOM = b"\xef\xbb\xbf"
_MAX_LINE = 1_000_000  # bytes: a book's chapter fits, and little memory is needed
_MAX_WINDOW = 4096  # lines
_TABLES = (".csv", ".tsv", ".json", ".jsonl")


def load_for(
    task: str,
    run: str,
    overrides: Mapping[str, Any] = MappingProxyType({}),
    ensemble: Iterable[str] = (),
    step: int | None = None,
) -> "tuple[LoadedModel, DecodeConfig]":
    """A model that can do the task, and how it decodes. To be explained, it stays on the CPU."""
    for name in overrides:
        if not name.startswith("decode."):
            raise UserError(f"{name} cannot be changed in a trained model: only [decode] can")

    from limelight.loading import load
    from limelight.recipe import with_overrides

    _offer_to_fetch(run)
    loaded = load(run, *ensemble, device="cpu", precision="auto", step=step)
    config = with_overrides(loaded.recipe, overrides).decode
    for stream in (sys.stdin, sys.stdout):  # text is UTF-8, whatever the locale says
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
    if task == "explain":
        return loaded, config
    loaded.require(task)
    device = "cpu" if config.engine == "ctranslate2" else "auto"
    return loaded.to(device, config.precision), config


def _offer_to_fetch(run: str) -> None:
    """Ask, at a terminal, whether a published model that is known by name should be fetched."""
    from limelight.run.known_models import fetched_run, known_models

    known = known_models().get(run)
    if known is None or (fetched_run(run) / "run.json").exists() or not sys.stdin.isatty():
        return  # elsewhere, an error says how to fetch it
    size = f"{known.megabytes} MB, {known.licence}"
    note(f"{run} is a published model ({size}), not on this machine yet: fetch it now? [y/N]")
    if input().strip().lower() in ("y", "yes"):
        from limelight.interop.known_models import import_by_name

        import_by_name(run)


def note(text: str) -> None:
    """Print a message on stderr, beside the data."""
    try:
        print(f"limelight: {escape_controls(text)}", file=sys.stderr, flush=True)
    except OSError:  # a terminal or a pipe that was closed
        discard_output(sys.stderr)


def note_cut(count: int) -> None:
    """Say how many texts a model has read the beginning of."""
    note(f"texts that are longer than the model reads and were cut: {count:,}")


def read_text(file: str) -> str:
    """The whole of a file, packed or not, or of stdin if none is named."""
    from limelight.data.input_files import opened

    with opened(Path(file)) if file else nullcontext(sys.stdin.buffer) as stream:
        if stream.isatty():
            note("type or paste the text; Ctrl-D ends")
        line = _decode_line(stream.read(_MAX_LINE + 1))
    if isinstance(line, str):
        return line.removeprefix("\ufeff")
    raise UserError(f"{file or 'stdin'} is {line.why}")


def print_text(text: str, end: str = "") -> None:
    """Print a text: into a pipe or file as it is, on a terminal with control characters shown."""
    shown = escape_controls(text, keep="\n\t") if sys.stdout.isatty() else text
    print(shown, end=end, flush=True)


def print_line(text: str) -> None:
    """Print one result, on one line whatever it contains."""
    print_text(on_one_line(text), end="\n")


def on_one_line(text: str) -> str:
    """A text with its line breaks turned into spaces."""
    return text.replace("\n", " ").replace("\r", " ")


def print_json_line(facts: dict[str, Any]) -> None:
    """Print one result as JSON."""
    print_text(json.dumps(facts, ensure_ascii=False), end="\n")


def print_translation(
    done: "Translation", choices: "Iterable[list[AlternativeChoice]]" = ()
) -> None:
    """All that is known of a translation, or of another text made from one, as JSON."""
    facts: dict[str, Any] = {"source": done.source, "text": done.text, "parts": done.parts}
    facts["outputs"] = [asdict(output) for output in done.outputs]
    facts |= {"problem": done.problem} if done.problem else {}
    facts |= {"missing_terms": done.missing_terms} if done.missing_terms else {}
    if alternatives := [list(map(asdict, ranked)) for ranked in choices]:
        facts["alternatives"] = alternatives
    print_json_line(facts)


def print_report(
    facts: dict[str, Any], show: Callable[[dict[str, Any], "Console"], None], as_json: bool
) -> None:
    """Print what a command found out: as one JSON document, or drawn by `show`."""
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        show(facts, terminal())


def terminal() -> "Console":
    """Stdout for rich."""
    from rich.console import Console

    class Terminal(Console):
        def render(self, *arguments: Any, **named: Any) -> "Iterator[Segment]":
            for part in super().render(*arguments, **named):  # rich lets escape sequences through
                text = part.text if part.control else escape_controls(part.text, keep="\n")
                yield part._replace(text=text)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1; for `main` this is no error

    return Terminal(highlight=False)


def print_columns(lines: dict[str, str], console: "Console") -> None:
    """Print names, each with its description beside it."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, line in lines.items():
        table.add_row(Text(f"  {name}", "bold"), Text(line))
    console.print(table)


class InputLines:
    """The texts to answer: the arguments, the lines of a file, or else those of stdin."""

    def __init__(
        self, texts: Iterable[str], as_json: bool = True, file: str | None = None, output: str = ""
    ) -> None:
        self.texts, self.as_json = tuple(texts), as_json
        self.file, self.output = file, output  # of a command that has --input and --output
        self.number = self.problems = 0  # of the current line; of lines with a problem
        self.total: int | None = None  # of lines, if known
        self.saved: OutputFile | None = None
        self.reader: LoadedModel | None = None  # one that reads the beginning of a long text alone
        self.cut = 0  # texts that were too long for it
        self.progress: Callable[[int], object] = lambda _: None
        if self.texts and file:
            raise UserError(f"give either texts or --input {file}, not both")
        if output and not file:
            raise UserError(f"--output {output} needs --input FILE; without, write > {output}")
        if file:
            from limelight.data.input_files import check_text

            check_text(Path(file), "convert it first, as with iconv -f {} -t utf-8")
        if file is not None and (names := [text for text in self.texts if isfile(text)]):
            raise UserError(
                f"{names[0]} is a file: write --input {names[0]} to read it (if it is the text, "
                "send it by a pipe)"
            )

    def refuse_empty(self) -> None:
        """Reject an argument, or a file, without anything to read: a model answers nothing too."""
        if not all(text.strip() for text in self.texts):
            raise UserError("the text is empty: write one between the quotes")
        if self.file:
            from limelight.data.input_files import raw_lines

            if not any(line.strip() for line in raw_lines(Path(self.file))):
                raise UserError(f"{self.file} has no line with text: there is nothing to answer")

    @contextmanager
    def opened(self, command: str, loaded: "LoadedModel", **settings: Any) -> Iterator[None]:
        """Answers go to stdout or into the file. Exits with status 1 if there were problems."""
        self.reader = loaded if command in ("classify", "embed") else None
        if command != "score" and Path(self.file or "").suffix in _TABLES:
            note(f"{self.file} is read as plain text: each line is one text, with all its columns")
        if self.output:
            from limelight.cli.output_file import job_of, resumable
            from limelight.data.input_files import cached_sha256

            sha256, self.total = cached_sha256(Path(str(self.file)))
            job = job_of(command, sha256, loaded, settings)
            with resumable(Path(self.output), job, note) as self.saved:
                self.number, self.problems = self.saved.lines, self.saved.problems
                yield
                self.saved.save(self.number, self.problems)
        else:
            yield
        if self.cut:
            note_cut(self.cut)
        if self.problems:
            note(f"lines that could not be answered: {self.problems}")
            sys.stdout.flush()
            sys.exit(1)

    def answered(self, answer: Callable[[Iterable[str]], Iterator[Any]]) -> Iterator[Any]:
        """The results of `answer`, in order."""
        for window in self.windows():
            texts = [line for line in window if isinstance(line, str)]
            if self.reader:
                from limelight.tasks.text_model import is_cut

                self.cut += sum(is_cut(self.reader, text) for text in texts)
            results = answer(texts)
            for line in window:
                self.number += 1
                if isinstance(line, str):
                    yield next(results)
                else:
                    print_json_line({"problem": line.why}) if self.as_json else print_line("")
                    self.complain(line.why)
                self.line_done()

    def outcomes(self, answer: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
        """What becomes of all lines, also of those that cannot be read, in order."""
        for window in self.windows():
            for found in answer(window):
                self.number += 1
                yield found
                self.line_done()

    def windows(self) -> "Iterator[list[str | InvalidLine]]":
        """Lines to be answered in one batch. A line never waits for a later one to arrive."""
        from limelight.data.input_files import opened
        from limelight.data.progress import counting
        from limelight.data.tokenizer import valid_unicode

        if self.texts:
            yield [valid_unicode(text) for text in self.texts]
            return
        with opened(Path(self.file)) if self.file else nullcontext(sys.stdin.buffer) as stream:
            if stream.isatty():
                note("type a text, then Enter; Ctrl-D ends")
            silent = stream.isatty() or sys.stdout.isatty()  # the answers themselves can be seen
            shown = counting("answered", total=self.total)
            with nullcontext(lambda _: None) if silent else shown as self.progress:
                self.progress(self.number)  # answered by an earlier call
                yield from self._windows_of(stream)

    def _windows_of(self, stream: IO[bytes]) -> "Iterator[list[str | InvalidLine]]":
        window, size, answered = list["str | InvalidLine"](), 0, self.number
        for number, line in enumerate(bounded_lines(stream, _MAX_LINE), start=1):
            if number <= answered:
                continue
            window.append(_decode_line(line.removeprefix(_BOM) if number == 1 else line))
            size += len(line)
            full = len(window) == _MAX_WINDOW or size > _MAX_LINE
            if full or not _input_ready(stream):
                yield window
                window, size = [], 0
        yield window

    def line_done(self) -> None:
        """The current line's answer is written."""
        self.progress(1)
        if self.saved:
            self.saved.save_if_due(self.number, self.problems)

    def note(self, text: str) -> None:
        kind = "text" if self.texts else "line"
        note(text if len(self.texts) == 1 else f"{kind} {self.number}: {text}")

    def complain(self, problem: str) -> None:
        self.problems += 1
        self.note(problem)


def _decode_line(line: bytes) -> "str | InvalidLine":
    from limelight.tasks.translate import InvalidLine

    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(line) > _MAX_LINE:
        return InvalidLine(f"longer than {_MAX_LINE:,} bytes")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        return InvalidLine(f"not UTF-8 (byte {error.start + 1})")


def _input_ready(stream: IO[bytes]) -> bool:
    try:
        return bool(select([stream], [], [], 0)[0])
    except (OSError, ValueError):  # not a file that select can wait for
        return True


def converse(
    lines: InputLines,
    answer: Callable[[str], None],
    invitation: str,
    reset: Callable[[], None] = lambda: None,
) -> None:
    """Answer the arguments, the lines of a file, or a person at the terminal."""
    if lines.texts or lines.file or not sys.stdin.isatty():
        for _ in lines.answered(lambda texts: map(answer, texts)):
            pass
        return
    with suppress(ImportError):
        import readline  # noqa: F401  (history with the arrow keys)
    commands = "/reset forgets everything, /quit exits, Ctrl-C stops an answer"
    note(f"{invitation}; {commands}")
    while (command := (text := prompt_user()).strip().lower()) not in ("/quit", "/exit"):
        if command == "/reset":
            reset()
        elif re.fullmatch(r"/[a-z]+", command):
            note(f"there is no {command}: {commands}")
        elif command:
            try:
                answer(text)
            except KeyboardInterrupt:
                print(" ...", flush=True)


def prompt_user(prompt: str = "> ") -> str:
    """What a person types next; Ctrl-D means /quit, and Ctrl-C clears the line."""
    from limelight.data.tokenizer import valid_unicode

    while True:
        try:
            return valid_unicode(input(prompt if sys.stdout.isatty() else ""))
        except EOFError:
            print()
            return "/quit"
        except KeyboardInterrupt:
            print()
