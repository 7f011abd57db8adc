"""Files of `torch.save` (.pt, .bin), read without executing anything that they name.

A pickle is a program for a stack machine that may call any function. The machine here has only
containers, numbers, texts and tensors; every other object becomes a `Stub` that keeps what the file
says of it. Tensors are views of the mapped file, so their sizes are checked against real bytes.
"""

import io
import pickletools
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limelight.errors import UserError
from limelight.interop.binary import BinaryReader

_LARGEST = 2**26  # bytes of a pickle without its tensors; a training state of fairseq has 150,000
_MOST_STEPS = 5_000_000  # of the machine
_MOST_MEMBERS = 200_000  # of an archive
_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of a file from before torch 1.6
_DTYPES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


@dataclass(eq=False)
class Stub:
    """An object that was not built: the name of its class or function, and its data."""

    name: str
    args: tuple[Any, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class _Storage:
    dtype: torch.dtype
    key: str
    count: int
    first: int = 0  # of a view, which old files have


@dataclass(eq=False)
class PickledTensor:
    """A tensor that is still in the file."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        numbers = (self.offset, *self.shape, *self.strides)
        if not all(type(n) is int and 0 <= n < 2**48 for n in numbers):
            raise UserError(f"a tensor has the shape {self.shape!s:.80}")
        elements = prod(self.shape)
        last = self.offset + sum(
            (n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)
        )
        if elements and (elements > self.storage.count or last >= self.storage.count):
            raise UserError(
                f"a tensor of shape {self.shape!s:.80} does not fit into its {self.storage.count} "
                "numbers"
            )


@dataclass
class Checkpoint:
    """What a file says: containers, stubs and tensors that are read when they are asked for."""

    content: Any
    path: Path
    _file: BinaryReader
    _members: Mapping[str, tuple[int, int]]  # where the bytes of each storage are: from, how many

    def tensors(self, names: object) -> dict[str, Tensor]:
        """The tensors of a state dict; those that share memory in the file share it here."""
        if not isinstance(names, dict) or not names:
            raise UserError(f"{self.path} has no tensors where they are expected")
        for name, value in names.items():
            if not isinstance(name, str) or not isinstance(value, PickledTensor):
                kind = value.name if isinstance(value, Stub) else type(value).__name__
                raise UserError(f"{self.path}: {name!s:.80} is {kind:.80}, and not a tensor")
        storages: dict[str, Tensor] = {}
        return {name: self._view(value, storages) for name, value in names.items()}

    def _view(self, tensor: PickledTensor, storages: dict[str, Tensor]) -> Tensor:
        storage = tensor.storage
        if storage.key not in storages:
            start, length = self._members.get(storage.key, (0, 0))
            storages[storage.key] = self._bytes(start, length)
        size = storage.dtype.itemsize
        part = storages[storage.key][storage.first * size : (storage.first + storage.count) * size]
        if part.numel() != storage.count * size:
            raise UserError(
                f"{self.path}: the data of a tensor are {part.numel()} bytes, and "
                f"{storage.count * size} are promised; the file is damaged"
            )
        if not part.numel() or 0 in tensor.shape:
            return torch.empty(tensor.shape, dtype=storage.dtype)
        return part.view(storage.dtype).as_strided(tensor.shape, tensor.strides, tensor.offset)

    def _bytes(self, start: int, length: int) -> Tensor:
        if not length:
            return torch.empty(0, dtype=torch.uint8)
        raw = torch.frombuffer(self._file.data, dtype=torch.uint8, offset=start, count=length)
        return raw.clone() if raw.data_ptr() % 8 else raw  # old files do not align their tensors


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a file of `torch.save`, of any torch since 0.4."""
    file = BinaryReader(path)
    with _refused(str(path)):
        if file.data[:2] == b"PK":
            return _read_zip(path, file)
        return _read_legacy(path, file)


def read_pickle(data: bytes) -> Any:
    """The containers, numbers and texts of a pickle without tensors."""
    with _refused("the pickle"):
        return _Machine(io.BytesIO(_bounded(data))).run()


_MISHAPS = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


@contextmanager
def _refused(what: str) -> Iterator[None]:
    """A damaged or hostile pickle can make the machine miss a value in every possible way."""
    try:
        yield
    except UserError as error:
        message = str(error)
        raise UserError(message if what in message else f"{what}: {message}") from error
    except _MISHAPS as error:
        raise UserError(f"{what} cannot be read as a file of torch: {error!s:.120}") from error


def _read_zip(path: Path, file: BinaryReader) -> Checkpoint:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError) as error:
        raise UserError(f"{path} is not a complete archive: {error}") from error
    if len(entries) > _MOST_MEMBERS or sum(entry.file_size for entry in entries) > len(file):
        raise UserError(f"{path} is an archive of overlapping or too many parts")
    if squeezed := [entry.filename for entry in entries if entry.compress_type]:
        raise UserError(f"{path}: {squeezed[0]:.80} is compressed, which torch never writes")
    members = {entry.filename: _data_of(file, entry) for entry in entries}
    pickles = [name for name in members if name.rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1:
        raise UserError(f"{path} is an archive, and not one of torch: it has no data.pkl")
    base = pickles[0].removesuffix("data.pkl")
    if (order := members.get(f"{base}byteorder")) and _slice(file, order) != b"little":
        raise UserError(f"{path} was written on a big-endian machine, which is not supported")
    content = _Machine(io.BytesIO(_bounded(_slice(file, members[pickles[0]])))).run()
    prefix = f"{base}data/"
    storages = {n.removeprefix(prefix): at for n, at in members.items() if n.startswith(prefix)}
    return Checkpoint(content, path, file, storages)


def _data_of(file: BinaryReader, entry: zipfile.ZipInfo) -> tuple[int, int]:
    """Where the data of a member begin, and their length: its local header has its own sizes."""
    file.at = 0
    file.skip(entry.header_offset)
    if file.bytes(4) != b"PK\3\4":
        raise UserError(f"{entry.filename:.80} has no header: the archive is damaged")
    file.skip(22)
    name, extra = file.numbers("HH")
    file.skip(name + extra)
    return file.skip(entry.file_size), entry.file_size


def _slice(file: BinaryReader, member: tuple[int, int]) -> bytes:
    start, length = member
    return file.data[start : start + length]


def _bounded(pickle: bytes) -> bytes:
    if len(pickle) > _LARGEST:
        raise UserError(f"its pickle has {len(pickle):,} bytes, and may have {_LARGEST:,}")
    return pickle


def _read_legacy(path: Path, file: BinaryReader) -> Checkpoint:
    """Before torch 1.6: five pickles (magic, version, system, content, keys), then the storages."""
    stream = io.BytesIO(file.data[: _LARGEST * 2])
    if file.data[:1] != b"\x80" or _Machine(stream).run() != _MAGIC:
        raise UserError(f"{path} is not a file of torch.save")
    version, system = _Machine(stream).run(), _Machine(stream).run()
    if version != 1001 or not isinstance(system, dict) or system.get("little_endian") is not True:
        raise UserError(f"{path} is of a version of torch, or of a machine, that is not supported")
    machine = _Machine(stream)
    content, keys = machine.run(), _Machine(stream).run()
    if not isinstance(keys, list) or len(keys) > _MOST_MEMBERS:
        raise UserError(f"{path} has no list of its tensors")
    file.at, members = stream.tell(), {}
    for key in keys:
        storage = machine.storages.get(key if isinstance(key, str) else "")
        if storage is None:
            raise UserError(f"{path} has data of a tensor that it does not name: {key!r:.80}")
        count = file.number("q", 2**48, "the size of a tensor")
        length = count * storage.dtype.itemsize
        members[key] = (file.skip(length), length)
    return Checkpoint(content, path, file, members)


_MARK = object()
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": list,  # without hashing what strangers wrote
}
_LITERALS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
_LITERALS |= {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE"}
_LITERALS |= {"SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_LITERALS |= {"BYTEARRAY8"}
_SCALARS = (str, int, float, bytes, type(None), Stub)


class _Machine:
    """Executes the opcodes of one pickle, with data alone: a name never becomes a function."""

    def __init__(self, stream: io.BytesIO) -> None:
        self.stream = stream
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, _Storage] = {}

    def run(self) -> Any:
        for step, (opcode, arg, _) in enumerate(pickletools.genops(self.stream)):
            if step > _MOST_STEPS:
                raise UserError("its pickle takes too many steps")
            if opcode.name == "STOP":
                return self.stack.pop()
            self.execute(opcode.name, arg)
        raise UserError("its pickle has no end")

    def execute(self, name: str, arg: Any) -> None:
        if name in _LITERALS:
            self.stack.append(arg)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name == "MARK":
            self.stack.append(_MARK)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[arg] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[arg])
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            self.stack[-count:] = [tuple(self.stack[-count:])]
        elif name == "GLOBAL":
            self.stack.append(Stub(".".join(arg.split(" ", 1))))
        elif name not in ("PROTO", "FRAME"):
            method = getattr(self, f"op_{name.lower()}", None)
            if method is None:
                raise UserError(f"its pickle uses {name}, which no checkpoint needs")
            method()

    def since_mark(self) -> list[Any]:
        items = []
        while (item := self.stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def op_pop(self) -> None:
        self.stack.pop()

    def op_dup(self) -> None:
        self.stack.append(self.stack[-1])

    def op_pop_mark(self) -> None:
        self.since_mark()

    def op_tuple(self) -> None:
        self.stack.append(tuple(self.since_mark()))

    def op_list(self) -> None:
        self.stack.append(self.since_mark())

    op_frozenset = op_list

    def op_append(self) -> None:
        value = self.stack.pop()
        self._extend([value])

    def op_appends(self) -> None:
        self._extend(self.since_mark())

    op_additems = op_appends

    def _extend(self, values: list[Any]) -> None:
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(values)
        elif not isinstance(self.stack[-1], Stub):
            raise UserError("its pickle appends to what is no list")

    def op_dict(self) -> None:
        items = self.since_mark()
        self.stack.append({})
        self._update(items)

    def op_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._update([key, value])

    def op_setitems(self) -> None:
        self._update(self.since_mark())

    def _update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Stub):  # a dictionary of some other kind
            target = target.state
        if not isinstance(target, dict):
            raise UserError("its pickle sets an item of what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            parts = key if isinstance(key, tuple) else (key,)
            if not all(isinstance(part, _SCALARS) for part in parts):  # hashing can be an attack
                raise UserError("its pickle has a key that is neither text nor number")
            target[key] = value

    def op_stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(Stub(f"{module!s:.200}.{name!s:.200}"))

    def op_reduce(self) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, Stub) or not isinstance(args, tuple):
            raise UserError("its pickle calls something that is not a function")
        self.stack.append(_build(function.name, args))

    op_newobj = op_reduce

    def op_newobj_ex(self) -> None:
        self.stack.pop()
        self.op_reduce()

    def op_obj(self) -> None:
        first, *args = self.since_mark()
        self.stack += [first, tuple(args)]
        self.op_reduce()

    def op_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        fields = state[0] if isinstance(state, tuple) and state else state
        if isinstance(target, Stub):
            target.state.update(fields if isinstance(fields, dict) else {"state": state})

    def op_binpersid(self) -> None:
        kind, storage, key, _, count, *view = self.stack.pop()
        dtype = _DTYPES.get(storage.name.rpartition(".")[2])
        if kind != "storage" or dtype is None:
            raise UserError(f"its pickle has numbers of an unknown kind, {storage.name:.80}")
        base = self.storages.setdefault(key, _Storage(dtype, key, count))
        first = 0
        if view and view[0] is not None:
            _, first, count = view[0]
        if base.dtype != dtype or not all(type(n) is int and n >= 0 for n in (count, first)):
            raise UserError(f"its pickle has a tensor of {count!r:.80} numbers")
        self.stack.append(_Storage(dtype, key, count, first))


def _build(name: str, args: tuple[Any, ...]) -> Any:
    """What calling this function would give, for the few that make data; else a stub."""
    if name == "collections.OrderedDict":
        pairs = list(args[0]) if args else []
        if not all(isinstance(key, str) for key, _ in pairs):
            raise UserError("its pickle has a dictionary with keys that are not text")
        return dict(pairs)
    if name in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor"):
        storage, offset, shape, strides = args[:4]
        return PickledTensor(storage, offset, tuple(shape), tuple(strides))
    if name == "torch._utils._rebuild_parameter" and isinstance(args[0], PickledTensor):
        return args[0]
    if name == "torch.Size":
        return tuple(args[0])
    return Stub(name, args)
