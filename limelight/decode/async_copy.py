"""Numbers that are read when they are needed, so that a GPU need not be waited for before."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def copy_to_host_async(*tensors: Tensor) -> Callable[[], list[Tensor]]:
    """These numbers as they are now, once somebody asks; from a GPU they come while it works on."""
    if not tensors[0].is_cuda:
        now = [x.clone() for x in tensors]
        return lambda: now
    copies = [torch.empty(x.shape, dtype=x.dtype, pin_memory=True) for x in tensors]
    for copy, x in zip(copies, tensors, strict=True):
        copy.copy_(x, non_blocking=True)
    arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def read() -> list[Tensor]:
        arrived.synchronize()
        return copies

    return read


def copy_to_device_async(values: Tensor, device: torch.device) -> Tensor:
    """Numbers for a device; a GPU fetches them itself when it comes to them."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
