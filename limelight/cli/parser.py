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
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import partial
from inspect import Parameter, getdoc, signature
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

from limelight.errors import RenamedWarning, UserError, unknown_name

Command = Callable[..., None]


@dataclass(frozen=True)
class Argument:
    """A parameter of a command: a mark in an annotation, completed by `arguments_of`."""

    metavar: str = ""
    help: str = ""
    positional: bool = False
    fallback: str = ""  # shown as the default in place of the parameter's own
    aliases: tuple[str, ...] = ()  # other spellings of an option
    renamed: tuple[str, ...] = ()  # old spellings of an option, accepted with a warning

    name: str = ""
    kind: Any = str  # int, float, str, bool, a Literal, or a Mapping for --set
    several: bool = False
    default: Any = Parameter.empty

    @property
    def flag(self) -> str:
        """The option, such as --max-tokens; empty for a positional argument."""
        return "" if self.positional else "--" + self.name.rstrip("_").replace("_", "-")

    @property
    def required(self) -> bool:
        """Whether the command cannot run without it."""
        return self.default is Parameter.empty

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that it can have, if these are listed."""
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
        """The default, where it tells a user something."""
        obvious = self.required or self.default in (False, None, "", ()) or self.kind is Mapping
        return self.fallback or ("" if obvious else str(self.default))


_IN_RECIPE = "the recipe's"
Recipe = Annotated[
    str, Argument("RECIPE", "a recipe by name (see `limelight recipes`), or a TOML file", True)
]
Run = Annotated[
    str, Argument("RUN", "a run folder, or a bundled model by name (see `limelight models`)", True)
]
Texts = Annotated[tuple[str, ...], Argument("TEXT", positional=True)]
Text = Annotated[str, Argument("TEXT", positional=True)]
Switch = Annotated[bool, Argument()]
Json = Annotated[bool, Argument(help="print one JSON document")]
JsonLines = Annotated[bool, Argument(help="print one JSON document per line")]
Int = Annotated[int, Argument("N")]
OptionalInt = Annotated[int | None, Argument("N")]
DecodeInt = Annotated[int | None, Argument("N", fallback=_IN_RECIPE)]
DecodeFloat = Annotated[float | None, Argument("X", fallback=_IN_RECIPE)]
Seed = Annotated[int | None, Argument("N", "random seed for sampling", fallback=_IN_RECIPE)]
Tag = Annotated[str, Argument("NAME", "what a model trained on several tasks should do")]
Folder = Annotated[str, Argument("FOLDER")]
File = Annotated[str, Argument("FILE")]
Phrases = Annotated[tuple[str, ...], Argument("TEXT")]
Settings = Annotated[Mapping[str, Any], Argument("TABLE.SETTING=VALUE")]
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


def arguments_of(command: Command) -> list[Argument]:
    """The arguments of a command, in the order of its parameters."""
    meanings = describe(command)[2]
    return [_argument(one, meanings) for one in signature(command).parameters.values()]


def _argument(parameter: Parameter, meanings: Mapping[str, str]) -> Argument:
    kind, mark = parameter.annotation, Argument()
    if get_origin(kind) is Annotated:
        kind, mark = get_args(kind)
    several = get_origin(kind) is tuple
    if several or get_origin(kind) is UnionType:
        (kind,) = (part for part in get_args(kind) if part not in (NoneType, ...))
    if get_origin(kind) not in (None, Literal):
        kind = Mapping
    return replace(
        mark,
        metavar=mark.metavar or ("|".join(get_args(kind)) if get_args(kind) else ""),
        help=meanings.get(parameter.name, mark.help),
        name=parameter.name,
        kind=kind,
        several=several,
        default=parameter.default,
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
    first, body, _ = describe(command)
    paragraphs = [first, *(part.replace("\n", " ") for part in body.split("\n\n") if part)]
    parser = ArgumentParser(
        usage=synopsis(name, command),
        description="\n\n".join(
            textwrap.fill(part, width, break_on_hyphens=False).replace("%", "%%")
            for part in paragraphs
        ),
        formatter_class=partial(RawDescriptionHelpFormatter, max_help_position=26, width=width),
    )
    _add_arguments(parser, arguments_of(command))
    return parser.format_help()


def completion_script(commands: Mapping[str, Command], shell: str) -> str:
    """A script with which this shell completes commands, options and choices."""
    import shtab

    parser = ArgumentParser("limelight", description="Train, use and explain Transformers.")
    known = parser.add_subparsers()
    for name, command in commands.items():
        first = describe(command)[0].replace("%", "%%")
        _add_arguments(known.add_parser(name, help=first), arguments_of(command))
    return str(shtab.complete(parser, shell))


def _add_arguments(parser: ArgumentParser, arguments: Iterable[Argument]) -> None:
    """Values stay text here: `_read_value` converts them, with better errors."""
    for argument in arguments:
        default = f" (default: {argument.shown_default})" if argument.shown_default else ""
        shown: dict[str, Any] = {"help": (argument.help + default).replace("%", "%%")}
        if argument.kind is bool:
            dest = argument.name
            parser.add_argument(argument.flag, action="store_true", dest=dest, **shown)
            negated = argument.flag.replace("--", "--no-", 1)  # overrules an earlier --json
            parser.add_argument(negated, action="store_false", dest=dest, help=SUPPRESS)
            continue
        shown |= {"metavar": argument.metavar, "choices": argument.choices or None}
        if argument.positional:
            parser.add_argument(argument.name, nargs="*" if argument.several else None, **shown)
        else:
            action = "append" if argument.several else "store"
            parser.add_argument(argument.flag, action=action, dest=argument.name, **shown)


# Reading


_OPTION = re.compile(r"--?[^\W\d][\w.-]*(=.*)?", re.DOTALL)  # not "-5" nor "- he said"
_VALUE = "\0"  # begins a word that is not an option: argparse itself would misread "-1e3" and "---"


def read_arguments(name: str, command: Command, words: list[str]) -> dict[str, Any]:
    """The words after a command's name as its arguments; only those that were given."""
    known = arguments_of(command)
    options = {argument.flag: argument for argument in known if argument.flag}
    words, texts = split_at_dashes(words)
    words, changes = split_settings(words)
    if changes and "--set" not in options:
        change = shortened(changes[0])
        raise UserError(f"{name} has no settings that --{change} could change: {help_hint(name)}")
    given, others = _parse_options(options, [_marked(word, options) for word in words])
    for word in others:
        if not word.startswith(_VALUE):
            raise _unknown_option(name, word.partition("=")[0], options)
    standing = [word.removeprefix(_VALUE) for word in others] + texts[1:]
    given |= {"set": parse_settings(changes)} if changes else {}
    given |= _read_positionals(name, [a for a in known if a.positional], standing)
    missing = [a.typed for a in known if a.required and a.name not in given]
    if missing:
        raise UserError(f"{name} needs {' and '.join(missing)}: {help_hint(name)}")
    return given


