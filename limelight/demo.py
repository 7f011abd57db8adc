"""`limelight demo`: one attention step of a real, if tiny, Transformer, with its own numbers.

The model is built on the spot and untrained, so *where* it looks means nothing yet; *how* it looks
is exactly what happens in a trained one. Every number printed is read off the forward pass by a
recorder.
"""

import math

import torch
from rich import box
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text
from torch import Tensor

from limelight.model import ModelConfig, build
from limelight.model.taps import Recorder

WORDS = ["the", "cat", "sat", "on", "a", "mat"]
FOCUS = WORDS.index("sat")
STEPS = ("q", "k", "v", "scores", "scaled", "weights", "mixed")


def run(console: Console) -> None:
    """Build, watch one pass, print it, check it."""
    torch.manual_seed(17)
    config = ModelConfig(vocab=len(WORDS) + 1, layers=1, d_model=8, heads=2, d_ff=16, dropout=0.0)
    model = build(config).eval()
    source, start = torch.arange(len(WORDS))[None], torch.tensor([[len(WORDS)]])
    with Recorder(model, ["encoder.0.self.*"]) as recorder, torch.no_grad():
        recorder.model(source, start)
    head = {name: recorder[f"encoder.0.self.{name}"][0, 0] for name in STEPS}

    size = sum(parameter.numel() for parameter in model.parameters())
    console.print(f"[bold]A Transformer[/] with {size:,} parameters, made just now, reads:")
    console.print(f"  [bold cyan]{' '.join(WORDS)}[/]\n")
    show_one_word(console, head)
    show_all_words(console, head["weights"])
    check(console, head)
    console.print("\n[bold]Next[/]")
    console.print("  .venv/bin/limelight info wmt14-en-de-base     the paper's model, weighed")
    console.print("  .venv/bin/python docs/hundred_lines.py        all of it on one page, training")
    console.print("  docs/model.md                                 a walk through it")


def show_one_word(console: Console, head: dict[str, Tensor]) -> None:
    """One row of equation 1: a word asks, every word answers."""
    word, d_head = WORDS[FOCUS], head["q"].size(-1)
    console.print(f"[bold]{word!r} asks[/] (layer 1, head 1):  q = {vector(head['q'][FOCUS])}\n")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("word", "its key k", "q . k", f"/ sqrt({d_head})", "softmax"):
        table.add_column(name, justify="left" if name == "word" else "right")
    for i, other in enumerate(WORDS):
        numbers = [f"{head[step][FOCUS, i]:.3f}" for step in ("scores", "scaled")]
        table.add_row(other, vector(head["k"][i]), *numbers, shade(head["weights"][FOCUS, i]))
    console.print(table)
    console.print("and gets the words' values, mixed in these shares: ", end="")
    console.print(f"{vector(head['mixed'][FOCUS])}\n")


def show_all_words(console: Console, weights: Tensor) -> None:
    """All rows at once: who looks at whom."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="every word asks, every word answers")
    table.add_column("asks")
    for word in WORDS:
        table.add_column(word, justify="right")
    table.add_column("sum", justify="right")
    for word, row in zip(WORDS, weights, strict=True):
        table.add_row(word, *map(shade, row), f"{row.sum():.3f}")
    console.print(table)


def check(console: Console, head: dict[str, Tensor]) -> None:
    """Do the arithmetic again from q, k and v, in plain Python and double precision."""
    q, k, v = (head[name].double().tolist() for name in ("q", "k", "v"))
    worst = 0.0
    for asked, got in zip(q, head["mixed"].double().tolist(), strict=True):
        scores = [sum(a * b for a, b in zip(asked, key, strict=True)) for key in k]
        shares = [math.exp(score / math.sqrt(len(asked))) for score in scores]
        mixed = [
            sum(s * value[j] for s, value in zip(shares, v, strict=True)) / sum(shares)
            for j in range(len(got))
        ]
        worst = max(worst, *(abs(a - b) for a, b in zip(mixed, got, strict=True)))
    if worst > 1e-5:
        raise RuntimeError(f"the recorded attention is off by {worst} from its own equation")
    console.print("Recomputed by hand from q, k and v: off by less than 0.00001. ", end="")
    console.print("[green]It adds up.[/]")


def vector(values: Tensor) -> str:
    """A few numbers in brackets."""
    return "[" + " ".join(f"{x:5.2f}" for x in values.tolist()) + "]"


def shade(weight: Tensor) -> Text:
    """A weight, the more the brighter; without colour the number still says it."""
    level = int(40 + 180 * float(weight))
    background = f"rgb({level // 4},{level // 2},{level})"
    return Text(f"{float(weight):.3f}", Style(color="white", bgcolor=background))
