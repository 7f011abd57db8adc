"""The small networks that experiments compare, and how they are trained.

All are language models of the package with the same embeddings and classifier, trained by the same
loop on the same tokens: only what carries information from one position to the next differs.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.model import AnyConfig, ModelConfig, RecurrentConfig, build
from limelight.model.attention import Attention
from limelight.model.count import count_parameters
from limelight.model.recurrent import RecurrentDecoderOnly

KINDS = ("rnn", "gru", "lstm", "transformer")
IGNORED = -100  # a label that is not predicted
Batch = tuple[Tensor, Tensor]  # tokens and labels, B T each


def config_of(
    kind: str, vocab: int, layers: int, d_model: int, max_len: int, heads: int = 4
) -> AnyConfig:
    """A language model: recurrent, or a Transformer as in GPT-2 with rotary positions."""
    size: dict[str, Any] = {"vocab": vocab, "layers": layers, "d_model": d_model, "dropout": 0.0}
    size["max_len"] = max_len
    if kind != "transformer":
        cell, _, attention = kind.partition(" with ")
        size |= {"cell": cell, "attention": bool(attention)}
        return RecurrentConfig(family="recurrent-decoder-only", **size)
    style: dict[str, Any] = {"norm_order": "pre", "positions": "rotary", "activation": "gelu"}
    return ModelConfig(family="decoder-only", heads=heads, **style, **size)


class _AttentiveRecurrent(RecurrentDecoderOnly):
    """A recurrent network in which each state also attends to itself and the states before it."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        self.attention = Attention(
            ModelConfig(vocab=config.vocab, d_model=config.d_model, heads=1, positions="learned")
        )
        self.initialise()

    def decode(self, tokens: Tensor, real: Tensor | None = None) -> Tensor:
        """As without attention, plus what attention finds; causal, and without positions."""
        states = super().decode(tokens, real)
        return states + self.attention(states, causal=True)


def make(config: AnyConfig, seed: int, device: str = "cpu") -> Any:
    """A network with the weights of this seed."""
    attentive = config.family == "recurrent-decoder-only" and config.attention
    network: Callable[[Any], Any] = _AttentiveRecurrent if attentive else build
    drawn = "meta" if device == "meta" else "cpu"  # a seed gives the same weights on all devices
    with torch.random.fork_rng(devices=[]), torch.device(drawn):
        torch.manual_seed(seed)
        return network(config).to(device)


def parameters_of(config: AnyConfig) -> int:
    """How many parameters a network has, counted without making it."""
    return sum(count_parameters(make(config, 1, "meta")).values())


def nearest(config_of_width: Callable[[int], AnyConfig], wanted: int, widest: int) -> AnyConfig:
    """The network whose number of parameters is nearest to what is wanted."""
    widths = range(1, widest)
    at = bisect_left(widths, wanted, key=lambda width: parameters_of(config_of_width(width)))
    near = [config_of_width(width) for width in widths[max(0, at - 1) : at + 1]]
    return min(near, key=lambda config: abs(parameters_of(config) - wanted))


def matched(kind: str, vocab: int, width: int, max_len: int) -> AnyConfig:
    """The network with about as many parameters as a Transformer of this width with one head.

    The Transformer has two layers, recurrent networks one.
    """
    transformer = config_of("transformer", vocab, 2, width, max_len, heads=1)
    if kind == "transformer":
        return transformer
    one_layer = partial(config_of, kind, vocab, 1, max_len=max_len)
    return nearest(one_layer, parameters_of(transformer), 16 * width)


def train(
    model: Any,
    batches: Iterator[Batch],
    steps: int,
    lr: float,
    watch: Callable[[int, float], bool | None] = lambda step, loss: None,
) -> None:
    """AdamW with a linear warm-up over a tenth of the steps; the gradient's norm is at most 1.

    Ends early when `watch` returns True.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.0)
    model.train()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, step / max(1, steps // 10))
        loss = loss_of(model, next(batches))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if watch(step, loss.item()):
            break
    model.eval()


def loss_of(model: Any, batch: Batch) -> Tensor:
    """The mean cross-entropy of the labels."""
    tokens, labels = batch
    logits = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


@torch.no_grad()
def accuracy_of(model: Any, batch: Batch) -> float:
    """The share of labels that the model predicts."""
    tokens, labels = batch
    return (model(tokens).argmax(dim=-1) == labels)[labels != IGNORED].double().mean().item()
