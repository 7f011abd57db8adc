"""The walk as one file for a browser: the page, with every layer, head and word, compressed.

Of a model or a text that is too large for one file, the numbers nearest to the chosen layer, head
and word come first, and the page says which were left out. Whoever saves it hears how much it
holds; a text of which not even the words fit is refused.
"""

import base64
import json
import math
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from html import escape
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np

from limelight.errors import UserError
from limelight.explain.focus import Focus, focus_on
from limelight.explain.render import serialize
from limelight.explain.render.serialize import Blob, attentions
from limelight.explain.render.terminal import around
from limelight.explain.stage import Cell, Heatmap, Stage, TableFigure, number
from limelight.explain.stage_table import STAGES, stage_facts
from limelight.explain.stages import all_stages, stage_at, walk
from limelight.explain.starting_point import first_focus
from limelight.explain.trace import Trace
from limelight.explain.traced_text import run_through
from limelight.model.taps import depth, sides
from limelight.web.bundle import single_file

MAX_BYTES = 5_000_000  # of a file
LEFT_OUT = "numbers of words far from the chosen one are left out, to keep it below 5 MB"
_MISSES = 20  # facts in a row that did not fit: no more are tried
_QUOTES = 6  # characters around a stream and its name
_MANY = 12_000  # facts, above which they are not small
_LOGITS = 2.0**11  # logits are stored in steps of one by this: of them there is a vocabulary a word
_LARGE = 600_000  # bytes of all attention weights, above which they are stored in half precision
_Item = tuple[str, Callable[[], Any]]  # the request path; and what makes the data, facts or a blob
_INPUTS = ("embedding", "positions", "segments", "input")
_CORNER = "query \\ key"  # of a table of weights
_WINDOWS = (10**9, 64, 32, 16)  # rows and columns of a table without a script, until the file fits
_PLAIN = 0.2  # of a file, at most, for those tables


class _SavedWalk(NamedTuple):
    """A file, and the share of all that its page can ask for that it holds."""

    page: str
    holds: float


