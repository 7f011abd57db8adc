"""The walk at a terminal: the same numbers and words with colour and without.

Colour only lies behind numbers that are printed anyway, so a pipe, a file and a screen reader get
all of it. Nothing is wider than the terminal: what does not fit is cut to a window round the word
that is looked at, and says so.
"""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from limelight.explain.stage_table import STAGES
from limelight.explain.stop import Cell, Check, Grid, Listing, Stop, number
from limelight.explain.trace import Trace
from limelight.explain.walk import asides, stations
from limelight.explain.words import pieces_of, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDEST = 110  # a wider terminal is not filled: lines get hard to follow
LONGEST = 24  # rows of a table; of more, a window is shown
LABEL = 18  # of a row, at most so wide
BAR = 16  # of a probability of 1


def show(console: Console, trace: Trace, stops: Sequence[Stop]) -> None:
    """The whole walk, or some of it."""
    introduce(console, trace)
    for stop in stops:
        show_stop(console, trace, stop)


def introduce(console: Console, trace: Trace) -> None:
    """Which model this is, what it read and what it wrote."""
    config = trace.config
    size = sum(p.numel() for p in trace.model.parameters())
    told = (
        f"{config.family}, {config.layers} layers, {config.heads} heads, d_model {config.d_model}, "
        f"{config.norm_order}-norm, {config.positions} positions, {size:,} parameters"
    )
    facts = Table.grid(padding=(0, 2))
    facts.add_row(Text("model", "dim"), Text(told))
    facts.add_row(Text("reads", "dim"), Text(reads(trace), "bold"))
    if trace.steps:
        facts.add_row(Text(verb(trace), "dim"), Text(writes(trace), "bold green"))
    facts.add_row(Text("stops", "dim"), Text("  ".join(stations(trace))))
    if more := asides(trace):
        facts.add_row(Text("beside", "dim"), Text("  ".join(more)))
    console.print(facts)
    for name, count in list(trace.checks.broken.items())[:1]:
        warning = f"NaN: {count:,} numbers of {name}, and so of {len(trace.checks.broken)} values, "
        console.print(Text(f"{warning}are not numbers. The weights are damaged.", "bold red"))


def reads(trace: Trace) -> str:
    """The pieces that go in, apart."""
    given = trace.source or trace.target
    labels = given.labels if trace.source else given.labels[: trace.passage.given + 1]
    return " ".join(labels)


def verb(trace: Trace) -> str:
    """What a model does with a text."""
    if trace.trained.family == "encoder-only":
        return "fills"
    return "given" if trace.passage.how == "given" else "writes"


def writes(trace: Trace) -> str:
    """What came out: the pieces that were chosen."""
    pieces = pieces_of(trace.trained.tokenizer, [step.chosen.token for step in trace.steps])
    return " ".join(visible(piece) for piece in pieces)


def map_lines(trace: Trace, stop: Stop) -> Text:
    """Where in the model this is: the parts in order, the current one lit."""
    lines = []
    for half, first in (("reading", True), ("answering", False)):
        line = Text(f"{half:9}  ", "dim")
        entries = [STAGES[name] for name in stations(trace) if STAGES[name].first is first]
        for n, section in enumerate(dict.fromkeys(entry.section for entry in entries)):
            here = section == STAGES[stop.name].section
            line.append(" > " if n else "")
            line.append(f"[{section}]" if here else section, "bold yellow not dim" if here else "")
        lines.append(line)
    return Text("\n").join(lines)


def show_stop(console: Console, trace: Trace, stop: Stop) -> None:
    """One station."""
    order = list(stations(trace))
    count = f"{order.index(stop.name) + 1}/{len(order)}" if stop.name in order else "beside"
    console.print()
    console.rule(Text(f"{count}  {stop.title}", "bold"), align="left", characters="─", style="cyan")
    if stop.name in order:
        console.print(map_lines(trace, stop))
    where = f"{stop.place}; " if stop.place else ""
    console.print(Text(f"{stop.name}: {where}section {stop.section} of the paper", "dim"))
    console.print(Text(stop.what))
    for formula in stop.formulas:
        console.print()
        console.print(Padding(Text(formula.letters, "cyan"), (0, 0, 0, 2), expand=False))
        console.print(Padding(Text(formula.filled, "bold"), (0, 0, 0, 4), expand=False))
    for exhibit in stop.exhibits:
        console.print()
        drawn = heat_map if isinstance(exhibit, Grid) else listing
        console.print(drawn(exhibit, min(console.width, WIDEST)))  # type: ignore[arg-type]
    console.print()
    for note in stop.notes:
        console.print(Text.assemble(("note  ", "yellow"), note))
    for check in stop.checks:
        console.print(tick(check))


