"""Commands are functions: their types and docstrings give the options, argparse reads them.

A parameter's annotation, one of the types below, says how the argument is typed and what the help
shows; the Args of a docstring describe what is particular to that command. Errors quote the words
that were typed and suggest the nearest valid ones.
"""

import re
import shutil
import textwrap
import warnings
from argparse import SUPPRESS, ArgumentError, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from difflib import get_close_matches
from functools import partial
from inspect import Parameter, getdoc, signature
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

from limelight.errors import RenamedWarning, UserError, unknown_name

Command = Callable[..., None]


@dataclass(frozen=True)
class Argument:
    """A parameter of a command: written in an annotation, completed by `arguments_of`."""

    metavar: str = ""
    help: str = ""
    _: KW_ONLY
    positional: bool = False
    fallback: str = ""  # shown as the default in place of the parameter's own
    aliases: tuple[str, ...] = ()  # other spellings of an option
    renamed: tuple[str, ...] = ()  # old spellings of an option, accepted with a warning

    name: str = ""
    kind: Any = str  # int, float, str, bool or a Literal
    several: bool = False
    required: bool = False
    default: Any = None

    @property
    def flag(self) -> str:
        return "" if self.positional else "--" + self.name.rstrip("_").replace("_", "-")

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def typed(self) -> str:
        """The argument as a user types it: `--beam N`, `RUN [RUN ...]`, `[TEXT ...]`."""
        if not self.positional:
            return f"{self.flag} {self.metavar}".strip()
        more = f"[{self.metavar} ...]"
        if self.several:
            return f"{self.metavar} {more}" if self.required else more
        return self.metavar if self.required else f"[{self.metavar}]"

    @property
    def shown_default(self) -> str:
        return self.fallback or str(self.default or "")


_RECIPE = "a recipe by name (see `limelight recipes`), or a TOML file"
_RUN = "a run folder, or a bundled model by name (see `limelight models`)"
_IN_RECIPE = "the recipe's"
_SET = "change a setting; --train.steps 500 is short for --set train.steps=500"
_SET_DECODE = "change the recipe's [decode] table; --decode.top-p 0.9 works as well"
_INPUT = "read the texts from this file, line by line"
_OUTPUT = "with --input: write to this file; an interrupted command continues if it is repeated"
_ENGINE = "what decodes on a CPU: auto, torch or ctranslate2 (pip install limelight[fast])"
_TEMPERATURE = "above 0, sample (without a beam), more varied with higher values"

Recipe = Annotated[str, Argument("RECIPE", _RECIPE, positional=True)]
Run = Annotated[str, Argument("RUN", _RUN, positional=True)]
Text = Annotated[str, Argument("TEXT", positional=True)]
Texts = Annotated[
    tuple[str, ...], Argument("TEXT", "the texts; without any, the lines of stdin", positional=True)
]
Switch = Annotated[bool, Argument()]
Json = Annotated[bool, Argument(help="print one JSON document")]
JsonLines = Annotated[bool, Argument(help="print one JSON document per line")]
Int = Annotated[int, Argument("N")]
OptionalInt = Annotated[int | None, Argument("N")]
String = Annotated[str, Argument("TEXT")]
Phrases = Annotated[tuple[str, ...], Argument("TEXT")]
Folder = Annotated[str, Argument("FOLDER")]
File = Annotated[str, Argument("FILE")]
Input = Annotated[str, Argument("FILE", _INPUT)]
Output = Annotated[str, Argument("FILE", _OUTPUT, aliases=("-o",))]
DecodeInt = Annotated[int | None, Argument("N", fallback=_IN_RECIPE)]
DecodeFloat = Annotated[float | None, Argument("X", fallback=_IN_RECIPE)]
Beam = Annotated[int | None, Argument("N", "beam size; 1 is greedy decoding", fallback=_IN_RECIPE)]
Temperature = Annotated[float | None, Argument("X", _TEMPERATURE, fallback=_IN_RECIPE)]
Seed = Annotated[int | None, Argument("N", "random seed for sampling", fallback=_IN_RECIPE)]
Engine = Annotated[str | None, Argument("NAME", _ENGINE, fallback=_IN_RECIPE)]
Tag = Annotated[str, Argument("NAME", "what a model trained on several tasks should do")]
Settings = Annotated[tuple[str, ...], Argument("TABLE.SETTING=VALUE", _SET)]
DecodeSettings = Annotated[tuple[str, ...], Argument("TABLE.SETTING=VALUE", _SET_DECODE)]


_EXTEND = Argument(
    *("FILE", "run a Python file of yours first, which adds parts of models (docs/extend.md)"),
    name="extend",
    several=True,
)


