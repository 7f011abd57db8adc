"""The walk at a terminal: the same numbers and words with and without colour.

Colour only repeats numbers that are printed anyway, so pipes, files and screen readers get all of
it. Nothing is wider than the terminal: a larger figure is cut to a window around the chosen word,
and says so.
"""

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from limelight.explain.comparison import ChangeComparison, HeadEffect
from limelight.explain.stage import Cell, Check, Heatmap, Stage, TableFigure, number
from limelight.explain.stage_table import STAGES
from limelight.explain.stages import extra_stages, main_stages
from limelight.explain.starting_point import starting_point
from limelight.explain.tokens import labels_of
from limelight.explain.trace import Trace
from limelight.model.taps import depth, sides

WIDEST = 110  # columns: longer lines are hard to read
_LONGEST = 24  # rows: of a longer table, a window is shown
_RANKED = 20  # heads
_LABEL = 18  # columns of a row label
_BAR = 16  # columns of a probability of 1
_CLIPPED = {"no_wrap": True, "overflow": "ellipsis", "max_width": 24}  # but for the last column


def show(console: Console, trace: Trace, stages: Sequence[Stage]) -> None:
    """Print the introduction and these stages. A single one is shown with whole tables."""
    introduce(console, trace)
    for stage in stages:
        show_stage(console, trace, stage, whole=len(stages) == 1)


def introduce(console: Console, trace: Trace) -> None:
    """Print the model, the text, the output and the names of the stages."""
    read = trace.source.labels or trace.target.labels[: trace.traced_text.given + 1]
    verb = "given" if trace.traced_text.mode == "given" else "generates"
    verb = "fills" if trace.trained.family == "encoder-only" else verb
    pieces = trace.trained.tokenizer.pieces([step.chosen.token for step in trace.steps])
    show_facts(
        console,
        ("model", _summary(trace), ""),
        ("reads", " ".join(read), "bold"),
        (verb, " ".join(labels_of(pieces)) or None, "bold green"),
        ("changed", "  ".join(trace.changes) or None, "bold red"),
        ("start", _start(trace), ""),
        ("stages", "  ".join(main_stages(trace)), ""),
        ("extras", "  ".join(extra_stages(trace)) or None, ""),
    )
    for name, count in list(trace.checks.broken.items())[:1]:
        warning = f"NaN: {count:,} numbers of {name}, and so in {len(trace.checks.broken)} values. "
        console.print(Text(f"{warning}The weights are damaged.", "bold red"))


def _start(trace: Trace) -> str | None:
    """Where the walk starts unless --layer, --head or --word says otherwise."""
    start = starting_point(trace)
    if start is None or trace.checks.broken:
        return None
    crossing = bool(len(trace.source) and len(trace.target))
    keys = trace.source if len(trace.source) else trace.target
    query = trace.answers.labels[start.target] if crossing else keys.labels[start.source]
    verb = "to write" if crossing else "at"
    return (
        f"layer {start.layer}, head {start.head}: {verb} {query} it attends to "
        f"{keys.labels[start.key]}, weight {start.weight:.2f}"
    )


def show_facts(console: Console, *facts: tuple[str, str | None, str]) -> None:
    """Print names, texts and their styles, line by line; without a text, no line."""
    lines = Table.grid(padding=(0, 2))
    for name, text, style in facts:
        if text is not None:
            lines.add_row(Text(name, "dim"), Text(text, style))
    console.print(lines)


def show_comparison(console: Console, found: ChangeComparison) -> None:
    """Print what changes did: texts, probabilities, and the heads that attend elsewhere now."""
    changes = "  ".join(found.changes)
    after = ("after", found.after, "bold green")
    show_facts(console, ("changed", changes, "bold red"), ("before", found.before, "bold"), after)
    heads = ("token", "before", "after", "most likely after the change")
    title = "Probabilities of the unchanged model's answer"
    share = "Attention that moved: share of the weight"
    moved = [(_head(each), each.effect) for each in found.attention if each.effect > 0]
    show_figure(console, TableFigure(title, heads, found.tokens))
    show_figure(console, TableFigure(share, ("head", "share"), moved[:10], 1))