def tick(check: Check) -> Text:
    """A check, with how far apart the two ways were."""
    if check.passed:
        off = "exactly" if check.error == 0 else f"off by {check.error:.0e}"
        return Text.assemble(("✓ ", "green"), check.claim, (f": {off}", "dim"))
    return Text.assemble(
        ("✗ ", "bold red"), check.claim, (f": off by {number(check.error)}", "red")
    )


@dataclass(frozen=True)
class Layout:
    """How a grid fits: which columns, how wide, with how many digits."""

    columns: range
    rows: range
    cell: int
    digits: int  # after the point; 0: in percent
    label: int


def heat_map(grid: Grid, width: int) -> "RenderableType":
    """Numbers on a ground that is the stronger the larger they are."""
    layout = fit(grid, width)
    lines = [title_line(grid, layout)]
    if layout.digits:
        lines.append(header(grid.columns, layout, grid.focus[1], grid.sums))
    else:
        numbers = [str(j + 1) for j in range(len(grid.columns))]
        lines.append(header(numbers, layout, grid.focus[1], grid.sums))
    largest = (
        grid.values[grid.values.isfinite()].abs().max().item()
        if grid.values.isfinite().any()
        else 1.0
    )
    for i in layout.rows:
        lines.append(grid_row(grid, i, layout, largest or 1.0))
    if not layout.digits:
        key = "  ".join(f"{j + 1}\u00a0{grid.columns[j]}" for j in layout.columns)
        lines.append(Text(f"columns: {key}", "dim"))
    return Text("\n").join(lines)