def arguments_of(command: Command) -> list[Argument]:
    """The arguments of a command, in the order of its parameters; --extend where models are."""
    meanings = describe(command)[2]
    known = [_argument(one, meanings) for one in signature(command).parameters.values()]
    models = any(re.search("RUN|RECIPE", one.metavar) for one in known)
    return [*known, *([_EXTEND] if models else [])]


def _argument(parameter: Parameter, meanings: Mapping[str, str]) -> Argument:
    kind, mark = get_args(parameter.annotation)
    several, required = get_origin(kind) is tuple, parameter.default is Parameter.empty
    if several or get_origin(kind) is UnionType:
        (kind,) = (part for part in get_args(kind) if part not in (NoneType, ...))
    return replace(
        mark,
        help=meanings.get(parameter.name, mark.help),
        name=parameter.name,
        kind=kind,
        several=several,
        required=required,
        default=None if required else parameter.default,
    )


def describe(command: Command) -> tuple[str, str, dict[str, str]]:
    """A command's docstring: the first line, the paragraphs below it, and the Args by name."""
    text, _, listed = (getdoc(command) or "").partition("\nArgs:\n")
    first, _, body = text.strip().partition("\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed, re.MULTILINE)
    return first, body.strip(), {name: " ".join(meaning.split()) for name, meaning in entries}


def synopsis(name: str, command: Command) -> str:
    """How a command is called: `limelight train [RECIPE] --run FOLDER [options]`."""
    known = arguments_of(command)
    shown = [argument.typed for argument in known if argument.positional or argument.required]
    return " ".join(["limelight", name, *shown, *["[options]"] * (len(shown) < len(known))])


# Help and completion


def help_text(name: str, command: Command) -> str:
    """The help of a command, as wide as the terminal."""
    width = shutil.get_terminal_size().columns - 2
    paragraphs = "\n\n".join(describe(command)[:2]).strip().split("\n\n")
    filled = [textwrap.fill(one, width, break_on_hyphens=False) for one in paragraphs]
    parser = ArgumentParser(
        usage=synopsis(name, command),
        description="\n\n".join(filled).replace("%", "%%"),
        formatter_class=partial(RawDescriptionHelpFormatter, max_help_position=26, width=width),
    )
    _add_arguments(parser, arguments_of(command))
    return parser.format_help() + (_settings_in_short(width) if name == "train" else "")


def _settings_in_short(width: int) -> str:
    """The names of all settings but the model's, whose module would import torch."""
    from limelight.data.config import DataConfig
    from limelight.data.tokenizer import TokenizerConfig
    from limelight.decode.config import DecodeConfig
    from limelight.training.config import TrainConfig

    tables = {"train": TrainConfig, "data": DataConfig, "tokenizer": TokenizerConfig}
    lines = ["\nsettings (limelight recipes --settings describes them, and those of [model]):"]
    for table, owner in (tables | {"decode": DecodeConfig}).items():
        names = " ".join(f.name.replace("_", "-") for f in fields(owner))
        first, rest = f"  --{table}. ", " " * 6
        lines += textwrap.wrap(
            names, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
        )
    return "\n".join(lines) + "\n"


def completion_script(commands: Mapping[str, Command], shell: str) -> str:
    """A script with which this shell completes commands, options and choices."""
    import shtab

    parser = ArgumentParser("limelight", description="Train, use and explain Transformers.")
    known = parser.add_subparsers()
    for name, command in commands.items():
        _add_arguments(known.add_parser(name, help=describe(command)[0]), arguments_of(command))
    return str(shtab.complete(parser, shell))


def _add_arguments(
    parser: ArgumentParser, arguments: Iterable[Argument], choices: bool = True
) -> None:
    """Values stay text here: `_read_value` checks and converts them, with better errors."""
    for one in arguments:
        default = f" (default: {one.shown_default})" if one.shown_default else ""
        shown: dict[str, Any] = {"help": (one.help + default).replace("%", "%%")}
        if one.kind is bool:
            parser.add_argument(one.flag, action="store_true", dest=one.name, **shown)
            negated = one.flag.replace("--", "--no-", 1)  # overrules an earlier --json
            parser.add_argument(negated, action="store_false", dest=one.name, help=SUPPRESS)
            continue
        shown |= {"metavar": one.metavar, "choices": (choices and one.choices) or None}
        if one.positional:
            parser.add_argument(one.name, nargs="*" if one.several else None, **shown)
        else:
            action = "append" if one.several else "store"
            short = [alias for alias in one.aliases if not alias.startswith("--")]
            parser.add_argument(*short, one.flag, action=action, dest=one.name, **shown)


# Reading


_OPTION = re.compile(r"--?[^\W\d][\w.-]*(=.*)?", re.DOTALL)  # not "-5" nor "- he said"
_VALUE = "\0"  # marks a word that is not an option: argparse would misread "-1e3" and "---"


def read_arguments(name: str, command: Command, words: list[str]) -> dict[str, Any]:
    """The words after a command's name as its arguments; only those that were given."""
    known = arguments_of(command)
    options = {argument.flag: argument for argument in known if argument.flag}
    words, texts = split_at_dashes(words)
    if "--set" in options:
        words = [_in_full(word, options) for word in words]
    words, changes = split_settings(words)
    if changes and "--set" not in options:
        change = _shortened(changes[0])
        raise UserError(f"{name} has no settings that --{change} could change: {_help_hint(name)}")
    given, others = _parse_options(options, [_marked(word, options) for word in words])
    for word in others:
        if not word.startswith(_VALUE):
            raise _unknown_option(name, word.partition("=")[0], options)
    standing = [word.removeprefix(_VALUE) for word in others] + texts[1:]
    given |= _read_positionals(name, [a for a in known if a.positional], standing)
    given |= {"set": tuple(changes)} if changes else {}
    missing = [a.typed for a in known if a.required and a.name not in given]
    if missing:
        raise UserError(f"{name} needs {' and '.join(missing)}: {_help_hint(name)}")
    return given


def split_at_dashes(words: list[str]) -> tuple[list[str], list[str]]:
    """The words before a bare `--`, and those from it on, which are texts."""
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end:]


