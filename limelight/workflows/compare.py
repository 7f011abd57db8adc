"""`limelight compare`: trainings side by side, by what their logs say.

Runs that differ only in their seed form a group; its mean and spread are what can be compared, for
a single run may have been lucky. Nothing is evaluated again: `limelight evaluate RUN RUN2` compares
two models on the same texts.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from limelight.errors import UserError, unknown_name
from limelight.evaluate.significance import welch_p_value
from limelight.evaluate.tables import markdown_table, page, plain, print_table
from limelight.files import atomic_write
from limelight.model import build_empty
from limelight.model.count import count_parameters
from limelight.recipe import Recipe, recipe_from_run
from limelight.run.bundled_models import find_run
from limelight.run.folder import RunFolder
from limelight.run.log import Entry, read_log
from limelight.run.plots import draw_comparison
from limelight.workflows.sweep import SWEEP, read_index

_LOWER = ("loss", "perplexity")  # metrics of which less is better
_METRICS = ("loss", "perplexity", "accuracy", "exact", "bleu", "chrf2")
_MOST_DIFFERENCES = 3  # settings in the name of a group
# What a result does not depend on, or hardly.
_INCIDENTAL = (
    *("seed", "device", "data_workers", "log_every", "log_to"),
    *("checkpoint_every", "validate_every"),
)


@dataclass(frozen=True)
class _Training:
    """A run and what its log says."""

    path: Path
    recipe: Recipe
    train: list[Entry]
    valid: list[Entry]
    environment: dict[str, Any]

    @property
    def facts(self) -> dict[str, Any]:
        last = self.train[-1] if self.train else {}
        return {
            "run": str(self.path),
            "seed": self.recipe.train.seed,
            "step": last.get("step", 0),
            "steps": self.recipe.train.steps,
            "tokens": last.get("tokens", 0),
            "minutes": round(_seconds([*self.train, *self.valid]) / 60, 3),
            "device": self.environment.get("device", ""),
            "validation": {k: self.valid[-1][k] for k in _METRICS if k in self.valid[-1]},
        }

    def curve(self, metric: str) -> list[tuple[float, float]]:
        """The metric of each validation, by the tokens trained on until then."""
        origin: Entry = {"step": 0, "tokens": 0}
        known = [origin, *self.train]
        steps, tokens = ([entry.get(key, 0) for entry in known] for key in ("step", "tokens"))
        return [
            (float(np.interp(entry["step"], steps, tokens)), float(entry[metric]))
            for entry in self.valid
            if metric in entry
        ]


def compare(runs: Sequence[str], metric: str = "", output: str = "") -> dict[str, Any]:
    """Groups of runs, the best first, as the JSON document of `limelight compare`.

    Figures and a page are written into `output`; for a sweep, into its folder.
    """
    folders = _folders(runs)
    trainings = [_read(folder) for folder in folders]
    metric = metric or _shared_metric(trainings)
    measured = {name for name in _METRICS if all(name in t.valid[-1] for t in trainings)}
    if metric not in measured:
        raise unknown_name("metric that all of these runs have measured", metric, measured)
    groups = _groups(trainings)
    report = {
        "metric": metric,
        "better": "lower" if metric in _LOWER else "higher",
        "groups": _ranked([_summary(name, own) for name, own in groups.items()], metric),
        "warnings": _warnings(trainings, metric),
    }
    output = output or (runs[0] if len(runs) == 1 else "")
    if output:
        curves = {name: [t.curve(metric) for t in own] for name, own in groups.items()}
        report["written"] = _write(Path(output), report, curves)
    return report


def _folders(runs: Sequence[str]) -> list[RunFolder]:
    """The run folders that are named; a sweep's folder stands for those of its runs."""
    folders = []
    for run in runs:
        if run and (Path(run) / SWEEP).is_file():
            own = [RunFolder(Path(run) / name) for name in read_index(Path(run))]
            folders += [folder for folder in own if folder.exists]
        else:
            folders.append(find_run(run))
    if len({folder.path.resolve() for folder in folders}) < 2:
        raise UserError("a comparison needs two runs, or the folder of a sweep with two that began")
    return folders


def _read(folder: RunFolder) -> _Training:
    entries = list(read_log(folder.log))
    train = [entry for entry in entries if "lr" in entry]
    valid = [entry for entry in entries if entry.get("validation")]
    if not valid or not train:
        raise UserError(
            f"{folder.path} has no validation in its log: train with --data.valid FILE or "
            "--data.hold-out 0.05, or compare on a file with limelight evaluate RUN RUN --data.test"
        )
    return _Training(folder.path, recipe_from_run(folder), train, valid, folder.environment())


def _seconds(entries: Iterable[Entry]) -> float:
    """The time of all sessions: each counts from 0 again."""
    total = before = 0.0
    for entry in sorted(entries, key=lambda entry: int(entry["step"])):
        now = float(entry.get("seconds", 0))
        if now < before:
            total += before
        before = now
    return total + before


def _shared_metric(trainings: Sequence[_Training]) -> str:
    chosen = {training.recipe.train.metric for training in trainings}
    return chosen.pop() if len(chosen) == 1 else "loss"


def _groups(trainings: Sequence[_Training]) -> dict[str, list[_Training]]:
    """Runs that differ only in their seed, by what they do not share with the other groups."""
    groups: dict[str, list[_Training]] = {}
    for training in trainings:
        groups.setdefault(repr(_settings(training.recipe)), []).append(training)
    members = list(groups.values())
    return dict(zip(_names([own[0] for own in members]), members, strict=True))


