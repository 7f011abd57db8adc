"""A walk as an animated SVG: the pieces, one head, and the words as they are written.

Only CSS moves it, so that it plays where scripts do not: in a README, on a web page, in a slide.
Where motion is not wanted, the last frame stands still.
"""

import re
from collections.abc import Sequence
from html import escape
from itertools import accumulate

from torch import Tensor

from limelight.errors import UserError
from limelight.explain.focus import AttentionView
from limelight.explain.starting_point import first_focus
from limelight.explain.tokens import visible
from limelight.explain.trace import DecodingStep, Trace

_WIDTH, _LINE, _EM = 960, 42, 11.5  # pixels: of the picture, between lines, of a letter
_LONGEST, _MOST = 16, 60  # letters of a word; words
_LEAST = 0.04  # weights below have no line
_GREEN = 'fill="#47760b"'
_INVALID = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML
_STYLE = """text { font: 20px Georgia, 'DejaVu Serif', serif; fill: #1c1e18; text-anchor: middle }
.soft { font: 15px system-ui, sans-serif; fill: #5d6155 } .title { font-size: 26px }
.left { text-anchor: start } .right { text-anchor: end } .now { fill: #47760b; font-weight: bold }
.link { fill: none; stroke: #47760b; stroke-linecap: round }
.frame { opacity: 0; animation: TOTALs infinite linear }
"""
_Box = tuple[float, float]  # the middle of a word


def as_svg(
    trace: Trace, layer: int | None = None, head: int | None = None, word: str | None = None
) -> str:
    """The walk as one SVG file; layer and head count from 1."""
    if trace.recurrent:
        raise UserError("an animation shows attention heads: this model is recurrent and has none")
    focus = first_focus(trace, layer, head, word)
    crossing = bool(len(trace.source) and len(trace.target))
    side = "decoder" if len(trace.target) else "encoder"
    block = focus.block(side, "cross" if crossing else "self")
    if f"{block.name}.weights" not in trace.summaries:
        raise UserError(f"there is nothing to animate: {block.name} has no attention weights")
    weights = block.get("weights")
    keys = [_short(label) for label in block.key_tokens.labels[:_MOST]]
    steps = [step for step in trace.steps if step.row < len(weights)][:_MOST]
    written = [visible(step.chosen.piece) for step in steps]
    if side == "decoder":
        written = [trace.answers.labels[step.row] for step in steps]
    words = list(map(_short, written))
    where = f"layer {focus.layer + 1}, head {focus.head + 1}"
    frames = [(2.0, _pieces(keys)), (3.0, _heads(block, weights, where))]
    for n in range(len(steps)):
        row = steps[n].row
        read = keys if crossing or side == "encoder" else keys[: row + 1]
        shares = weights[row, : len(read)].tolist()
        frames.append((1.0, _writing(read, shares, words, steps[n], n)))
    frames[-1] = (3.0, frames[-1][1])
    return _film(frames, trace.text)


def _film(frames: Sequence[tuple[float, tuple[float, str]]], text: str) -> str:
    """Frames one after the other: seconds, and height and content of the picture."""
    ends = list(accumulate(seconds for seconds, _ in frames))
    total, height = ends[-1], max(height for _, (height, _) in frames) + 20
    style, body = _STYLE.replace("TOTAL", f"{total:g}"), []
    for n, (end, (length, (_, picture))) in enumerate(zip(ends, frames, strict=True)):
        a, b = 100 * (end - length) / total, 100 * end / total
        fade = min(0.3, length / 4) * 100 / total
        begin = "" if n == 0 else f"0%, {a:.2f}% {{ opacity: 0 }} "
        close = "" if n == len(ends) - 1 else f" {b + 0.01:.2f}%, 100% {{ opacity: 0 }}"
        style += f"@keyframes f{n} {{ {begin}{a + fade:.2f}%, {b:.2f}% {{ opacity: 1 }}{close} }}\n"
        body.append(f'<g class="frame" style="animation-name: f{n}">{picture}</g>')
    last = ".frame { animation: none !important } .frame:last-of-type { opacity: 1 }"
    style += f"@media (prefers-reduced-motion: reduce) {{ {last} }}\n"
    size = f'width="{_WIDTH}" height="{height:.0f}" viewBox="0 0 {_WIDTH} {height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"'
    ground = '<rect width="100%" height="100%" rx="14" fill="#faf9f5"/>'
    title = f"<title>{_clean(text[:200])}</title>"
    return "\n".join([f"{head}>{title}<style>{style}</style>", ground, *body, "</svg>\n"])