def as_html(
    trace: Trace,
    name: str = "model",
    layer: int | None = None,
    head: int | None = None,
    word: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> str:
    """One file that works offline; `name` is the model's."""
    return run_through(html_in_steps(trace, name, layer, head, word, max_bytes)).page


def html_in_steps(
    trace: Trace,
    name: str = "model",
    layer: int | None = None,
    head: int | None = None,
    word: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> Generator[None, None, _SavedWalk]:
    """The file in steps, an item per `next()`: there may be thousands."""
    title = f"{trace.text[:60]} · Limelight"
    if trace.recurrent:  # the page draws Transformers
        stages = walk(trace, layer, head, word)
        page = _within(max_bytes, partial(_static_page, trace, title, stages))
        _sized(trace, page, max_bytes)
        return _SavedWalk(page, 1.0)
    focus = first_focus(trace, layer, head, word)
    data: dict[str, Any] = {
        "model": {
            **serialize.model_facts(trace.trained),
            **{"name": name, "tags": [], "decode": asdict(trace.decode), "step": 0},
        },
        "manifest": serialize.manifest(trace),
        "place": {"layer": focus.layer + 1, "head": focus.head + 1},
        "packed": _Packer(0).packed,
    }
    room = max_bytes - len(single_file(title, data, "").encode())
    plain = _within(min(room, _PLAIN * max_bytes), partial(_plain_html, focus))
    packer = _Packer(max_bytes - _sized(trace, single_file(title, data, plain), max_bytes))
    plan = _ExportPlan(focus).by_path()
    yield from packer.fill(plan)
    page = single_file(title, {**data, "packed": packer.packed}, plain)
    return _SavedWalk(page, packer.count / len(plan))


@dataclass(frozen=True)
class _Stream:
    """Bytes that are compressed as they come, so that what more of them take is known at once."""

    state: Any = field(default_factory=partial(zlib.compressobj, 9))
    done: bytes = b""
    size: int = 0  # bytes that came
    length: int = 0  # characters in a file

    def grown(self, data: bytes) -> "_Stream":
        state = self.state.copy()
        done = self.done + state.compress(data)
        thirds = -(-(len(done) + len(state.copy().flush())) // 3)
        return _Stream(state, done, self.size + len(data), 4 * thirds)

    @property
    def packed(self) -> str:
        return base64.b64encode(self.done + self.state.copy().flush()).decode()


class _Packer:
    """Items in their order, as many as fit: the room that remains holds none of those left out.

    Facts of a stage are alike, so each stage has a stream of its own. Numbers of 32 bits lose their
    last 8, rounded: 16 bits of precision are left. Each rank of bytes has a stream, as the first
    ones are alike. An index has what each blob is, and where.
    """

    def __init__(self, room: int) -> None:
        self.room, self.count = room, 0  # characters that are left; items
        names = ("index", "small", "rank1", "rank2", "rank3")
        self.streams = {name: _Stream().grown(b"") for name in names}

    def fill(self, plan: Mapping[str, Callable[[], Any]]) -> Iterator[None]:
        misses = 0
        for path, make in plan.items():
            value = make()
            misses = 0 if self.add(path, value) else misses + (not isinstance(value, Blob))
            if misses == _MISSES:
                return
            yield

    def add(self, path: str, value: Any) -> bool:
        """Keep an item, if there is room for it."""
        parts, known = self.parts_of(path, value), self.streams
        grown = {name: known.get(name, _Stream()).grown(data) for name, data in parts.items()}
        cost = sum(stream.length for stream in grown.values())
        for name in grown:
            cost += -known[name].length if name in known else len(name) + _QUOTES
        if cost > self.room:
            return False
        self.streams |= grown
        self.room -= cost
        self.count += 1
        return True

    def parts_of(self, path: str, value: Any) -> dict[str, bytes]:
        """What an item adds to each stream."""
        if not isinstance(value, Blob):
            line = f"{json.dumps(path)}:{serialize.as_json(value)},"
            return {path.partition("?")[0]: line.encode()}
        numbers, at = {"small": value.blob}, self.streams["small"].size
        if value.kind == "f32":
            bits = (np.frombuffer(value.blob, "<u4").astype(np.uint64) + 0x80).astype("<u4")
            ranks = bits.view("u1").reshape(-1, 4).T
            numbers = {f"rank{i}": ranks[i].tobytes() for i in (1, 2, 3)}
            at = 4 * self.streams["rank1"].size
        facts = {"kind": value.kind, "parts": value.parts, "at": at, "size": len(value.blob)}
        return {"index": f"{json.dumps(path)}:{serialize.as_json(facts)},".encode(), **numbers}

    @property
    def packed(self) -> dict[str, str]:
        return {name: stream.packed for name, stream in self.streams.items()}


def _within(room: float, made: Callable[[int], str]) -> str:
    """With as many rows and columns of tables as there is room for; at least the fewest."""
    for window in _WINDOWS:
        if len((found := made(window)).encode()) <= room:
            break
    return found


def _sized(trace: Trace, page: str, max_bytes: int) -> int:
    """Bytes of a page, which must fit."""
    if (size := len(page.encode())) > max_bytes:
        raise UserError(
            f"a walk of {len(trace.source) + len(trace.target)} tokens does not fit into a file: "
            f"it would have at least {size:,} bytes, and {max_bytes:,} are allowed; shorten the "
            "text"
        )
    return size


class _ExportPlan:
    """Everything the page may request, by request path, the most useful first."""

    def __init__(self, focus: Focus) -> None:
        self.focus, self.trace, self.sides = focus, focus.trace, sides(focus.trace.config)
        self.names = all_stages(self.trace)
        facts = stage_facts(self.names, self.sides, self.trace.decoder_cell)
        self.scopes = {fact["name"]: fact["scope"] for fact in facts}  # as the page has them
        weights = [f"{at}.weights" for at in attentions(self.trace)]
        sizes = (math.prod(self.trace.summaries[name].shape) for name in weights)
        self.exact = 4 * sum(sizes) <= _LARGE  # then a row is a part of the whole

    def by_path(self) -> dict[str, Callable[[], Any]]:
        """Each item once, where it comes first."""
        found: dict[str, Callable[[], Any]] = {}
        for path, make in self.items():
            found.setdefault(path, make)
        return found

    def items(self) -> Iterator[_Item]:
        """This word, and all attention; then the other places."""
        here, config = (self.focus.layer, self.focus.head), self.trace.config
        for name in (name for side in self.sides if self.exact for name in self.inputs(side)):
            yield _blob(f"tensor/{name}", serialize.tensor, self.trace, name)
        for side in self.sides:
            yield from self.word(side, self.focus.word(side), *here)
        yield _blob("thumbs", serialize.thumbnails, self.trace)
        yield from self.weights()
        for side in self.sides:
            for name in self.inputs(side):
                yield _blob(f"tensor/{name}", serialize.tensor, self.trace, name)
        most = max(depth(config, side) for side in self.sides)
        yield from self.others(here, list(product(range(most), range(config.heads))))

    def others(self, here: tuple[int, int], heads: Sequence[tuple[int, int]]) -> Iterator[_Item]:
        """This word at all heads; every place's facts, which are small; the numbers of words.

        Of a text with too many facts the other words come first, the nearest with both.
        """
        rows = [(side, row) for side in self.sides for row in range(len(self.focus.words(side)))]
        rows.sort(key=lambda place: abs(place[1] - self.focus.word(place[0])))
        each = [[self.facts(*place, *head) for head in heads] for place in rows]
        facts = [list(chain(*word)) for word in each]
        if len({path for word in facts for path, _ in word}) > _MANY:
            for word, place in zip(facts, rows, strict=True):
                yield from word
                yield from self.word(*place, *here)
        for head, side in product(heads, self.sides):
            yield from self.word(side, self.focus.word(side), *head)
        yield from chain(*facts)
        for place in rows:
            yield from self.word(*place, *here)
        for head, place in product(heads, rows):
            yield from self.word(*place, *head)

    def facts(self, side: str, row: int, layer: int, head: int) -> Iterator[_Item]:
        for name in self.names:
            if STAGES[name].side(self.sides) == side:
                yield self.stage(name, row, layer, head)

    def word(self, side: str, row: int, layer: int, head: int) -> Iterator[_Item]:
        trace, rows = self.trace, slice(row, row + 1)
        yield from self.facts(side, row, layer, head)
        here = [at for at in attentions(trace) if at.startswith(f"{side}.{layer}.")]
        for at in here:
            path = f"focus?at={at}&head={head + 1}"
            yield _blob(path, serialize.attention_head, trace, at, head + 1)
        rows_of = [*(f"{at}.weights" for at in here), *self.inputs(side)]
        for name in [] if self.exact else rows_of:
            path = f"tensor/{name}?rows={row}:{row + 1}"
            yield _blob(path, serialize.tensor, trace, name, None, rows)
        yield _blob(f"token?side={side}&row={row}", serialize.token, trace, side, row)
        if side == self.sides[-1] and not trace.trained.classes:
            yield _blob(f"logits?row={row}", _rounded_logits, trace, row)

    def stage(self, name: str, row: int, layer: int, head: int) -> _Item:
        """The data of a stage, by a path that names only what the stage depends on."""
        scope, word = self.scopes[name], "target"
        rows: tuple[int | None, int | None] = (None, row)
        if STAGES[name].side(self.sides) == "encoder":
            word, rows = "source", (row, None)
        known = {"layer": layer + 1, "head": head + 1, "word": row}
        query = [f"{word if x == 'word' else x}={known[x]}" for x in known if x in scope]
        chosen = (layer + 1, head + 1, None, rows) if "word" in scope else (None, None, None)

        def make() -> Any:
            focus = focus_on(self.trace, *chosen)
            return serialize.stage_data(stage_at(self.trace, name, focus))

        return f"stop/{name}" + (f"?{'&'.join(query)}" if query else ""), make

    def inputs(self, side: str) -> list[str]:
        return [name for x in _INPUTS if (name := f"{side}.{x}") in self.trace.summaries]

    def weights(self) -> Iterator[_Item]:
        """All attention weights: exact if they are small, in half precision if not."""
        names = [f"{at}.weights" for at in attentions(self.trace)]
        kind, suffix = ("f32", "") if self.exact else ("f16", "?as=f16")
        for name in names:
            path = f"tensor/{name}{suffix}"
            yield _blob(path, serialize.tensor, self.trace, name, None, None, kind)


def _rounded_logits(trace: Trace, row: int) -> Blob:
    """In steps that change no probability by more than a thousandth of it, and compress well."""
    exact = serialize.logits(trace, row)
    rounded = np.round(np.frombuffer(exact.blob, "<f4") * _LOGITS) / _LOGITS
    return exact._replace(blob=rounded.astype("<f4").tobytes())


def _blob(path: str, make: Callable[..., Blob], *arguments: Any) -> _Item:
    return path, partial(make, *arguments)


def _opening(trace: Trace) -> list[str]:
    changed = f"<p>Changed: {escape('  '.join(trace.changes))}</p>"
    return [f"<h1>{escape(trace.text)}</h1>", *([changed] if trace.changes else [])]


def _plain_html(focus: Focus, window: int) -> str:
    trace = focus.trace
    parts = _opening(trace)
    if trace.steps:
        output = " ".join(step.chosen.piece for step in trace.steps)
        parts.append(f"<p>The model: {escape(output)}</p>")
    parts.append("<p>With JavaScript, this file is a walk through the model.</p>")
    for block in (focus.block(*at) for at in product(sides(trace.config), ("self", "cross"))):
        if f"{block.name}.weights" in trace.summaries:
            cross = ", cross-attention" if block.use == "cross" else ""
            title, labels = f"attention weights: {block.location}{cross}", block.key_tokens.labels
            at = (block.query_index, block.key_index)
            grid = Heatmap(title, (), block.get("weights"), block.rows, labels, focus=at)
            part = _part(grid, window)
            rows = list(zip(part.rows, *part.values.T.tolist(), strict=True))
            parts.append(_table(TableFigure(part.title, [_CORNER, *part.columns], rows)))
    return "\n".join(parts)


_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
.wide {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-size: 0.85rem; margin: 1rem 0 }}
caption {{ text-align: left; font-weight: bold }}
th, td {{ padding: 0.15rem 0.5rem; text-align: left; white-space: nowrap }}
td.n {{ text-align: right; font-variant-numeric: tabular-nums }}
</style></head><body>
"""


def _part(figure: Heatmap, window: int) -> Heatmap:
    """As many rows and columns as the window has, around the chosen ones, and its title says so."""
    sizes = figure.values.shape
    if max(sizes) <= window:
        return figure
    shown = map(around, sizes, (window, window), figure.focus)
    rows, columns = (slice(each.start, each.stop) for each in shown)
    count = " x ".join(str(min(size, window)) for size in sizes)
    title = f"{figure.title} ({count} of {sizes[0]} x {sizes[1]}, around the chosen place)"
    values, labels = figure.values[rows, columns], (figure.rows[rows], figure.columns[columns])
    return replace(figure, title=title, values=values, rows=labels[0], columns=labels[1])


def _static_page(trace: Trace, title: str, stages: Sequence[Stage], window: int) -> str:
    """The walk as text and tables, without a script."""
    parts = [_HEAD.format(title=escape(title)), *_opening(trace)]
    for stage in stages:
        parts.append(f"<h2>{escape(stage.title)}</h2><p>{escape(stage.what)}</p>")
        both = [(escape(formula.letters), escape(formula.filled)) for formula in stage.formulas]
        parts += [f"<p><code>{letters}</code><br><b>{filled}</b></p>" for letters, filled in both]
        figures = (_part(f, window) if isinstance(f, Heatmap) else f for f in stage.figures)
        parts += [_table(figure) for figure in figures]
        parts += [f"<p>{escape(note)}</p>" for note in stage.notes]
        marked = [("✓" if check.passed else "✗", check) for check in stage.checks]
        parts += [f"<p>{x} {escape(c.claim)}: off by {c.error:.0e}</p>" for x, c in marked]
    return "\n".join([*parts, "</body></html>\n"])


def _table(figure: Heatmap | TableFigure) -> str:
    if isinstance(figure, TableFigure):
        heads, rows = list(figure.heads), [[_cell(x) for x in row] for row in figure.rows]
    else:
        finite = figure.values[figure.values.isfinite()].abs()
        most = float(finite.max()) if finite.numel() else 1.0
        heads, pairs = ["", *figure.columns], zip(figure.rows, figure.values.tolist(), strict=True)
        rows = [[_cell(label), *(_cell(x, most or 1.0) for x in row)] for label, row in pairs]
    if heads[0] in ("", _CORNER):  # each row has its label, as each column has
        rows = [[row[0].replace("td>", "th>"), *row[1:]] for row in rows]
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    caption = f"<caption>{escape(figure.title)}</caption>"
    return f'<div class="wide"><table>{caption}<tr>{head}</tr>{body}</table></div>'


def _cell(value: Cell, most: float | None = None) -> str:
    """A cell of a table; of a heatmap, on a ground as strong as the number is large."""
    if not isinstance(value, float):
        return f"<td>{escape(value if isinstance(value, str) else '  '.join(value))}</td>"
    share = min(1.0, abs(value) / most) if most and math.isfinite(value) else 0.0
    colour = "30, 105, 215" if value >= 0 else "190, 60, 45"
    ground = f' style="background: rgba({colour}, {share / 2:.2f})"' if share else ""
    return f'<td class="n"{ground}>{number(value)}</td>'
