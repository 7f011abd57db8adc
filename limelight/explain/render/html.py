"""The walk as one file for a browser: the page, with as many numbers as fit.

The numbers nearest to the chosen layer, head and word come first, then the other words, heads and
layers. The page says which numbers were left out.
"""

import base64
from collections.abc import Iterator
from dataclasses import asdict
from html import escape
from itertools import product
from typing import Any

from limelight.explain.dataflow import sides
from limelight.explain.focus import Focus, focus_on
from limelight.explain.render import serialize
from limelight.explain.render.serialize import Blob, attentions
from limelight.explain.stage import number
from limelight.explain.stage_table import STAGES
from limelight.explain.stages import extra_stages, main_stages, stage_at
from limelight.explain.trace import Trace
from limelight.model.count import count_parameters
from limelight.web.bundle import single_file

MAX_BYTES = 3_000_000  # of a file
_MISSES = 20  # items that did not fit, after which no more are tried
_LARGE = 600_000  # bytes of all attention weights, above which they are stored in half precision
_INPUTS = ("embedding", "positions", "segments", "input")


def as_html(
    trace: Trace,
    name: str = "model",
    layer: int | None = None,
    head: int | None = None,
    word: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> str:
    """One file that works offline; `name` is the model's."""
    focus = focus_on(trace, layer, head, word)
    data: dict[str, Any] = {
        "model": _model_facts(trace, name),
        "manifest": serialize.manifest(trace),
        "place": {"layer": focus.layer + 1, "head": focus.head + 1},
        "blobs": {},
        "facts": {},
    }
    title, plain = f"{trace.text[:60]} · Limelight", _plain_html(focus)
    left, missed = max_bytes - len(single_file(title, data, plain).encode()), 0
    for kind, path, value in _ExportPlan(focus).in_order():
        size = len(serialize.as_json({path: value}).encode()) + 8
        if size <= left:
            data[kind][path] = value
            left -= size
        elif (missed := missed + 1) == _MISSES:
            break
    return single_file(title, data, plain)


def _model_facts(trace: Trace, name: str) -> dict[str, Any]:
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
    """Everything the page may request, by request path, the most useful first."""

    def __init__(self, focus: Focus) -> None:
        self.focus, self.trace = focus, focus.trace
        self.chosen = {"encoder": focus.source_word, "decoder": focus.target_word}
        self.counts = {"encoder": len(self.trace.source), "decoder": len(self.trace.target)}
        self.names = [*main_stages(self.trace), *extra_stages(self.trace)]

    def in_order(self) -> Iterator[tuple[str, str, Any]]:
        """Facts and blobs with their request paths, each once."""
        seen = set[str]()
        for kind, path, value in self.wanted():
            if path not in seen:
                seen.add(path)
                yield kind, path, value

    def wanted(self) -> Iterator[tuple[str, str, Any]]:
        """This word; all attention; the other words; then the other heads and layers."""
        here = self.focus.layer, self.focus.head
        for side in sides(self.trace.config):
            yield from self.word(side, self.chosen[side], *here)
        yield "blobs", "thumbs", _packed(serialize.thumbnails(self.trace))
        yield from self.weights()
        for side in sides(self.trace.config):
            yield from self.inputs(side)
            for row in range(self.counts[side]):
                yield from self.word(side, row, *here)
        config = self.trace.config
        elsewhere = list(product(range(config.layers), range(config.heads), sides(config)))
        for layer, head, side in elsewhere:
            yield from self.word(side, self.chosen[side], layer, head)
        for layer, head, side in elsewhere:
            for row in range(self.counts[side]):
                yield from self.word(side, row, layer, head)

    def word(self, side: str, row: int, layer: int, head: int) -> Iterator[tuple[str, str, Any]]:
        """One word at one head: every stage, and the numbers that it needs."""
        trace = self.trace
        for name in self.names:
            if STAGES[name].side(sides(trace.config)) == side:
                yield "facts", *self.stage(name, row, layer, head)
        for at in (a for a in attentions(trace) if a.startswith(f"{side}.{layer}.")):
            path = f"focus?at={at}&head={head + 1}"
            yield "blobs", path, _packed(serialize.attention_head(trace, at, head + 1))
            rows = slice(row, row + 1)
            path = f"tensor/{at}.weights?rows={row}:{row + 1}"
            yield "blobs", path, _packed(serialize.tensor(trace, f"{at}.weights", rows=rows))
        for name in (f"{side}.{part}" for part in _INPUTS):
            if name in trace.summaries:
                blob = serialize.tensor(trace, name, rows=slice(row, row + 1))
                yield "blobs", f"tensor/{name}?rows={row}:{row + 1}", _packed(blob)
        yield "blobs", f"token?side={side}&row={row}", _packed(serialize.token(trace, side, row))
        if side == sides(trace.config)[-1] and not trace.config.classes:
            yield "blobs", f"logits?row={row}", _packed(serialize.logits(trace, row))

    def stage(self, name: str, row: int, layer: int, head: int) -> tuple[str, Any]:
        """The data of a stage, by a path that names only what the stage depends on."""
        scope, trace = STAGES[name].scope, self.trace
        source = STAGES[name].side(sides(trace.config)) == "encoder"
        known = {"layer": layer + 1, "head": head + 1, "word": row}
        word = "source" if source else "target"
        query = [
            f"{word if part == 'word' else part}={known[part]}" for part in known if part in scope
        ]
        path = f"stop/{name}" + (f"?{'&'.join(query)}" if query else "")
        rows = (row, None) if source else (None, row)
        focus = (
            focus_on(trace, layer + 1, head + 1, None, rows)
            if "word" in scope
            else focus_on(trace, None, None, None)
        )
        return path, serialize.stage_data(stage_at(trace, name, focus))

    def inputs(self, side: str) -> Iterator[tuple[str, str, Any]]:
        """The vectors of all tokens before the first layer."""
        for part in _INPUTS:
            name = f"{side}.{part}"
            if name in self.trace.summaries:
                yield "blobs", f"tensor/{name}", _packed(serialize.tensor(self.trace, name))

    def weights(self) -> Iterator[tuple[str, str, Any]]:
        """All attention weights: exact if they are small, in half precision if not."""
        names = [f"{at}.weights" for at in attentions(self.trace)]
        exact = 4 * sum(self.trace.tensor(name).numel() for name in names) <= _LARGE
        for name in names:
            blob = serialize.tensor(self.trace, name, kind="f32" if exact else "f16")
            yield "blobs", f"tensor/{name}{'' if exact else '?as=f16'}", _packed(blob)


def _packed(blob: Blob) -> dict[str, Any]:
    parts = [[name, list(shape)] for name, shape in blob.parts]
    return {"kind": blob.kind, "parts": parts, "data": base64.b64encode(blob.data).decode()}


def _plain_html(focus: Focus) -> str:
    trace = focus.trace
    parts = [f"<h1>{escape(trace.text)}</h1>"]
    if trace.steps:
        output = " ".join(step.chosen.piece for step in trace.steps)
        parts.append(f"<p>The model: {escape(output)}</p>")
    parts.append("<p>With JavaScript, this file is a walk through the model.</p>")
    for side in sides(trace.config):
        for use in ("self", "cross"):
            if f"{side}.{focus.layer}.{use}.weights" in trace.summaries:
                parts.append(_plain_table(focus, side, use))
    return "\n".join(parts)


def _plain_table(focus: Focus, side: str, use: str) -> str:
    block = focus.block(side, use)
    heads = "".join(f"<th>{escape(label)}</th>" for label in block.key_tokens.labels)
    rows = [
        f"<tr><th>{escape(label)}</th>"
        + "".join(f"<td>{number(weight)}</td>" for weight in weights)
        + "</tr>"
        for label, weights in zip(block.rows, block.get("weights").tolist(), strict=True)
    ]
    title = f"attention weights: {block.location}{', cross-attention' if use == 'cross' else ''}"
    head = f"<tr><th>query \\ key</th>{heads}</tr>"
    return f"<table><caption>{escape(title)}</caption>{head}{''.join(rows)}</table>"
