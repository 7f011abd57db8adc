"""Around attention: add & norm, feed-forward, and the stack of layers."""

import math
from itertools import chain, pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.explain.focus import Focus
from limelight.explain.stage import (
    Cell,
    Check,
    Formula,
    Heatmap,
    Stage,
    TableFigure,
    factor,
    number,
)
from limelight.model.config import ModelConfig
from limelight.model.layers import ACTIVATIONS
from limelight.model.taps import depth

_STRONGEST = 5  # neurons that are shown


def add_norm(focus: Focus) -> Stage:
    """The residual connection and the norm, in this model's order (section 3.1)."""
    side, i = focus.side, focus.word(focus.side)
    layer = focus.layer_on(side)
    name, path = f"{side}.{layer}.self", f"{side}.layers.{layer}.self_residual.norm"
    config, post = focus.trace.config, focus.trace.config.norm_order == "post"
    incoming = focus.origin(f"{name}.{'query' if post else 'norm'}")[0]
    total, added = focus.tensor(f"{name}.output"), {"attention(x)": f"{name}.output"}
    if config.residual:
        total, added = total + focus.tensor(incoming), added | {"sum": f"{name}.add"}
    read = focus.tensor(f"{name}.add" if post else incoming)
    norm = {"normalised": f"{name}.norm"} if config.norm != "none" else {}
    steps = {"x, the input": incoming, **(added | norm if post else norm | added)}
    formulas = [Formula(f"this model: {_order(config)}", "the same around every sub-layer")]
    if norm:
        formulas.append(_norm_formula(focus, read[i], focus.tensor(f"{name}.norm")[i], path))
    return Stage(
        title=_TITLES[config.residual, bool(norm)],
        what=f"{_ADDS if config.residual else _REPLACES} "
        + (f"{_NORM} {_AFTER if post else _BEFORE}" if norm else _NO_NORM),
        formulas=formulas,
        figures=[focus.one_word(f"{focus.label(side)}, step by step", steps, side)],
        checks=[
            focus.check("the sum" if config.residual else "no sum", f"{name}.add", total),
            focus.check("the norm" if norm else "no norm", f"{name}.norm", focus.norm(read, path)),
        ],
        location=f"{side}, layer {layer + 1}",
    )


_TITLES = {  # with a residual connection, with a norm
    (True, True): "Residual connection and normalisation",
    (True, False): "Residual connection, without a norm",
    (False, True): "Normalisation, without a residual connection",
    (False, False): "Neither residual connection nor norm",
}
_ADDS = "Attention only adds to the token's vector (the residual connection)."
_REPLACES = "This model has no residual connection: attention replaces the token's vector."
_NORM = "A norm keeps the numbers in a steady range,"
_NO_NORM = "This model has no norm to keep the numbers in a steady range."
_AFTER = "after the sum, as in the paper (post-norm)."
_BEFORE = "before attention, so that the residual stream stays unscaled (pre-norm, as in GPT-2)."


def _order(config: ModelConfig) -> str:
    """What surrounds a sub-layer: norm(x + attention(x)) in the paper."""
    inner, outer = ("{}", "norm({})") if config.norm_order == "post" else ("norm({})", "{}")
    if config.norm == "none":
        inner = outer = "{}"
    sublayer = f"attention({inner.format('x')})"
    return outer.format(f"x + {sublayer}" if config.residual else sublayer)


def _norm_formula(focus: Focus, x: Tensor, result: Tensor, path: str) -> Formula:
    """For the first number of one token; RMS norm has no mean and no shift."""
    gain, eps = focus.weight(f"{path}.weight")[0].item(), focus.trace.config.norm_eps
    first, out = x[0].item(), result[0].item()
    if focus.trace.config.norm == "rms":
        size = (x.square().mean() + eps).sqrt().item()
        filled = f"{number(first)} / {number(size)} x {factor(gain)} = {number(out)}"
        numbers = {"x": first, "size": size, "gain": gain, "result": out}
        return Formula("norm(x) = x / (root of the mean square) x gain", filled, numbers)
    mean, spread = x.mean().item(), (x.var(correction=0) + eps).sqrt().item()
    shift = focus.weight(f"{path}.bias")[0].item()
    numbers = {"x": first, "mean": mean, "spread": spread, "gain": gain, "shift": shift}
    scaled = f"({number(first)} - {factor(mean)}) / {number(spread)} x {factor(gain)}"
    filled = f"{scaled} + {factor(shift)} = {number(out)}"
    letters = "norm(x) = (x - mean) / deviation x gain + shift"
    return Formula(letters, filled, numbers | {"result": out})


