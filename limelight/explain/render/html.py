"""The walk as one file for a browser: the page, with every layer, head and word, compressed.

Of a model or a text that is too large for one file, the numbers nearest to the chosen layer, head
and word come first, and the page says which were left out. Whoever saves it hears how much it
holds; a text of which not even the words fit is refused.
"""

import base64
import json
import math
import zlib
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from html import escape
from itertools import accumulate, chain, product
from typing import Any, NamedTuple

import numpy as np

from limelight.errors import UserError
from limelight.explain.focus import Focus, focus_on
from limelight.explain.render import serialize
from limelight.explain.render.serialize import Blob, attentions
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
_MISSES = 20  # items in a row that did not fit, or facts that seemed too large: no more are tried
_LEAST = 24  # bytes of room in which no item is tried
_RATES = {"json": 0.07, "single": 0.7, "small": 1.1}  # bytes in a file for one of an item, at first
_WEIGHED = 20_000  # bytes of items by which the rates of a file are known
_MANY = 12_000  # facts, above which they are not small
_HOPELESS = 2.5  # times the room: what seems to need more is not tried
_LOGITS = 2.0**11  # logits are stored in steps of one by this: of them there is a vocabulary a word
_LARGE = 600_000  # bytes of all attention weights, above which they are stored in half precision
_Planned = tuple[str, tuple[str, Callable[[], Any]]]  # a request path; facts or blobs, and the data
_Item = tuple[str, str, Callable[[], Any]]  # facts or blobs, the request path, and the data
_INPUTS = ("embedding", "positions", "segments", "input")
_CORNER = "query \\ key"  # of a table of weights
_WINDOWS = (10**9, 64, 32, 16)  # rows and columns of a table without a script, until the file fits
_PLAIN = 0.2  # of a file, at most, for those tables


class _Made(NamedTuple):
    """Facts as JSON, or a blob: in which piece of a file it is, and with how many bytes."""

    path: str
    value: str | Blob
    piece: str
    size: int


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
        return _static_that_fits(trace, title, walk(trace, layer, head, word), max_bytes)
    focus = first_focus(trace, layer, head, word)
    data: dict[str, Any] = {
        "model": {
            **serialize.model_facts(trace.trained),
            **{"name": name, "tags": [], "decode": asdict(trace.decode), "step": 0},
        },
        "manifest": serialize.manifest(trace),
        "place": {"layer": focus.layer + 1, "head": focus.head + 1},
        "packed": _packed([]),
    }
    plain = _plain_that_fits(focus, title, data, max_bytes)
    room = max_bytes - len(single_file(title, data, plain).encode())
    plan = _ExportPlan(focus).by_path()
    packer = _Packer(room + _length(data["packed"]))
    yield from packer.fill(iter(plan.items()))
    page = single_file(title, {**data, "packed": _packed(packer.kept)}, plain)
    return _SavedWalk(page, len(packer.kept) / len(plan))


class _Packer:
    """Items in their order, as many as fit: the room that remains holds none of those left out.

    What an item adds to the compressed whole is known only when it is in it. So those that seem to
    fit are added at once; if they are too many, the last ones wait, and are weighed again by what
    the others have really taken.
    """

    def __init__(self, room: int) -> None:
        self.kept: list[_Made] = []
        self.waiting: list[_Made] = []  # the next one last
        self.compress = lru_cache(4)(_compressed)  # often only one of the pieces is another
        self.rates = dict(_RATES)
        self.room, self.left = room, room - _length(_packed([], self.compress))

    def fill(self, plan: Iterator[_Planned]) -> Iterator[None]:
        misses = 0
        while self.left >= _LEAST and misses < _MISSES:
            batch = yield from self.batch(plan)
            if not batch:
                return
            count = self.fitting(batch)
            self.waiting += reversed(batch[count or 1 :])
            misses = 0 if count else misses + 1
            self.keep(batch[:count])
            yield

    def batch(self, plan: Iterator[_Planned]) -> Generator[None, None, list[_Made]]:
        """The next items that seem to fit; the first of them may be one that needs to be tried."""
        batch, planned, misses = list[_Made](), 0.0, 0
        while one := self.waiting.pop() if self.waiting else _next_made(plan):
            yield
            cost = self.cost(one)
            if planned + cost <= self.left:
                batch.append(one)
                planned += cost
            elif batch:
                self.waiting.append(one)
                break
            elif cost <= _HOPELESS * self.left:
                return [one]
            elif (misses := misses + (one.piece == "json")) == _MISSES:
                break
        return batch

    def cost(self, one: _Made) -> float:
        return len(one.path) / 8 + self.rates[one.piece] * one.size

    def fitting(self, batch: Sequence[_Made]) -> int:
        """How many of these really fit."""
        ends, count = list(accumulate(map(self.cost, batch))), len(batch)
        while count:
            grown = self.left - self.left_with(batch[:count])
            if grown <= self.left:
                return count
            count = min(count - 1, bisect_right(ends, ends[count - 1] * self.left / grown))
        return 0

    def left_with(self, more: Sequence[_Made]) -> int:
        return self.room - _length(_packed([*self.kept, *more], self.compress))

    def keep(self, more: Sequence[_Made]) -> None:
        self.kept += more
        packed = _packed(self.kept, self.compress)
        self.left = self.room - _length(packed)
        for piece in _RATES:
            size = sum(one.size for one in self.kept if one.piece == piece)
            if size > _WEIGHED:
                self.rates[piece] = len(packed[piece]) / size


