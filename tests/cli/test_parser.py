"""What is typed behind a command is read as its help says."""

import re
from inspect import Parameter, signature
from typing import Literal, get_args, get_origin

import pytest
import tyro
from hypothesis import given
from hypothesis import strategies as st

from limelight.cli import COMMANDS, run_command
from limelight.cli.parser import arguments_of, gather_changes, read_arguments
from limelight.errors import UserError

TYPED = {int: ["-3", "1_000"], float: ["0.5", "-1e3"], str: ["a b", "-", "-5", "é=1"], bool: [""]}


def as_tyro_reads(command, arguments):
    """The parameters that tyro would call a command with."""

    def take(**values):
        return values

    take.__signature__, take.__annotations__ = signature(command), command.__annotations__
    return tyro.cli(take, args=arguments)


def needed(command):
    """The least that a command is called with."""
    for argument in arguments_of(command):
        if argument.required:
            fitting = get_args(argument.kind) if get_origin(argument.kind) is Literal else ["x"]
            yield from [argument.flag, *fitting[:1]] if argument.flag else fitting[:1]


def ways(argument):
    """An option as it can be given."""
    values = get_args(argument.kind) if get_origin(argument.kind) is Literal else None
    for value in values or TYPED[argument.kind]:
        if argument.kind is bool:
            yield from ([argument.flag], [argument.flag.replace("--", "--no-", 1)])
        else:
            yield from ([f"{argument.flag}={value}"], [argument.flag, value])
            yield [argument.flag.replace("-", "_").replace("__", "--"), value]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_read_as_tyro_reads_it_whose_help_people_see(command):
    call, least = COMMANDS[command], list(needed(COMMANDS[command]))
    defaults = {
        name: parameter.default
        for name, parameter in signature(call).parameters.items()
        if parameter.default is not Parameter.empty
    }
    options = [argument for argument in arguments_of(call) if argument.flag != "--set"]
    for option in [[], *(way for known in options if known.flag for way in ways(known))]:
        for arguments in ([*least, *option], [*option, *least]):
            read = defaults | read_arguments(command, call, arguments)
            assert read == as_tyro_reads(call, arguments), arguments


def several():
    """All options that may be repeated, by their commands."""
    for name, command in COMMANDS.items():
        for argument in arguments_of(command):
            if argument.several and argument.flag not in ("", "--set"):
                yield name, argument


def test_these_may_be_repeated():
    assert {(name, argument.flag) for name, argument in several()} == {
        *(("translate", flag) for flag in ("--include", "--exclude", "--ensemble")),
        *(("serve", flag) for flag in ("--hosts", "--origins")),
        ("write", "--stop"),
    }


@pytest.mark.parametrize(("command", "argument"), list(several()))
def test_an_option_takes_one_value_and_leaves_the_texts_behind_it(command, argument):
    flag = argument.flag
    read = read_arguments(command, COMMANDS[command], ["run", flag, "a", "x", flag, "b", "y z"])
    assert read[argument.name] == ("a", "b")
    texts = [value for name, value in read.items() if name not in ("run", argument.name)]
    assert texts == [("run", "x", "y z")] if command == "serve" else [("x", "y z")]


def test_a_change_leaves_the_texts_behind_it():
    read = read_arguments(
        "translate",
        COMMANDS["translate"],
        ["run", "--set", "decode.beam=2", "decode.top-k=3", "Hi.", "--decode.seed", "4", "you"],
    )
    assert read["set"] == ("decode.beam=2", "decode.top-k=3", "decode.seed=4")
    assert read["text"] == ("Hi.", "you")


@pytest.mark.parametrize(
    "text", ["- Good morning.", "-5", "-", "--", "--Hi. You there", "---", "—x"]
)
def test_what_no_option_looks_like_is_a_text(text):
    arguments = ["run", "--", text] if text == "--" else ["run", text]
    assert read_arguments("translate", COMMANDS["translate"], arguments)["text"] == (text,)


def test_the_last_word_counts():
    words = ["run", "--beam", "2", "--json", "--beam=3", "--no-json"]
    read = read_arguments("translate", COMMANDS["translate"], words)
    assert read == {"run": "run", "beam": 3, "json": False}


@pytest.mark.parametrize(
    "name", ["train.fsdp", "train.whole-word-masking", "model.tied", "data.reverse"]
)
def test_a_bare_setting_means_true_where_it_is_yes_or_no(name):
    assert gather_changes(["x", f"--{name}"]) == ["x", "--set", f"{name}=true"]


@pytest.mark.parametrize(
    "name", ["train.steps", "data.train", "data.toy", "model.d-model", "tokenizer.vocab"]
)
@pytest.mark.parametrize("behind", [[], ["--json"], ["--", "text"]])
def test_any_other_needs_its_value(name, behind):
    with pytest.raises(UserError, match=f"--{name} needs a value: write --{name} "):
        gather_changes(["x", f"--{name}", *behind])


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_speaks_to_people_and_fits(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    run_command([command, "--help"])
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 80
    assert not re.search(r"None|STR|INT|FLOAT|False|default: \)|default: ''", told)
    for argument in arguments_of(COMMANDS[command]):
        assert argument.flag in told


WORDS = [
    "",
    "-",
    "--",
    "---",
    "-h",
    "--set",
    "a.b=1",
    "--no-json",
    "--decode.beam",
    "--train.fsdp",
]
FLAGS = sorted({a.flag for command in COMMANDS.values() for a in arguments_of(command) if a.flag})
ANYTHING = st.sampled_from([*WORDS, *FLAGS, *(f"{flag}=x" for flag in FLAGS)]) | st.text(max_size=9)


@given(st.sampled_from(sorted(COMMANDS)), st.lists(ANYTHING, max_size=6))
def test_whatever_is_typed_is_read_or_refused_with_a_sentence(command, words):
    sentence = ""
    try:
        signature(COMMANDS[command]).bind(**read_arguments(command, COMMANDS[command], words))
    except UserError as refused:
        sentence = str(refused)
    assert sentence.isprintable()  # and so on one line
    assert not sentence or len(sentence.split()) > 3
