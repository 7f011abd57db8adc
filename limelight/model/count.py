"""Parameters by part of a model."""

from torch import nn

_PARTS = {  # the first mark found in a parameter's name tells which part it belongs to
    "norm.": "norms",
    "attention.": "attention",
    "feed_forward.": "feed-forward",
    "_head.": "head",
    "classifier.": "classifier",
    "positions.": "positions",
    "cell.": "recurrent cells",
}


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Parameters by part; a shared table counts once, where it is met first."""
    count: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        side = name.split(".")[0]
        part = next((part for mark, part in _PARTS.items() if mark in name), "embedding")
        part = f"{side} {part}" if side in ("encoder", "decoder") else part
        count[part] = count.get(part, 0) + parameter.numel()
    return count