def _pieces(keys: Sequence[str]) -> tuple[float, str]:
    boxes, height = _placed(keys, 110)
    title = _title("What the model reads", f"{len(keys)} pieces, each a vector")
    return height, title + _words(keys, boxes)


def _heads(block: AttentionView, weights: Tensor, where: str) -> tuple[float, str]:
    """The matrix of one head."""
    rows, columns = (min(24, n) for n in weights.shape)
    cell = min(34.0, 600 / columns, 400 / rows)
    left, top = (_WIDTH - columns * cell) / 2 + 40, 150
    parts = [
        _title(f"Attention: {where}", "softmax of q · k / √d: rows are queries, columns are keys")
    ]
    for i in range(rows):
        y = top + i * cell
        parts.append(_text(left - 8, y + cell * 0.7, _short(block.rows[i]), "soft right"))
        for j in range(columns):
            share = float(weights[i, j])
            if share > 0.005:
                size = f'width="{cell - 1:.1f}" height="{cell - 1:.1f}" opacity="{share:.2f}"'
                parts.append(f'<rect x="{left + j * cell:.1f}" y="{y:.1f}" {size} {_GREEN}/>')
    for j in range(columns):
        x = left + (j + 0.6) * cell
        label = _clean(_short(block.key_tokens.labels[j]))
        turned = f'transform="translate({x:.1f} {top - 8}) rotate(-50)"'
        parts.append(f'<text class="soft left" {turned}>{label}</text>')
    return top + rows * cell, "".join(parts)


def _writing(
    keys: Sequence[str], shares: Sequence[float], words: Sequence[str], step: DecodingStep, n: int
) -> tuple[float, str]:
    """A word is written: what it attends to, and what else could have stood here."""
    above, middle = _placed(keys, 60)
    below, height = _placed(words, middle + 110)
    parts, (x, y) = [], below[n]
    for (x1, y1), share in zip(above, shares, strict=True):
        if share > _LEAST:
            bend = (y - y1) / 2
            points = ((x1, y1 + 10), (x1, y1 + bend), (x, y - bend), (x, y - 22))
            a, b, c, d = (f"{px:.0f} {py:.0f}" for px, py in points)
            look = f'stroke-width="{0.8 + 7 * share:.1f}" opacity="{0.25 + 0.7 * share:.2f}"'
            parts.append(f'<path class="link" d="M{a} C{b} {c} {d}" {look}/>')
    parts += [_words(keys, above), _words(words[: n + 1], below, n)]
    for i, choice in enumerate(step.top[:3]):
        y = height + 26 + 30 * i
        look = "soft right now" if choice.token == step.chosen.token else "soft right"
        parts.append(_text(_WIDTH / 2 - 90, y, _short(visible(choice.piece)), look))
        size = f'width="{max(1.0, 220 * choice.probability):.0f}" height="13"'
        parts.append(f'<rect x="{_WIDTH / 2 - 80}" y="{y - 12:.0f}" {size} rx="3" {_GREEN}/>')
        parts.append(_text(_WIDTH / 2 + 150, y, f"{100 * choice.probability:.1f}%", "soft left"))
    return height + 90, "".join(parts)


def _placed(words: Sequence[str], top: float) -> tuple[list[_Box], float]:
    """Words in centred lines: the middle of each, and where the last line ends."""
    lines: list[list[float]] = [[]]
    for word in words:
        wide = _EM * max(2, len(word)) + 14
        if lines[-1] and sum(lines[-1]) + wide > _WIDTH - 60:
            lines.append([])
        lines[-1].append(wide)
    boxes: list[_Box] = []
    for n, line in enumerate(lines):
        x = (_WIDTH - sum(line)) / 2
        for wide in line:
            boxes.append((x + wide / 2, top + n * _LINE))
            x += wide
    return boxes, top + len(lines) * _LINE


def _words(words: Sequence[str], boxes: Sequence[_Box], now: int | None = None) -> str:
    pairs = enumerate(zip(words, boxes, strict=False))
    return "".join(_text(x, y, word, "now" if i == now else "") for i, (word, (x, y)) in pairs)


def _title(text: str, about: str) -> str:
    return _text(_WIDTH / 2, 50, text, "title") + _text(_WIDTH / 2, 76, about, "soft")


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}">{_clean(text)}</text>'


def _short(label: str) -> str:
    return label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "…"


def _clean(text: str) -> str:
    return escape(_INVALID.sub("\ufffd", text))