def split_at_dashes(words: list[str]) -> tuple[list[str], list[str]]:
    """The words before a bare `--`, and those from it on, which are texts."""
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end:]


def _parse_options(
    options: Mapping[str, Argument], words: list[str]
) -> tuple[dict[str, Any], list[str]]:
    """The values of options, and the words that argparse left over: texts and unknown options."""
    parser = ArgumentParser(
        add_help=False, allow_abbrev=False, exit_on_error=False, argument_default=SUPPRESS
    )
    plain = [o if o.kind is bool else replace(o, kind=str) for o in options.values()]
    _add_arguments(parser, [option for option in plain if option.name != "set"])
    try:
        found, others = parser.parse_known_args(words)
    except ArgumentError as error:
        flag = str(error.argument_name)
        if "expected one argument" in str(error):
            raise UserError(f"{flag} needs a value: write {options[flag].typed}") from None
        raise UserError(f"{flag} takes no value: write {flag}, or leave it out") from None
    given: dict[str, Any] = {}
    for option in options.values():
        value = getattr(found, option.name, None)
        if isinstance(value, bool):
            given[option.name] = value
        elif value is not None:
            texts = value if option.several else [value]
            read = tuple(_read_value(option, text.removeprefix(_VALUE)) for text in texts)
            given[option.name] = read if option.several else read[0]
    return given, others


def _marked(word: str, options: Mapping[str, Argument]) -> str:
    """A word for argparse: marked as a value, or an option under its current name."""
    if not _OPTION.fullmatch(word):
        return _VALUE + word
    typed, equals, value = word.partition("=")
    flag = typed.replace("_", "-")
    for option in options.values():
        if flag in option.renamed:
            message = f"{flag} is now called {option.flag}"
            warnings.warn(message, RenamedWarning, stacklevel=2)
        if flag in (*option.aliases, *option.renamed):
            flag = option.flag
    known = flag in options or flag.replace("--no-", "--", 1) in options
    return f"{flag}{equals}{value}" if known else word


def _unknown_option(name: str, flag: str, options: Mapping[str, Argument]) -> UserError:
    bare = {known.removeprefix("--"): known for known in [*options, "--help"]}
    near = get_close_matches(flag.replace("_", "-").lstrip("-"), bare, n=1)
    hint = f"did you mean {bare[near[0]]}?" if near else help_hint(name)
    return UserError(f"{name} has no option {flag}: {hint}")


def _read_value(argument: Argument, text: str) -> Any:
    what = argument.flag or argument.metavar
    if argument.choices:
        if text not in argument.choices:
            raise unknown_name(argument.name, text, argument.choices)
        return text
    if argument.kind in (int, float):
        try:
            return argument.kind(text)
        except ValueError:
            wanted = "a whole number" if argument.kind is int else "a number"
            raise UserError(f"{what} {shortened(text)}: not {wanted}") from None
    if not text and re.search("RUN|RECIPE", argument.metavar):  # would be the current folder
        raise UserError(f"{what} is empty: is a variable not set?")
    return text


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
        more = f"so {shortened(rest[0])} is one too many"
        raise UserError(f"{name} takes {takes}, {more}: {quotes}{help_hint(name)}")
    return given


def shortened(text: str) -> str:
    """A value in an error: quoted unless it is one plain word."""
    text = text if len(text) <= 40 else f"{text[:37]}..."
    return text if text and text.isprintable() and " " not in text else repr(text)


def help_hint(name: str) -> str:
    """Where to read on after an error."""
    return f"see limelight {name} --help"


# Settings of a recipe: --train.steps 500, or --set train.steps=500


_LISTS = ("data.train", "data.valid", "data.test", "data.columns", "train.freeze")
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


def parse_settings(changes: Iterable[str]) -> dict[str, Any]:
    """Settings by name: text as it was typed, or a list of texts. The recipe converts them."""
    settings: dict[str, Any] = {}
    for change in changes:
        typed, equals, value = change.partition("=")
        name = typed.replace("-", "_")
        if not equals or "." not in name:
            raise UserError(f"--set {shortened(change)}: write --set TABLE.SETTING=VALUE")
        settings[name] = [*settings.get(name, []), value] if name in _LISTS else value
    return settings


def overrides(settings: Mapping[str, Any], **decode: float | None) -> list[str]:
    """Settings and the given options of [decode], in the form that recipes take."""
    given = {f"decode.{name}": value for name, value in decode.items() if value is not None}
    return [
        f"{name}={one}"
        for name, value in {**settings, **given}.items()
        for one in (value if isinstance(value, list) else [value])
    ]
