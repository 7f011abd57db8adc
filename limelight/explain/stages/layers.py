"""The stops around attention: add & norm, feed-forward, and the stack of layers."""

import math
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.explain.focus import Focus
from limelight.explain.stage import Cell, Check, Formula, Heatmap, Stage, TableFigure, number
from limelight.explain.tokens import pieces_of, visible
from limelight.model.layers import ACTIVATIONS

_STRONGEST = 5  # neurons that are shown


def add_norm(view: Focus) -> Stage:
    """The residual connection and the norm, in this model's order."""
    side, i = view.side, view.word(view.side)
    name, path = f"{side}.{view.layer}.self", f"{side}.layers.{view.layer}.self_residual.norm"
    came, post = view.origin(f"{name}.add")[0], view.trace.config.norm_order == "post"
    total = view.tensor(came) + view.tensor(f"{name}.output")
    read = view.tensor(f"{name}.add" if post else came)
    said = "norm(x + attention(x))" if post else "x + attention(norm(x))"
    return Stage(
        name="add-norm",
        title="What came in is added, and all is brought to one size",
        section="3.1",
        what="The word keeps what it had: attention only adds to it (the residual connection). A "
        f"norm keeps the numbers in a steady range, {_AFTER if post else _BEFORE}",
        formulas=[
            Formula(f"this model: {said}", "the same around every sub-layer"),
            _norm_formula(view, read[i], view.tensor(f"{name}.norm")[i], path),
        ],
        figures=[view.one_word(f"{view.label(side)} on its way", _way(name, came, post), side)],
        checks=[
            view.check("the sum", f"{name}.add", total),
            view.check("the norm", f"{name}.norm", view.norm(read, path)),
        ],
        place=f"{side}, layer {view.layer + 1}",
    )


_AFTER = "after the sum, as in the paper (post-norm)."
_BEFORE = "before attention, so that the sums run through untouched (pre-norm, as in GPT-2)."


def _way(name: str, came: str, post: bool) -> dict[str, str]:
    """What a word is, from what came in to what goes out, in the order of happening."""
    norm = {"normalised": f"{name}.norm"}
    added = {"attention adds": f"{name}.output", "together": f"{name}.add"}
    first = {"x, what came in": came}
    return {**first, **added, **norm} if post else {**first, **norm, **added}


def _norm_formula(view: Focus, x: Tensor, result: Tensor, path: str) -> Formula:
    """Layer normalisation of one word's first number; Llama's has no mean and no shift."""
    gain, eps = view.weight(f"{path}.weight")[0].item(), view.trace.config.norm_eps
    if view.trace.config.norm == "rms":
        size = (x.square().mean() + eps).sqrt().item()
        return Formula(
            "norm(x) = x / (root of the mean square) x gain",
            f"{number(x[0].item())} / {number(size)} x {number(gain)} = {number(result[0].item())}",
            {"x": x[0].item(), "size": size, "gain": gain, "result": result[0].item()},
        )
    mean, spread = x.mean().item(), (x.var(correction=0) + eps).sqrt().item()
    shift = view.weight(f"{path}.bias")[0].item()
    return Formula(
        "norm(x) = (x - mean) / deviation x gain + shift",
        f"({number(x[0].item())} - {number(mean)}) / {number(spread)} x {number(gain)} + "
        f"{number(shift)} = {number(result[0].item())}",
        {
            "x": x[0].item(),
            "mean": mean,
            "spread": spread,
            "gain": gain,
            "shift": shift,
            "result": result[0].item(),
        },
    )


def feed_forward(view: Focus) -> Stage:
    """Each word on its own."""
    side, i, config = view.side, view.word(view.side), view.trace.config
    name, path = (f"{side}.{x}{view.layer}.feed_forward" for x in ("", "layers."))
    inner, active = (view.tensor(f"{name}.{part}") for part in ("inner", "active"))
    read, kind = view.origin(f"{name}.inner")[0], config.activation
    again = view.linear(view.tensor(read), f"{path}.inner")
    ways = {"in": read, "out": f"{name}.output"}
    outer = view.linear(active, f"{path}.outer")
    return Stage(
        name="feed-forward",
        title="Each word thinks for itself",
        section="3.3",
        what=f"Two linear layers with {kind} between them, the same for every word: "
        f"{config.d_model} numbers become {config.ffn_dim} and {config.d_model} again. Attention "
        "moved information between words; this works on what each has gathered.",
        formulas=[_neurons(view, active[i])],
        figures=[
            _strongest(view, inner[i], active[i]),
            view.one_word(f"{view.label(side)}, in and out", ways, side),
        ],
        checks=[
            view.check("the neurons, from what comes in", inner, again),
            view.check(f"{kind} of them", active, _activated(view, name, inner)),
            view.check("the output, from the neurons", f"{name}.output", outer),
        ],
        place=f"{side}, layer {view.layer + 1}",
    )


def _neurons(view: Focus, active: Tensor) -> Formula:
    """How many of them have something to say."""
    kind, quiet, count = view.trace.config.activation, int((active == 0).sum()), len(active)
    letters = f"output = {kind}(x W1 + b1) W2 + b2"
    if kind == "swiglu":
        letters = "output = (silu(x W_gate) * (x W1)) W2"
    told = f"for {view.label(view.side)}, {quiet} of {count} neurons are exactly 0"
    return Formula(letters, told, {"quiet": quiet, "neurons": count})


def _activated(view: Focus, name: str, inner: Tensor) -> Tensor:
    """The activation done again; a gated one multiplies."""
    kind = view.trace.config.activation
    if kind == "swiglu":
        return F.silu(view.tensor(f"{name}.gate")) * inner
    return ACTIVATIONS[kind](inner)


