"""Several models as one: their probabilities are averaged at every step."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from limelight.decode.request import StepModel
from limelight.errors import UserError


class Ensemble:
    """Models of one family with the same tokenizer."""

    def __init__(self, models: Sequence[StepModel]) -> None:
        families = {str(model.config.family).removeprefix("recurrent-") for model in models}
        if len(families) != 1:
            raise UserError(f"an ensemble needs models of one kind, not {' and '.join(families)}")
        if len({model.config.vocab for model in models}) != 1:
            raise UserError("the models of an ensemble must have the same vocabulary")
        self.models = models
        self.config = min((model.config for model in models), key=lambda config: config.max_len)

    def parameters(self) -> Iterator[nn.Parameter]:
        for model in self.models:
            yield from model.parameters()

    def start(self, *given: Any, **options: Any) -> "_States":
        return _States([model.start(*given, **options) for model in self.models])

    def step(self, tokens: Tensor, state: "_States", real: Tensor | None = None) -> Tensor:
        """The logarithm of the mean of their probabilities, B V."""
        both = zip(self.models, state.states, strict=True)
        logits = [model.step(tokens, own, real) for model, own in both]
        precise = torch.promote_types(logits[0].dtype, torch.float32)
        each = torch.stack([some.log_softmax(dim=-1, dtype=precise) for some in logits])
        return each.logsumexp(dim=0) - math.log(len(each))


class _States:
    def __init__(self, states: Sequence[Any]) -> None:
        self.states = states

    def select(self, rows: Tensor) -> None:
        for state in self.states:
            state.select(rows)

    def insert_rows(self, other: "_States", rows: Tensor) -> None:
        for mine, its in zip(self.states, other.states, strict=True):
            mine.insert_rows(its, rows)
