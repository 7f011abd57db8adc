"""Whether a model is one that accelerators know, and still the one that they copied.

Accelerators compute the layers themselves, with copies of the weights, so they never see a hook or
a module that somebody else put into a model. They know what `build` makes. A model with anything
else decodes through its own `step`, and one that has changed is accelerated again.

What is not noticed: single numbers that were written past autograd, as `.data`, NumPy and fused
optimizers do. Of such changes those to all of a row or a column are noticed, and thus to all of a
weight, a head, a neuron or a token. Anything written under `torch.no_grad()` is noticed.

Each look costs some 7% of a sentence in int8. A private model needs none: one that `load` built
and nobody outside this package has got hold of. Whatever gives it away calls `hand_out` first, and
from then on it is looked at for ever. A model is private only if `keep_private` says so, and its
copies are not: what is forgotten here costs time, and never a wrong answer.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import chain
from operator import is_
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from limelight.model import AnyConfig, build_empty
from limelight.model.attention import Attention
from limelight.model.decoder_only import DecoderOnly
from limelight.model.encoder_decoder import EncoderDecoder
from limelight.model.layers import FeedForward, Layer, Residual
from limelight.model.positions import LearnedPositions, SinusoidalPositions
from limelight.model.stack import Classifier, Embedding, Stack
from limelight.training.dropout import FastCpuDropout

_KINDS: tuple[type[nn.Module], ...] = (
    *(Attention, Classifier, DecoderOnly, Embedding, EncoderDecoder, FeedForward, Layer),
    *(LearnedPositions, Residual, SinusoidalPositions, Stack),
    *(nn.Dropout, nn.Embedding, nn.Identity, nn.LayerNorm, nn.Linear, nn.RMSNorm),
)
_FORWARD: dict[type, Any] = {kind: kind.forward for kind in _KINDS}
_GLOBAL_HOOKS = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)
_BUILDING_HOOKS = (  # they are given every part of a model that is built
    torch_module._global_module_registration_hooks,
    torch_module._global_parameter_registration_hooks,
)
_TRAINING = "limelight.training.fast_layers"  # other ways to the same result; never imported here
_PRIVATE: WeakSet[Any] = WeakSet()


def keep_private(*models: nn.Module) -> None:
    """Mark modules that were built here, and that no other code refers to."""
    if not any(_BUILDING_HOOKS):
        _PRIVATE.update(models)


def hand_out(*models: nn.Module) -> None:
    """Mark modules that other code may change from now on."""
    _PRIVATE.difference_update(models)


def hand_out_to_hooks(*models: nn.Module) -> None:
    """Global hooks see these modules when they compute."""
    if any(_GLOBAL_HOOKS):
        hand_out(*models)


def unknown_part(model: Any) -> str:
    """The first part of a model that is not as `build` made it, in words; "" if there is none."""
    if any(_GLOBAL_HOOKS):
        return "a hook on all modules"
    as_built, found = _as_built(model.config), dict(model.named_modules(remove_duplicate=False))
    for path in found.keys() ^ as_built.keys():
        return f"{'another' if path in found else 'no'} module {path}"
    first = next(model.parameters())
    for path, module in found.items():
        built = as_built[path]
        if part := _unknown_setting(module, built) or _unknown_weight(module, built, first):
            return f"{part} in {path or 'the model itself'}"
    return ""


def _unknown_setting(module: nn.Module, built: nn.Module) -> str:
    # Training sets these, and none changes what decoding computes.
    kind = nn.Dropout if type(module) is FastCpuDropout else type(module)
    own = vars(module)
    same = {n for n, v in own.items() if getattr(_called(v), "__module__", "") == _TRAINING}
    if kind is not type(built) or kind.forward is not _FORWARD.get(kind, kind.forward):
        return "another class or `forward`"
    if module._forward_hooks or module._forward_pre_hooks:
        return "a hook"
    for name, value in vars(built).items():
        mine = value if name in same else own.get(name)
        if name[0] != "_" and not (mine is value or (type(mine) is type(value) and mine == value)):
            return f"another `{name}`"
    added = own.keys() - vars(built).keys() - same
    return next(
        (f"another `{name}`" for name in added if name[0] != "_" and hasattr(kind, name)), ""
    )


def _called(value: object) -> object:
    return value.func if isinstance(value, partial) else value


def _unknown_weight(module: nn.Module, built: nn.Module, first: Tensor) -> str:
    if module._buffers or module._parameters.keys() != built._parameters.keys():
        return "other weights"
    for name, weight in module._parameters.items():
        like = built._parameters[name]
        if weight is None or like is None:
            known = weight is like
        else:
            known = type(weight) is nn.Parameter and weight.is_contiguous()
            known &= (weight.dtype, weight.device) == (first.dtype, first.device)
            known &= weight.shape == like.shape
        if not known:
            return f"another kind of `{name}`"
    return ""


@lru_cache(maxsize=16)
def _as_built(config: AnyConfig) -> dict[str, nn.Module]:
    """All modules of a model as it decodes, without memory."""
    return dict(build_empty(config).eval().named_modules(remove_duplicate=False))


def _global_hooks() -> list[Any]:
    return [hook for hooks in _GLOBAL_HOOKS for hook in hooks.values()]


class Snapshot:
    """A model as it was when accelerators copied it, or when something was computed with it."""

    def __init__(self, model: nn.Module) -> None:
        self.model, modules = model, list(model.modules())
        tables = ((_own(m), m._modules, m._parameters, m._buffers) for m in modules)
        self.tables: list[dict[Any, Any]] = list(chain.from_iterable(tables))
        self.tables += [h for m in modules for h in (m._forward_hooks, m._forward_pre_hooks)]
        self.values = [table.values() for table in self.tables if table]
        self.parts = list(chain.from_iterable(self.values))  # modules, weights, settings, hooks
        self.on_all = _global_hooks()
        self.forwards = {type(module): type(module).forward for module in modules}
        self.weights = list(model.parameters())
        self.counted = [weight for weight in self.weights if not weight.is_inference()]
        self.versions = self.all_versions()
        # They share the memory of the weights, which is thus not used again for others.
        self.samples: list[Any] = [_sample(weight.detach()) for weight in self.weights]
        self.join: Callable[[list[Any]], Any] = torch.cat
        self.equal: Callable[[Any, Any], bool] = torch.equal
        if all(weight.is_cpu for weight in self.weights):  # NumPy fetches them in half the time
            self.samples = [sample.numpy() for sample in self.samples]
            self.join, self.equal = np.concatenate, np.array_equal
        self.numbers = self.join(self.samples)

    def all_versions(self) -> list[int]:
        """Addresses, and how often autograd saw each weight change."""
        addresses = [weight.data_ptr() for weight in self.weights]
        return addresses + [weight._version for weight in self.counted]

    def holds(self) -> bool:
        """Whether the model is still the same; called once for each search, not for each step."""
        other = any(kind.forward is not forward for kind, forward in self.forwards.items())
        if other or _global_hooks() != self.on_all:
            return False
        return self.model in _PRIVATE or self.parts_hold()

    def parts_hold(self) -> bool:
        """It takes 0.2 ms for 130 weights, half of it to fetch a number of every row."""
        return (
            sum(map(len, self.tables)) == len(self.parts)
            and all(map(is_, chain.from_iterable(self.values), self.parts))
            and self.all_versions() == self.versions
            and self.equal(self.join(self.samples), self.numbers)
        )


def _own(module: nn.Module) -> dict[str, Any]:
    """The settings of a module; torch changes an RNN's when a pass uses other weights."""
    return {} if isinstance(module, nn.RNNBase) else vars(module)


def _sample(weight: Tensor) -> Tensor:
    """The bits of at least one number of each row and of each column.

    Every row, as the stride is no longer than one; every column, as the two lengths have no common
    factor and there are as many strides as columns.
    """
    flat, columns = weight.reshape(-1), weight.size(-1) if weight.dim() else 1
    stride = min(columns, max(1, weight.numel() // columns))
    while math.gcd(stride, columns) > 1:
        stride -= 1
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[weight.element_size()]
    return flat[::stride].view(kind)  # as bits NaN equals itself