def _next_made(plan: Iterator[_Planned]) -> _Made | None:
    for path, (kind, make) in plan:
        value = make()
        if kind == "facts":
            text = serialize.as_json(value)
            return _Made(path, text, "json", len(text))
        return _Made(path, value, "single" if value.kind == "f32" else "small", len(value.data))
    return None


def _plain_that_fits(focus: Focus, title: str, data: dict[str, Any], max_bytes: int) -> str:
    """What is shown without scripts, in tables that leave room for the page and its numbers."""
    for window in _WINDOWS:
        plain = _plain_html(focus, window)
        size = len(single_file(title, data, plain).encode())
        fits = size <= max_bytes
        if fits and (len(plain.encode()) <= _PLAIN * max_bytes or window == _WINDOWS[-1]):
            return plain
    raise _too_long(focus.trace, size, max_bytes)


def _static_that_fits(
    trace: Trace, title: str, stages: Sequence[Stage], max_bytes: int
) -> _SavedWalk:
    for window in _WINDOWS:
        page = _static_page(trace, title, stages, window)
        if (size := len(page.encode())) <= max_bytes:
            return _SavedWalk(page, 1.0)
    raise _too_long(trace, size, max_bytes)


def _too_long(trace: Trace, size: int, max_bytes: int) -> UserError:
    return UserError(
        f"a walk of {len(trace.source) + len(trace.target)} tokens does not fit into a file: it "
        f"would have at least {size:,} bytes, and {max_bytes:,} are allowed; shorten the text"
    )


def _compressed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def _packed(
    items: Iterable[_Made], compress: Callable[[bytes], str] = _compressed
) -> dict[str, str]:
    """Facts and an index as JSON; the bytes of numbers in one piece each; compressed, as base64.

    Numbers of 32 bits lose their last 8, rounded: 16 bits of precision are left. Their bytes are
    stored by rank, as the first ones are alike.
    """
    facts, index, single, small = dict[str, str](), dict[str, Any](), bytearray(), bytearray()
    for path, value, piece, size in items:
        if isinstance(value, str):
            facts[path] = value
            continue
        buffer = single if piece == "single" else small
        parts = [[name, list(shape)] for name, shape in value.parts]
        index[path] = {"kind": value.kind, "parts": parts, "at": len(buffer), "size": size}
        buffer += value.data
    bits = (np.frombuffer(single, "<u4").astype(np.uint64) + 0x80).astype("<u4")
    planes = bits.view("u1").reshape(-1, 4)[:, 1:].T.tobytes()
    told = ",".join(f"{json.dumps(path)}:{facts[path]}" for path in sorted(facts))
    text = f'{{"facts":{{{told}}},"blobs":{serialize.as_json(index)}}}'  # sorted, as one stage's
    texts = {"json": text.encode(), "single": planes, "small": bytes(small)}  # facts are alike
    return {piece: compress(data) for piece, data in texts.items()}


def _length(packed: dict[str, str]) -> int:
    return sum(map(len, packed.values()))


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

    def by_path(self) -> dict[str, tuple[str, Callable[[], Any]]]:
        """Each item once, where it comes first."""
        found: dict[str, tuple[str, Callable[[], Any]]] = {}
        for kind, path, make in self.items():
            found.setdefault(path, (kind, make))
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
        if len({path for word in facts for _, path, _ in word}) > _MANY:
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

        return "facts", f"stop/{name}" + (f"?{'&'.join(query)}" if query else ""), make

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
    rounded = np.round(np.frombuffer(exact.data, "<f4") * _LOGITS) / _LOGITS
    return exact._replace(data=rounded.astype("<f4").tobytes())


def _blob(path: str, make: Callable[..., Blob], *arguments: Any) -> _Item:
    return "blobs", path, partial(make, *arguments)


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
    starts = [
        max(0, min((at or 0) - window // 2, size - window))
        for at, size in zip(figure.focus, sizes, strict=True)
    ]
    rows, columns = (slice(start, start + window) for start in starts)
    if max(sizes) <= window:
        return figure
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
