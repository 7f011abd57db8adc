"""An evaluation as JSON and as a table: enough to repeat it and to compare it with another."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from limelight.errors import UserError
from limelight.evaluate.metrics import Measure
from limelight.evaluate.significance import Comparison
from limelight.evaluate.tables import new_table

_MOST_COLUMNS = 10  # classes whose confusions fit a terminal


def report_scores(
    run: str,
    split: str,
    columns: Sequence[Sequence[str]],
    scores: Iterable[Measure],
    decoding: Mapping[str, Any],
) -> dict[str, Any]:
    """One run's scores for JSON; `columns` are the data, as sources and references."""
    return {
        "run": run,
        **_report_data(split, columns),
        "decoding": dict(decoding),
        "scores": _by_name(scores),
    }


def report_comparison(
    runs: Sequence[str],
    split: str,
    columns: Sequence[Sequence[str]],
    comparisons: Iterable[Comparison],
    decoding: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The comparison of two or more runs for JSON; each has its own decoding settings."""
    return {
        "runs": list(runs),
        **_report_data(split, columns),
        "decoding": [dict(settings) for settings in decoding],
        "comparisons": _by_name(comparisons),
    }


def _report_data(split: str, columns: Sequence[Sequence[str]]) -> dict[str, Any]:
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        counts = " and ".join(f"{len(column):,}" for column in columns) or "no"
        raise UserError(f"the data has {counts} lines: every source needs its reference")
    return {"split": split, "lines": lengths.pop(), "data_sha256": hash_lines(columns)}


def hash_lines(columns: Sequence[Sequence[str]]) -> str:
    """The output of `cat sources references | sha256sum` for files with these lines."""
    digest = sha256()
    for column in columns:
        for line in column:
            digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def _by_name(items: Iterable[Measure | Comparison]) -> dict[str, Any]:
    return {item.name: {k: v for k, v in asdict(item).items() if k != "name"} for item in items}


def show(report: dict[str, Any], console: Console) -> None:
    """Print a table, and below it how the scores were computed."""
    console.print(Text(f"{report['split']}, {report['lines']:,} lines"))
    if "comparisons" not in report:
        console.print(_score_table(report))
    else:
        two = len(report["runs"]) == 2
        console.print(_compared_table(report) if two else _table_of_many(report))
    if "confusion" in report:
        console.print(_class_table(report["classes"]))
        console.print(_confusion_table(**report["confusion"]))
    for name, fields in (report.get("comparisons") or report["scores"]).items():
        if fields["signature"]:
            console.print(Text(f"{name}: {fields['signature']}", "dim"), soft_wrap=True)
    console.print(Text(f"data: sha256 {report['data_sha256']}", "dim"), soft_wrap=True)


def _score_table(report: dict[str, Any]) -> Table:
    table = new_table([report["run"], "score", "better"], "lrl")
    for name, fields in report["scores"].items():
        if not ("classes" in report and name.startswith("F1 of ")):  # they have their own table
            table.add_row(Text(name), _short(fields["score"]), Text(fields["better"], "dim"))
    return table


def _class_table(classes: dict[str, dict[str, float]]) -> Table:
    table = new_table(["class", "texts", "precision", "recall", "F1"], "lrrrr")
    for name, own in classes.items():
        numbers = (_short(own[key]) for key in ("precision", "recall", "f1"))
        table.add_row(Text(name), f"{own['texts']:,}", *numbers)
    return table


def _confusion_table(classes: list[str], counts: list[list[int]]) -> Table:
    """All counts; of many classes, which would not fit, the most frequent confusions."""
    if len(classes) > _MOST_COLUMNS:
        wrong = [(n, a, b) for a, row in enumerate(counts) for b, n in enumerate(row) if a != b]
        table = new_table(["label", "predicted", "times"], "lll")
        for n, a, b in sorted(wrong, key=lambda one: -one[0])[:_MOST_COLUMNS]:
            table.add_row(Text(classes[a]), Text(classes[b]), f"{n:,}")
        return table
    table = new_table(["label, predicted as", *classes], "l" + "r" * len(classes))
    for name, row in zip(classes, counts, strict=True):
        table.add_row(Text(name), *(f"{n:,}" for n in row))
    return table


def _compared_table(report: dict[str, Any]) -> Table:
    table = new_table(["95% confidence", *report["runs"], "p", "better"], "lrrrl")
    for name, fields in report["comparisons"].items():
        table.add_row(
            Text(name),
            *(_interval(fields[which]) for which in ("first", "second")),
            f"{fields['p_value']:.3f}",
            Text(verdict(fields)),
        )
    return table


def _table_of_many(report: dict[str, Any]) -> Table:
    """A row for each run and metric; p and the verdict are against the first run."""
    table = new_table(["", "", "95% confidence", "p", f"against {report['runs'][0]}"], "llrrl")
    for name, fields in report["comparisons"].items():
        first, second = fields["first"], {**fields["second"], "p_value": fields["p_value"]}
        table.add_row(Text(name), Text(first["run"]), _interval(first))
        for other in (second, *fields["others"]):
            found = verdict({**fields, "second": other, "p_value": other["p_value"]})
            found = {first["run"]: "worse", other["run"]: "better"}.get(found, found)
            cells = (_interval(other), f"{other['p_value']:.3f}", found)
            table.add_row("", Text(other["run"]), *cells)
    return table


def _interval(estimate: dict[str, Any]) -> str:
    return "{} ({} to {})".format(*(_short(estimate[key]) for key in ("score", "low", "high")))


def _short(number: float) -> str:
    """Significant digits only: 27.31 of a hundred, 0.8642 of one."""
    return f"{number:.2f}" if abs(number) >= 10 else f"{number:.4f}"


def verdict(fields: dict[str, Any]) -> str:
    """The better run, if the difference is significant."""
    if fields["p_value"] >= 0.05:
        return "not significant"
    best = max if fields["better"] == "higher" else min
    better = best(fields["first"], fields["second"], key=lambda estimate: estimate["score"])
    return str(better["run"])