def fit(grid: Grid, width: int) -> Layout:
    """All columns with three digits if they fit, else fewer digits, else a window."""
    label = min(LABEL, 2 + max(map(cell_len, grid.rows)))
    room = width - label - (7 if grid.sums else 0)
    rows = window(len(grid.rows), LONGEST, grid.focus[0])
    every = range(len(grid.columns))
    whole = grid.axes[1] != "number"  # of a vector, the first few say enough
    modes = [3, *([2] if whole else []), *([0] if whole and grid.scale == "share" else [])]
    for digits in modes:
        cell = 1 + max(
            2, *(len(value(x, digits)) for x in grid.values[list(rows)].flatten().tolist())
        )
        if cell * len(every) <= room:
            widest = 1 + max(map(cell_len, grid.columns)) if digits else cell
            roomy = max(cell, min(widest, room // len(every), 9))
            return Layout(every, rows, roomy, digits, label)
    return Layout(window(len(every), room // cell, grid.focus[1]), rows, cell, digits, label)


def window(count: int, most: int, focus: int | None) -> range:
    """As many neighbours of the focus as fit; without one, the first."""
    most = max(1, most)
    first = 0 if focus is None else min(max(0, focus - most // 2), max(0, count - most))
    return range(first, min(count, first + most))


def value(x: float, digits: int) -> str:
    """A number with so many digits; 0 means in percent."""
    return number(x, digits) if digits or math.isnan(x) else f"{100 * x:.0f}"


def title_line(grid: Grid, layout: Layout) -> Text:
    """What is shown, and what of it."""
    notes = []
    if grid.axes[0] == "asks":
        rows = "each row asks (reads → next)" if " → " in grid.rows[0] else "each row asks"
        notes.append(f"{rows}, each column answers")
    if not layout.digits:
        notes.append("in percent")
    if len(layout.columns) < len(grid.columns):
        shown = f"{layout.columns[0] + 1} to {layout.columns[-1] + 1}"
        what = "numbers" if grid.axes[1] == "number" else "columns"
        notes.append(f"{what} {shown} of {len(grid.columns)}")
    if len(layout.rows) < len(grid.rows):
        notes.append(f"rows {layout.rows[0] + 1} to {layout.rows[-1] + 1} of {len(grid.rows)}")
    told = f" ({'; '.join(notes)})" if notes else ""
    return Text.assemble((grid.title, "bold underline"), (told, "dim"))


def header(labels: Sequence[str], layout: Layout, focus: int | None, sums: bool) -> Text:
    """The names of the columns."""
    line = Text(" " * layout.label)
    for j in layout.columns:
        style = "bold yellow" if j == focus else "dim"
        line.append(" " + clip(labels[j], layout.cell - 1, "right"), style)
    return line.append("    sum", "dim") if sums else line


def clip(text: str, width: int, side: str = "left") -> str:
    """A text in exactly so many columns, its end cut off with a mark if it must be."""
    if cell_len(text) > width:
        text = set_cell_size(text, max(0, width - 1)) + "…"
    return (
        text + " " * (width - cell_len(text))
        if side == "left"
        else (" " * (width - cell_len(text)) + text)
    )


def grid_row(grid: Grid, i: int, layout: Layout, largest: float) -> Text:
    """A row: its name, marked if it is the one that is looked at, and its numbers."""
    focused = i == grid.focus[0]
    label = clip(("> " if focused else "  ") + grid.rows[i], layout.label)
    line = Text().append(label, "bold yellow" if focused else "")
    for j in layout.columns:
        x = grid.values[i, j].item()
        line.append(" ")
        line.append(f"{value(x, layout.digits):>{layout.cell - 1}}", ground(x, grid.scale, largest))
    if grid.sums:
        line.append(f"{number(grid.values[i].sum().item()):>7}", "dim")
    return line


def ground(x: float, scale: str, largest: float) -> Style:
    """The colour behind a number: blue for shares and below zero, red above, grey for -inf."""
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
    mixed = (round(a + (b - a) * strength) for a, b in zip(low, high, strict=True))
    red, green, blue = mixed
    return Style(color="white", bgcolor=f"rgb({red},{green},{blue})")


def listing(table: Listing, width: int) -> "RenderableType":
    """A table of words and numbers, with bars for shares."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for j, name in enumerate(table.heads):
        numeric = any(isinstance(row[j], float) for row in table.rows)
        last = j == len(table.heads) - 1
        drawn.add_column(
            Text(name),
            justify="right" if numeric and j != table.share else "left",
            no_wrap=not last,
            overflow="fold" if last else "ellipsis",
            max_width=width if last else 24,
        )
    shown = window(len(table.rows), LONGEST, table.focus)
    room = width - 3 * len(table.heads) - sum(map(cell_len, widest_words(table)))
    for i in shown:
        cells = [cell(x, j == table.share, room) for j, x in enumerate(table.rows[i])]
        drawn.add_row(*cells, style="bold yellow" if i == table.focus else "")
    left = len(table.rows) - len(shown)
    if left:
        drawn.caption = Text(f"rows {shown[0] + 1} to {shown[-1] + 1} of {len(table.rows)}")
    return Group(Text(table.title, "bold underline"), drawn)


def widest_words(table: Listing) -> list[str]:
    """What takes most room in each column, those of several things left out."""
    columns = zip(*table.rows, strict=True)
    return [
        max(
            (cell(x, j == table.share).plain for x in column if not isinstance(x, tuple)),
            key=cell_len,
            default="",
        )
        for j, column in enumerate(columns)
    ]


def cell(x: Cell, share: bool, room: int = 80) -> Text:
    """A word, a number, a number with a bar, or several things that break only between them."""
    if isinstance(x, str):
        return Text(x)
    if isinstance(x, tuple):
        return Text("\n".join(broken(x, room)))
    told = Text(number(x, 4 if share else 3))
    if share and not math.isnan(x):
        told.append(" " + "█" * round(BAR * min(1.0, max(0.0, x))), "blue")
    return told


def broken(things: Sequence[str], room: int) -> list[str]:
    """Things in lines of at most so many columns."""
    lines: list[str] = []
    for thing in things:
        if lines and cell_len(lines[-1]) + 2 + cell_len(thing) <= room:
            lines[-1] += "  " + thing
        else:
            lines.append(thing)
    return lines


def step_through(
    console: Console, trace: Trace, stops: Sequence[Stop], ask: Callable[[str], str]
) -> None:
    """One stop at a time: Enter goes on, b goes back, a name or number goes there, q leaves."""
    introduce(console, trace)
    names, at = [stop.name for stop in stops], 0
    while 0 <= at < len(stops):
        show_stop(console, trace, stops[at])
        answer = ask("\n[Enter] next   b back   q leave   or a stop's name: ").strip().lower()
        if answer in ("q", "/quit"):
            return
        found = [i for i, name in enumerate(names) if answer and name.startswith(answer)]
        if answer.isdigit() and 1 <= int(answer) <= len(names):
            found = [int(answer) - 1]
        at = found[0] if found and answer != "b" else max(0, at - 1) if answer == "b" else at + 1


def plain_text(trace: Trace, stops: Sequence[Stop]) -> str:
    """The same without colour, for a notebook or a log."""
    console = Console(file=io.StringIO(), width=80, color_system=None, highlight=False)
    introduce(console, trace)
    for stop in stops:
        show_stop(console, trace, stop)
    written: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in written.splitlines())
