"""Every fast way through a training step, in all combinations, is the plain way.

The plain way is written out here: attention with all its weights, all logits at once, and AdamW and
clipping as their formulas say.
"""

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import pytest
import torch

from limelight.data.datasets import ClassificationBatch, LMBatch, MaskedLMBatch
from limelight.data.packing import pack_pairs
from limelight.errors import UserError
from limelight.model import ModelConfig, build
from limelight.model.attention import Attention, explicit_attention
from limelight.run.folder import RunFolder
from limelight.training import loss as losses
from limelight.training import optimizer
from limelight.training.config import TrainConfig
from limelight.training.console import Report
from limelight.training.cuda_graph import count_masked
from limelight.training.distributed import World
from limelight.training.fast_layers import use_kernels
from limelight.training.lr_schedule import learning_rate
from limelight.training.objectives import LossModule
from limelight.training.trainer import MicroBatch, Trainer, train_step
from tests.data.test_packing import Pairs

SMOOTHING, STEPS, LONG = 0.1, 3, 200
SIZES = {"vocab": 13, "layers": 2, "d_model": 8, "d_ff": 8, "heads": 2, "max_len": 16}
FAMILIES = {
    "pairs": {},
    "packed pairs": {},
    "texts": {"family": "decoder-only", "norm_order": "pre", "positions": "rotary"},
    "blanks": {"family": "encoder-only"},
    "blanks by place": {"family": "encoder-only"},
    "labelled": {"family": "encoder-only", "classes": 3},
}
USUAL = {"schedule": "inverse-sqrt", "learning_rate": 0.01, "warmup": 2, "weight_decay": 0.1,
         "clip_grad_norm": 0.5, "label_smoothing": SMOOTHING, "average_checkpoints": 0}  # fmt: skip


def batch_of(kind, seed):
    """Texts of several lengths, so that there is padding."""
    pairs = Pairs(9, seed=seed)
    rows = pairs.batch(seed, 0, np.arange(9), pairs.lengths.max(axis=0))
    tokens, real, examples = rows.target, rows.target_real, rows.examples
    torch.manual_seed(seed)
    if kind == "texts":
        return LMBatch(0, examples, tokens, real, real)
    if kind == "labelled":
        return ClassificationBatch(0, examples, tokens, real, torch.randint(0, 3, (9,)))
    if "blanks" in kind:
        return MaskedLMBatch(
            0, examples, tokens, real & (torch.rand(real.shape) < 0.4), tokens.flip(1)
        )
    return rows


def short(kind, seed):
    """Two texts of at most four tokens, which are soon learned."""
    pairs = Pairs(2, longest=4, seed=seed)
    rows = pairs.batch(seed, 0, np.arange(2), pairs.lengths.max(axis=0))
    if kind == "pairs":
        return rows
    tokens, real = rows.target, rows.target_real
    return MaskedLMBatch(0, rows.examples, tokens, real & (tokens > 2), tokens.flip(1))


def as_trained(kind, batch):
    """As the fast way reads a batch."""
    ways = {
        "packed pairs": lambda: pack_pairs(batch, 30, 9),
        "blanks by place": lambda: count_masked(batch),
    }
    return ways.get(kind, lambda: batch)()


def logits_and_labels(model, batch):
    if isinstance(batch, ClassificationBatch):
        return model(batch.tokens, real=batch.real), batch.labels
    if isinstance(batch, MaskedLMBatch):
        return model(batch.tokens)[batch.loss_mask], batch.labels[batch.loss_mask]
    if isinstance(batch, LMBatch):
        logits, tokens, real = model(batch.tokens[:, :-1]), batch.tokens, batch.loss_mask
    else:
        logits = model(batch.source, batch.target[:, :-1], batch.source_real)
        tokens, real = batch.target, batch.target_real
    return logits[real[:, 1:]], tokens[:, 1:][real[:, 1:]]


