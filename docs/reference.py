"""Write two reference pages from the types themselves: every setting, every command.

    python docs/reference.py            writes docs/recipes.md and docs/commands.md
    python docs/reference.py --check    says whether they are what it would write

It also updates the line numbers of links into the source, on all pages.

The comment behind a setting in the source describes it, and the docstring of a command describes
its options. A test fails when a page is stale.
"""

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import torch

from limelight.cli import COMMANDS
from limelight.cli.parser import Command, arguments_of, describe, synopsis
from limelight.model import build
from limelight.model.config import ModelConfig, RecurrentConfig
from limelight.model.count import count_parameters
from limelight.recipe import TABLES, load_recipe, recipe_names, toml
from limelight.workflows.info import short

DOCS = Path(__file__).parent
GUIDES = {  # the page that describes each command at length
    "chat": "use.md",
    "classify": "use.md",
    "completion": "platforms.md",
    "data": "data.md",
    "draw": "draw.md",
    "embed": "use.md",
    "evaluate": "evaluate.md",
    "explain": "explain.md",
    "fill": "use.md",
    "info": "info.md",
    "compare": "training.md#many-runs",
    "lab": "lab.md",
    "sweep": "training.md#many-runs",
    "models": "models.md",
    "recipes": "recipes.md",
    "score": "use.md",
    "serve": "serve.md",
    "train": "training.md",
    "translate": "use.md",
    "write": "use.md",
}
EXAMPLES = {  # run by a test, like all of the docs
    "chat": ["limelight chat chat 'Hi how are you' 'What do you like?'"],
    "completion": ["limelight completion bash > limelight.bash"],
    "data": ["limelight data check greetings --json"],
    "embed": ["limelight embed fill 'A ship came over the sea.'"],
    "explain": ["limelight explain en-de 'I am hungry.' --stage softmax --layer 2"],
    "fill": ["limelight fill fill 'Once upon a ___ there was a king.' --count 3"],
    "info": ["limelight info gpt2-124m --model.layers 24"],
    "draw": ["limelight draw draw 'a small red circle above a large blue square' -o out.png"],
    "models": ["limelight models"],
    "recipes": ["limelight recipes"],
    "score": ["printf 'I am hungry.\\tIch habe Hunger.\\n' | limelight score en-de --tag de"],
    "translate": ["printf 'Good morning.\\nGood night.\\n' | limelight translate en-de --json"],
    "write": ["limelight write writer 'The door opened slowly, and' --seed 3 --max-tokens 30"],
}
OWNERS = {  # the page that describes each table at length
    "data": "data.md#the-data-table",
    "images": "draw.md#how-it-works",
    "tokenizer": "data.md#tokenizers",
    "model": "model.md",
    "train": "training.md#the-train-table",
    "decode": "use.md#the-decode-table",
    "published": "info.md",
}
RECIPES = """\
<!-- Written by docs/reference.py from the source: change it there, then `make docs`. -->

# Recipes: every setting

A recipe is one experiment in a TOML file: data, tokenizer, model, training, decoding. A setting
that the file leaves out has the default below. Every setting can be changed on the command line,
`--train.steps 500`, and from Python, `limelight.train("reverse", "runs/toy", ["train.steps=500"])`.
A misspelt setting is rejected with the nearest valid name.

## Bundled recipes

`limelight recipes` lists them; `limelight info NAME` shows the size of the model and the memory
that training needs.

| name | | family | layers x width | trained on | parameters |
|---|---|---|---|---|---|
"""
COMMAND_LINE = """\
<!-- Written by docs/reference.py from the source: change it there, then `make docs`. -->

# Commands

`limelight COMMAND --help` prints the same. `RUN` is a run folder or the name of a bundled model,
`RECIPE` the name of a recipe or a TOML file. Data goes to stdout, everything else to stderr. The
exit status is 0 when the command succeeded, 1 when the work failed, and 2 when the request was
impossible; then one sentence says what to do.

| command | | guide |
|---|---|---|
"""


def recipes_page() -> str:
    """Every table and setting of a recipe, and the bundled recipes."""
    text = RECIPES + "".join(f"{recipe_row(name)}\n" for name in recipe_names())
    owners = {name: TABLES[name] for name in ("data", "images", "tokenizer")}
    owners |= {"model": ModelConfig}
    owners |= {"model, recurrent": RecurrentConfig}
    owners |= {name: TABLES[name] for name in ("train", "decode", "published")}
    for name, owner in owners.items():
        text += "\n" + "".join(f"{line}\n" for line in settings_of(name, owner))
    return text


def recipe_row(name: str) -> str:
    """A bundled recipe as a table row."""
    recipe = load_recipe(name)
    model, data = recipe.model, recipe.data
    text = (files("limelight") / "recipes" / f"{name}.toml").read_text()
    own = "your files" if "\n[data]" in text else ""
    texts = data.name or (f"a toy, `{data.toy}`" if data.toy else own)
    with torch.device("meta"):  # where nothing is allocated
        weight = short(sum(count_parameters(build(model)).values()))
    size = f"{model.layers} x {model.d_model}"
    return row(f"`{name}`", recipe.about, model.family, size, texts, weight)


