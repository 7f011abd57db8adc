"""The walk as one file for a browser: the page, and of the numbers as many as there is room for.

What is nearest to the place somebody asked for comes first: this layer and head, then this word,
then the other words, heads and layers. What has no room is left out, and the page says so there.
"""

import base64
from collections.abc import Iterator
from dataclasses import asdict
from html import escape
from typing import Any

from limelight.explain.focus import Focus, focus_on
from limelight.explain.render import serialize
from limelight.explain.render.serialize import Blob, attentions
from limelight.explain.stage import number
from limelight.explain.stages import extra_stages, stages, stop_at
from limelight.explain.trace import Trace
from limelight.model.count import count_parameters
from limelight.model.taps import sides
from limelight.web.bundle import single_file

ROOM = 3_000_000  # bytes of a file
_MISSES = 20  # things without room, after which nothing more is tried
_LARGE = (
    600_000  # bytes of all attention weights; if there are more, they are kept in half precision
)
_PLACELESS = ("pieces", "loop", "follow", "teacher", "beam")  # say the same of every word
_LAYERED = ("add-norm", "feed-forward")
_EQUATION = ("queries", "scores", "scaling", "mask", "softmax", "sum", "heads")
_HEADED = (*_EQUATION, "masked", "cross")
_ENTERING = ("embedding", "positions", "segments", "input")
_WRITING = ("start", "masked", "cross", "classifier")


def as_html(
    trace: Trace,
    name: str = "model",
    layer: int | None = None,
    head: int | None = None,
    word: str | None = None,
    room: int = ROOM,
) -> str:
    """One file that works from a disk, with the network off."""
    view = focus_on(trace, layer, head, word)
    data: dict[str, Any] = {
        "model": _model_facts(trace, name),
        "manifest": serialize.manifest(trace),
        "place": {"layer": view.layer + 1, "head": view.head + 1},
        "blobs": {},
        "facts": {},
    }
    title, plain = f"{trace.text[:60]} · Limelight", _plain_html(view)
    left, missed = room - len(single_file(title, data, plain).encode()), 0
    for kind, path, value in _ExportPlan(view).in_order():
        size = len(serialize.as_json({path: value}).encode()) + 8
        if size <= left:
            data[kind][path] = value
            left -= size
        elif (missed := missed + 1) == _MISSES:
            break
    return single_file(title, data, plain)


def _model_facts(trace: Trace, name: str) -> dict[str, Any]:
    """What the page's top bar and its drawing of the model need to know."""
    trained = trace.trained
    return {
        "name": name,
        "parts": count_parameters(trace.model),
        "family": trained.family,
        "kind": trained.kind,
        "abilities": list(trained.tasks),
        "classes": list(trained.classes),
        "tags": [],
        "config": asdict(trace.config),
        "decode": asdict(trace.decode),
        "vocabulary": len(trained.tokenizer),
        "parameters": sum(p.numel() for p in trace.model.parameters()),
        "step": 0,
    }


