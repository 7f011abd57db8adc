"""The command line: a table from names to functions. Read in this order:

parser       arguments from types and docstrings: reading, errors, help, completion
io           what commands read and print: lines, reports, conversations
inspect      models, recipes, info, data
train        demo, train, evaluate
generate     translate, chat, write, fill, classify, embed, score
explain      explain
serve        serve

Everything heavy is imported inside the command that needs it, so that `--help` answers at once.
"""

import os
import sys
import warnings
from typing import Annotated, Literal, NoReturn

from limelight import __version__
from limelight.cli.explain import explain
from limelight.cli.generate import chat, classify, embed, fill, score, translate, write
from limelight.cli.inspect import data, info, models, recipes
from limelight.cli.io import note, print_columns, terminal
from limelight.cli.parser import (
    Argument,
    Command,
    completion_script,
    describe,
    help_text,
    read_arguments,
    split_at_dashes,
)
from limelight.cli.serve import serve
from limelight.cli.train import demo, evaluate, train
from limelight.errors import (
    FailedError,
    OlderWeightsWarning,
    RenamedWarning,
    UserError,
    describe_os_error,
    unknown_name,
)


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Argument("SHELL", positional=True)],
) -> None:
    """Print a script that lets your shell complete commands and options with Tab.

    For bash:

    limelight completion bash > ~/.local/share/bash-completion/completions/limelight

    For zsh, where FOLDER is in your $fpath:

    limelight completion zsh > FOLDER/_limelight

    For fish:

    limelight completion fish > ~/.config/fish/completions/limelight.fish

    Args:
        shell: bash, zsh or fish
    """
    print(completion_script(COMMANDS, shell))


COMMANDS: dict[str, Command] = {
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
    elif {"-h", "--help"} & {*split_at_dashes(words)[0]}:
        _print_help(name)
    else:
        COMMANDS[name](**read_arguments(name, COMMANDS[name], words[1:]))


def _print_overview() -> None:
    console = terminal()
    console.print(
        "usage: limelight COMMAND ...\n\n"
        "The Transformer of 'Attention Is All You Need', whole and in the open.\n"
    )
    print_columns({name: describe(command)[0] for name, command in COMMANDS.items()}, console)
    console.print(
        "\nNew here? Start with limelight demo, a tour of a few minutes. limelight COMMAND --help "
        "describes a command, and limelight completion sets up Tab completion."
    )


def _print_help(name: str) -> None:
    from rich.text import Text

    text = Text(help_text(name, COMMANDS[name]).rstrip())
    text.highlight_regex(r"(?m)^(usage|[a-z]+ arguments|options):|^  (-h, )?--[\w-]+", "bold")
    terminal().print(text, soft_wrap=True)


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
    except KeyboardInterrupt:
        _exit_with("interrupted", 130)
    except BrokenPipeError:
        _silence_stdout()  # the reader (`head`, a pager) has seen enough
    except OSError as error:
        _exit_with(describe_os_error(error), 1)
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
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

    def formatwarning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if issubclass(category, OlderWeightsWarning | RenamedWarning):
            return f"limelight: {message}\n"
        return usual(message, category, filename, lineno, line)

    warnings.formatwarning = formatwarning


def _exit_with(sentence: str, code: int) -> NoReturn:
    try:
        sys.stdout.flush()  # so that earlier output comes first
    except OSError:
        _silence_stdout()
    note(sentence)
    sys.exit(code)


def _silence_stdout() -> None:
    """Keep Python from flushing to a closed pipe once more when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    from limelight.device import is_out_of_memory

    return is_out_of_memory(error)