def plain_loss(model, batch):
    """The sum, and how many tokens it is of."""
    logits, labels = logits_and_labels(model, batch)
    logs = logits - logits.exp().sum(dim=-1, keepdim=True).log()
    right = logs[torch.arange(len(labels)), labels]
    return -((1 - SMOOTHING) * right + SMOOTHING * logs.mean(dim=-1)).sum(), len(labels)


def plain_steps(model, batches, config) -> Iterator[float]:
    """The loss of each step; the weights move by the formulas of AdamW."""
    for part in model.modules():
        if isinstance(part, Attention):
            part.attend = explicit_attention
    weights = list(model.parameters())
    means, squares = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    for step, parts in enumerate(batches, start=1):
        sums = [plain_loss(model, batch) for batch in parts]
        loss, count = sum(s for s, _ in sums), sum(n for _, n in sums)
        grads = torch.autograd.grad(loss / count, weights)
        norm = torch.cat([g.flatten() for g in grads]).norm()
        lr = learning_rate(config, 1, step)
        share = min(1.0, config.clip_grad_norm / norm.item())
        clipped = [share * g for g in grads]
        for w, g, m, v in zip(weights, clipped, means, squares, strict=True):
            m.mul_(config.beta1).add_((1 - config.beta1) * g)
            v.mul_(config.beta2).add_((1 - config.beta2) * g * g)
            mean, square = m / (1 - config.beta1**step), v / (1 - config.beta2**step)
            decay = config.weight_decay if w.dim() > 1 else 0.0
            with torch.no_grad():
                w.sub_(lr * (mean / (square.sqrt() + config.eps) + decay * w))
        yield loss.item()


def trainer_of(model, compiled=False, precision="float64", **settings):
    config = TrainConfig(**{**USUAL, "compile": compiled, **settings})
    return Trainer(
        loss_module=LossModule(model, SMOOTHING, compiled, rdrop_alpha=config.rdrop_alpha),
        batches=None,
        config=config,
        run=RunFolder("."),
        world=World(torch.device("cpu")),
        report=Report(silent=True),
        precision=precision,
    )


def trained(trainer, kind, batches):
    """The losses, and the weights at the end."""
    found = []
    for parts in batches:
        work = [MicroBatch(as_trained(kind, batch), 0, i) for i, batch in enumerate(parts)]
        found.append(train_step(trainer, work).numbers()[0])
    return found, [p.detach() for p in trainer.saved.values()]


def start(kind, dropout=0.0):
    torch.manual_seed(7)
    return build(ModelConfig(**{**SIZES, **FAMILIES[kind], "dropout": dropout})).double()


def batches_for(kind, each):
    return [[batch_of(kind, each * step + i) for i in range(each)] for step in range(STEPS)]


CHECKPOINTING, BOTH = ("off", "selective", "layer"), (False, True)


@pytest.mark.parametrize(
    ("kind", "each"),  # batches of a step
    [*product(FAMILIES, [1]), ("packed pairs", 2), ("texts", 2)],
)
def test_all_combinations_are_the_plain_way(kind, each, monkeypatch):
    """Fused attention, chunks of logits, recomputing, offloading."""
    monkeypatch.setattr(losses, "_max_logits", lambda *_: 4 * SIZES["vocab"])  # four rows a chunk
    batches, model = batches_for(kind, each), start(kind)
    config = TrainConfig(**USUAL)
    expected = list(plain_steps(model, batches, config))
    ends = [p.detach() for p in model.parameters()]
    assert max(expected) > 0
    synced, launched = optimizer.optimizer_step, optimizer.optimizer_step_no_sync
    for how, offload, wait in product(CHECKPOINTING, BOTH, BOTH):
        # The step of a GPU divides by a factor in float32.
        monkeypatch.setattr(optimizer, "optimizer_step", synced if wait else launched)
        settings = {"activation_checkpointing": how, "offload_optimizer": offload}
        trainer = trainer_of(start(kind), **settings, grad_accumulation=each)
        losses_found, weights = trained(trainer, kind, batches)
        within = 1e-9 if wait else 1e-5
        assert losses_found == pytest.approx(expected, rel=within), (how, offload)
        for one, other in zip(weights, ends, strict=True):
            torch.testing.assert_close(one, other, rtol=within, atol=within)


