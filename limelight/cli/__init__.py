"""The command line: a table from names to functions. Read in this order:

parser       arguments from types and docstrings: reading, errors, help, completion
output_file  the output of a long job: complete, or else resumable
io           what commands read and print: models, lines, reports, conversations
inspect      models, import, export, recipes, info, data
train        demo, train, resume, sweep, compare, evaluate
generate     translate, chat, write, fill, classify, embed, search, score
text_to_text  ask, paraphrase, summarise
draw         draw
explain      explain
lab          lab
course       course
serve        serve, site

Everything heavy is imported inside the command that needs it, so that `--help` answers at once.
"""

import os
import signal
import sys
import warnings
from typing import Annotated, Any, Literal, NoReturn

from limelight import __version__
from limelight.cli import io, parser
from limelight.cli.course import course
from limelight.cli.draw import draw
from limelight.cli.explain import explain
from limelight.cli.generate import chat, classify, embed, fill, score, search, translate, write
from limelight.cli.inspect import data, export, import_, info, models, recipes
from limelight.cli.lab import lab
from limelight.cli.serve import serve, site
from limelight.cli.text_to_text import ask, paraphrase, summarise
from limelight.cli.train import compare, demo, evaluate, resume, sweep, train
from limelight.errors import (
    AdjustedWarning,
    EngineWarning,
    FailedError,
    OlderWeightsWarning,
    RenamedWarning,
    UserError,
    describe_os_error,
    escape_controls,
    unknown_name,
)
from limelight.files import discard_output


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], parser.Argument("SHELL", positional=True)],
) -> None:
    """Print a script that lets your shell complete commands and options with Tab.

    For bash, put it into ~/.local/share/bash-completion/completions/limelight; for zsh, into
    _limelight in a folder of your $fpath; for fish, into
    ~/.config/fish/completions/limelight.fish.

    Args:
        shell: bash, zsh or fish
    """
    print(parser.completion_script(COMMANDS, shell))


_BEFORE = (demo, models, import_, recipes, info, data, train, resume, sweep, compare, evaluate)
_TEXT = (translate, chat, ask, paraphrase, summarise)
_USE = (*_TEXT, write, fill, classify, embed, search, score, draw)
_AFTER = (explain, lab, course, serve, site, export, completion)
COMMANDS: dict[str, parser.Command] = {
    one.__name__.rstrip("_"): one for one in (*_BEFORE, *_USE, *_AFTER)
}


def run_command(words: list[str]) -> None:
    """Run the command that the first word names, or print help."""
    name = words[0] if words else "--help"
    if name in ("-h", "--help"):
        _print_overview()
    elif name == "--version":
        print(f"limelight {__version__}")
    elif name.startswith("-"):
        raise UserError(f"limelight has no option {name}: see limelight --help")
    elif name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS)
    elif {"-h", "--help"} & {*parser.split_at_dashes(words)[0]}:
        _print_help(name)
    else:
        given = parser.read_arguments(name, COMMANDS[name], words[1:])
        _extend(name, given.pop("extend", ()))
        COMMANDS[name](**given)


def _extend(name: str, files: tuple[str, ...]) -> None:
    """Run the files of --extend here, and in every process that the command starts."""
    if files:
        os.environ["LIMELIGHT_EXTEND"] = os.pathsep.join(map(os.path.abspath, files))
    if "LIMELIGHT_EXTEND" in os.environ and name != "serve":  # its workers do
        from limelight.extensions import extend_from_environment

        extend_from_environment()


def _print_overview() -> None:
    console = io.terminal()
    console.print(
        "usage: limelight COMMAND ...\n\n"
        "The Transformer of 'Attention Is All You Need', whole and in the open.\n"
    )
    summaries = {name: parser.describe(command)[0] for name, command in COMMANDS.items()}
    io.print_columns(summaries, console)
    console.print(
        "\nNew here? Start with limelight demo, a tour of a few minutes. limelight COMMAND --help "
        "describes a command, and limelight completion sets up Tab completion."
    )


def _print_help(name: str) -> None:
    from rich.text import Text

    text = Text(parser.help_text(name, COMMANDS[name]).rstrip())
    text.highlight_regex(r"(?m)^(usage|[a-z]+ arguments|options):|^  (-h, )?--[\w-]+", "bold")
    io.terminal().print(text, soft_wrap=True)


def main() -> None:
    """Run the command line. Errors are one sentence on stderr, and the exit status.

    2: the user asked for something impossible. 1: it was possible, but the work failed.
    """
    _restore_std_streams()
    _install_warning_format()
    try:
        run_command(sys.argv[1:])
        sys.stdout.flush()
    except UserError as error:
        _exit_with(str(error), 2)
    except FailedError as error:
        _exit_with(str(error), 1)
    except KeyboardInterrupt as error:  # with a number if it was another signal than Ctrl-C
        _exit_with("interrupted", 128 + (error.args or (signal.SIGINT,))[0])
    except BrokenPipeError:
        discard_output(sys.stdout)  # the reader (`head`, a pager) has seen enough
    except OSError as error:
        _exit_with(describe_os_error(error), 1)
    except (RuntimeError, MemoryError) as error:
        from limelight.device import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        _exit_with(_NO_MEMORY, 1)


_NO_MEMORY = (
    "not enough memory: close other programs, use a shorter text, fewer texts at a time, or a "
    "smaller model. If it was the GPU's memory, CUDA_VISIBLE_DEVICES= before the command uses the "
    "CPU"
)


def _restore_std_streams() -> None:
    """Replace standard streams that the parent process has closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _install_warning_format() -> None:
    """Print our own warnings as sentences; those of libraries stay Python's."""
    usual = warnings.formatwarning

    def formatwarning(message: Any, category: type[Warning], *where: Any, **line: Any) -> str:
        ours = issubclass(
            category, AdjustedWarning | EngineWarning | OlderWeightsWarning | RenamedWarning
        )
        text = f"limelight: {message}" if ours else usual(message, category, *where, **line)
        return escape_controls(text.rstrip(), keep="" if ours else "\n") + "\n"

    warnings.formatwarning = formatwarning


def _exit_with(sentence: str, code: int) -> NoReturn:
    try:
        sys.stdout.flush()  # so that earlier output comes first
    except OSError:
        discard_output(sys.stdout)
    io.note(sentence)
    sys.exit(code)