def row(*cells: str) -> str:
    """A line of a table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def settings_of(name: str, owner: type[Any]) -> Iterator[str]:
    """What a table is for, and its settings."""
    table, _, kind = name.partition(", ")
    where = Path(inspect.getfile(owner)).relative_to(DOCS.parent).as_posix()
    guide = f"[{OWNERS[table].partition('#')[0]}]({OWNERS[table]})"
    yield f"## `[{table}]`{kind and ', ' + kind}\n"
    yield f"{owner.__doc__} Described in {guide}; in the source `{where}::{owner.__name__}`.\n"
    yield row("setting", "value", "default", "")
    yield "|---|---|---|---|"
    comments = comments_of(owner)
    for setting in fields(owner):
        comment = comments.get(setting.name, "")
        yield row(f"`{setting.name}`", kind_of(setting.type), default_of(setting), comment)


def comments_of(owner: type[Any]) -> dict[str, str]:
    """The comment behind each field in the source."""
    said: dict[str, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(owner)).readline):
        if token.type == tokenize.COMMENT and (name := re.match(r"\s*(\w+): ", token.line)):
            said[name[1]] = token.string.removeprefix("#").strip()
    return said


def kind_of(kind: Any) -> str:
    """The values that a setting accepts, in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        rules = [rule for part in parts[1:] for rule in getattr(part, "metadata", ())]
        return " ".join([kind_of(parts[0]), *bounds_of(rules)])
    if origin is Literal:
        return ", ".join(f"`{choice}`" if choice else "nothing" for choice in parts)
    if origin in (Union, UnionType):
        return " or ".join(map(kind_of, parts))
    if origin is tuple:
        return "a list of texts" if parts[0] is str else "tables like this one"
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}[kind]


def bounds_of(rules: list[Any]) -> Iterator[str]:
    """The bounds of a number, in words."""
    words = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}
    for name, word in words.items():
        for rule in rules:
            if hasattr(rule, name):
                yield f"{word} {shortly(getattr(rule, name))}"


def shortly(number: float) -> str:
    """A bound, as a power where that is shorter."""
    powers = {2**n: f"2^{n}" for n in range(14, 64)} | {10**n: f"10^{n}" for n in range(6, 20)}
    return powers.get(int(number), f"{number:,}")


def default_of(setting: Field[Any]) -> str:
    """The default in TOML."""
    return "required" if setting.default is MISSING else f"`{toml(setting.default)}`"


def commands_page() -> str:
    """Every command with its options."""
    text = COMMAND_LINE
    for name, command in COMMANDS.items():
        first = describe(command)[0]
        text += row(f"[`{name}`](#limelight-{name})", first, guide_to(name) or "here") + "\n"
    for name, command in COMMANDS.items():
        text += "\n" + "".join(f"{line}\n" for line in section(name, command))
    return text


def guide_to(name: str) -> str:
    """A link to the page that describes a command at length, if there is one."""
    return f"[{GUIDES[name]}]({GUIDES[name]})" if name in GUIDES else ""


def section(name: str, command: Command) -> Iterator[str]:
    """One command: how it is called, what it does, and its options."""
    first, body, _ = describe(command)
    arguments = arguments_of(command)
    yield f"## limelight {name}\n"
    yield f"{first}\n"
    if body:
        yield f"{body}\n"
    yield f"    {synopsis(name, command)}"
    if arguments:
        yield "\n" + row("", "default", "")
        yield "|---|---|---|"
    for one in arguments:
        typed = "--TABLE.SETTING VALUE" if one.name == "set" else one.typed
        default = one.fallback or (one.shown_default and f"`{one.shown_default}`")
        yield row(f"`{typed}`", default, one.help)
    if name in EXAMPLES:
        yield "\n```sh\n" + "\n".join(EXAMPLES[name]) + "\n```"
    if name in GUIDES:
        yield f"\nMore in {guide_to(name)}."


def relinked(text: str) -> str:
    """A page whose links to names in the source lead to the lines where these are now."""

    def point(link: re.Match[str]) -> str:
        line = lines_of(DOCS.parent / link[2]).get(link[1])  # a name that is gone fails a test
        return f"[`{link[1]}`](../{link[2]}#L{line})" if line else link[0]

    return re.sub(r"\[`([\w.]+)`\]\(\.\./([\w/]+\.py)(?:#L\d+)?\)", point, text)


@cache
def lines_of(path: Path) -> dict[str, int]:
    """Where each function, class and method of a file begins."""
    lines: dict[str, int] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        parts = node.body if isinstance(node, ast.ClassDef) else []
        name = getattr(node, "name", "")
        for part, owner in [(node, ""), *((part, f"{name}.") for part in parts)]:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                lines[f"{owner}{part.name}"] = part.lineno
    return lines


def read(path: Path) -> str:
    """A page as it is, or nothing."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def stale_pages() -> dict[str, str]:
    """The generated pages whose text is out of date, with their new text."""
    pages = {"recipes.md": recipes_page(), "commands.md": commands_page()}
    return {name: text for name, text in pages.items() if read(DOCS / name) != text}


def main() -> None:
    """Write the pages, or report which are stale."""
    stale = stale_pages()
    if "--check" in sys.argv:
        sys.exit(f"`make docs` would change {', '.join(stale)}" if stale else 0)
    for name, text in stale.items():
        (DOCS / name).write_text(text, encoding="utf-8")
    for path in DOCS.glob("*.md"):
        path.write_text(relinked(read(path)), encoding="utf-8")


if __name__ == "__main__":
    main()
