"""Commands that show what there is: models, recipes, sizes, data."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from limelight.cli import io
from limelight.cli import parser as arg
from limelight.errors import UserError, unknown_name

if TYPE_CHECKING:
    from rich.console import Console


def models(json: arg.Json = False) -> None:
    """List the bundled models, and published ones that can be fetched.

    Their names work wherever a command takes a RUN. A run folder of yours with the same name takes
    precedence.

    Args:
        json: print one JSON document, with all scores and how they were measured
    """
    from limelight.run.bundled_models import facts_of, known_facts, model_names, show

    bundled = [facts_of(name) for name in model_names()]
    io.print_report({"models": bundled, "known": known_facts()}, show, json)


def import_(
    source: Annotated[str, arg.Argument("SOURCE", positional=True)],
    folder: Annotated[str, arg.Argument("DIR", positional=True)] = "",
    json: arg.Json = False,
) -> None:
    """Make a run folder of a published model: of the Hugging Face hub, and other formats.

    Nothing that comes with a model is executed. Where the origin's library (transformers) is
    installed, both compute the same texts first, and a difference is an error.

    Args:
        source: a folder or file, a name of the hub (openai-community/gpt2), or one that limelight
            models lists
        folder: the run folder to write; without one, a model of limelight models goes where its
            name finds it
    """
    from dataclasses import asdict

    from limelight.interop.known_models import import_by_name
    from limelight.workflows.info import show_certificate

    io.print_report(asdict(import_by_name(source, folder)), show_certificate, json)


def export(
    run: arg.Run,
    folder: Annotated[str, arg.Argument("DIR", positional=True)],
    to: Annotated[Literal["huggingface", "ctranslate2", "gguf", "onnx"], arg.Argument("FORMAT")],
    precision: Annotated[
        Literal["float32", "float16", "int8", "int8_bfloat16"], arg.Argument("NAME")
    ] = "float32",
    json: arg.Json = False,
) -> None:
    """Write a model for another library, which must then compute the same numbers.

    A setting that the other library cannot compute is refused by its name. What was written is
    loaded by the other library, both compute the same texts, and a difference is an error that
    leaves nothing.

    Args:
        folder: the folder to write
        to: huggingface (transformers, vLLM), ctranslate2, gguf (llama.cpp, Ollama) or onnx
        precision: ctranslate2: of the weights: float32, float16, int8 or int8_bfloat16
    """
    from dataclasses import asdict

    from limelight.interop.export_model import export_model
    from limelight.workflows.info import show_certificate

    report = asdict(export_model(run, folder, to, precision))
    io.print_report(report, partial(show_certificate, done="exported"), json)


def recipes(
    name: Annotated[str, arg.Argument("NAME", positional=True)] = "",
    settings: arg.Switch = False,
    json: arg.Json = False,
) -> None:
    """List the bundled recipes, print one, or list every setting of a recipe.

    Their names work wherever a command takes a RECIPE. A TOML file of yours may begin with
    base = "NAME" and change a few settings of that recipe.

    Args:
        name: print this recipe, or a TOML file with its base filled in
        settings: list every setting with its values and its default
    """
    from limelight.recipe import (
        all_settings,
        load_recipe,
        read_recipe_text,
        recipe_names,
        write_recipe,
    )

    if settings:
        io.print_report({"settings": all_settings()}, _show_settings, json)
    elif name:
        text = read_recipe_text(name) if name in recipe_names() else write_recipe(load_recipe(name))
        io.print_report({"name": name, "toml": text}, lambda *_: io.print_text(text), json)
    else:
        bundled = [load_recipe(name) for name in recipe_names()]
        facts = [{"name": r.name, "about": r.about, "family": r.model.family} for r in bundled]
        io.print_report({"recipes": facts}, _show_recipes, json)


def _show_settings(facts: dict[str, Any], console: "Console") -> None:
    from rich.markup import escape

    for table, settings in facts["settings"].items():
        console.print(f"\n[bold]{escape(f'[{table}]')}[/]")
        for one in settings:
            values = f"{one['name']} = {one['default']}   ({one['values']})"
            console.print(f"  {escape(values)}\n      {escape(one['meaning'])}")


def _show_recipes(facts: dict[str, Any], console: "Console") -> None:
    io.print_columns({recipe["name"]: recipe["about"] for recipe in facts["recipes"]}, console)
    console.print(
        "\nlimelight recipes NAME prints one, limelight info NAME shows the size of the model, "
        "and limelight train NAME --run FOLDER trains it."
    )


def info(
    recipe: Annotated[str, arg.Argument("RECIPE|RUN", positional=True)],
    devices: arg.Int = 1,
    tp: arg.Int = 1,
    batch_tokens: arg.Int = 0,
    memory: arg.Int = 0,
    json: arg.Json = False,
    set: arg.Settings = (),
) -> None:
    """Show the size of a model: parameters by part, MACs per token, memory. Allocates nothing.

    Args:
        recipe: a recipe or a bundled model by name, a TOML file, or a run folder
        devices: shard the training state over this many devices (FSDP), and plan a step on GPUs
        tp: how many of them divide each layer (tensor parallelism)
        batch_tokens: tokens in the batch of each device; 0 for one text of maximum length
        memory: GB of each GPU to plan for; 0 means 141 for several devices, and no plan for one
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
        if (run.path / "certificate.json").is_file():
            trained["certificate"] = run.read_json("certificate.json")
    elif recipe.endswith(".toml") or Path(recipe).is_file() or recipe in recipe_names():
        loaded = load_recipe(recipe, arg.overrides(set))
    else:
        raise unknown_name("recipe or model", recipe, [*recipe_names(), *model_names()])

    from limelight.workflows.info import describe, show
    from limelight.workflows.plan import add_plan, show_plan

    facts = {**describe(loaded, batch_tokens, devices), **trained}
    facts = add_plan(facts, loaded, batch_tokens, devices, tp, memory)

    def show_all(facts: dict[str, Any], console: "Console") -> None:
        show(facts, console)
        show_plan(facts, console)

    io.print_report(facts, show_all, json)


def data(
    action: Annotated[Literal["check"], arg.Argument("check", "what to do", positional=True)],
    recipe: Annotated[tuple[str, ...], arg.Argument("RECIPE|FILE", positional=True)],
    json: arg.Json = False,
    set: arg.Settings = (),
) -> None:
    """Check a recipe's data or a file: counts, lengths, bad lines, duplicates, leaks, alignment.

    Exits with status 1 if a split has no usable examples. --data.train FILE ... checks your files
    with a recipe.

    Args:
        recipe: a recipe by name, a TOML file, or files of examples: .csv, .tsv, .txt, .json,
            .jsonl, .parquet, packed or not; two parallel files; a folder
    """
    from limelight.recipe import load_recipe, recipe_for_files, recipe_names

    changes, names = arg.overrides(set), recipe_names()
    if len(recipe) == 1 and (recipe[0] in names or recipe[0].endswith(".toml")):
        loaded = load_recipe(recipe[0], changes)
    elif len(recipe) == 1 and not Path(recipe[0]).exists() and "*" not in recipe[0]:
        if Path(recipe[0]).suffix:
            raise UserError(f"cannot read {recipe[0]}: there is no such file in {Path.cwd()}")
        raise unknown_name("recipe or file", recipe[0], names)
    else:
        loaded = recipe_for_files(recipe, changes)
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
