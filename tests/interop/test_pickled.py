"""Checkpoints of torch, read as torch reads them, and without executing what they name."""

import collections
import pickle
import zipfile

import pytest
import torch

from limelight.errors import UserError
from limelight.interop.pickled import Stub, read_checkpoint


def tensors():
    draw = torch.Generator().manual_seed(0)
    table = torch.randn(7, 4, generator=draw)
    return {
        "table": table,
        "tied": table,
        "row": table[2],
        "turned": table.T,
        "half": table.half(),
        "brain": table.bfloat16(),
        "count": torch.tensor(3),
        "none": torch.empty(0, 5),
        "mask": torch.tensor([True, False]),
        "byte": torch.arange(3, dtype=torch.uint8),
    }


def assert_equal(found, wanted):
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("new_format", [True, False])
def test_tensors_are_those_that_torch_loads(tmp_path, new_format):
    path = tmp_path / "model.pt"
    torch.save(tensors(), path, _use_new_zipfile_serialization=new_format)
    checkpoint = read_checkpoint(path)
    found = checkpoint.tensors(checkpoint.content)
    assert_equal(found, torch.load(path, weights_only=True))
    found["tied"][2] = 0  # one memory for all that share it, and the file stays as it is
    assert not found["table"][2].any()
    assert not found["row"].any()
    assert torch.equal(torch.load(path)["table"], tensors()["table"])


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_containers_and_numbers_are_read_in_every_protocol(tmp_path, protocol):
    inner = {"a": [1, -2, 2.5, None, True, "é" * 300, 2**70], "b": ((1,), (1, 2), (1, 2, 3, 4), ())}
    content = collections.OrderedDict(x=inner, again=inner, name=b"bytes", shape=torch.Size([2, 3]))
    torch.save(content, tmp_path / "m.pt", pickle_protocol=protocol)
    found = read_checkpoint(tmp_path / "m.pt").content
    assert found.pop("shape") in ((2, 3), [2, 3])
    raw = found.pop("name")  # protocol 2 has no bytes, and calls a function for them
    assert raw == b"bytes" or isinstance(raw, Stub)
    assert found == {"x": inner, "again": inner}
    assert found["x"] is found["again"]


def test_a_parameter_is_a_tensor_and_another_object_a_stub(tmp_path):
    import argparse

    options = argparse.Namespace(layers=3)
    weight = torch.nn.Parameter(torch.ones(2))
    torch.save({"model": {"w": weight}, "args": options}, tmp_path / "m.pt")
    found = read_checkpoint(tmp_path / "m.pt")
    assert torch.equal(found.tensors(found.content["model"])["w"], torch.ones(2))
    assert found.content["args"].name == "argparse.Namespace"
    assert found.content["args"].state == {"layers": 3}
    with pytest.raises(UserError, match=r"args is argparse\.Namespace, and not a tensor"):
        found.tensors({"args": found.content["args"]})


def test_data_that_are_shorter_than_promised_are_refused(tmp_path):
    torch.save({"w": torch.ones(1000)}, tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt") as old, zipfile.ZipFile(tmp_path / "n.pt", "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, data[:100] if name.endswith("data/0") else data)
    found = read_checkpoint(tmp_path / "n.pt")
    with pytest.raises(UserError, match="100 bytes, and 4000 are promised"):
        found.tensors(found.content)


def test_what_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "m.pt"
    for data in (b"", b"hello", pickle.dumps({"a": 1}), b"PK\3\4" + b"x" * 50):
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"m\.pt"):
            read_checkpoint(path)
