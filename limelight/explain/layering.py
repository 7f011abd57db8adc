"""The stops around attention: add & norm, feed-forward, and the stack of layers."""

import math
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.explain.stop import Cell, Check, Formula, Grid, Listing, Stop, number
from limelight.explain.view import View, numbered
from limelight.explain.words import pieces_of, visible
from limelight.model.layers import ACTIVATIONS

STRONGEST = 5  # neurons that are shown


def add_norm(view: View) -> Stop:
    """S10: the residual connection and the norm, in this model's order."""
    side, i, config = view.side, view.word(view.side), view.trace.config
    name = f"{side}.{view.layer}.self"
    before, post = view.origin(f"{name}.add")[0], config.norm_order == "post"
    read = f"{name}.add" if post else before
    order = [before, f"{name}.output", f"{name}.add", f"{name}.norm"]
    labels = ["x, what came in", "attention's output", "x + output", "normalised"]
    if not post:  # the norm comes first
        order, labels = [order[0], order[3], *order[1:3]], [labels[0], labels[3], *labels[1:3]]
    path = f"{side}.layers.{view.layer}.self_residual.norm"
    said = "norm(x + attention(x))" if post else "x + attention(norm(x))"
    return Stop(
        name="add-norm",
        title="What came in is added, and all is brought to one size",
        step="S10",
        what="The word keeps what it had: attention only adds to it (the residual connection). A "
        "norm keeps the numbers in a steady range, "
        + (
            "after the sum, as in the paper (post-norm)."
            if post
            else "before attention, so that the sums run through untouched (pre-norm, as in GPT-2)."
        ),
        formulas=[
            Formula(f"this model: {said}", "the same around every sub-layer", {}),
            norm_formula(view, view.tensor(read)[i], view.tensor(f"{name}.norm")[i], path),
        ],
        exhibits=[
            Grid(
                f"{view.label(side)} on its way",
                tuple(order),
                torch.stack([view.tensor(n)[i] for n in order]),
                labels,
                numbered(config.d_model),
                ("", "number"),
                at=i,
            )
        ],
        checks=[
            view.check(
                "the sum",
                view.tensor(f"{name}.add"),
                view.tensor(before) + view.tensor(f"{name}.output"),
            ),
            view.check("the norm", view.tensor(f"{name}.norm"), view.norm(view.tensor(read), path)),
        ],
        place=f"{side}, layer {view.layer + 1}",
    )


def norm_formula(view: View, x: Tensor, result: Tensor, path: str) -> Formula:
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


def feed_forward(view: View) -> Stop:
    """S11: each word on its own."""
    side, i, config = view.side, view.word(view.side), view.trace.config
    name = f"{side}.{view.layer}.feed_forward"
    path = f"{side}.layers.{view.layer}.feed_forward"
    inner, active, output = (
        view.tensor(f"{name}.{part}") for part in ("inner", "active", "output")
    )
    read = view.origin(f"{name}.inner")[0]
    quiet = int((active[i] == 0).sum())
    return Stop(
        name="feed-forward",
        title="Each word thinks for itself",
        step="S11",
        what=f"Two linear layers with {config.activation} between them, the same for every word: "
        f"{config.d_model} numbers become {config.d_inner} and {config.d_model} again. Attention "
        "moved information between words; this works on what each has gathered.",
        formulas=[
            Formula(
                f"output = {config.activation}(x W1 + b1) W2 + b2"
                if config.activation != "swiglu"
                else "output = (silu(x W_gate) * (x W1)) W2",
                f"for {view.label(side)}, {quiet} of {config.d_inner} neurons are exactly 0",
                {"quiet": quiet, "neurons": config.d_inner},
            )
        ],
        exhibits=[
            strongest(view, inner[i], active[i]),
            Grid(
                f"{view.label(side)}, in and out",
                (read, f"{name}.output"),
                torch.stack([view.tensor(read)[i], output[i]]),
                ["in", "out"],
                numbered(config.d_model),
                ("", "number"),
                at=i,
            ),
        ],
        checks=[
            view.check(
                "the neurons, from what comes in",
                inner,
                view.linear(view.tensor(read), f"{path}.inner"),
            ),
            view.check(f"{config.activation} of them", active, activated(view, name, inner)),
            view.check(
                "the output, from the neurons", output, view.linear(active, f"{path}.outer")
            ),
        ],
        place=f"{side}, layer {view.layer + 1}",
    )


