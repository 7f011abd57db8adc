"""Copy other people's weights into ours, and compare what both then say: logits and gradients.

A mapping takes a dict of their tensors by name and returns a dict of ours. It only renames, cuts,
turns and reorders, so the same mapping carries their gradients to where ours must be.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Mapping = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def load(ours: nn.Module, theirs: nn.Module, mapping: Mapping) -> None:
    missing, unexpected = ours.load_state_dict(mapping(weights(theirs)), strict=False)
    tied = {name for name, _ in ours.named_parameters(remove_duplicate=False)} - {
        name for name, _ in ours.named_parameters()
    }
    assert unexpected == []
    assert set(missing) <= tied, f"not copied: {set(missing) - tied}"


def weights(module: nn.Module) -> dict[str, Tensor]:
    """By name, under every name that a shared tensor has."""
    return {n: p.detach() for n, p in module.named_parameters(remove_duplicate=False)}


def compare(ours: nn.Module, theirs: nn.Module, a: Tensor, b: Tensor, mapping: Mapping) -> None:
    """Logits a (ours) and b (theirs) within 1e-5, then all gradients of one scalar of them."""
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    direction = torch.randn_like(a)
    (a * direction).sum().backward()
    (b * direction).sum().backward()
    named = theirs.named_parameters(remove_duplicate=False)
    expected = mapping({name: p.grad for name, p in named if p.grad is not None})
    got = {name: p.grad for name, p in ours.named_parameters() if p.grad is not None}
    assert set(got) <= set(expected), f"no gradient of theirs for {set(got) - set(expected)}"
    for name, gradient in got.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-5)


def randomise(module: nn.Module, spread: float = 0.15) -> nn.Module:
    """Move every parameter off its start, zero biases and unit norms included."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(spread * torch.randn_like(parameter))
    return module.double().eval()


def rename(theirs: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    """Tensors whose name begins with a key, under the name that the value puts in its place."""
    return {
        new + name.removeprefix(old): value
        for name, value in theirs.items()
        for old, new in names.items()
        if name.startswith(old)
    }
