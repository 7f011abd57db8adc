"""What is typed behind a command is read as its help says."""

import re
from inspect import signature

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.cli import COMMANDS, run_command
from limelight.cli.parser import arguments_of, read_arguments, split_settings
from limelight.errors import RenamedWarning, UserError

TYPED = {
    int: {"-3": -3, "1_000": 1000},
    float: {"0.5": 0.5, "-1e3": -1000.0},
    str: {text: text for text in ("a b", "-", "-5", "é=1")},
}


def values_of(argument):
    """Values as they are typed, and as they are read."""
    return {one: one for one in argument.choices} or TYPED[argument.kind]


def needed(command):
    """The least that a command is called with: as it is typed, and as it is read."""
    words, read = [], {}
    for argument in arguments_of(command):
        if argument.required:
            value = argument.choices[0] if argument.choices else "x"
            words += [argument.flag, value] if argument.flag else [value]
            read[argument.name] = (value,) if argument.several else value
    return words, read


def ways(argument):
    """An option as it can be typed, and as it is read."""
    if argument.kind is bool:
        yield [argument.flag], True
        yield [argument.flag.replace("--", "--no-", 1)], False
        return
    for typed, value in values_of(argument).items():
        value = (value,) if argument.several else value  # noqa: PLW2901
        for flag in (argument.flag, *argument.aliases):
            yield [f"{flag}={typed}"], value
            yield [flag, typed], value
            yield ["-" * flag.count("-", 0, 2) + flag.lstrip("-").replace("-", "_"), typed], value


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_read_as_its_type_says(command):
    call, (least, expected) = COMMANDS[command], needed(COMMANDS[command])
    assert read_arguments(command, call, least) == expected
    for argument in arguments_of(call):
        if argument.flag not in ("", "--set"):
            for option, value in ways(argument):
                given = {argument.name: value}
                read = read_arguments(command, call, [*least, *option])
                assert read == expected | given, option
                read = read_arguments(command, call, [*option, *least])
                assert read == given | expected, option


def several():
    """All options that may be repeated, by their commands."""
    for name, command in COMMANDS.items():
        for argument in arguments_of(command):
            if argument.several and argument.flag not in ("", "--set"):
                yield name, argument


def test_these_may_be_repeated():
    found = {(name, argument.flag) for name, argument in several()}
    anywhere = {(name, flag) for name, flag in found if flag == "--extend"}
    assert {"train", "evaluate", "translate", "serve"} <= {name for name, _ in anywhere}
    assert found - anywhere == {
        *(("translate", flag) for flag in ("--include", "--exclude", "--ensemble")),
        *(("serve", flag) for flag in ("--allowed-hosts", "--allowed-origins", "--embed-from")),
        ("write", "--stop"),
        ("explain", "--change"),
        ("evaluate", "--metric"),
    }


TEXTS_BEHIND = [one for one in several() if one[0] == "translate" or one[1].flag != "--extend"]


@pytest.mark.parametrize(("command", "argument"), TEXTS_BEHIND)
def test_an_option_takes_one_value_and_leaves_the_texts_behind_it(command, argument):
    flag, (a, b, *_) = argument.flag, argument.choices or ("a", "b")
    given = ["run", flag, a, "x", flag, b, "y z"]
    if command == "explain":  # which takes one text
        assert read_arguments(command, COMMANDS[command], given[:-1])["text"] == "x"
        return
    read = read_arguments(command, COMMANDS[command], given)
    assert read[argument.name] == (a, b)
    texts = [value for name, value in read.items() if name not in ("run", argument.name)]
    many = command in ("serve", "evaluate")  # runs
    assert texts == [("run", "x", "y z")] if many else [("x", "y z")]


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
    assert split_settings(["x", f"--{name}"]) == (["x"], [f"{name}=true"])


@pytest.mark.parametrize(
    "name", ["train.steps", "data.train", "data.toy", "model.d-model", "tokenizer.vocab"]
)
@pytest.mark.parametrize("behind", [[], ["--verify-resume"], ["--", "text"]])
def test_any_other_needs_its_value(name, behind):
    with pytest.raises(UserError, match=f"--{name} needs a value: write --{name} "):
        read_arguments("train", COMMANDS["train"], ["x", f"--{name}", *behind])


@pytest.mark.parametrize(
    ("old", "new"), [("hosts", "allowed_hosts"), ("origins", "allowed_origins")]
)
def test_a_renamed_option_is_read_and_its_new_name_is_told(old, new):
    with pytest.warns(RenamedWarning, match=f"^--{old} is now called --{new.replace('_', '-')}$"):
        read = read_arguments("serve", COMMANDS["serve"], ["run", f"--{old}", "x"])
    assert read == {"runs": ("run",), new: ("x",)}


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
        given = read_arguments(command, COMMANDS[command], words)
        given.pop("extend", ())  # which is for all commands
        signature(COMMANDS[command]).bind(**given)
    except UserError as refused:
        sentence = str(refused)
    assert sentence.isprintable()  # and so on one line
    assert not sentence or len(sentence.split()) > 3