def _strongest(view: Focus, inner: Tensor, active: Tensor) -> TableFigure:
    """The neurons that say most."""
    best = active.nan_to_num().abs().topk(min(_STRONGEST, len(active))).indices.tolist()
    rows: list[list[Cell]] = [[f"neuron {n + 1}", inner[n].item(), active[n].item()] for n in best]
    heads = ["strongest", "before", f"after {view.trace.config.activation}"]
    return TableFigure(f"the {len(best)} strongest neurons", heads, rows, names=("neurons",))


def stack(view: Focus) -> Stage:
    """The same again, layer upon layer."""
    side, names = view.side, _states_of(view, view.side)
    layers, d_model = view.trace.config.layers, view.trace.config.d_model
    count, final = len(view.words(side)), side == final_side(view)
    return Stage(
        name="stack",
        title=f"The same again, {layers} layers in all" if layers > 1 else "One layer is all",
        section="3.1",
        what="The output of a layer is the input of the next; each has weights of its own. What "
        f"comes out at the top is {count} vectors, one for each token, not one for the whole text.",
        formulas=[
            Formula(
                f"{layers} x (attention, feed-forward)",
                f"{count} tokens x {d_model} numbers in, and {count} x {d_model} out",
            )
        ],
        figures=[
            *_through_layers(view, names),
            *([lens(view)] if final and _can_lens(view) else []),
        ],
        checks=[_top_check(view, side, names)],
        notes=[LENS_NOTE] if final and _can_lens(view) else [],
        place=side,
    )


def _through_layers(view: Focus, names: list[str]) -> list[Heatmap]:
    """How long each word's vector is after every layer, and how far it turned."""
    states = [view.tensor(name) for name in names]
    lengths = torch.stack([state.norm(dim=-1) for state in states])
    turns = torch.stack([F.cosine_similarity(a, b, dim=-1) for a, b in pairwise(states)])
    layers = view.trace.config.layers
    rows = ["input", *(f"layer {n + 1}" for n in range(layers)), "output"][: len(states)]
    words, axes = view.words(view.side).labels, ("after", "word")
    focus = (None, view.word(view.side))
    size, turn = "the length of each word's vector", "cosine with the state before: 1 is no turn"
    return [
        Heatmap(size, ("lengths",), lengths, rows, words, axes, "size", focus=focus),
        Heatmap(turn, ("turns",), turns, rows[1:], words, axes, focus=focus),
    ]


LENS_NOTE = (
    "The candidates after each layer are what the classifier would say if the model stopped there "
    "(the logit lens). It was trained for the last layer only, so early ones are rough guesses."
)


def _states_of(view: Focus, side: str) -> list[str]:
    """The names of the states: what enters, after each layer, and at the top."""
    last = "norm" if view.trace.config.norm_order == "post" else "add"
    layers = [f"{side}.{n}.feed_forward.{last}" for n in range(view.trace.config.layers)]
    return [f"{side}.input", *layers, *([f"{side}.output"] if last == "add" else [])]


def _top_check(view: Focus, side: str, names: list[str]) -> Check:
    """What leaves the stack is the last layer's state, after a last norm in pre-norm."""
    if view.trace.config.norm_order == "post":
        return view.check(
            "the output is the last layer's state",
            view.tensor(f"{side}.output"),
            view.tensor(names[-1]),
        )
    return view.check(
        "the output is the norm of the last layer's state",
        view.tensor(f"{side}.output"),
        view.norm(view.tensor(names[-2]), f"{side}.norm"),
    )


def final_side(view: Focus) -> str:
    """The stack that the classifier reads."""
    return "decoder" if view.trace.target else "encoder"


def _can_lens(view: Focus) -> bool:
    """Whether states can be read as words: not where the model only names a class."""
    return not view.trace.config.classes


def lens(view: Focus) -> TableFigure:
    """What the classifier makes of the chosen word's state after each layer."""
    trace, side = view.trace, final_side(view)
    i, tokenizer = view.word(side), trace.trained.tokenizer
    names = [n for n in _states_of(view, side) if not n.endswith(".output")]
    top = trace.logits[i].double()
    final = int(top.nan_to_num(-math.inf).argmax())
    rows: list[list[Cell]] = []
    for n, name in enumerate(names):
        state = view.tensor(name)[i]
        if trace.config.norm_order == "pre":
            state = view.norm(state, f"{side}.norm")
        chances = classify(view, state).softmax(dim=-1)
        best = chances.nan_to_num(-1.0).topk(min(3, len(chances))).indices.tolist()
        said = "  ".join(visible(piece) for piece in pieces_of(tokenizer, best))
        after = "input" if n == 0 else f"layer {n}"
        rows.append([after, said, chances[best[0]].item(), chances[final].item()])
    final_piece = visible(pieces_of(tokenizer, [final])[0])
    heads = ["after", "would say (best 3)", "best", f"p({final_piece})"]
    title = f"if it stopped here: what follows {view.label(side)}"
    if side == "encoder":
        title = f"if it stopped here: what stands at {view.label(side)}"
    return TableFigure(title, heads, rows, share=3, names=("lens",))


def classify(view: Focus, states: Tensor) -> Tensor:
    """The classifier done again, with BERT's extra layer where there is one."""
    config = view.trace.config
    if config.family != "encoder-only":
        return view.linear(states, "classifier")
    if config.classes:
        inner = torch.tanh(view.linear(states[0], "text_head.inner"))
        return view.linear(inner, "text_head.classifier")
    inner = ACTIVATIONS[config.activation](view.linear(states, "masked_head.inner"))
    return view.linear(view.norm(inner, "masked_head.norm"), "masked_head.classifier")