class _ExportPlan:
    """Everything the page could ask for, by the path it would ask, the most wanted first."""

    def __init__(self, view: Focus) -> None:
        self.view, self.trace = view, view.trace
        self.chosen = {"encoder": view.source_word, "decoder": view.target_word}
        self.counts = {"encoder": len(self.trace.source), "decoder": len(self.trace.target)}
        self.names = [*stages(self.trace), *extra_stages(self.trace)]

    def in_order(self) -> Iterator[tuple[str, str, Any]]:
        """Facts and blobs, each once."""
        seen = set[str]()
        for kind, path, value in self.wanted():
            if path not in seen:
                seen.add(path)
                yield kind, path, value

    def wanted(self) -> Iterator[tuple[str, str, Any]]:
        """This word here; all attention; the other words here; other heads, other layers."""
        here = self.view.layer, self.view.head
        for side in sides(self.trace.config):
            yield from self.word(side, self.chosen[side], *here)
        yield "blobs", "thumbs", _packed(serialize.thumbnails(self.trace))
        yield from self.weights()
        for side in sides(self.trace.config):
            yield from self.enters(side)
            for row in range(self.counts[side]):
                yield from self.word(side, row, *here)
        for layer in range(self.trace.config.layers):
            for head in range(self.trace.config.heads):
                for side in sides(self.trace.config):
                    yield from self.word(side, self.chosen[side], layer, head)
        for layer in range(self.trace.config.layers):
            for head in range(self.trace.config.heads):
                for side in sides(self.trace.config):
                    for row in range(self.counts[side]):
                        yield from self.word(side, row, layer, head)

    def word(self, side: str, row: int, layer: int, head: int) -> Iterator[tuple[str, str, Any]]:
        """One word at one head: what every stop says of it, and the numbers it needs."""
        trace = self.trace
        for name in self.names:
            if self.side_of(name) == side:
                yield "facts", *self.stop(name, row, layer, head)
        for at in (a for a in attentions(trace) if a.startswith(f"{side}.{layer}.")):
            path = f"focus?at={at}&head={head + 1}"
            yield "blobs", path, _packed(serialize.attention_head(trace, at, head + 1))
            rows = slice(row, row + 1)
            path = f"tensor/{at}.weights?rows={row}:{row + 1}"
            yield "blobs", path, _packed(serialize.tensor(trace, f"{at}.weights", rows=rows))
        for name in (f"{side}.{part}" for part in _ENTERING):
            if name in trace.summaries:
                blob = serialize.tensor(trace, name, rows=slice(row, row + 1))
                yield "blobs", f"tensor/{name}?rows={row}:{row + 1}", _packed(blob)
        yield "blobs", f"token?side={side}&row={row}", _packed(serialize.token(trace, side, row))
        if side == sides(trace.config)[-1] and not trace.config.classes:
            yield "blobs", f"logits?row={row}", _packed(serialize.logits(trace, row))

    def side_of(self, name: str) -> str:
        """Which stack a stop is about: the last one writes."""
        return sides(self.trace.config)[-1 if name in (*_WRITING, *_PLACELESS[1:]) else 0]

    def stop(self, name: str, row: int, layer: int, head: int) -> tuple[str, Any]:
        """The facts of a stop, by the path that names no more than matters for it."""
        asked = []
        if name in (*_LAYERED, *_HEADED):
            asked.append(f"layer={layer + 1}")
        if name in _HEADED:
            asked.append(f"head={head + 1}")
        source = self.side_of(name) == "encoder"
        if name not in _PLACELESS:
            asked.append(f"{'source' if source else 'target'}={row}")
        placed = (row, None) if source else (None, row)
        whole = name in _PLACELESS  # these speak of all layers and heads, and of all words
        view = (
            focus_on(self.trace, None, None, None)
            if whole
            else focus_on(self.trace, layer + 1, head + 1, None, placed)
        )
        path = f"stop/{name}" + (f"?{'&'.join(asked)}" if asked else "")
        return path, serialize.stop_facts(stop_at(self.trace, name, view))

    def enters(self, side: str) -> Iterator[tuple[str, str, Any]]:
        """What all words are before the first layer."""
        for part in _ENTERING:
            name = f"{side}.{part}"
            if name in self.trace.summaries:
                yield "blobs", f"tensor/{name}", _packed(serialize.tensor(self.trace, name))

    def weights(self) -> Iterator[tuple[str, str, Any]]:
        """All attention: exact if that is little, good enough for colours if it is much."""
        names = [f"{at}.weights" for at in attentions(self.trace)]
        exact = 4 * sum(self.trace.tensor(name).numel() for name in names) <= _LARGE
        for name in names:
            blob = serialize.tensor(self.trace, name, kind="f32" if exact else "f16")
            yield "blobs", f"tensor/{name}{'' if exact else '?as=f16'}", _packed(blob)


def _packed(blob: Blob) -> dict[str, Any]:
    """Bytes as text."""
    parts = [[name, list(shape)] for name, shape in blob.parts]
    return {"kind": blob.kind, "parts": parts, "data": base64.b64encode(blob.data).decode()}


def _plain_html(view: Focus) -> str:
    """What can be read without a script: the text, what was written, and attention as tables."""
    trace = view.trace
    parts = [f"<h1>{escape(trace.text)}</h1>"]
    if trace.steps:
        written = " ".join(step.chosen.piece for step in trace.steps)
        parts.append(f"<p>The model: {escape(written)}</p>")
    parts.append("<p>With JavaScript, this file is a walk through the model.</p>")
    for side in sides(trace.config):
        for use in ("self", "cross"):
            if f"{side}.{view.layer}.{use}.weights" in trace.summaries:
                parts.append(_plain_table(view, side, use))
    return "\n".join(parts)


def _plain_table(view: Focus, side: str, use: str) -> str:
    """The attention weights of one head, a row for each word that asks."""
    block = view.block(side, use)
    heads = "".join(f"<th>{escape(label)}</th>" for label in block.key_tokens.labels)
    rows = [
        f"<tr><th>{escape(label)}</th>"
        + "".join(f"<td>{number(weight)}</td>" for weight in weights)
        + "</tr>"
        for label, weights in zip(block.rows, block.get("weights").tolist(), strict=True)
    ]
    told = f"attention weights: {block.place}{', asks the encoder' if use == 'cross' else ''}"
    head = f"<tr><th>asks \\ answers</th>{heads}</tr>"
    return f"<table><caption>{escape(told)}</caption>{head}{''.join(rows)}</table>"
