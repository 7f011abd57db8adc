"""Layers divided, weights sharded, and both: the losses are those of one process.

A checkpoint is written by all processes, each its own shards, and read by any number of them.
"""

import json
import os

import pytest
import torch

import limelight
from limelight.errors import UserError
from limelight.model import ModelConfig, RecurrentConfig, build
from limelight.recipe import Recipe
from limelight.run.atomic import find_damage
from limelight.run.log import read_log
from limelight.run.weights import read_header, read_tensors
from limelight.training.tensor_parallel import check_divisible
from limelight.workflows.plan import make_plan
from tests.training.processes import SECONDS, command, many, said_of, train, train_command

SETTINGS = [
    "--data.toy-examples=600",  # all steps are of one epoch
    "--model.heads=4",
    "--model.layers=2",
    "--train.batch-tokens=40",
    "--train.checkpoint-every=3",
    "--train.validate-every=3",
    "--train.average-checkpoints=0",
    "--train.clip-grad-norm=1",
    "--train.ema=0.5",
]


def train_together(run, count, *settings):
    words = train_command(run, [*SETTINGS, *settings])
    with many(command, words, folder=run, count=count) as children:
        for rank, child in enumerate(children):
            child.join(SECONDS)
            assert child.exitcode == 0, said_of(run, str(rank)).read_text()
    return said_of(run).read_text()


def losses(run):
    """The loss and the gradient norm of each step, and the losses of the validations."""
    return [
        pytest.approx([e["loss"], e.get("grad_norm", 0)], abs=1e-5)
        for e in read_log(run / "log.jsonl")
    ]


def values(run):
    return [[e["loss"], e.get("grad_norm", 0)] for e in read_log(run / "log.jsonl")]


LAYOUTS = [
    pytest.param(2, 1, marks=pytest.mark.system),
    (2, 2),
    pytest.param(8, 1, marks=pytest.mark.system),
    pytest.param(8, 4, marks=pytest.mark.system),
]


@pytest.mark.parametrize(("count", "tensor"), LAYOUTS)
def test_many_processes_learn_what_one_does(tmp_path, count, tensor):
    data = count // tensor
    train(tmp_path / "one", [*SETTINGS, "--train.steps=4", f"--train.grad-accumulation={data}"])
    shards = ["--train.fsdp"] if data > 1 else []
    how = [*shards, f"--train.tensor-parallel={tensor}", "--train.steps=4"]
    train_together(tmp_path / "many", count, *how)
    assert len(values(tmp_path / "one")) == 6
    assert values(tmp_path / "many") == losses(tmp_path / "one")


def command_in_bfloat16(arguments):
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"  # or the process may be killed
    command(arguments)


@pytest.mark.system
def test_weights_sent_in_bfloat16_learn_what_float32_does(tmp_path):
    settings = [*SETTINGS, "--train.steps=6", "--train.ema=0"]
    train(tmp_path / "one", [*settings, "--train.grad-accumulation=2"])
    run = tmp_path / "many"
    words = train_command(run, [*settings, "--train.fsdp", "--train.precision=bfloat16"])
    with many(command_in_bfloat16, words, folder=run) as children:
        for child in children:
            child.join(SECONDS)
            assert child.exitcode == 0, said_of(run).read_text()
    ours, theirs = ([loss for loss, _ in values(folder)] for folder in (run, tmp_path / "one"))
    assert ours == pytest.approx(theirs, rel=0.02)
    assert ours != theirs


@pytest.mark.parametrize("count", [4, pytest.param(8, marks=pytest.mark.system)])
def test_a_checkpoint_of_many_is_continued_by_two_and_by_one(tmp_path, count):
    run, data = tmp_path / "run", count // 2
    divided = ["--train.fsdp", "--train.tensor-parallel=2", "--train.steps=3"]
    assert "processes now" not in train_together(run, count, *divided)
    last = run / "checkpoints" / "step-000003"
    assert len(list(last.glob("shard-*.safetensors"))) == 2 * count
    assert {path.suffix for path in last.iterdir()} == {".safetensors", ".json"}  # and no pickle
    joined, ema = read_tensors(last / "weights.safetensors"), limelight.load(run).model
    moments = read_tensors(last / "optimizer.safetensors")
    for name, weight in ema.named_parameters():
        assert torch.equal(moments[f"ema.{name}"], weight)
        assert moments[f"exp_avg.{name}"].shape == joined[name].shape == weight.shape
    unfinished = limelight.load(run, step=3).model
    assert all(torch.equal(joined[name], p) for name, p in unfinished.named_parameters())
    half = f"--train.grad-accumulation={data // 2}"
    said = train_together(run, 2, "--train.fsdp", half, "--train.steps=6")
    assert f"this run had {count} processes and has 2 now: its steps are the same within" in said
    all_in_one = [*SETTINGS, f"--train.grad-accumulation={data}"]
    said = train(run, [*all_in_one, "--train.steps=9"])
    assert "resuming from step 6" in said
    train(tmp_path / "one", [*all_in_one, "--train.steps=9"])
    assert len(values(run)) == 12
    assert values(run) == losses(tmp_path / "one")
    said = train_together(run, 2, "--train.fsdp", f"--train.grad-accumulation={data // 2}",
                          "--train.steps=10")  # fmt: skip
    assert "this run had 1 processes and has 2 now" in said  # of a checkpoint that one has written