def feed_forward(focus: Focus) -> Stage:
    """Two linear layers, for each token separately (section 3.3)."""
    side, i, config = focus.side, focus.word(focus.side), focus.trace.config
    layer = focus.layer_on(side)
    name, path = (f"{side}.{x}{layer}.feed_forward" for x in ("", "layers."))
    inner, active = (focus.tensor(f"{name}.{part}") for part in ("inner", "active"))
    read, kind = focus.origin(f"{name}.inner")[0], config.activation
    again = focus.linear(focus.tensor(read), f"{path}.inner")
    gated = kind == "swiglu"
    activated = F.silu(focus.tensor(f"{name}.gate")) * inner if gated else ACTIVATIONS[kind](inner)
    ways = {"input": read, "output": f"{name}.output"}
    outer = focus.linear(active, f"{path}.outer")
    return Stage(
        title="Each token passes through the feed-forward network",
        what=f"Two linear layers with a non-linearity ({kind}) between them, the same for every "
        f"token: {config.d_model} numbers become {config.ffn_dim}, then {config.d_model} again. "
        "Attention moves information between tokens; this network works on each token alone.",
        formulas=[_neurons(focus, active[i])],
        figures=[
            _strongest(focus, inner[i], active[i]),
            focus.one_word(f"{focus.label(side)}, input and output", ways, side),
        ],
        checks=[
            focus.check("the neurons, from the input", inner, again),
            focus.check(f"{kind} of them", active, activated),
            focus.check("the output, from the neurons", f"{name}.output", outer),
        ],
        location=f"{side}, layer {layer + 1}",
    )


def _neurons(focus: Focus, active: Tensor) -> Formula:
    kind, quiet, count = focus.trace.config.activation, int((active == 0).sum()), len(active)
    gated = "output = (silu(x W_gate) * (x W1)) W2"
    letters = gated if kind == "swiglu" else f"output = {kind}(x W1 + b1) W2 + b2"
    filled = f"for {focus.label(focus.side)}, {quiet} of {count} neurons are exactly 0"
    return Formula(letters, filled, {"quiet": quiet, "neurons": count})


def _strongest(focus: Focus, inner: Tensor, active: Tensor) -> TableFigure:
    best = active.nan_to_num().abs().topk(min(_STRONGEST, len(active))).indices.tolist()
    rows: list[list[Cell]] = [[f"neuron {n + 1}", inner[n].item(), active[n].item()] for n in best]
    heads = ["neuron", "before", f"after {focus.trace.config.activation}"]
    return TableFigure(f"the {len(best)} strongest neurons", heads, rows, names=("neurons",))


def stack(focus: Focus) -> Stage:
    """All layers, one after the other (section 3.1)."""
    side, config = focus.side, focus.trace.config
    names = [*states_of(config, side), *([f"{side}.output"] if config.norm_order == "pre" else [])]
    layers, d_model = depth(config, side), config.d_model
    count = len(focus.words(side))
    sizes = f"{count} tokens x {d_model} numbers in, and as many out"
    lensed = side == focus.last_side and not (config.classes or focus.trace.is_headless)
    return Stage(
        title=f"{layers} layers, one after the other" if layers > 1 else "A single layer",
        what=f"{_NEXT if layers > 1 else ''}The output of the stack is {count} vectors, one per "
        "token, not one for the whole text.",
        formulas=[Formula(f"{layers} x (attention, feed-forward)", sizes)],
        figures=[*_through_layers(focus, names), *([lens(focus)] if lensed else [])],
        checks=[_top_check(focus, side, names)],
        notes=[LENS_NOTE] if lensed else [],
        location=side,
    )


