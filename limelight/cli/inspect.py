"""Commands that show what there is: models, recipes, sizes, data."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from limelight.cli import io
from limelight.cli import parser as arg
from limelight.errors import UserError, unknown_name

if TYPE_CHECKING:
    from rich.console import Console


def models(json: arg.Json = False) -> None:
    """List the bundled models; their names work wherever a command takes a RUN.

    A run folder of yours with the same name takes precedence.

    Args:
        json: print one JSON document, with all scores and how they were measured
    """
    from limelight.run.bundled_models import facts_of, model_names, show

    io.print_report({"models": [facts_of(name) for name in model_names()]}, show, json)


def recipes(json: arg.Json = False) -> None:
    """List the bundled recipes; their names work wherever a command takes a RECIPE."""
    from limelight.recipe import load_recipe, recipe_names

    bundled = [load_recipe(name) for name in recipe_names()]
    facts = [{"name": r.name, "about": r.about, "family": r.model.family} for r in bundled]
    io.print_report({"recipes": facts}, _show_recipes, json)


def _show_recipes(facts: dict[str, Any], console: "Console") -> None:
    io.print_columns({recipe["name"]: recipe["about"] for recipe in facts["recipes"]}, console)
    console.print(
        "\nlimelight info NAME shows the size of the model, "
        "and limelight train NAME --run FOLDER trains it."
    )


def info(
    recipe: Annotated[str, arg.Argument("RECIPE|RUN", positional=True)],
    devices: arg.Int = 1,
    batch_tokens: arg.Int = 0,
    json: arg.Json = False,
    set: arg.Settings = (),
) -> None:
    """Show the size of a model: parameters by part, MACs per token, memory. Allocates nothing.

    Args:
        recipe: a recipe or a bundled model by name, a TOML file, or a run folder
        devices: shard the training state over this many devices (FSDP)
        batch_tokens: tokens in the batch of each device; 0 for one text of maximum length
    """
    from limelight.recipe import load_recipe, recipe_from_run, recipe_names
    from limelight.run.bundled_models import find_run, is_run, model_names
    from limelight.run.log import summary

    trained = {}
    if is_run(recipe):
        run = find_run(recipe)
        if set:
            file = run.path / "recipe.toml"
            raise UserError(f"{set[0]!r} cannot be changed in a trained model: try it on {file}")
        loaded, trained = recipe_from_run(run), {"trained": summary(run.log)}
    elif recipe.endswith(".toml") or Path(recipe).is_file() or recipe in recipe_names():
        loaded = load_recipe(recipe, arg.overrides(set))
    else:
        raise unknown_name("recipe or model", recipe, [*recipe_names(), *model_names()])

    from limelight.workflows.info import describe, show

    io.print_report({**describe(loaded, batch_tokens, devices), **trained}, show, json)


def data(
    action: Annotated[Literal["check"], arg.Argument("check", "what to do", positional=True)],
    recipe: arg.Recipe,
    json: arg.Json = False,
    set: arg.Settings = (),
) -> None:
    """Check the data of a recipe: counts, lengths, bad lines, duplicates, leaks, alignment.

    Exits with status 1 if a split has no usable examples. --data.train FILE ... checks your files.
    """
    from limelight.recipe import load_recipe

    loaded = load_recipe(recipe, arg.overrides(set))
    if loaded.data.kind == "images":
        from limelight.draw.check import check_pictures, show_pictures

        io.print_report(check_pictures(loaded), show_pictures, json)
        return

    from limelight.data.check import check, show
    from limelight.data.registry import resolve

    tokens = loaded.train.batch_tokens
    batch_tokens = tokens if isinstance(tokens, int) else 4096
    joined = loaded.model.family.endswith("decoder-only")
    length = loaded.model.max_len
    report = check(resolve(loaded.data), loaded.tokenizer, batch_tokens, length, joined)
    io.print_report(report, show, json)
    if not all(facts["tally"]["used"] for facts in report["splits"].values()):
        sys.stdout.flush()
        sys.exit(1)