def count_sums(folder):
    """In each of two processes: gradients of a divided model, and how often it was summed."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.debug import CommDebugMode

    from limelight.training.distributed import full_tensor
    from limelight.training.tensor_parallel import divide_layers

    dist.init_process_group("gloo")
    counts = {}
    for family in ("encoder-decoder", "decoder-only"):
        torch.manual_seed(1)
        model = build(ModelConfig(**{**WHOLE, "family": family, "activation": "swiglu"}))
        text = torch.randint(50, (2, 9))
        tokens = [text, text] if family == "encoder-decoder" else [text]
        model(*tokens).pow(2).mean().backward()
        wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
        model.zero_grad()
        divide_layers(model, init_device_mesh("cpu", (2,)))
        with CommDebugMode() as sums:
            model(*tokens).pow(2).mean().backward()
        counts[family] = sums.get_total_counts()
        for name, p in model.named_parameters():
            torch.testing.assert_close(full_tensor(p.grad), wanted[name])
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(counts))
    dist.destroy_process_group()


def test_divided_layers_are_summed_as_often_as_the_plan_says(tmp_path):
    with many(count_sums, tmp_path, folder=tmp_path / "run") as children:
        for rank, child in enumerate(children):
            child.join(SECONDS)
            assert child.exitcode == 0, said_of(tmp_path / "run", str(rank)).read_text()
    for rank in "01":
        for family, count in json.loads((tmp_path / f"{rank}.json").read_text()).items():
            config = ModelConfig(**{**WHOLE, "family": family, "activation": "swiglu"})
            plan = make_plan(Recipe("x", config), 0, 2, 2, 80)
            states = 2 * config.max_len * config.d_model
            assert plan["received_bytes"]["sums of sub-layers (tensor parallel)"] == count * states


def test_shards_that_do_not_say_where_they_belong_are_refused(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "weights.safetensors"
    shard = tmp_path / "shard-00001-model-00001-of-00003.safetensors"
    facts = {"w": {"saved_offsets": [2, 0]}}
    save_file({"w": torch.ones(1, 2)}, shard, {"DCP_SHARDING_INFO": json.dumps(facts)})
    other = shard.with_name(shard.name.replace("00001", "00002", 1))
    facts["w"]["saved_offsets"] = [0, 0]
    save_file({"w": torch.zeros(2, 2)}, other, {"DCP_SHARDING_INFO": json.dumps(facts)})
    assert read_header(path) == {"w": ("F32", (3, 2))}
    assert read_tensors(path)["w"].tolist() == [[0, 0], [0, 0], [1, 1]]
    assert find_damage(tmp_path) is not None  # without a manifest it is no checkpoint
    for wrong in (None, {"DCP_SHARDING_INFO": "{"}, {"DCP_SHARDING_INFO": "{}"}):
        save_file({"w": torch.zeros(2, 2)}, other, wrong)
        with pytest.raises(UserError, match="does not say of what it is a shard"):
            read_tensors(path)


WHOLE = {
    "family": "decoder-only", "vocab": 50, "d_model": 24, "heads": 6, "d_ff": 36, "dropout": 0.0
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "devices", "told"),
    [
        ({}, 4, "must divide kv_heads=6"),
        ({"kv_heads": 2}, 3, "must divide kv_heads=2"),
        ({"d_ff": 35}, 2, "must divide d_ff=35"),
        ({"qk_norm": True}, 2, "qk_norm=true"),
    ],
)
def test_what_cannot_be_divided_is_refused(changes, devices, told):
    with pytest.raises(UserError, match=told):
        check_divisible(ModelConfig(**{**WHOLE, **changes}), devices)
    check_divisible(ModelConfig(**{**WHOLE, **changes}), 1)
    check_divisible(ModelConfig(**WHOLE), 3)
    with pytest.raises(UserError, match="lora_rank=4"):
        check_divisible(ModelConfig(**WHOLE), 2, 4)
    with pytest.raises(UserError, match="layers of a Transformer"):
        check_divisible(RecurrentConfig(family="recurrent-decoder-only", vocab=50), 2)


def test_processes_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(UserError, match="must divide the number of processes, which is 1"):
        limelight.train("reverse", tmp_path / "run", {"train.tensor_parallel": 2})
