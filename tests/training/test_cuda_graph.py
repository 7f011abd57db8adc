"""Recorded steps are the steps that are not recorded; what cannot be recorded is not.

CUDA graphs need a GPU: the comparison itself is left out where there is none.
"""

from types import SimpleNamespace

import pytest
import torch

from limelight.data.datasets import MaskedLMBatch, Seq2SeqBatch
from limelight.model import ModelConfig, build
from limelight.model.config import model_config
from limelight.run.folder import RunFolder
from limelight.training import trainer as trainer_module
from limelight.training.config import TrainConfig
from limelight.training.console import Report
from limelight.training.cuda_graph import CudaGraphStep, count_masked, shape_of
from limelight.training.distributed import World
from limelight.training.objectives import LossModule
from limelight.training.trainer import MicroBatch, Trainer, can_capture, train_step

SIZES = {"vocab": 50, "layers": 2, "d_model": 32, "heads": 4}
CPU, GPU = World(torch.device("cpu")), World(torch.device("cuda"))
RECORDED, COMPILED = TrainConfig(cuda_graphs=True), TrainConfig(compile=True)


def pairs(rows, width, seed=0, device="cpu"):
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(5, 50, (2, rows, width + 1), generator=draw).to(device)
    real = torch.ones(rows, width + 1, dtype=torch.bool, device=device)
    return Seq2SeqBatch(0, torch.arange(rows), tokens[0, :, :-1], tokens[1], None, real)


@pytest.mark.parametrize(
    ("family", "workers", "settings", "can"),
    [
        ("encoder-decoder", GPU, {}, True),
        ("decoder-only", GPU, {}, True),
        ("recurrent-encoder-decoder", GPU, {}, False),
        ("encoder-decoder", CPU, {}, False),
        ("encoder-decoder", World(torch.device("cuda"), 0, 2), {}, False),
        ("encoder-decoder", GPU, {"compile": False}, False),
        ("encoder-decoder", GPU, {"grad_accumulation": 2}, False),
        ("encoder-decoder", GPU, {"ema": 0.9}, False),
    ],
)
def test_what_can_be_repeated(family, workers, settings, can):
    sizes = SIZES if family in ("encoder-decoder", "decoder-only") else {"vocab": 50}
    config = TrainConfig(**{"compile": True, **settings})
    learner = LossModule(build(model_config(family=family, **sizes)))
    assert can_capture(learner, workers, config) == can


REASONS = {
    "2 processes": {},
    "fsdp=true": {"fsdp": True},
    "tensor_parallel=2": {"tensor_parallel": 2},
    "grad_accumulation=2": {"grad_accumulation": 2},
    "ema=0.9": {"ema": 0.9},
    "a recurrent model": {},
}


@pytest.mark.parametrize("reason", REASONS)
def test_graphs_that_were_asked_for_in_vain_are_told(reason):
    family = "recurrent-decoder-only" if "recurrent" in reason else "decoder-only"
    config = TrainConfig(cuda_graphs=True, **REASONS[reason])
    learner = LossModule(build(model_config(family=family, vocab=50, layers=1, d_model=8)))
    world = World(torch.device("cuda"), 0, 2) if "processes" in reason else GPU
    assert not can_capture(learner, world, config)
    said = []
    trainer = SimpleNamespace(
        loss_module=learner, config=config, world=world, cuda_graph=None,
        report=SimpleNamespace(warn=said.append),
    )  # fmt: skip
    trainer_module._warn_of_uncaptured(trainer)
    assert said == [f"cuda_graphs=true captures no steps with {reason}: they are slower"]
    for quiet in (
        {"world": CPU},
        {"cuda_graph": object()},
        {"config": TrainConfig(compile=True, **REASONS[reason])},
    ):
        trainer_module._warn_of_uncaptured(SimpleNamespace(**{**vars(trainer), **quiet}))
    assert len(said) == 1


@pytest.fixture
def without_graphs(monkeypatch):
    """A step that reports what it would capture."""
    recorded = []

    def capture(self, static):
        recorded.append(shape_of(static))
        graph = type("Graph", (), {"replay": lambda _: self.step(static)})()
        return graph, torch.zeros(1)

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(CudaGraphStep, "capture", capture)
    return recorded


def test_a_shape_is_recorded_when_it_comes_again_and_then_replayed(without_graphs):
    seen = []
    step = CudaGraphStep(lambda batch: seen.append(batch.source.clone()) or torch.ones(1), "cpu")
    met = [pairs(2, 5, 0), pairs(2, 6, 1), pairs(2, 5, 2), pairs(2, 5, 3), pairs(2, 6, 4)]
    for batch in met:
        step(batch)
    assert without_graphs == [shape_of(met[0]), shape_of(met[1])]
    for batch, source in zip(met, seen, strict=True):  # a recording reads what it is given now
        assert torch.equal(batch.source, source)


def test_batches_with_other_numbers_of_blanks_share_a_recording(without_graphs):
    seen = []
    step = CudaGraphStep(lambda batch: seen.append(batch.places.clone()) or torch.ones(1), "cpu")
    tokens = torch.ones(64, 64, dtype=torch.long)
    masks = [torch.arange(64 * 64).view(64, 64) % 7 == rest for rest in (0, 1, 6)]
    for mask in masks:
        step(MaskedLMBatch(0, torch.arange(64), tokens, mask, tokens))
    assert len(without_graphs) == 1
    assert len({mask.sum().item() for mask in masks}) > 1
    for places, mask in zip(seen, masks, strict=False):
        assert torch.equal(places[places >= 0], mask.flatten().nonzero()[:, 0])
        assert (places[mask.sum() :] == -1).all()


def test_blanks_by_place_are_the_blanks_of_the_mask():
    torch.manual_seed(1)
    model = build(ModelConfig(family="encoder-only", vocab=13, layers=1, d_model=8, heads=2))
    learner = LossModule(model.double(), 0.1).eval()
    tokens = torch.randint(5, 13, (3, 6))
    batch = MaskedLMBatch(0, torch.arange(3), tokens, torch.rand(3, 6) < 0.4, tokens.flip(0))
    sums, grads = [], []
    for how in (batch, count_masked(batch)):
        learner.zero_grad()
        found = learner(how)
        found.loss.backward()
        sums.append(torch.stack([x.detach().double() for x in found]))
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert count_masked(batch).places.numel() > batch.loss_mask.sum() > 0
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-12, atol=1e-12)


def trained(recorded, batches, config):
    torch.manual_seed(3)
    torch._dynamo.reset()
    trainer = Trainer(
        loss_module=LossModule(build(ModelConfig(**SIZES)), 0.1, compiled=config.compile),
        batches=None,
        config=config,
        run=RunFolder("."),
        world=GPU,
        report=Report(),
        precision="bfloat16",
    )
    if not recorded:
        trainer.cuda_graph = None
    numbers = [train_step(trainer, [MicroBatch(batch, 0, 1)]).numbers() for batch in batches]
    return numbers, [p.detach() for p in trainer.loss_module.parameters()]


@pytest.mark.gpu
@pytest.mark.parametrize("config", [RECORDED, COMPILED], ids=["eager", "compiled"])
def test_recorded_steps_are_the_steps(config):
    """With dropout: a recording draws the random numbers that belong to the step."""
    batches = [pairs(16, 12 + 8 * (i % 2), i, "cuda") for i in range(16)]
    recorded, plain = (trained(recorded, batches, config) for recorded in (True, False))
    assert recorded[0] == [pytest.approx(numbers, rel=1e-4) for numbers in plain[0]]
    for a, b in zip(recorded[1], plain[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
