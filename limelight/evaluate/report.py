"""What is told of an evaluation: enough to do it again and to hold it against another one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from limelight.errors import UserError
from limelight.evaluate.metrics import Measure
from limelight.evaluate.significance import Comparison


def report_scores(
    run: str,
    split: str,
    columns: Sequence[Sequence[str]],
    scores: Iterable[Measure],
    decoding: Mapping[str, Any],
) -> dict[str, Any]:
    """One run's scores as JSON has them.

    `columns` is the data: sources and references, texts and labels, or texts alone.
    """
    told = {score.name: asdict(score) for score in scores}
    return {
        "run": run,
        **_report_data(split, columns),
        "decoding": dict(decoding),
        "scores": {name: _without(score, "name") for name, score in told.items()},
    }


def report_comparison(
    runs: tuple[str, str],
    split: str,
    columns: Sequence[Sequence[str]],
    comparisons: Iterable[Comparison],
    decoding: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> dict[str, Any]:
    """The same for two runs; each has its own decoding settings."""
    told = {compared.name: asdict(compared) for compared in comparisons}
    return {
        "runs": list(runs),
        **_report_data(split, columns),
        "decoding": [dict(settings) for settings in decoding],
        "comparisons": {name: _without(compared, "name") for name, compared in told.items()},
    }


def _report_data(split: str, columns: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Which lines were scored."""
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        counts = " and ".join(f"{len(column):,}" for column in columns) or "no"
        raise UserError(f"the data has {counts} lines: every source needs its reference")
    return {"split": split, "lines": lengths.pop(), "data_sha256": hash_lines(columns)}


def hash_lines(columns: Sequence[Sequence[str]]) -> str:
    """What `cat sources references | sha256sum` says of files with these lines."""
    digest = sha256()
    for column in columns:
        for line in column:
            digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def _without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """All fields but one."""
    return {key: value for key, value in fields.items() if key != name}


def show(report: dict[str, Any], console: Console) -> None:
    """The same for people: a table, and below it how the scores were computed."""
    console.print(Text(f"{report['split']}, {report['lines']:,} lines"))
    table = _compared_table(report) if "comparisons" in report else _score_table(report)
    console.print(table)
    for name, fields in (report.get("comparisons") or report["scores"]).items():
        if fields["signature"]:
            console.print(Text(f"{name}: {fields['signature']}", "dim"), soft_wrap=True)
    console.print(Text(f"data: sha256 {report['data_sha256']}", "dim"), soft_wrap=True)


def _score_table(report: dict[str, Any]) -> Table:
    """A row for every score."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(Text(report["run"]))
    table.add_column("score", justify="right")
    table.add_column("better", style="dim")
    for name, fields in report["scores"].items():
        table.add_row(Text(name), _short(fields["score"]), fields["better"])
    return table


def _compared_table(report: dict[str, Any]) -> Table:
    """A row for every score: both runs with their intervals, and which is better if either."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("95% confidence")
    for run in report["runs"]:
        table.add_column(Text(run), justify="right")
    table.add_column("p", justify="right")
    table.add_column("better")
    for name, fields in report["comparisons"].items():
        table.add_row(
            Text(name),
            *(_interval(fields[which]) for which in ("first", "second")),
            f"{fields['p_value']:.3f}",
            Text(verdict(fields)),
        )
    return table


def _interval(estimate: dict[str, Any]) -> str:
    """`27.31 (26.64 to 27.98)`."""
    score, low, high = (_short(estimate[key]) for key in ("score", "low", "high"))
    return f"{score} ({low} to {high})"


def _short(number: float) -> str:
    """As many digits as mean something: 27.31 of a hundred, 0.8642 of one."""
    return f"{number:.2f}" if abs(number) >= 10 else f"{number:.4f}"


def verdict(fields: dict[str, Any]) -> str:
    """The better run, if the difference can be relied on."""
    if fields["p_value"] >= 0.05:
        return "cannot be told"
    best = max if fields["better"] == "higher" else min
    better = best(fields["first"], fields["second"], key=lambda estimate: estimate["score"])
    return str(better["run"])