_NEXT = "The output of each layer is the input of the next; every layer has its own weights. "


def _through_layers(focus: Focus, names: list[str]) -> list[Heatmap]:
    states = [focus.tensor(name) for name in names]
    lengths = torch.stack([state.norm(dim=-1) for state in states])
    turns = torch.stack([F.cosine_similarity(a, b, dim=-1) for a, b in pairwise(states)])
    layers = depth(focus.trace.config, focus.side)
    rows = ["input", *(f"layer {n + 1}" for n in range(layers)), "output"][: len(states)]
    words, axes = focus.words(focus.side).labels, ("after", "token")
    chosen = (None, focus.word(focus.side))
    size = "norm (length) of each token's vector"
    turn = "cosine with the state before (1: no change of direction)"
    return [
        Heatmap(size, ("lengths",), lengths, rows, words, axes, "size", focus=chosen),
        Heatmap(turn, ("turns",), turns, rows[1:], words, axes, focus=chosen),
    ]


LENS_NOTE = (
    "The logit lens: what the classifier would predict if the model stopped after each layer. It "
    "was trained on the last layer only, so the early predictions are rough."
)


def states_of(config: ModelConfig, side: str) -> list[str]:
    """The names of the states: the input, and after each layer."""
    last = "norm" if config.norm_order == "post" else "add"
    layers = [f"{side}.{n}.feed_forward.{last}" for n in range(depth(config, side))]
    return [f"{side}.input", *layers]


def _top_check(focus: Focus, side: str, names: list[str]) -> Check:
    """The output is the state of the last layer, after one more norm in pre-norm models."""
    norm, again = "", focus.tensor(names[-1])
    if focus.trace.config.norm_order == "pre":
        norm = "" if focus.trace.config.norm == "none" else "the norm of "
        again = focus.norm(focus.tensor(names[-2]), f"{side}.norm")
    return focus.check(f"the output is {norm}the state of the last layer", f"{side}.output", again)


def lens(focus: Focus) -> TableFigure:
    """The logit lens: the classifier applied to the chosen token's state after each layer."""
    trace, side = focus.trace, focus.last_side
    i, tokenizer = focus.word(side), trace.trained.tokenizer
    final = int(trace.logits[i].nan_to_num(-math.inf).argmax())
    rows: list[list[Cell]] = []
    states = torch.stack([focus.tensor(name)[i] for name in states_of(trace.config, side)])
    if trace.config.norm_order == "pre":
        states = focus.norm(states, f"{side}.norm")
    for n, probabilities in enumerate(classify(focus, states).softmax(dim=-1)):
        best = probabilities.nan_to_num(-1.0).topk(min(3, len(probabilities))).indices.tolist()
        pieces = [trace.label(i, piece) for piece in tokenizer.pieces(best)]
        pairs = zip(pieces, probabilities[best].tolist(), strict=True)
        after = "input" if n == 0 else f"layer {n}"
        rows.append([after, *chain(*pairs), probabilities[final].item()])
    final_piece = trace.label(i, tokenizer.pieces([final])[0])
    heads = ["after", *["would predict", "p", "or", "p", "or", "p"][: len(rows[0]) - 2]]
    heads.append(f"p({final_piece})")
    what = "the token at" if side == "encoder" else "what follows"
    title = f"logit lens: {what} {focus.label(side)}"
    return TableFigure(title, heads, rows, share=len(heads) - 1, names=("lens",))


def classify(focus: Focus, states: Tensor) -> Tensor:
    """The classifier recomputed, with BERT's extra layer where there is one."""
    config = focus.trace.config
    if config.family != "encoder-only":
        return focus.linear(states, "classifier")
    if config.classes:
        inner = torch.tanh(focus.linear(states[0], "text_head.inner"))
        return focus.linear(inner, "text_head.classifier")
    inner = ACTIVATIONS[config.activation](focus.linear(states, "masked_head.inner"))
    return focus.linear(focus.norm(inner, "masked_head.norm"), "masked_head.classifier")
