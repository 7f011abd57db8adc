"""A trace as JSON and bytes, for a page, a file or a notebook: little at first, more on request.

The manifest has tokens, steps, the shape and range of every value, and the checks. Tensors travel
as bytes: thumbnails of all heads first, then one head or one token on request. The page recomputes
everything else from these, which explains the number and proves it.

JSON has no NaN and no infinity. Such a number is null, and a count beside it says how many there
are: `hidden` counts -inf, as a mask makes it, and `broken` counts NaN.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.errors import UserError, unknown_name
from limelight.explain.comparison import ChangeComparison
from limelight.explain.focus import focus_on
from limelight.explain.stage import Cell, Check, Heatmap, Stage, TableFigure
from limelight.explain.stage_table import stage_facts
from limelight.explain.stages import all_stages
from limelight.explain.stages.embedding import embedding_table
from limelight.explain.stages.embedding import token_map as map_of
from limelight.explain.stages.layers import states_of
from limelight.explain.starting_point import starting_point
from limelight.explain.tokens import Words, visible
from limelight.explain.trace import DecodingStep, Trace, in_range
from limelight.model.config import ModelConfig
from limelight.model.count import count_parameters
from limelight.model.positions import rotary_frequencies
from limelight.model.taps import dataflow, sides
from limelight.tasks.text_model import TextModel, networks_of

_Kind = Literal["f32", "f16", "u8"]  # for numbers; for colours; for thumbnails
_THUMBNAIL = 16  # pixels
_EQUATION = ("q", "k", "v", "scores", "masked", "weights", "mixed")
_CONFIG_FIELDS = (
    *("family", "vocab", "layers", "heads", "kv_heads", "d_model", "max_len"),
    *("norm_order", "norm", "positions", "activation", "tied", "cell", "attention"),
    *("scaling", "residual", "decoder_cell", "masked_head"),
)


class Blob(NamedTuple):
    """Tensors as little-endian bytes, one after the other, with their names and shapes."""

    blob: bytes
    kind: _Kind
    parts: tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes, in this order


def manifest(trace: Trace, comparison: ChangeComparison | None = None) -> dict[str, Any]:
    """What a page needs first: under 150 KB for the paper's base model and 64 tokens."""
    names = all_stages(trace)
    return {
        "model": _model_card(trace),
        "text": clean(trace.text),
        "how": trace.traced_text.mode,
        "seed": trace.traced_text.seed,
        "source": _words(trace.source),
        "target": _words(trace.target),
        "answers": _words(trace.answers),
        "given": trace.traced_text.given,
        "first_look": _first_look(trace),
        "ended": trace.traced_text.ended,
        "steps": [_step(s) for s in trace.steps],
        "beam": _beam(trace),
        "classes": _classes(trace),
        "tensors": _tensors(trace),
        "norms": {side: _norms(trace, side) for side in sides(trace.config)},
        "thumbs": {name: list(shape) for name, shape in thumbnails(trace).parts},
        "stops": names,
        "stages": stage_facts(names, sides(trace.config), trace.decoder_cell),
        "checks": _checks(trace),
        **({"changes": [*map(clean, trace.changes)]} if trace.changes else {}),
        **({"comparison": _comparison(comparison)} if comparison else {}),
    }


def _first_look(trace: Trace) -> dict[str, Any]:
    """Where the walk starts, with layer and head from 1, and what is attended to there."""
    if found := starting_point(trace):
        facts = {name: x for name, x in found._asdict().items() if x is not None}
        return {n: _round_significant(x) if isinstance(x, float) else x for n, x in facts.items()}
    focus = focus_on(trace, None, None, None)
    return {"source": focus.source_word, "target": focus.target_word}


def _comparison(found: ChangeComparison) -> dict[str, Any]:
    return {
        "before": clean(found.before),
        "after": clean(found.after),
        "tokens": [[clean(a), *_round_all([p, q]), clean(b)] for a, p, q, b in found.tokens],
        "attention": [[tap, head, _round_significant(x)] for tap, head, x in found.attention],
    }


