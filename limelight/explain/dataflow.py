"""Where every value comes from: the forward pass as a graph of named values.

A recorder says *what* the values are; this says which of them each one is made of, and how. It
follows the model that is there: post-norm or pre-norm, what kind of positions, gated or not.
"""

from collections.abc import Iterator
from typing import NamedTuple

from limelight.model.config import ModelConfig


class _Origin(NamedTuple):
    """What a value is made of, and what is done with it."""

    op: str
    sources: tuple[str, ...]


def dataflow(config: ModelConfig) -> dict[str, _Origin]:
    """For the name of every tap, in the order of happening."""
    found: dict[str, _Origin] = {}
    last = ""
    for side in sides(config):
        found |= dict(_side_origins(config, side))
        last = f"{side}.output"
    found["logits"] = _Origin("classify", (last,))
    return found


def sides(config: ModelConfig) -> tuple[str, ...]:
    """The stacks that this family has."""
    return {
        "encoder-decoder": ("encoder", "decoder"),
        "decoder-only": ("decoder",),
        "encoder-only": ("encoder",),
    }[config.family]


def _side_origins(config: ModelConfig, side: str) -> Iterator[tuple[str, _Origin]]:
    """An encoder's or a decoder's: embedding, positions, layers, output."""
    yield f"{side}.embedding", _Origin("look up", ())
    parts = [f"{side}.embedding"]
    if config.positions != "rotary":
        yield f"{side}.positions", _Origin(config.positions, ())
        parts.append(f"{side}.positions")
    if config.family == "encoder-only":
        yield f"{side}.segments", _Origin("look up", ())
        parts.append(f"{side}.segments")
    yield f"{side}.input", _Origin("add", tuple(parts))
    state = f"{side}.input"
    for layer in range(config.layers):
        for part in parts_of(config, side):
            name = f"{side}.{layer}.{part}"
            yield from _sublayer_origins(config, name, state)
            state = f"{name}.{'norm' if config.norm_order == 'post' else 'add'}"
    yield f"{side}.output", _Origin("norm" if config.norm_order == "pre" else "copy", (state,))


def parts_of(config: ModelConfig, side: str) -> tuple[str, ...]:
    """The sub-layers of a layer of Figure 1, in order."""
    crossing = side == "decoder" and config.family == "encoder-decoder"
    return ("self", "cross", "feed_forward") if crossing else ("self", "feed_forward")


def _sublayer_origins(config: ModelConfig, name: str, state: str) -> Iterator[tuple[str, _Origin]]:
    """One sub-layer with its add & norm, from the state that comes in."""
    pre = config.norm_order == "pre"
    read = f"{name}.norm" if pre else state
    if pre:
        yield read, _Origin("norm", (state,))
    if name.endswith("feed_forward"):
        yield from _feed_forward_origins(config, name, read)
    else:
        yield from _attention_origins(config, name, read)
    yield f"{name}.add", _Origin("add", (state, f"{name}.output"))
    if not pre:
        yield f"{name}.norm", _Origin("norm", (f"{name}.add",))


def _attention_origins(config: ModelConfig, name: str, read: str) -> Iterator[tuple[str, _Origin]]:
    """Queries from the side itself; keys and values too, or in cross-attention from the encoder."""
    cross = name.endswith("cross")
    asked = "encoder.output" if cross else read
    turn = "split and turn" if config.positions == "rotary" and not cross else "split"
    yield f"{name}.query", _Origin("linear", (read,))
    yield f"{name}.key", _Origin("linear", (asked,))
    yield f"{name}.value", _Origin("linear", (asked,))
    yield f"{name}.q", _Origin(turn, (f"{name}.query",))
    yield f"{name}.k", _Origin(turn, (f"{name}.key",))
    yield f"{name}.v", _Origin("split", (f"{name}.value",))
    yield f"{name}.scores", _Origin("q k^T", (f"{name}.q", f"{name}.k"))
    yield f"{name}.scaled", _Origin("/ sqrt(d_k)", (f"{name}.scores",))
    yield f"{name}.masked", _Origin("mask", (f"{name}.scaled",))
    yield f"{name}.weights", _Origin("softmax", (f"{name}.masked",))
    yield f"{name}.mixed", _Origin("weights v", (f"{name}.weights", f"{name}.v"))
    yield f"{name}.concat", _Origin("side by side", (f"{name}.mixed",))
    yield f"{name}.output", _Origin("linear", (f"{name}.concat",))


def _feed_forward_origins(
    config: ModelConfig, name: str, read: str
) -> Iterator[tuple[str, _Origin]]:
    """Wider, through the activation, and back."""
    made_of = [f"{name}.inner"]
    if config.activation == "swiglu":
        yield f"{name}.gate", _Origin("linear", (read,))
        made_of.append(f"{name}.gate")
    yield f"{name}.inner", _Origin("linear", (read,))
    yield f"{name}.active", _Origin(config.activation, tuple(made_of))
    yield f"{name}.output", _Origin("linear", (f"{name}.active",))


def axes_of(name: str, config: ModelConfig) -> tuple[str, ...]:
    """What the numbers of a value are counted by."""
    last = name.rsplit(".", 1)[-1]
    if last in ("scores", "scaled", "masked", "weights"):
        return "head", "query", "key"
    if last in ("q", "mixed"):
        return "head", "query", "dim"
    if last in ("k", "v"):
        return "head", "key", "dim"
    if last in ("inner", "active", "gate"):
        return "word", "neuron"
    if name == "logits":
        return ("class",) if config.classes else ("word", "token")
    return "word", "dim"
