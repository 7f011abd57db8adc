"""What was typed behind a command, read by the command's own signature.

tyro draws the help and the completions from the same signatures. Reading is done here: what is
wrong is then told in a sentence with the words that were typed, and not in those of Python's types.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from inspect import Parameter, signature
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro

from limelight.errors import UserError, unknown_name

Command = Callable[..., None]


def shown(value: str, default: str = "") -> object:
    """How the help shows an argument: what stands there, and what holds if nothing does."""
    return tyro.conf.arg(metavar=value, help_behavior_hint=default and f"(default: {default})")


def by_place(value: str) -> object:
    """The same for one that is known by its place; in brackets where it may be left out."""
    needed = "" if value.startswith("[") else "(required)"
    return tyro.conf.arg(metavar=value, help_behavior_hint=needed)


RECIPES = "the recipe's"
Recipe = Annotated[str, tyro.conf.Positional, by_place("RECIPE")]
Run = Annotated[str, tyro.conf.Positional, by_place("RUN")]
Texts = Annotated[tuple[str, ...], tyro.conf.Positional, by_place("[TEXT ...]")]
Text = Annotated[str, tyro.conf.Positional, by_place("TEXT")]
Switch = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]
Whole = Annotated[int, tyro.conf.arg(metavar="N")]
WholeOrRecipes = Annotated[int | None, shown("N", RECIPES)]
NumberOrRecipes = Annotated[float | None, shown("X", RECIPES)]
Name = Annotated[str, shown("NAME")]
Folder = Annotated[str, tyro.conf.arg(metavar="FOLDER")]
Phrases = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, shown("TEXT")]  # one at a time
Changes = Annotated[tuple[str, ...], shown("TABLE.SETTING=VALUE")]


# Settings


LISTS = ("data.train", "data.valid", "data.test", "data.columns", "train.freeze")
OPTION = re.compile(r"--?[^\W\d][\w.-]*(=.*)?", re.DOTALL)  # "-5" and "- he said" are none
CHANGE = re.compile(r"\w+\.[\w-]+=")


def gather_changes(arguments: list[str]) -> list[str]:
    """`--train.steps 500` becomes `--set train.steps=500`: any setting of a recipe is an option.

    A setting takes one value, a list of files all that follow, and a bare one means true. What
    follows a bare `--` is text, whatever it looks like.
    """
    others: list[str] = []
    changes: list[str] = []
    left, texts = before_and_from_dashes(arguments)
    while left:
        argument = left.pop(0)
        name, equals, value = argument.removeprefix("--").partition("=")
        if not is_setting(argument):
            others.append(argument)
            continue
        values = [value] if equals else []
        while not equals and left and belongs(left[0], name, values):
            values.append(left.pop(0))
        if not values:
            check_bare(name)
        changes += values if name == "set" else [f"{name}={v}" for v in values or ["true"]]
    return [*others, *(["--set", *changes] if changes else []), *texts]


def before_and_from_dashes(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments before a bare `--`, and those from there on."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end], arguments[end:]


def is_setting(argument: str) -> bool:
    """Whether it is `--set`, or has the name of a setting, which has a dot in it."""
    name = argument.partition("=")[0]
    is_option = argument.startswith("--") and OPTION.fullmatch(argument)
    return bool(is_option) and ("." in name or name == "--set")


def belongs(argument: str, name: str, values: list[str]) -> bool:
    """Whether an argument is one more value of a setting that has these already."""
    if argument.startswith("--"):
        return False
    further = name in LISTS or (name == "set" and CHANGE.match(argument))
    return not values or bool(further)


def check_bare(name: str) -> None:
    """A setting without a value means true, where it is a matter of yes or no."""
    if name == "set":
        raise UserError("--set needs a value: write --set TABLE.SETTING=VALUE")
    from limelight.model.config import FAMILIES
    from limelight.recipe import TABLES
    from limelight.serve.limits import Limits

    table, _, setting = name.replace("-", "_").partition(".")
    owners: dict[str, list[Any]] = {key: [owner] for key, owner in TABLES.items()}
    owners |= {"model": list(FAMILIES.values()), "limits": [Limits]}
    kinds = [f.type for owner in owners.get(table, []) for f in fields(owner) if f.name == setting]
    if kinds and bool not in kinds:  # one that does not exist is answered later
        value = "FILE ..." if name in LISTS else "VALUE"
        raise UserError(f"--{name} needs a value: write --{name} {value}")


# Arguments


@dataclass(frozen=True)
class Argument:
    """A parameter of a command, as a person gives it."""

    name: str  # of the parameter
    flag: str  # how it is typed, as --max-tokens; nothing for what is known by its place
    value: str  # what is given, as the help shows it
    kind: Any  # int, float, str, bool or a Literal
    several: bool
    required: bool

    @property
    def typed(self) -> str:
        """How it is given."""
        return f"{self.flag} {self.value}".strip()


def arguments_of(command: Command) -> Iterator[Argument]:
    """All that a command takes."""
    for parameter in signature(command).parameters.values():
        rules = getattr(parameter.annotation, "__metadata__", ())
        kind = get_args(parameter.annotation)[0] if rules else parameter.annotation
        several = get_origin(kind) is tuple
        parts = [part for part in get_args(kind) if part not in (NoneType, ...)]
        kind = parts[0] if parts and get_origin(kind) is not Literal else kind
        dashed = rule_of(rules, "name") or parameter.name.replace("_", "-")
        yield Argument(
            parameter.name,
            "" if tyro.conf.Positional in rules else f"--{dashed}",
            rule_of(rules, "metavar") or usual_value(kind),
            kind,
            several,
            parameter.default is Parameter.empty,
        )


def rule_of(rules: tuple[Any, ...], name: str) -> str:
    """What an annotation says of an argument, if it says something."""
    return next((found for rule in rules if (found := getattr(rule, name, ""))), "")


def usual_value(kind: Any) -> str:
    """What stands behind an option of this kind."""
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    return {bool: "", int: "N", float: "X", str: "TEXT"}[kind]


# Reading


def read_arguments(name: str, command: Command, arguments: list[str]) -> dict[str, Any]:
    """What to call a command with."""
    known = list(arguments_of(command))
    options = {argument.flag: argument for argument in known if argument.flag}
    left, texts = before_and_from_dashes(gather_changes(arguments))
    given: dict[str, Any] = {}
    standing: list[str] = []
    while left:
        word = left.pop(0)
        if not OPTION.fullmatch(word):
            standing.append(word)
            continue
        flag, equals, value = word.partition("=")
        option = find_option(name, flag, options, left)
        if option.kind is bool:
            given[option.name] = read_switch(option, flag, equals)
        elif option.name == "set":
            given["set"], left = tuple(left), []  # they were gathered at the end
        else:
            read = read_value(option, value if equals else next_value(option, left))
            given[option.name] = (*given.get(option.name, ()), read) if option.several else read
    places = [argument for argument in known if not argument.flag]
    given |= read_places(name, places, [*standing, *texts[1:]])
    missing = [a.typed for a in known if a.required and a.name not in given]
    if missing:
        raise UserError(f"{name} needs {' and '.join(missing)}: {see(name)}")
    return given


def find_option(
    name: str, flag: str, options: Mapping[str, Argument], behind: list[str]
) -> Argument:
    """The option that is meant; one that does not exist is answered with the nearest."""
    dashed = flag.replace("_", "-")
    option = options.get(dashed) or options.get(dashed.replace("--no-", "--", 1))
    if option and (dashed == option.flag or option.kind is bool):
        return option
    if flag == "--set":
        raise UserError(
            f"{name} has no settings that --{shortened(behind[0])} could change: {see(name)}"
        )
    bare = {known.removeprefix("--"): known for known in [*options, "--help"]}
    near = get_close_matches(dashed.lstrip("-"), bare, n=1)
    hint = f"did you mean {bare[near[0]]}?" if near else see(name)
    raise UserError(f"{name} has no option {flag}: {hint}")


def read_switch(option: Argument, flag: str, equals: str) -> bool:
    """`--json` or `--no-json`: the last one counts, so that an alias can be overruled."""
    if equals:
        raise UserError(f"{option.flag} takes no value: write {option.flag}, or leave it out")
    return flag.replace("_", "-") == option.flag


def next_value(option: Argument, left: list[str]) -> str:
    """What stands behind an option; another option does not count."""
    if not left or (left[0].startswith("--") and OPTION.fullmatch(left[0])):
        raise UserError(f"{option.flag} needs a value: write {option.typed}")
    return left.pop(0)


def read_value(argument: Argument, text: str) -> Any:
    """A value of the right kind."""
    what = argument.flag or argument.value.strip("[]").split()[0]
    if get_origin(argument.kind) is Literal:
        if text not in get_args(argument.kind):
            raise unknown_name(argument.name, text, get_args(argument.kind))
        return text
    if argument.kind in (int, float):
        try:
            return argument.kind(text)
        except ValueError:
            wanted = "a whole number" if argument.kind is int else "a number"
            raise UserError(f"{what} {shortened(text)}: not {wanted}") from None
    if not text and re.search("RUN|RECIPE", argument.value):  # it would be the folder one is in
        raise UserError(f"{what} is empty: is it a variable that is not set?")
    return text


def shortened(text: str) -> str:
    """A value in a sentence."""
    text = text if len(text) <= 40 else f"{text[:37]}..."
    return text if text and text.isprintable() and " " not in text else repr(text)


def read_places(name: str, places: list[Argument], standing: list[str]) -> dict[str, Any]:
    """What is known by its place, in the order of the places; the last may take all the rest."""
    given: dict[str, Any] = {}
    rest = list(standing)
    for argument in places:
        if argument.several and rest:
            given[argument.name] = tuple(read_value(argument, text) for text in rest)
            rest = []
        elif rest:
            given[argument.name] = read_value(argument, rest.pop(0))
    if rest:
        takes = " ".join(argument.value for argument in places) or "options"
        quotes = "a text of several words stands in quotes; " if "TEXT" in takes else ""
        more = f"but there is {shortened(rest[0])} too"
        raise UserError(f"{name} takes {takes} and nothing else, {more}: {quotes}{see(name)}")
    return given


def see(name: str) -> str:
    """Where all of it is told."""
    return f"see limelight {name} --help"