def activated(view: View, name: str, inner: Tensor) -> Tensor:
    """The activation done again; a gated one multiplies."""
    kind = view.trace.config.activation
    if kind == "swiglu":
        return F.silu(view.tensor(f"{name}.gate")) * inner
    return ACTIVATIONS[kind](inner)


def strongest(view: View, inner: Tensor, active: Tensor) -> Listing:
    """The neurons that say most."""
    best = active.nan_to_num().abs().topk(min(STRONGEST, len(active))).indices.tolist()
    rows: list[list[Cell]] = [[f"neuron {n + 1}", inner[n].item(), active[n].item()] for n in best]
    heads = ["strongest", "before", f"after {view.trace.config.activation}"]
    return Listing(f"the {len(best)} strongest neurons", heads, rows, names=("neurons",))


def stack(view: View) -> Stop:
    """S12: the same again, layer upon layer."""
    trace, side, i = view.trace, view.side, view.word(view.side)
    layers = trace.config.layers
    names = states_of(view, side)
    states = [view.tensor(name) for name in names]
    lengths = torch.stack([state.norm(dim=-1) for state in states])
    turns = [F.cosine_similarity(a, b, dim=-1) for a, b in pairwise(states)]
    rows = ["input", *(f"layer {n + 1}" for n in range(layers)), "output"][: len(states)]
    count = len(view.words(side))
    return Stop(
        name="stack",
        title=f"The same again, {layers} layers in all",
        step="S12",
        what=f"The output of a layer is the input of the next; each has weights of its own. What "
        f"comes out at the top is {count} vectors, one for each token, not one for the "
        "whole text.",
        formulas=[
            Formula(
                f"{layers} x (attention, feed-forward)",
                f"{count} tokens x {trace.config.d_model} numbers in, and {count} x "
                f"{trace.config.d_model} out",
                {},
            )
        ],
        exhibits=[
            Grid(
                "the length of each word's vector",
                ("lengths",),
                lengths,
                rows,
                view.words(side).labels,
                ("after", "word"),
                "size",
                focus=(None, i),
            ),
            Grid(
                "how little it turned: cosine with the state before",
                ("turns",),
                torch.stack(turns),
                rows[1:],
                view.words(side).labels,
                ("after", "word"),
                focus=(None, i),
            ),
            *([lens(view)] if side == final_side(view) and can_lens(view) else []),
        ],
        checks=[top_check(view, side, names)],
        notes=[] if side == "encoder" and trace.target else [LENS_NOTE] if can_lens(view) else [],
        place=side,
    )


LENS_NOTE = (
    "The candidates after each layer are what the classifier would say if the model stopped there "
    "(the logit lens). It was trained for the last layer only, so early ones are rough guesses."
)


def states_of(view: View, side: str) -> list[str]:
    """The names of the states: what enters, after each layer, and at the top."""
    last = "norm" if view.trace.config.norm_order == "post" else "add"
    layers = [f"{side}.{n}.feed_forward.{last}" for n in range(view.trace.config.layers)]
    return [f"{side}.input", *layers, *([f"{side}.output"] if last == "add" else [])]


def top_check(view: View, side: str, names: list[str]) -> Check:
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


def final_side(view: View) -> str:
    """The stack that the classifier reads."""
    return "decoder" if view.trace.target else "encoder"


def can_lens(view: View) -> bool:
    """Whether states can be read as words: not where the model only names a class."""
    return not view.trace.config.classes


def lens(view: View) -> Listing:
    """What the classifier makes of the chosen word's state after each layer."""
    trace, side = view.trace, final_side(view)
    i, tokenizer = view.word(side), trace.trained.tokenizer
    names = [n for n in states_of(view, side) if not n.endswith(".output")]
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
    return Listing(title, heads, rows, share=3, names=("lens",))


def classify(view: View, states: Tensor) -> Tensor:
    """The classifier done again, with BERT's extra layer where there is one."""
    config = view.trace.config
    if config.family != "encoder-only":
        return view.linear(states, "classifier")
    if config.classes:
        inner = torch.tanh(view.linear(states[0], "text_head.inner"))
        return view.linear(inner, "text_head.classifier")
    inner = ACTIVATIONS[config.activation](view.linear(states, "masked_head.inner"))
    return view.linear(view.norm(inner, "masked_head.norm"), "masked_head.classifier")
