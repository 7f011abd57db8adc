"""Copies between CPU and GPU that do not make the GPU wait."""

import torch
from torch import Tensor

from limelight.device import copy_to_host_async

__all__ = ["copy_to_device_async", "copy_to_host_async"]


def copy_to_device_async(values: Tensor, device: torch.device) -> Tensor:
    """Numbers for a device; a GPU fetches them itself when it comes to them."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
