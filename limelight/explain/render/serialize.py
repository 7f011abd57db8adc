"""What a page, a file or a notebook needs of a trace, in tiers: little at first, more on focus.

The manifest has tokens, steps, the shape and range of every value, and the checks. Numbers in bulk
travel as bytes: small pictures of all heads, then one head or one word when somebody looks at it.
Everything else can be recomputed from these, which is the explanation and the proof in one.

JSON knows no NaN and no infinity. Where a number is none, it is null, and a count beside it says
how many there are: `hidden` are -inf, as a mask makes them, and `broken` are NaN.
"""

import json
import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.errors import UserError, unknown_name
from limelight.explain.focus import focus_on
from limelight.explain.stage import Cell, Heatmap, Stage, TableFigure
from limelight.explain.stages import extra_stages, stages
from limelight.explain.tokens import Words
from limelight.explain.trace import DecodingStep, Summary, Trace, in_range
from limelight.model.taps import dataflow, parts_of, sides

_Kind = Literal["f32", "f16", "u8"]  # digits; colours; thumbnails of weights
_THUMB = 16  # pixels
_FOCUS = ("q", "k", "v", "scores", "masked", "weights", "mixed")


class Blob(NamedTuple):
    """Numbers as bytes, little-endian, one tensor after the other, and what they are."""

    data: bytes
    kind: _Kind
    parts: tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes, in this order


def manifest(trace: Trace) -> dict[str, Any]:
    """What is needed first: under 150 KB for the paper's base model and 64 tokens."""
    return {
        "model": _model_card(trace),
        "text": clean(trace.text),
        "how": trace.passage.mode,
        "seed": trace.passage.seed,
        "source": _words(trace.source),
        "target": _words(trace.target),
        "answers": _words(trace.answers),
        "given": trace.passage.given,
        "first_look": _default_focus(trace),
        "ended": trace.passage.ended,
        "steps": [_step(s) for s in trace.steps],
        "beam": _beam(trace),
        "classes": _classes(trace),
        "tensors": _tensors(trace),
        "norms": {side: _norms(trace, side) for side in sides(trace.config)},
        "thumbs": {name: list(shape) for name, shape in thumbnails(trace).parts},
        "stops": [*stages(trace), *extra_stages(trace)],
        "checks": _checks(trace),
    }


def _default_focus(trace: Trace) -> dict[str, int]:
    """The words that a walk begins with, where nobody chose any."""
    view = focus_on(trace, None, None, None)
    return {"source": view.source_word, "target": view.target_word}