def show_figure(
    console: Console, figure: Heatmap | TableFigure, whole: bool = False, hint: str = ""
) -> None:
    """Print a figure, no wider than the terminal; of a long table, a window unless `whole`."""
    width = min(console.width, WIDEST)
    console.print()
    if isinstance(figure, Heatmap):
        console.print(heat_map(figure, width))
    else:
        console.print(_table(figure, width, len(figure.rows) if whole else _LONGEST, hint))


def show_ranking(console: Console, answer: str, ranked: Sequence[HeadEffect]) -> None:
    """Print the heads with the largest effects, of both signs."""
    rows = [(_head(each), each.effect) for each in ranked]
    left_out = len(rows) - _RANKED
    if left_out > 0:
        rows = [*rows[: _RANKED // 2], *rows[-_RANKED // 2 :]]
    title = f"Each head off once: by how much the log-probability of {answer!r} falls"
    show_figure(console, TableFigure(title, ("head", "falls by"), rows))
    if left_out > 0:
        console.print(Text(f"{left_out} heads in between are left out: --json has all", "dim"))


def _head(each: HeadEffect) -> str:
    """A head in the grammar of changes."""
    return f"{each.tap.removesuffix('.weights')}@{each.head}"


def _summary(trace: Trace) -> str:
    config, size = trace.config, sum(p.numel() for p in trace.model.parameters())
    if trace.recurrent:
        kind = f" of {config.cell}, d_model {config.d_model}"
    else:
        norm = "no norms" if config.norm == "none" else f"{config.norm_order}-norm"
        positions = "no" if config.positions == "none" else config.positions
        kind = f", {config.heads} heads, d_model {config.d_model}, {norm}, {positions} positions"
    counts = dict.fromkeys(str(depth(config, side)) for side in sides(config))
    return f"{config.family}, {' + '.join(counts)} layers{kind}, {size:,} parameters"


def _map_lines(trace: Trace, stage: Stage) -> Text:
    lines = []
    for half, first in (("reading", True), ("answering", False)):
        line = Text(f"{half:9}  ", "dim")
        entries = [STAGES[name] for name in main_stages(trace) if STAGES[name].first is first]
        for n, section in enumerate(dict.fromkeys(entry.section for entry in entries)):
            here = section == STAGES[stage.name].section
            line.append(" > " if n else "")
            line.append(f"[{section}]" if here else section, "bold yellow not dim" if here else "")
        lines.append(line)
    return Text("\n").join(lines)


def show_stage(console: Console, trace: Trace, stage: Stage, whole: bool = False) -> None:
    """Print one stage: title, map, text, formulas, figures, notes and checks."""
    order = main_stages(trace)
    count = f"{order.index(stage.name) + 1}/{len(order)}" if stage.name in order else "extra"
    console.print()
    title = Text(f"{count}  {stage.title}", "bold")
    console.rule(title, align="left", characters="─", style="cyan")
    if stage.name in order:
        console.print(_map_lines(trace, stage))
    location = f"{stage.location}; " if stage.location else ""
    console.print(Text(f"{stage.name}: {location}section {stage.section} of the paper", "dim"))
    console.print(Text(stage.what))
    for formula in stage.formulas:
        console.print()
        console.print(Padding(Text(formula.letters, "cyan"), (0, 0, 0, 2), expand=False))
        console.print(Padding(Text(formula.filled, "bold"), (0, 0, 0, 4), expand=False))
    for figure in stage.figures:
        show_figure(console, figure, whole, f": --stage {stage.name} has all")
    console.print()
    for note in stage.notes:
        console.print(Text.assemble(("note  ", "yellow"), note))
    for check in stage.checks:
        console.print(check_line(check))
    if trace.changes and not all(check.passed for check in stage.checks):
        console.print(Text("A check fails where a change has replaced a value.", "yellow"))


def check_line(check: Check) -> Text:
    """A claim, and how far it is from true."""
    if check.passed:
        off = "exactly" if check.error == 0 else f"off by {check.error:.0e}"
        return Text.assemble(("✓ ", "green"), check.claim, (f": {off}", "dim"))
    off = f": off by {number(check.error)}"
    return Text.assemble(("✗ ", "bold red"), check.claim, (off, "red"))


@dataclass(frozen=True)
class _Layout:
    columns: range
    rows: range
    cell: int
    digits: int  # after the point; 0 means percent
    label: int


def heat_map(grid: Heatmap, width: int) -> Text:
    """Numbers on a background that is stronger the larger they are."""
    layout = _fit(grid, width)
    lines = [_title_line(grid, layout)]
    labels = grid.columns if layout.digits else [str(j + 1) for j in range(len(grid.columns))]
    lines.append(_header(labels, layout, grid.focus[1], grid.sums))
    finite = grid.values[grid.values.isfinite()].abs()
    largest = finite.max().item() if finite.numel() else 1.0
    lines += [_grid_row(grid, i, layout, largest or 1.0) for i in layout.rows]
    if not layout.digits:
        key = "  ".join(f"{j + 1}\u00a0{grid.columns[j]}" for j in layout.columns)
        lines.append(Text(f"columns: {key}", "dim"))
    return Text("\n").join(lines)


def _fit(grid: Heatmap, width: int) -> _Layout:
    """All columns with three digits if they fit, else with fewer digits, else a window."""
    label = min(_LABEL, 2 + max(map(cell_len, grid.rows)))
    available = width - label - (7 if grid.sums else 0)
    rows = around(len(grid.rows), _LONGEST, grid.focus[0])
    every = range(len(grid.columns))
    matrix = grid.axes[1] != "number"  # of a vector, the first few numbers are enough
    modes = [3, *([2] if matrix else []), *([0] if matrix and grid.scale == "share" else [])]
    for digits in modes:
        values = grid.values[list(rows)].flatten().tolist()
        cell = 1 + max(2, *(len(_value(x, digits)) for x in values))
        if cell * len(every) <= available:
            widest = 1 + max(map(cell_len, grid.columns)) if digits else cell
            cell = max(cell, min(widest, available // len(every), 9))
            return _Layout(every, rows, cell, digits, label)
    return _Layout(around(len(every), available // cell, grid.focus[1]), rows, cell, digits, label)


def around(count: int, most: int, focus: int | None) -> range:
    """At most `most` of `count` indices around the focus; without one, the first."""
    most = max(1, most)
    first = 0 if focus is None else min(max(0, focus - most // 2), max(0, count - most))
    return range(first, min(count, first + most))


def _value(x: float, digits: int) -> str:
    return number(x, digits) if digits or math.isnan(x) else f"{100 * x:.0f}"


def _title_line(grid: Heatmap, layout: _Layout) -> Text:
    notes = []
    if grid.axes[0] == "query":
        arrow = " (reads → next)" if " → " in grid.rows[0] else ""
        notes.append(f"each row is a query{arrow}, each column a key")
    if not layout.digits:
        notes.append("in percent")
    if len(layout.columns) < len(grid.columns):
        shown = f"{layout.columns[0] + 1} to {layout.columns[-1] + 1}"
        what = "numbers" if grid.axes[1] == "number" else "columns"
        notes.append(f"{what} {shown} of {len(grid.columns)}")
    if len(layout.rows) < len(grid.rows):
        notes.append(f"rows {layout.rows[0] + 1} to {layout.rows[-1] + 1} of {len(grid.rows)}")
    suffix = f" ({'; '.join(notes)})" if notes else ""
    return Text.assemble((grid.title, "bold underline"), (suffix, "dim"))


def _header(labels: Sequence[str], layout: _Layout, focus: int | None, sums: bool) -> Text:
    line = Text(" " * layout.label)
    for j in layout.columns:
        style = "bold yellow" if j == focus else "dim"
        line.append(" " + _clip(labels[j], layout.cell - 1, "right"), style)
    return line.append("    sum", "dim") if sums else line


def _clip(text: str, width: int, side: str = "left") -> str:
    """Exactly `width` columns: padded, or cut off with an ellipsis."""
    if cell_len(text) > width:
        text = set_cell_size(text, max(0, width - 1)) + "…"
    padding = " " * (width - cell_len(text))
    return text + padding if side == "left" else padding + text


def _grid_row(grid: Heatmap, i: int, layout: _Layout, largest: float) -> Text:
    focused = i == grid.focus[0]
    label = _clip(("> " if focused else "  ") + grid.rows[i], layout.label)
    line = Text().append(label, "bold yellow" if focused else "")
    for j in layout.columns:
        x = grid.values[i, j].item()
        shown = f"{_value(x, layout.digits):>{layout.cell - 1}}"
        line.append(" ").append(shown, _cell_style(x, grid.scale, largest))
    if grid.sums:
        line.append(f"{number(grid.values[i].sum().item()):>7}", "dim")
    return line


def _cell_style(x: float, scale: str, largest: float) -> Style:
    """Blue for weights and below zero, red above zero, grey for -inf."""
    if math.isnan(x) or x == math.inf:
        return Style(color="white", bgcolor="red", bold=True)
    if x == -math.inf:
        return Style(color="rgb(150,150,150)", bgcolor="rgb(45,45,45)")
    strength = min(1.0, abs(x) / (1.0 if scale == "share" else largest))
    low, high = (24, 26, 34), (30, 105, 215)
    if scale == "size":
        high = (20, 125, 85)
    elif scale == "signed" and x > 0:
        high = (190, 60, 45)
    red, green, blue = (round(a + (b - a) * strength) for a, b in zip(low, high, strict=True))
    return Style(color="white", bgcolor=f"rgb({red},{green},{blue})")


def _table(table: TableFigure, width: int, longest: int, hint: str) -> Group:
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for j, name in enumerate(table.heads):
        numeric = any(isinstance(row[j], float) for row in table.rows)
        last = j == len(table.heads) - 1
        justify: Any = "right" if numeric and j != table.share else "left"
        fits: Any = {"overflow": "fold", "max_width": width} if last else _CLIPPED
        drawn.add_column(Text(name), justify=justify, **fits)
    shown = around(len(table.rows), longest, table.focus)
    available = width - 3 * len(table.heads) - sum(_widths(table))
    for i in shown:
        cells = [_cell(x, j == table.share, available) for j, x in enumerate(table.rows[i])]
        drawn.add_row(*cells, style="bold yellow" if i == table.focus else "")
    if len(shown) < len(table.rows):
        drawn.caption = Text(f"rows {shown[0] + 1} to {shown[-1] + 1} of {len(table.rows)}{hint}")
    return Group(Text(table.title, "bold underline"), drawn)


def _widths(table: TableFigure) -> Iterator[int]:
    """Of the columns, without cells that can be wrapped."""
    for j, column in enumerate(zip(*table.rows, strict=True)):
        cells = [_cell(x, j == table.share) for x in column if not isinstance(x, tuple)]
        yield max((cell.cell_len for cell in cells), default=0)


def _cell(x: Cell, share: bool, width: int = 80) -> Text:
    if isinstance(x, str):
        return Text(x)
    if isinstance(x, tuple):
        return Text("\n".join(_wrapped(x, width)))
    small = not share and 0 < abs(x) < 0.0005
    cell = Text(f"{x:.0e}" if small else number(x, 4 if share else 3))
    if share and not math.isnan(x):
        cell.append(" " + "█" * round(_BAR * min(1.0, max(0.0, x))), "blue")
    return cell


def _wrapped(things: Sequence[str], width: int) -> list[str]:
    lines: list[str] = []
    for thing in things:
        if lines and cell_len(lines[-1]) + 2 + cell_len(thing) <= width:
            lines[-1] += "  " + thing
        else:
            lines.append(thing)
    return lines


def step_through(
    console: Console, trace: Trace, stages: Sequence[Stage], ask: Callable[[str], str]
) -> None:
    """One stage at a time: Enter is next, b is back, a name or number jumps there, q quits."""
    introduce(console, trace)
    names, at = [stage.name for stage in stages], 0
    while 0 <= at < len(stages):
        show_stage(console, trace, stages[at])
        answer = ask("\n[Enter] next   b back   q quit   or a stage's name: ").strip().lower()
        if answer in ("q", "/quit"):
            return
        found = [i for i, name in enumerate(names) if answer and name.startswith(answer)]
        if answer.isdigit() and 1 <= int(answer) <= len(names):
            found = [int(answer) - 1]
        at = found[0] if found and answer != "b" else max(0, at - 1) if answer == "b" else at + 1


def plain_text(trace: Trace, stages: Sequence[Stage]) -> str:
    """What `show` prints, without colour, for a notebook or a log."""
    file = io.StringIO()
    show(Console(file=file, width=80, color_system=None, highlight=False), trace, stages)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
