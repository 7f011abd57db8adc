"""Files of weights: data and never code, checked before they are read."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from limelight.errors import UserError
from limelight.run.int8_storage import check_packed, dequantize_rows, is_scales

WEIGHTS = "weights.safetensors"
ADAPTERS = "adapters.safetensors"  # of LoRA, in place of the weights
OPTIMIZER = "optimizer.safetensors"  # of a checkpoint: the optimizer's state
# Where every process writes its own shards, these are the numbers of the files in their names.
SHARD_NUMBERS = {WEIGHTS: 1, ADAPTERS: 2, OPTIMIZER: 3}
Header = dict[str, tuple[str, tuple[int, ...]]]
Shapes = dict[str, tuple[int, ...]]
_LARGEST_HEADER = 2**23  # bytes of names and shapes: some 50,000 tensors


def shards_of(path: Path) -> list[Path]:
    """The files that processes wrote in place of this one, if it is not there."""
    number = SHARD_NUMBERS.get(path.name, 0)
    pattern = f"shard-*-model-{number:05}-of-*.safetensors"
    return [] if path.exists() else sorted(path.parent.glob(pattern))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors from a safetensors file or its shards, which are data and never code."""
    try:
        shards = shards_of(path)
        return _join_shards(path, shards) if shards else load_file(path)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read: {error!s:.300}") from error


def _join_shards(path: Path, shards: list[Path]) -> dict[str, Tensor]:
    full: dict[str, Tensor] = {}
    header = read_header(path)
    for shard in shards:
        offsets = _offsets(shard)
        for name, part in load_file(shard).items():
            full.setdefault(name, part.new_empty(header[name][1]))
            ends = zip(offsets[name], part.shape, strict=True)
            full[name][tuple(slice(begin, begin + size) for begin, size in ends)] = part
    return full


def _offsets(shard: Path) -> dict[str, list[int]]:
    """Where the tensors of a shard begin in the full ones, as torch writes it into the header."""
    try:
        with safe_open(shard, "pt") as file:
            facts = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            return {name: [*map(int, facts[name]["saved_offsets"])] for name in file.keys()}  # noqa: SIM118
    except (TypeError, LookupError, ValueError) as error:
        raise UserError(f"{shard} does not say of what it is a shard") from error


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file; problems with the disk are an OSError as for other files."""
    path.touch()
    mode = path.stat().st_mode  # as the umask says; the library's files are for the owner alone
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(mode)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Weights to be used, whose shapes were checked; int8 becomes float32."""
    return dequantize_rows(read_tensors(path))


def read_header(path: Path) -> Header:
    """Type and shape of each tensor in a file, by name; no more than its header is read."""
    if shards := shards_of(path):
        return _join_headers(shards)
    try:
        with path.open("rb") as file:
            if int.from_bytes(file.read(8), "little") > _LARGEST_HEADER:
                raise UserError(f"{path} is not a weights file: its header is too large")
        with safe_open(path, "pt") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: (p.get_dtype(), tuple(p.get_shape())) for name, p in parts.items()}
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read: {error!s:.300}") from error


def _join_headers(shards: list[Path]) -> Header:
    full: Header = {}
    for shard in shards:
        offsets = _offsets(shard)
        for name, (kind, shape) in read_header(shard).items():
            ends = tuple(begin + size for begin, size in zip(offsets[name], shape, strict=True))
            _, before = full.get(name, (kind, ends))
            full[name] = kind, tuple(map(max, before, ends))
    return full


def check_tensors(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Reject a file whose header has other tensors than a model, before any is read."""
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            theirs, ours = found.get(name, "missing"), wanted.get(name, "missing")
            raise UserError(
                f"{path} is not of this model: {name:.80} is {theirs!s:.80} in the file and "
                f"{ours!s:.80} in the model"
            )


def shapes_in(path: Path) -> Shapes:
    """The shapes of the weights in a file, whose types must be those of weights."""
    header = read_header(path)
    kinds = {name: kind for name, (kind, _) in header.items()}
    shapes = {name: shape for name, (_, shape) in header.items()}
    for name, kind in kinds.items():
        if kind not in ("F64", "F32", "F16", "BF16", "I8"):
            raise UserError(f"{path} is not a weights file: {name:.80} is of type {kind}")
    try:
        check_packed(shapes, kinds)
    except UserError as error:
        raise UserError(f"{path} is not a weights file: {error}") from error
    return {name: shape for name, shape in shapes.items() if not is_scales(name, shapes)}


def hash_weights(model: nn.Module) -> str:
    """SHA-256 of all weights of a model, with their names, types and shapes."""
    digest = sha256()
    for name, weight in model.named_parameters():
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        flat = weight.detach().cpu().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def name_of(step: int) -> str:
    """The folder name of a checkpoint."""
    return f"step-{step:06}"


def step_of(folder: Path) -> int:
    """The step of a checkpoint, from its name."""
    return int(folder.name.removeprefix("step-"))