def _in_full(word: str, options: Mapping[str, Argument]) -> str:
    """A short or usual name of a setting as the setting; an option of the command comes first."""
    flag, equals, value = word.partition("=")
    flag = flag.replace("_", "-")
    if flag in _ELSEWHERE and flag not in options:
        raise UserError(f"there is no {flag}: {_ELSEWHERE[flag]}")
    return f"{_SHORT[flag]}{equals}{value}" if flag in _SHORT and flag not in options else word


def _marked(word: str, options: Mapping[str, Argument]) -> str:
    """A word for argparse: marked as a value, or an option under its current name."""
    if not _OPTION.fullmatch(word):
        return _VALUE + word
    typed, equals, value = word.partition("=")
    flag = typed.replace("_", "-")
    for option in options.values():
        if flag in option.renamed:
            warnings.warn(f"{flag} is now called {option.flag}", RenamedWarning, stacklevel=2)
        if flag in (*option.aliases, *option.renamed):
            flag = option.flag
    known = flag in options or flag.replace("--no-", "--", 1) in options
    return f"{flag}{equals}{value}" if known else word


def _parse_options(
    options: Mapping[str, Argument], words: list[str]
) -> tuple[dict[str, Any], list[str]]:
    """The values of options, and the words that argparse leaves over: texts, unknown options."""
    parser = ArgumentParser(
        add_help=False, allow_abbrev=False, exit_on_error=False, argument_default=SUPPRESS
    )
    _add_arguments(parser, options.values(), choices=False)
    try:
        found, others = parser.parse_known_args(words)
    except ArgumentError as error:
        flag = str(error.argument_name)
        if "expected one argument" in str(error):
            raise UserError(f"{flag} needs a value: write {options[flag].typed}") from None
        raise UserError(f"{flag} takes no value: write {flag}, or leave it out") from None
    given = vars(found)
    for option in options.values():
        if option.name in given and option.kind is not bool:
            texts = given[option.name] if option.several else [given[option.name]]
            values = tuple(_read_value(option, text.removeprefix(_VALUE)) for text in texts)
            given[option.name] = values if option.several else values[0]
    return given, others


def _unknown_option(name: str, flag: str, options: Mapping[str, Argument]) -> UserError:
    from limelight.recipe import tables_with

    bare = {known.removeprefix("--"): known for known in [*options, "--help"]}
    near = get_close_matches(flag.replace("_", "-").lstrip("-"), bare, n=1)
    hint = f"did you mean {bare[near[0]]}?" if near else _help_hint(name)
    tables = tables_with(flag[2:].replace("-", "_")) if "--set" in options and not near else []
    if tables and options["--set"].help == _SET_DECODE:
        tables = [table for table in tables if table == "decode"]
    if tables:
        hint = f"did you mean --{tables[0]}.{flag[2:]}?"
    return UserError(f"{name} has no option {flag}: {hint}")


