"""The memory of a training step, counted while it runs on fake tensors: shapes without numbers.

It is run with two and with three layers, since each further one adds the same.
"""

import weakref
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from limelight.model import ModelConfig, build_empty
from limelight.model.attention import Attention
from limelight.training.activation_checkpointing import checkpoint_layers


@cache
def activation_memory(config: ModelConfig, rows: int, how: str, precision: str) -> tuple[int, int]:
    """Bytes that are kept for the backward pass, and the most that there are at a time.

    With precision = "autocast" weights are cast when they are used, which counts; with "bfloat16"
    they are in that already, as FSDP gathers them.
    """
    few, more = (_simulate(replace(config, layers=n), rows, how, precision) for n in (2, 3))
    kept, peak = (a + (config.layers - 2) * (b - a) for a, b in zip(few, more, strict=True))
    return kept, peak


def _simulate(config: ModelConfig, rows: int, how: str, precision: str) -> tuple[int, int]:
    with FakeTensorMode():
        usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16 if precision == "bfloat16" else usual)
        try:
            model: Any = _with_fake_weights(build_empty(config)).train()
        finally:
            torch.set_default_dtype(usual)
        _behave_as_on_gpu(model)
        checkpoint_layers(model, how)
        for parameter in model.parameters():  # gradients are counted as such
            parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
        text = torch.zeros(rows, config.max_len, dtype=torch.long)
        with _LiveBytes([*model.parameters(), *model.buffers(), text]) as live:
            with torch.autocast("cpu", torch.bfloat16, precision == "autocast"):
                if config.family == "encoder-only":
                    states = model.encode(text)
                elif config.family == "decoder-only":
                    states = model.decode(text)
                else:
                    states = model.decode(text, model.encode(text))
                kept = live.now
            states.backward(torch.empty_like(states))
    return kept, live.peak


def _with_fake_weights(model: nn.Module) -> nn.Module:
    """A model made on "meta": the start of a BERT looks at the numbers that it draws."""
    made: dict[int, nn.Parameter] = {}  # by the weight, which modules may share
    for part in model.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                fake = torch.empty_like(weight, device="cpu")
                part._parameters[name] = made.setdefault(id(weight), nn.Parameter(fake))
    return model


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that are made in its block, while they are there."""

    def __init__(self, before: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.known = {cast(Any, tensor.untyped_storage())._cdata for tensor in before}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self.count(value.untyped_storage())
        return result

    def count(self, storage: torch.UntypedStorage) -> None:
        key, size = cast(Any, storage)._cdata, storage.nbytes()
        if key not in self.known:
            self.known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.free, key, size)

    def free(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


class _GpuDropout(nn.Dropout):
    """Keeps its mask as a GPU does, in one byte for each number."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.native_dropout(input, self.p, True)[0] if self.p else input


def _attend(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    """A fused kernel, whatever the mask and the dropout: it never keeps T x S weights."""
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.size(1) != k.size(1))


def _behave_as_on_gpu(model: nn.Module) -> None:
    for part in list(model.modules()):
        if isinstance(part, Attention):
            part.attend = _attend
        for name, child in part.named_children():
            if isinstance(child, nn.Dropout):
                setattr(part, name, _GpuDropout(child.p))
