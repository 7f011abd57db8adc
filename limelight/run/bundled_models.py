"""Bundled models, known by their names.

`limelight/models/en-de` is a run folder (with int8 weights), and has `card.md` for people and
`model.json` for programs. Its name can be given wherever a run folder is expected; a folder of that
name in the working directory comes first.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limelight.errors import UserError, did_you_mean
from limelight.run.folder import RunFolder
from limelight.run.known_models import fetched_run, known_models, not_fetched

if TYPE_CHECKING:
    from rich.console import Console

MODELS = Path(__file__).parent.parent / "models"
FACTS = "model.json"
CARD = "card.md"


def model_names() -> list[str]:
    """The bundled models."""
    return sorted(path.parent.name for path in MODELS.glob(f"*/{FACTS}"))


def find_run(run: str | Path) -> RunFolder:
    """The run folder at a path, or else the bundled model of that name."""
    name = _name_as_typed(run)
    own = RunFolder(Path(name))
    if own.exists:
        return own
    if name in model_names():
        return RunFolder(MODELS / name)
    if name in known_models():
        if not (fetched := RunFolder(fetched_run(name))).exists:
            raise not_fetched(name)
        return fetched
    if own.path.name != name or own.path.exists():  # a path and no name
        bare = own.path.name
        known = f"; limelight's own model is called {bare}" if bare in model_names() else ""
        raise UserError(f"{name} is not a run folder: it has no run.json{known}")
    hint = did_you_mean(name, (*model_names(), *known_models()))
    hint = hint or "bundled are " + ", ".join(model_names())
    raise UserError(f"there is no run folder and no model {name!r}: {hint}")


def runs_by_name(runs: Iterable[str]) -> dict[str, RunFolder]:
    """Runs by the names of their folders, which must differ."""
    found: dict[str, RunFolder] = {}
    for folder in map(find_run, runs):
        name = folder.path.resolve().name
        if name in found:
            raise UserError(f"two of the runs are called {name}: rename one of the folders")
        found[name] = folder
    return found


def _name_as_typed(run: str | Path) -> str:
    name = os.fspath(run) if isinstance(run, os.PathLike) else run
    if not isinstance(name, str):
        raise UserError(f"expected the name or the path of a run, got {run!r:.80}")
    if not name:  # as of a variable that is not set; the path would be the folder that one is in
        there = f"a run folder (. for this one), or one of {', '.join(model_names())}"
        raise UserError(f"the name of the run is empty: name {there}")
    return name


def is_run(run: str | Path) -> bool:
    """Whether `find_run` would find something: a folder, or a model's name."""
    return Path(run).is_dir() or str(run) in (*model_names(), *known_models())


def canonical_name(run: RunFolder) -> str:
    """A run's name or path that is valid from any working directory."""
    return run.path.name if run.path.parent == MODELS else str(run.path.resolve())


def facts_of(name: str) -> dict[str, Any]:
    """The content of `model.json`, and the size of the model on disk."""
    folder = RunFolder(MODELS / name)
    size = sum(file.stat().st_size for file in folder.path.rglob("*") if file.is_file())
    return {"name": name, **folder.read_json(FACTS), "bytes": size}


def known_facts() -> list[dict[str, Any]]:
    """What is known of published models, and whether they were fetched."""
    shown = ("about", "megabytes", "licence", "page")
    return [
        {"name": name, **{key: getattr(model, key) for key in shown}}
        | {"here": RunFolder(fetched_run(name)).exists}
        for name, model in known_models().items()
    ]


def show(report: dict[str, Any], console: "Console") -> None:
    """Print all bundled models for people."""
    from rich.text import Text

    for model in report["models"]:
        size = f"{model['bytes'] / 1e6:.1f} MB, {model['parameters'] / 1e6:.1f} million parameters"
        about = Text(f"  {model['about']} ({size})", "not bold")
        console.print(Text(model["name"], "bold") + about)
        for score in model["scores"]:
            console.print(Text(f"  {score['value']:>8} {score['name']}: {score['on']}"))
        console.print(Text(f"  {model['licence']}", "dim"))
        console.print(Text(f"  {model['try']}\n", "cyan"))
    console.print(Text(f"Cards with data, samples and limits: {MODELS}/*/{CARD}\n"))
    console.print(Text("Published models, which limelight import NAME fetches:", "bold"))
    for model in report["known"]:
        here = ", here" if model["here"] else ""
        facts = f"  {model['about']} ({model['megabytes']} MB, {model['licence']}{here})"
        console.print(Text(model["name"], "bold") + Text(facts, "not bold"))
        console.print(Text(f"  {model['page']}", "dim"))
