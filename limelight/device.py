"""The device, and the precision that it computes in."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from limelight.errors import UserError, unknown_name

# An analysis of how to cut loops into tiles, which fails on shapes that vary: pytorch issue 181563.
COMPILING: dict[str, str | int | bool | Callable[..., Any]] = {
    "triton.coalesce_tiling_analysis": False
}
_PRECISIONS = ("auto", "float32", "bfloat16", "float64", "fp8")
PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); (a @ a).sum().item()"


def choose_device(wanted: str, local_rank: int = 0) -> torch.device:
    """The requested device, or the best available: CUDA, Apple's MPS, or else the CPU."""
    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if wanted not in ("auto", *there):
        raise unknown_name("device", wanted, ("auto", *there))
    name = next(n for n, here in there.items() if here) if wanted == "auto" else wanted
    if not there[name]:
        raise UserError(f"device={name!r} is not available: torch finds only the CPU here")
    return torch.device(name, local_rank) if name == "cuda" else torch.device(name)


def describe(device: torch.device) -> str:
    """A device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cores = torch.get_num_threads()
    return f"CPU, {cores} thread{'s' * (cores > 1)}" if device.type == "cpu" else "Apple GPU (MPS)"


def copy_to_device_async(values: Tensor, device: torch.device) -> Tensor:
    """These values on a device; the caller does not wait for a GPU to fetch them."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def choose_precision(wanted: str, device: torch.device) -> str:
    """The requested precision, if the device has it; auto is bfloat16 on GPUs made for it."""
    if wanted not in _PRECISIONS:
        raise unknown_name("precision", wanted, _PRECISIONS)
    if wanted == "fp8":
        if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
            raise UserError(
                f"precision='fp8' is for NVIDIA GPUs since Ada and Hopper, and this is "
                f"{describe(device)}: choose auto"
            )
        return "bfloat16"  # of all but the products that `limelight.training.fp8` makes
    if wanted == "auto":
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bfloat16" if fast else "float32"
    if wanted == "bfloat16" and device.type == "cpu" and not survives_bfloat16():
        raise UserError(
            "precision='bfloat16' kills the process on this CPU: it announces instructions that it "
            "does not have. Set the environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, "
            "or choose float32"
        )
    if wanted == "float64" and device.type == "mps":
        raise UserError("precision='float64' is not available on Apple's MPS: choose float32")
    return wanted


@lru_cache
def survives_bfloat16() -> bool:
    """Whether such a matrix product works here; what the CPU lacks kills only this process."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=False)
    return done.returncode == 0


def peak_memory(device: torch.device) -> int:
    """The most bytes that this process has used so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return 0  # it has no such counter
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out; on a CPU only its text says so."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def local_rank() -> int:
    """The number of this process on this machine, set by `torchrun`."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def copy_to_host_async(*tensors: Tensor) -> Callable[[], list[Tensor]]:
    """Start copying these values to the CPU; the function returned waits for the copies.

    A GPU goes on computing meanwhile. Elsewhere the values are copied at once.
    """
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
