"""The walk as one file for a browser: the page, and of the numbers as many as there is room for.

What is nearest to the place somebody asked for comes first: this layer and head, then this word,
then the other words, heads and layers. What has no room is left out, and the page says so there.
"""

import base64
from collections.abc import Iterator
from dataclasses import asdict
from html import escape
from typing import Any

from limelight.explain import manifest
from limelight.explain.manifest import Blob, attentions
from limelight.explain.origins import sides
from limelight.explain.stage_table import STAGES
from limelight.explain.stop import number
from limelight.explain.trace import Trace
from limelight.explain.view import View, look_at
from limelight.explain.walk import asides, stations, stop_at
from limelight.info import count_parameters
from limelight.page.joined import single_file

ROOM = 3_000_000  # bytes of a file
MISSES = 20  # things without room, after which nothing more is tried
LARGE = (
    600_000  # bytes of all attention weights; if there are more, they are kept in half precision
)
ENTERING = ("embedding", "positions", "segments", "input")


def as_html(
    trace: Trace,
    name: str = "model",
    layer: int | None = None,
    head: int | None = None,
    word: str | None = None,
    room: int = ROOM,
) -> str:
    """One file that works from a disk, with the network off."""
    view = look_at(trace, layer, head, word)
    data: dict[str, Any] = {
        "model": model_facts(trace, name),
        "manifest": manifest.manifest(trace),
        "place": {"layer": view.layer + 1, "head": view.head + 1},
        "blobs": {},
        "facts": {},
    }
    title, plain = f"{trace.text[:60]} · Limelight", plain_html(view)
    left, missed = room - len(single_file(title, data, plain).encode()), 0
    for kind, path, value in Gathering(view).in_order():
        size = len(manifest.as_json({path: value}).encode()) + 8
        if size <= left:
            data[kind][path] = value
            left -= size
        elif (missed := missed + 1) == MISSES:
            break
    return single_file(title, data, plain)


def model_facts(trace: Trace, name: str) -> dict[str, Any]:
    """What the page's top bar and its drawing of the model need to know."""
    trained = trace.trained
    return {
        "name": name,
        "parts": count_parameters(trace.model),
        "family": trained.family,
        "kind": trained.kind,
        "abilities": list(trained.abilities),
        "classes": list(trained.classes),
        "tags": [],
        "config": asdict(trace.config),
        "decode": asdict(trace.decode),
        "vocabulary": len(trained.tokenizer),
        "parameters": sum(p.numel() for p in trace.model.parameters()),
        "step": 0,
    }


class Gathering:
    """Everything the page could ask for, by the path it would ask, the most wanted first."""

    def __init__(self, view: View) -> None:
        self.view, self.trace = view, view.trace
        self.chosen = {"encoder": view.source_word, "decoder": view.target_word}
        self.counts = {"encoder": len(self.trace.source), "decoder": len(self.trace.target)}
        self.names = [*stations(self.trace), *asides(self.trace)]

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
        yield "blobs", "thumbs", packed(manifest.thumbs(self.trace))
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
            yield "blobs", path, packed(manifest.focus(trace, at, head + 1))
            rows = slice(row, row + 1)
            path = f"tensor/{at}.weights?rows={row}:{row + 1}"
            yield "blobs", path, packed(manifest.tensor(trace, f"{at}.weights", rows=rows))
        for name in (f"{side}.{part}" for part in ENTERING):
            if name in trace.summaries:
                blob = manifest.tensor(trace, name, rows=slice(row, row + 1))
                yield "blobs", f"tensor/{name}?rows={row}:{row + 1}", packed(blob)
        yield "blobs", f"token?side={side}&row={row}", packed(manifest.token(trace, side, row))
        if side == sides(trace.config)[-1] and not trace.config.classes:
            yield "blobs", f"logits?row={row}", packed(manifest.logits(trace, row))

    def side_of(self, name: str) -> str:
        """Which stack a stop is about: the last one writes."""
        return STAGES[name].side(sides(self.trace.config))

    def stop(self, name: str, row: int, layer: int, head: int) -> tuple[str, Any]:
        """The facts of a stop, by the path that names no more than matters for it."""
        scope, source = STAGES[name].scope, self.side_of(name) == "encoder"
        word = "source" if source else "target"
        known = {"layer": layer + 1, "head": head + 1, "word": row}
        asked = [
            f"{word if part == 'word' else part}={known[part]}" for part in known if part in scope
        ]
        placed = (row, None) if source else (None, row)
        view = (
            look_at(self.trace, layer + 1, head + 1, None, placed)
            if "word" in scope
            else look_at(self.trace, None, None, None)
        )
        path = f"stop/{name}" + (f"?{'&'.join(asked)}" if asked else "")
        return path, manifest.stop_facts(stop_at(self.trace, name, view))

    def enters(self, side: str) -> Iterator[tuple[str, str, Any]]:
        """What all words are before the first layer."""
        for part in ENTERING:
            name = f"{side}.{part}"
            if name in self.trace.summaries:
                yield "blobs", f"tensor/{name}", packed(manifest.tensor(self.trace, name))

    def weights(self) -> Iterator[tuple[str, str, Any]]:
        """All attention: exact if that is little, good enough for colours if it is much."""
        names = [f"{at}.weights" for at in attentions(self.trace)]
        exact = 4 * sum(self.trace.tensor(name).numel() for name in names) <= LARGE
        for name in names:
            blob = manifest.tensor(self.trace, name, kind="f32" if exact else "f16")
            yield "blobs", f"tensor/{name}{'' if exact else '?as=f16'}", packed(blob)


def packed(blob: Blob) -> dict[str, Any]:
    """Bytes as text."""
    parts = [[name, list(shape)] for name, shape in blob.parts]
    return {"kind": blob.kind, "parts": parts, "data": base64.b64encode(blob.data).decode()}


def plain_html(view: View) -> str:
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
                parts.append(plain_table(view, side, use))
    return "\n".join(parts)


def plain_table(view: View, side: str, use: str) -> str:
    """The attention weights of one head, a row for each word that asks."""
    block = view.block(side, use)
    heads = "".join(f"<th>{escape(label)}</th>" for label in block.answering.labels)
    rows = [
        f"<tr><th>{escape(label)}</th>"
        + "".join(f"<td>{number(weight)}</td>" for weight in weights)
        + "</tr>"
        for label, weights in zip(block.rows, block.get("weights").tolist(), strict=True)
    ]
    told = f"attention weights: {block.place}{', asks the encoder' if use == 'cross' else ''}"
    head = f"<tr><th>asks \\ answers</th>{heads}</tr>"
    return f"<table><caption>{escape(told)}</caption>{head}{''.join(rows)}</table>"
