"""Write two reference pages from the types themselves: every setting, every command.

    python docs/reference.py            writes docs/recipes.md and docs/commands.md
    python docs/reference.py --check    says whether they are what it would write

It also updates the line numbers of links into the source, on all pages.

The comment behind a setting in the source describes it, and the docstring of a command describes
its options. A test fails when a page is stale.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from limelight.cli import COMMANDS
from limelight.cli.parser import Command, arguments_of, describe, synopsis
from limelight.config import settings_of_class
from limelight.model import build
from limelight.model.config import ModelConfig, RecurrentConfig
from limelight.model.count import count_parameters
from limelight.recipe import TABLES, load_recipe, recipe_names
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
    "resume": "training.md",
    "score": "use.md",
    "search": "use.md#search-by-meaning",
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
    "recipes": ["limelight recipes", "limelight recipes reverse"],
    "score": ["printf 'I am hungry.\\tIch habe Hunger.\\n' | limelight score en-de --tag de"],
    "search": [
        "printf 'A boat crossed the ocean.\\nHe slept.\\n' > lines.txt",
        "limelight search fill 'a ship at sea' lines.txt --why",
    ],
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
A misspelt setting is rejected with the nearest valid name. `limelight recipes NAME` prints a
recipe, and `limelight recipes --settings` the settings below.

A file may begin with `base = "reverse"`, a recipe or another file, and change a few settings:

    base = "reverse"

    [train]
    steps = 200

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
    for setting in settings_of_class(owner):
        default = setting.default if setting.default == "required" else f"`{setting.default}`"
        values = re.sub(r"'([^']*)'", r"`\1`", setting.values)
        yield row(f"`{setting.name}`", values, default, setting.meaning)


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