@pytest.mark.parametrize("kind", FAMILIES)
def test_kernels_of_a_gpu_are_the_plain_way(kind):
    """Triton interprets them. The kernel of AdamW gets its settings in float32."""
    pytest.importorskip("triton", reason="Triton is for Linux")
    from limelight.training.optimizer_kernels import FusedAdamW

    batches, model = batches_for(kind, 1), start(kind)
    expected = list(plain_steps(model, batches, TrainConfig(**USUAL)))
    trainer = trainer_of(start(kind), offload_optimizer=True)  # so that there are masters
    trainer.fused_adamw = FusedAdamW(trainer.optimizer, trainer.masters)
    use_kernels(trainer.loss_module.model, SIZES["max_len"])
    found, weights = trained(trainer, kind, batches)
    assert found == pytest.approx(expected, rel=1e-7)
    for one, other in zip(weights, model.parameters(), strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", FAMILIES)
def test_200_steps_lose_as_the_plain_way(kind, monkeypatch):
    """All fast paths of a CPU at once; and bfloat16 weights, whose loss is a little other."""
    monkeypatch.setattr(losses, "_max_logits", lambda *_: 4 * SIZES["vocab"])
    monkeypatch.setattr(optimizer, "optimizer_step", optimizer.optimizer_step_no_sync)
    batches = (batches_for(kind, 1) * LONG)[:LONG]
    expected = list(plain_steps(start(kind), batches, TrainConfig(**USUAL)))
    assert min(expected) < 0.8 * expected[0]  # it learns, or equal losses would say little
    trainer = trainer_of(start(kind), activation_checkpointing="layer", offload_optimizer=True)
    found, _ = trained(trainer, kind, batches)
    assert found == pytest.approx(expected, rel=1e-4)
    half = trainer_of(start(kind).float(), precision="bfloat16", master_weights=True)
    found, _ = trained(half, kind, batches)
    assert found == pytest.approx(expected, rel=0.05)
    assert np.mean(found) == pytest.approx(np.mean(expected), rel=0.01)


@pytest.mark.parametrize(
    "kind",  # interpreted, they take half a second a step and more
    [
        pytest.param("pairs", marks=pytest.mark.soak),
        pytest.param("blanks", marks=pytest.mark.system),
    ],
)
def test_200_steps_of_the_kernels_of_a_gpu_lose_as_the_plain_way(kind, monkeypatch):
    pytest.importorskip("triton", reason="Triton is for Linux")
    from limelight.training.optimizer_kernels import FusedAdamW

    monkeypatch.setitem(SIZES, "layers", 1)
    monkeypatch.setitem(SIZES, "heads", 1)
    batches = [[short(kind, step)] for step in range(3)] * LONG
    expected = list(plain_steps(start(kind), batches[:LONG], TrainConfig(**USUAL)))
    assert min(expected) < 0.8 * expected[0]
    trainer = trainer_of(start(kind), offload_optimizer=True)  # so that there are masters
    trainer.fused_adamw = FusedAdamW(trainer.optimizer, trainer.masters)
    use_kernels(trainer.loss_module.model, SIZES["max_len"])
    found, _ = trained(trainer, kind, batches[:LONG])
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", ["pairs", "texts"])
def test_a_wrong_path_is_noticed(kind, monkeypatch):
    """The control: each of these changes little."""
    batches = batches_for(kind, 1)
    config = TrainConfig(**USUAL)
    expected = list(plain_steps(start(kind), batches, config))
    for changes in (
        {"beta2": 0.97},
        {"weight_decay": 0.0},
        {"clip_grad_norm": 0.0},
        {"eps": 1e-3},
    ):
        found, _ = trained(trainer_of(start(kind), **changes), kind, batches)
        assert found[0] == pytest.approx(expected[0], rel=1e-12)
        assert found[-1] != pytest.approx(expected[-1], rel=1e-8), changes
        assert found[-1] == pytest.approx(expected[-1], rel=0.1)


WAYS = [{}, {"optimizer": "muon"}, {"rdrop_alpha": 1.0}, {"ema": 0.9, "grad_accumulation": 2}]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("kind", ["pairs", "packed pairs", "texts", "blanks"])
def test_what_promises_the_same_bits_keeps_it_together(kind, way):
    """With dropout, whose random numbers are drawn again where a layer is computed again."""
    each = way.get("grad_accumulation", 1)
    batches, found = batches_for(kind, each), []
    for how, offload in product(CHECKPOINTING, BOTH):
        settings = {**way, "activation_checkpointing": how, "offload_optimizer": offload}
        found.append(trained(trainer_of(start(kind, 0.1), **settings), kind, batches))
    (first, weights), *others = found
    for found_losses, ends in others:
        assert found_losses == first
        assert all(map(torch.equal, ends, weights))


@pytest.mark.parametrize("kind", ["pairs", "packed pairs", "texts", "blanks"])
def test_bfloat16_weights_follow_float32_in_all_combinations(kind):
    batches = batches_for(kind, 1)
    expected = list(plain_steps(start(kind), batches, TrainConfig(**USUAL)))
    found = []
    for how, offload in product(CHECKPOINTING, BOTH):
        settings = {"activation_checkpointing": how, "offload_optimizer": offload}
        trainer = trainer_of(
            start(kind).float(), precision="bfloat16", master_weights=True, **settings
        )
        found.append(trained(trainer, kind, batches))
        model = trainer.loss_module.model
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        assert {p.dtype for p in trainer.saved.values()} == {torch.float32}
    (first, weights), *others = found
    assert first == pytest.approx(expected, rel=0.02)
    assert first != pytest.approx(expected, rel=1e-6)
    for found_losses, ends in others:
        assert found_losses == first
        assert all(map(torch.equal, ends, weights))


@pytest.mark.system  # the compiler takes its time
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_compiled_step_is_the_plain_way(kind):
    batches, model = batches_for(kind, 1), start(kind)
    expected = list(plain_steps(model, batches, TrainConfig(**USUAL)))
    for offload in BOTH:
        trainer = trainer_of(start(kind), compiled=True, offload_optimizer=offload)
        found, weights = trained(trainer, kind, batches)
        assert found == pytest.approx(expected, rel=1e-9)
        for one, other in zip(weights, model.parameters(), strict=True):
            torch.testing.assert_close(one, other.detach(), rtol=1e-9, atol=1e-9)


# What excludes what

FAST = {
    "compile": True,
    "cuda_graphs": True,
    "master_weights": True,
    "offload_optimizer": True,
    "activation_checkpointing": "layer",
    "optimizer": "muon",
    "pack": 64,
    "fsdp": True,
    "tensor_parallel": 2,
    "ema": 0.5,
    "lora_rank": 2,
    "precision": "fp8",
}
EXCLUDED = {
    *((one, other) for one in ("master_weights", "offload_optimizer", "optimizer")
      for other in ("fsdp", "tensor_parallel")),
    ("cuda_graphs", "offload_optimizer"),
    ("cuda_graphs", "activation_checkpointing"),
}  # fmt: skip


@pytest.mark.parametrize("pair", [*combinations(FAST, 2)], ids=" and ".join)
def test_two_that_exclude_each_other_are_named_and_others_are_not_refused(pair):
    settings = {name: FAST[name] for name in pair}
    if pair not in EXCLUDED:
        TrainConfig(**settings)
        return
    with pytest.raises(UserError) as refused:
        TrainConfig(**settings)
    said = str(refused.value).replace("-", "_")
    assert all(name in said for name in pair), said