def _settings(recipe: Recipe) -> dict[str, Any]:
    """All settings by name, but for those that make no other model."""
    tables = {name: asdict(getattr(recipe, name)) for name in ("data", "tokenizer", "model")}
    tables["train"] = {k: v for k, v in asdict(recipe.train).items() if k not in _INCIDENTAL}
    return {f"{key}.{name}": v for key, table in tables.items() for name, v in table.items()}


def _names(firsts: Sequence[_Training]) -> list[str]:
    """Names for groups: the settings that differ, else their recipes, else their folders."""
    settings = [_settings(first.recipe) for first in firsts]
    keys = dict.fromkeys(key for own in settings for key in own)
    differing = [key for key in keys if len({repr(own.get(key)) for own in settings}) > 1]
    recipes = [first.recipe.name for first in firsts]
    if len(firsts) == 1 or len(set(recipes)) == len(recipes):
        return recipes
    if len(differing) <= _MOST_DIFFERENCES:
        short = {key: key.partition(".")[2] for key in differing}
        return [", ".join(f"{short[k]}={own.get(k)}" for k in differing) for own in settings]
    return [str(first.path) for first in firsts]


def _summary(name: str, own: Sequence[_Training]) -> dict[str, Any]:
    runs = [training.facts for training in own]
    parameters = sum(count_parameters(build_empty(own[0].recipe.model)).values())
    measured = [name for name in _METRICS if all(name in run["validation"] for run in runs)]
    return {
        "name": name,
        "parameters": parameters,
        "tokens": round(fmean(run["tokens"] for run in runs)),
        "minutes": round(fmean(run["minutes"] for run in runs), 3),
        "validation": {m: _spread([run["validation"][m] for run in runs]) for m in measured},
        "runs": runs,
    }


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    return {
        "mean": fmean(values),
        "sd": stdev(values) if len(values) > 1 else None,
        "min": min(values),
        "max": max(values),
    }


def _ranked(groups: list[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    """The best group first, and for each other one whether chance explains the difference."""
    sign = 1 if metric in _LOWER else -1
    groups.sort(key=lambda group: sign * group["validation"][metric]["mean"])
    best = [run["validation"][metric] for run in groups[0]["runs"]]
    for group in groups[1:]:
        own = [run["validation"][metric] for run in group["runs"]]
        group["p_value"] = welch_p_value(best, own)
    return groups


def _warnings(trainings: Sequence[_Training], metric: str) -> list[str]:
    """What makes these runs unequal."""
    warnings = []
    unfinished = [str(t.path) for t in trainings if t.facts["step"] < t.recipe.train.steps]
    if unfinished:
        warnings.append(f"not finished, or stopped early: {', '.join(unfinished)}")
    for what in ("tokenizer", "data"):
        if len({repr(training.environment.get(what)) for training in trainings}) > 1:
            warnings.append(f"the runs differ in their {what}: {metric} may not be comparable")
    return warnings


def show(report: Mapping[str, Any], console: Console) -> None:
    """Print a comparison as a table."""
    header, *rows = _rows(report, [])
    print_table(console, header, rows, wrap=False)
    for line in [*_footnotes(report), *report.get("written", ())]:
        console.print(Text(line, "dim"), soft_wrap=True)


def _rows(report: Mapping[str, Any], others: Sequence[str]) -> list[list[str]]:
    """The table's header and rows, one for each group; `others` are further metrics to show."""
    metric = report["metric"]
    rows = [["", "runs", metric, "p", "parameters", "tokens", "minutes", *others]]
    for group in report["groups"]:
        spreads, p_value = group["validation"], group.get("p_value")
        rows.append(
            [
                group["name"],
                str(len(group["runs"])),
                _shown(spreads[metric]),
                "" if p_value is None else f"{p_value:.3f}",
                f"{group['parameters']:,}",
                f"{group['tokens']:,}",
                f"{group['minutes']:.1f}",
                *(_shown(spreads[other]) for other in others),
            ]
        )
    return rows


def _shown(spread: Mapping[str, float | None]) -> str:
    sd = spread["sd"]
    return f"{spread['mean']:.4f}" + (f" ± {sd:.4f}" if sd is not None else "")


def _footnotes(report: Mapping[str, Any]) -> list[str]:
    best, *others = report["groups"]
    notes = [
        f"{report['metric']} of the last validation ({report['better']} is better): mean ± "
        "standard deviation over runs that differ only in their seed"
    ]
    if others:
        notes.append(f"p: two-sided Welch's t-test against {best['name']}; below 0.05, significant")
        if any(group["p_value"] is None for group in others):
            notes.append("no p where a group has a single run: train more seeds, --train.seed 1..3")
    return [*notes, *(f"warning: {sentence}" for sentence in report["warnings"])]


def _write(
    folder: Path, report: dict[str, Any], curves: Mapping[str, list[list[tuple[float, float]]]]
) -> list[str]:
    """Write compare.svg and compare.html, which holds the same figure and the table."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    draw_comparison(
        {g["name"]: curves[g["name"]] for g in report["groups"]}, report["metric"], drawn
    )
    svg = drawn.getvalue()
    files = {"compare.svg": svg, "compare.html": page(_markdown(report), svg.decode()).encode()}
    for name, content in files.items():
        atomic_write(folder / name, content)
    return [str(folder / name) for name in files]


def _markdown(report: Mapping[str, Any]) -> str:
    """The table with all metrics, the notes and the figure."""
    shared = [set(group["validation"]) for group in report["groups"]]
    shown = [m for m in _METRICS if m not in (report["metric"], "perplexity")]
    others = [m for m in shown if all(m in own for own in shared)]
    header, *rows = _rows(report, others)
    parts = ["# Runs compared", markdown_table(header, rows), *map(plain, _footnotes(report))]
    return "\n\n".join([*parts, "![All curves](compare.svg)"])