def as_json(facts: dict[str, Any]) -> str:
    """Compact JSON; a NaN that slipped through raises."""
    return json.dumps(facts, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def model_facts(trained: TextModel) -> dict[str, Any]:
    """What the page's Model tab shows of a model, served or in a file."""
    network = networks_of(trained)[0]
    return {
        "family": trained.family,
        "kind": trained.kind,
        "abilities": list(trained.tasks),
        "classes": list(trained.classes),
        "config": asdict(trained.config),
        "decode": asdict(trained.decode),
        "vocabulary": len(trained.tokenizer),
        "parameters": sum(p.numel() for p in network.parameters()),
        "parts": count_parameters(network),
    }


def _model_card(trace: Trace) -> dict[str, Any]:
    config, tokenizer = trace.config, trace.trained.tokenizer
    return {
        **{name: getattr(config, name) for name in _CONFIG_FIELDS if hasattr(config, name)},
        **({} if trace.recurrent else _sizes(config)),
        "parameters": sum(p.numel() for p in trace.model.parameters()),
        "abilities": list(trace.trained.tasks),
        "special": tokenizer.special,
        "classes": list(trace.trained.classes),
    }


def _sizes(config: ModelConfig) -> dict[str, Any]:
    """Settings as they come out, where 0 or "auto" leaves them open."""
    return {
        "d_ff": config.ffn_dim,
        "d_head": config.d_head,
        "decoder_layers": config.num_decoder_layers,
        "tied": config.tying != "none",
        **({"turns": _turns(config)} if config.positions == "rotary" else {}),
    }


def _turns(config: ModelConfig) -> list[float | None]:
    """The angle from one position to the next, for each pair of numbers of a query or key."""
    speeds = rotary_frequencies(config, torch.device("cpu"), torch.float64)
    return _round_all(speeds.tolist(), 10)


def _words(given: Words) -> dict[str, Any]:
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
    chosen = given.chosen
    return {
        "row": given.row,
        "chosen": [chosen.token, clean(chosen.piece), _round_significant(chosen.probability)],
        "end": given.end,
        "logsumexp": _round_significant(given.logsumexp, 7),
        "entropy": _round_significant(given.entropy),
        "top": [
            [c.token, clean(c.piece), *map(_round_significant, (c.probability, c.logit), (4, 5))]
            for c in given.top
        ],
    }


def _beam(trace: Trace) -> list[list[list[Any]]]:
    def facts(n: Any) -> list[Any]:
        piece = clean(trace.trained.tokenizer.pieces([n.token])[0])
        scores = _round_all([n.logprob, n.score], 4)
        return [n.place, n.parent, n.token, *scores, int(n.ended), piece]

    return [[facts(node) for node in nodes] for nodes in trace.traced_text.tree]


def _classes(trace: Trace) -> list[list[Any]]:
    if not trace.trained.classes:
        return []
    numbers = torch.stack([trace.logits.double().softmax(dim=-1), trace.logits.double()], dim=1)
    rows = zip(trace.trained.classes, numbers.tolist(), strict=True)
    return [[name, *_round_all(pair)] for name, pair in rows]


def _tensors(trace: Trace) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for name, tap in dataflow(trace.config).items():
        shape, *numbers, hidden, broken = trace.summaries[name]
        ranges = zip(("min", "max", "mean", "std"), _round_all(numbers, 4), strict=True)
        found[name] = {"shape": list(shape), "axes": list(tap.axes), **dict(ranges)}
        found[name] |= {k: n for k, n in (("hidden", hidden), ("broken", broken)) if n}
        found[name] |= {"op": tap.op, "from": list(tap.sources)}
    return found


def _norms(trace: Trace, side: str) -> list[list[float | None]]:
    if trace.recurrent:
        return []
    lengths = trace.collect(states_of(trace.config, side), lambda _, state: state.norm(dim=-1))
    return [_round_all(length.tolist(), 4) for length in lengths.values()]


def _checks(trace: Trace) -> dict[str, Any]:
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
    """JSON has no NaN and no infinity: these become null."""
    if x is None or not math.isfinite(x):
        return None
    rounded = float(f"{x:.{digits}g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e9 else rounded


def _round_all(values: Iterable[float | None], digits: int = 6) -> list[float | None]:
    return [_round_significant(x, digits) for x in values]


def tensor(
    trace: Trace, name: str, head: int | None = None, rows: slice | None = None, kind: _Kind = "f32"
) -> Blob:
    """A value, or one head (from 1) or some rows of it."""
    return blob({name: trace.tensor(name, head, rows)}, kind)


def attention_head(trace: Trace, at: str, head: int) -> Blob:
    """All values of equation 1 at one head of an attention such as decoder.2.cross."""
    known = attentions(trace)
    if at not in known:
        raise unknown_name("attention", at, known)
    asked = in_range("head", head, trace.config.heads)
    shared = asked // (trace.config.heads // trace.config.num_kv_heads) + 1
    heads = {f"{at}.{name}": shared if name in ("k", "v") else head for name in _EQUATION}
    found = trace.collect(list(heads), lambda n, value: trace.part(n, value, heads[n], None))
    return blob({name.rpartition(".")[2]: value for name, value in found.items()}, "f32")


def attentions(trace: Trace) -> list[str]:
    """The names of all attentions, in order; additive attention has no heads to show."""
    weights = [] if trace.recurrent else trace.weight_names
    return [name.removesuffix(".weights") for name in weights]


def thumbnails(trace: Trace) -> Blob:
    """All heads at 16 x 16 pixels or fewer, H 16 16 per attention: each the largest weight."""

    def shrunk(_: str, weights: Tensor) -> Tensor:
        size = [min(_THUMBNAIL, n) for n in weights.shape[1:]]
        return F.adaptive_max_pool2d(weights.float().nan_to_num(0.0), size)

    small = trace.collect([f"{name}.weights" for name in attentions(trace)], shrunk)
    return blob({name.removesuffix(".weights"): value for name, value in small.items()}, "u8")


def logits(trace: Trace, row: int) -> Blob:
    """The logits of the whole vocabulary at one row, so that a page can apply any temperature."""
    if trace.trained.classes or not 0 <= row < len(trace.logits):
        raise UserError(f"there is no row {row} of logits: this text has {len(trace.logits)}")
    return blob({"logits": trace.logits[row]}, "f32")


def token(trace: Trace, side: str, row: int) -> Blob:
    """The states of one token, what is added to them, and its neurons."""
    if side not in sides(trace.config):
        raise unknown_name("side", side, sides(trace.config))
    count = trace.summaries[f"{side}.input"].shape[0]
    if not 0 <= row < count:
        raise UserError(f"there is no token {row} here: the {side} reads {count}")
    wanted = ["input", "add", "norm", "output", "concat", "active"]
    if trace.decoder_cell == "ssru":
        wanted += ["gate", "value", "state"]
    own = [name for name in trace.summaries if name.startswith(f"{side}.")]
    names = [name for name in own if name.rpartition(".")[2] in wanted]
    return blob(trace.collect(names, lambda _, value: value[row]), "f32")


def token_map(trace: Trace, side: str) -> dict[str, Any]:
    """Tokens on a plane, those of this text first; with each those nearest to it on the map."""
    own = trace.source if side == "encoder" else trace.target
    if side not in sides(trace.config):
        raise unknown_name("side", side, sides(trace.config))
    tokens, points, shares, near = map_of(embedding_table(trace, side), own.ids)
    return {
        "tokens": tokens,
        "labels": [visible(clean(p)) for p in trace.trained.tokenizer.pieces(tokens)],
        "own": len(set(own.ids)),
        "points": [_round_all(point, 4) for point in points.tolist()],
        "shares": _round_all(shares.tolist(), 4),
        "near": near,
    }


def blob(named: dict[str, Tensor], kind: _Kind) -> Blob:
    """Encode tensors. `u8` holds weights from 0 to 1 in steps of 1/255."""
    shapes = tuple((name, tuple(value.shape)) for name, value in named.items())
    return Blob(b"".join(_encode(value, kind) for value in named.values()), kind, shapes)


def _encode(value: Tensor, kind: _Kind) -> bytes:
    if kind == "u8":
        value = (value.float().clamp(0, 1) * 255).round().to(torch.uint8)
    else:
        value = value.to(torch.float32 if kind == "f32" else torch.float16)
    array = value.contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def stage_data(stage: Stage) -> dict[str, Any]:
    """A stage as JSON. Of a heatmap of the model's own values it has the names to ask for them."""
    return {
        "name": stage.name,
        "title": stage.title,
        "what": stage.what,
        "section": stage.section,
        "place": stage.location,
        "formulas": [
            vars(f) | {"numbers": {k: _round_significant(v) for k, v in f.numbers.items()}}
            for f in stage.formulas
        ],
        "exhibits": [_figure_data(figure) for figure in stage.figures],
        "checks": [check_data(check) for check in stage.checks],
        "notes": list(stage.notes),
    }


def check_data(check: Check) -> dict[str, Any]:
    """A check as JSON."""
    error, within = _round_all([check.error, check.within], 3)
    return {"claim": check.claim, "passed": check.passed, "error": error, "within": within}


def _figure_data(figure: Heatmap | TableFigure) -> dict[str, Any]:
    facts: dict[str, Any] = {"title": figure.title, "names": list(figure.names)}
    if isinstance(figure, Heatmap):
        traced = all("." in name for name in figure.names)
        return facts if traced else facts | _heatmap_data(figure)
    rows = [[_cell_data(cell) for cell in row] for row in figure.rows]
    table = {"heads": list(figure.heads), "rows": rows}
    return facts | table | {"share": figure.share, "focus": figure.focus}


def _heatmap_data(figure: Heatmap) -> dict[str, Any]:
    values = [_round_all(row) for row in figure.values.tolist()]
    labels = {"labels": list(figure.rows), "columns": list(figure.columns)}
    return labels | {"values": values, "scale": figure.scale, "focus": figure.focus[0]}


def _cell_data(cell: Cell) -> Any:
    if isinstance(cell, str):
        return clean(cell)
    return _round_significant(cell) if isinstance(cell, float) else [clean(thing) for thing in cell]
