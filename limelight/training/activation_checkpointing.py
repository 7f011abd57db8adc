"""Activation checkpointing: less memory for more computing (Chen et al. 2016).

A backward pass needs what the forward pass computed. Instead of keeping all of it, a layer keeps
its input and computes the rest again when its turn comes; or it keeps what is expensive, the
results of matrix products and of attention, and repeats what is cheap. The numbers stay the same,
dropout included: its random numbers are drawn again from the same state.
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from limelight.model.layers import Layer

_aten: Any = torch.ops.aten
_EXPENSIVE = {
    *(_aten.mm.default, _aten.addmm.default, _aten.bmm.default),
    _aten._scaled_mm.default,  # in 8 bits
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
}


def _keep_expensive(_: object, operation: object, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    keep = operation in _EXPENSIVE
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_layers(model: nn.Module, how: str) -> None:
    """Let each layer keep less for its backward pass: how = "off", "layer" or "selective".

    The method is replaced, not the module, so that all weights keep their names.
    """
    contexts = partial(create_selective_checkpoint_contexts, _keep_expensive)
    settings = {"context_fn": contexts} if how == "selective" else {}
    for part in model.modules():
        if isinstance(part, Layer) and how != "off":
            part.forward = partial(  # type: ignore[method-assign]
                _run, type(part).forward.__get__(part), settings
            )


def _run(forward: Any, settings: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **settings, **kwargs)