def _read_positionals(name: str, known: list[Argument], words: list[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    rest = list(words)
    for argument in known:
        if argument.several and rest:
            given[argument.name] = tuple(_read_value(argument, text) for text in rest)
            rest = []
        elif rest:
            given[argument.name] = _read_value(argument, rest.pop(0))
    if rest:
        takes = " ".join(argument.typed for argument in known) or "no arguments"
        quotes = "put a text of several words in quotes; " if "TEXT" in takes else ""
        excess = f"so {_shortened(rest[0])} is one too many"
        raise UserError(f"{name} takes {takes}, {excess}: {quotes}{_help_hint(name)}")
    return given


def _read_value(argument: Argument, text: str) -> Any:
    what = argument.flag or argument.metavar
    if argument.choices and text not in argument.choices:
        kind = "format" if argument.metavar == "FORMAT" else argument.name  # --to FORMAT
        raise unknown_name(kind, text, argument.choices)
    # An empty path would be the current folder.
    if not text and re.search("RUN|RECIPE|FOLDER|FILE", argument.metavar):
        raise UserError(f"{what} is empty: is a variable not set?")
    try:
        return argument.kind(text) if argument.kind in (int, float) else text
    except ValueError:
        wanted = "a whole number" if argument.kind is int else "a number"
        raise UserError(f"{what} {_shortened(text)}: not {wanted}") from None


def _shortened(text: str) -> str:
    """A value in an error: quoted unless it is one plain word."""
    text = text if len(text) <= 40 else f"{text[:37]}..."
    return text if text and text.isprintable() and " " not in text else repr(text)


def _help_hint(name: str) -> str:
    return f"see limelight {name} --help"


# Settings of a recipe: --train.steps 500, or --set train.steps=500


_LISTS = (
    *("data.train", "data.valid", "data.test", "data.columns"),
    *("train.freeze", "train.log-to", "train.log_to"),
)
_SHORT = {  # what people type: the setting that it means
    "--data.allow-bad": "--train.max-unusable=1",
    "--lr": "--train.learning-rate",
    "--learning-rate": "--train.learning-rate",
    "--steps": "--train.steps",
    "--max-steps": "--train.steps",
    "--warmup": "--train.warmup",
}
_EPOCHS = "training is counted in steps: use --train.steps N; limelight data check counts batches"
_TOKENS = "batches are counted in tokens: use --train.batch-tokens N, 4096 or so"
_ELSEWHERE = {  # what has no setting of the same meaning: the one to use
    **dict.fromkeys(("--epochs", "--train.epochs", "--num-epochs"), _EPOCHS),
    **dict.fromkeys(("--batch-size", "--train.batch-size", "--batch"), _TOKENS),
}
_CHANGE = re.compile(r"\w+\.[\w-]+=")


def split_settings(words: list[str]) -> tuple[list[str], list[str]]:
    """The other words, and the settings as `train.steps=500`.

    A setting takes one value, a list of files all that follow; a bare setting means true.
    """
    others: list[str] = []
    changes: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        is_option = word.startswith("--") and _OPTION.fullmatch(word)
        if not is_option or ("." not in name and name != "set"):
            others.append(word)
            continue
        values = [value] if equals else []
        while not equals and left and _belongs(left[0], name, values):
            values.append(left.pop(0))
        if not values:
            _check_bare(name)
        changes += values if name == "set" else [f"{name}={v}" for v in values or ["true"]]
    return others, changes


def _belongs(word: str, name: str, values: list[str]) -> bool:
    """Whether a word is one more value of a setting that has these already."""
    if word.startswith("--"):
        return False
    return not values or name in _LISTS or (name == "set" and bool(_CHANGE.match(word)))


def _check_bare(name: str) -> None:
    """Refuse a setting without a value, unless it is true or false."""
    if name == "set":
        raise UserError("--set needs a value: write --set TABLE.SETTING=VALUE")
    from limelight.model.config import FAMILIES
    from limelight.recipe import TABLES
    from limelight.serve.limits import Limits

    table, _, setting = name.replace("-", "_").partition(".")
    owners: dict[str, list[Any]] = {key: [owner] for key, owner in TABLES.items()}
    owners |= {"model": list(FAMILIES.values()), "limits": [Limits]}
    kinds = [f.type for owner in owners.get(table, []) for f in fields(owner) if f.name == setting]
    if kinds and bool not in kinds:  # a setting that does not exist is reported later
        value = "FILE ..." if name in _LISTS else "VALUE"
        raise UserError(f"--{name} needs a value: write --{name} {value}")


def overrides(settings: Iterable[str], **decode: float | str | None) -> dict[str, Any]:
    """The settings that were given and the options of [decode], by name and value."""
    from limelight.recipe import parse_overrides

    given = {f"decode.{name}": value for name, value in decode.items() if value is not None}
    return parse_overrides(settings) | given