def as_json(facts: dict[str, Any]) -> str:
    """One line, without a space too many; a NaN that slipped through is an error and no JSON."""
    return json.dumps(facts, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _model_card(trace: Trace) -> dict[str, Any]:
    """Which model this is."""
    config, tokenizer = trace.config, trace.trained.tokenizer
    fields = (
        "family",
        "vocab",
        "layers",
        "heads",
        "kv_heads",
        "d_model",
        "max_len",
        "norm_order",
        "norm",
        "positions",
        "activation",
        "tied",
    )
    return {
        **{name: getattr(config, name) for name in fields},
        "d_ff": config.ffn_dim,
        "d_head": config.d_head,
        "parameters": sum(p.numel() for p in trace.model.parameters()),
        "abilities": list(trace.trained.tasks),
        "special": tokenizer.special,
        "classes": list(trace.trained.classes),
    }


def _words(given: Words) -> dict[str, Any]:
    """One side's tokens."""
    return {
        "ids": list(given.ids),
        "pieces": [clean(piece) for piece in given.pieces],
        "labels": list(given.labels),
        "spans": [None if span is None else list(span) for span in given.spans],
        "special": [int(x) for x in given.special],
    }


def clean(piece: str) -> str:
    """Text that can be written as UTF-8."""
    return piece.encode("utf-8", "replace").decode()


def _step(given: DecodingStep) -> dict[str, Any]:
    """What came next, and what could have: id, piece, probability, score."""
    return {
        "row": given.row,
        "chosen": [
            given.chosen.token,
            clean(given.chosen.piece),
            _round_significant(given.chosen.probability),
        ],
        "end": given.end,
        "logsumexp": _round_significant(given.logsumexp, 7),
        "entropy": _round_significant(given.entropy),
        "top": [
            [
                c.token,
                clean(c.piece),
                _round_significant(c.probability, 4),
                _round_significant(c.logit, 5),
            ]
            for c in given.top
        ],
    }


def _beam(trace: Trace) -> list[list[list[Any]]]:
    """For each step the places of the beam: parent, token, log-probability, score, ended."""
    return [
        [
            [
                n.place,
                n.parent,
                n.token,
                _round_significant(n.logprob, 4),
                _round_significant(n.score, 4),
                int(n.ended),
            ]
            for n in nodes
        ]
        for nodes in trace.passage.tree
    ]


def _classes(trace: Trace) -> list[list[Any]]:
    """For a classifier of texts: every class with its probability and score."""
    if not trace.config.classes:
        return []
    chances = trace.logits.double().softmax(dim=-1).tolist()
    rows = zip(trace.trained.classes, chances, trace.logits.tolist(), strict=True)
    return [
        [name, _round_significant(chance), _round_significant(logit)]
        for name, chance, logit in rows
    ]


def _tensors(trace: Trace) -> dict[str, Any]:
    """Every value: its shape, axes and range, and what it is made of."""
    made = dataflow(trace.config)
    return {
        name: {
            "shape": list(summary.shape),
            "axes": list(made[name].axes),
            **_ranges(summary),
            "op": made[name].op,
            "from": list(made[name].sources),
        }
        for name, summary in trace.summaries.items()
    }


def _ranges(summary: Summary) -> dict[str, Any]:
    """The range of those that are numbers, and how many are none."""
    found: dict[str, Any] = {
        "min": _round_significant(summary.low, 4),
        "max": _round_significant(summary.high, 4),
        "mean": _round_significant(summary.mean, 4),
        "std": _round_significant(summary.spread, 4),
    }
    flags = {"hidden": summary.hidden, "broken": summary.broken}
    return found | {name: count for name, count in flags.items() if count}


def _norms(trace: Trace, side: str) -> list[list[float | None]]:
    """How long each word's vector is, as it enters and after every layer."""
    last = "norm" if trace.config.norm_order == "post" else "add"
    names = [f"{side}.{n}.feed_forward.{last}" for n in range(trace.config.layers)]
    lengths = trace.collect([f"{side}.input", *names], lambda _, state: state.norm(dim=-1))
    return [[_round_significant(x, 4) for x in length.tolist()] for length in lengths.values()]


def _checks(trace: Trace) -> dict[str, Any]:
    """Whether what is shown is what the model does."""
    found = trace.checks
    return {
        "replay_same_words": found.same_words,
        "replay_vs_fast_max_abs": _round_significant(found.fast_difference, 3),
        "traced_vs_untraced_max_abs": _round_significant(found.traced_difference, 3),
        "softmax_row_max_err": _round_significant(found.row_error, 3),
        "look_ahead_max_weight": _round_significant(found.max_future_weight, 3),
        "tolerance": _round_significant(trace.tolerance, 3),
        "broken": found.broken,
    }


def _round_significant(x: float | None, digits: int = 6) -> float | None:
    """A number with so many significant digits; null if it is none."""
    if x is None or not math.isfinite(x):
        return None
    rounded = float(f"{x:.{digits}g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e9 else rounded


def tensor(
    trace: Trace,
    name: str,
    head: int | None = None,
    rows: slice | None = None,
    kind: _Kind = "f32",
) -> Blob:
    """A value, or one head or some rows of it; heads are counted from 1."""
    return blob({name: trace.tensor(name, head, rows)}, kind)


def attention_head(trace: Trace, at: str, head: int) -> Blob:
    """All of equation 1 at one head: `at` is an attention, such as decoder.2.cross."""
    known = attentions(trace)
    if at not in known:
        raise unknown_name("attention", at, known)
    asked = in_range("head", head, trace.config.heads)
    shared = asked // (trace.config.heads // trace.config.num_kv_heads) + 1
    heads = {f"{at}.{name}": shared if name in ("k", "v") else head for name in _FOCUS}
    found = trace.collect(list(heads), lambda n, value: trace.part(n, value, heads[n], None))
    return blob({name.rpartition(".")[2]: value for name, value in found.items()}, "f32")


def attentions(trace: Trace) -> list[str]:
    """The names of all attentions, in order."""
    return [
        f"{side}.{n}.{part}"
        for side in sides(trace.config)
        for n in range(trace.config.layers)
        for part in parts_of(trace.config, side)
        if part != "feed_forward"
    ]


def thumbnails(trace: Trace) -> Blob:
    """Small pictures of all heads, H 16 16 for each attention: every pixel is the largest weight.

    A text of fewer words has fewer pixels.
    """

    def shrunk(_: str, weights: Tensor) -> Tensor:
        size = [min(_THUMB, n) for n in weights.shape[1:]]
        return F.adaptive_max_pool2d(weights.float().nan_to_num(0.0), size)

    small = trace.collect([f"{name}.weights" for name in attentions(trace)], shrunk)
    return blob({name.removesuffix(".weights"): value for name, value in small.items()}, "u8")


def logits(trace: Trace, row: int) -> Blob:
    """The scores of the whole vocabulary at one row, so that any temperature is exact."""
    if trace.config.classes or not 0 <= row < len(trace.logits):
        raise UserError(f"there is no row {row} of scores: this text has {len(trace.logits)}")
    return blob({"logits": trace.logits[row]}, "f32")


def token(trace: Trace, side: str, row: int) -> Blob:
    """All that one word goes through: its states, what is added to them, and its neurons."""
    if side not in sides(trace.config):
        raise unknown_name("side", side, sides(trace.config))
    count = trace.summaries[f"{side}.input"].shape[0]
    if not 0 <= row < count:
        raise UserError(f"there is no token {row} here: the {side} reads {count}")
    wanted = ("input", "add", "norm", "output", "concat", "active")
    names = [
        name
        for name in trace.summaries
        if name.startswith(f"{side}.") and name.rsplit(".", 1)[-1] in wanted
    ]
    return blob(trace.collect(names, lambda _, value: value[row]), "f32")


def blob(named: dict[str, Tensor], kind: _Kind) -> Blob:
    """Tensors as bytes. One byte holds a share of 1 in steps of 1/255: for thumbnails only."""
    parts = [_encode(value, kind) for value in named.values()]
    shapes = ((name, tuple(value.shape)) for name, value in named.items())
    return Blob(b"".join(parts), kind, tuple(shapes))


def _encode(value: Tensor, kind: _Kind) -> bytes:
    """The numbers of a tensor, row after row."""
    if kind == "u8":
        value = (value.float().clamp(0, 1) * 255).round().to(torch.uint8)
    else:
        value = value.to(torch.float32 if kind == "f32" else torch.float16)
    array = value.contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def stop_facts(stop: Stage) -> dict[str, Any]:
    """A stop as data: words, formulas, checks and tables; pictures by the names of their values."""
    return {
        "name": stop.name,
        "title": stop.title,
        "what": stop.what,
        "section": stop.section,
        "place": stop.place,
        "formulas": [
            {
                "letters": f.letters,
                "filled": f.filled,
                "numbers": {k: _round_significant(v) for k, v in f.numbers.items()},
            }
            for f in stop.formulas
        ],
        "exhibits": [_exhibit_facts(exhibit) for exhibit in stop.figures],
        "checks": [
            {
                "claim": c.claim,
                "passed": c.passed,
                "error": _round_significant(c.error, 3),
                "within": _round_significant(c.within, 3),
            }
            for c in stop.checks
        ],
        "notes": list(stop.notes),
    }


def _exhibit_facts(exhibit: Heatmap | TableFigure) -> dict[str, Any]:
    """A picture's title and the values in it; a table is small, and here with all its rows."""
    facts: dict[str, Any] = {"title": exhibit.title, "names": list(exhibit.names)}
    if isinstance(exhibit, Heatmap):
        return facts
    rows = [[_cell_facts(cell) for cell in row] for row in exhibit.rows]
    table = {"heads": list(exhibit.heads), "rows": rows}
    return facts | table | {"share": exhibit.share, "focus": exhibit.focus}


def _cell_facts(cell: Cell) -> Any:
    """A word, a number, or several things."""
    if isinstance(cell, str):
        return clean(cell)
    return _round_significant(cell) if isinstance(cell, float) else [clean(thing) for thing in cell]
