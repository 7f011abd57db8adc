"""Loss, perplexity and accuracy on texts that are not trained on."""

import math
from collections.abc import Sized

import torch
from torch import nn

from limelight.data.batching import BatchPlan
from limelight.data.datasets import ClassificationDataset
from limelight.training.distributed import World
from limelight.training.objectives import to_device

VALIDATION_METRICS = ("loss", "perplexity", "accuracy")


def loss_on(
    module: nn.Module, batches: BatchPlan, world: World, precision: str, interrupted: Sized = ()
) -> dict[str, float]:
    """The three metrics, each a mean over tokens; empty if there are none, or if interrupted.

    A classifier has no perplexity: its choice is among classes.
    """
    module.eval()
    sums = torch.zeros(4, device=world.device, dtype=torch.float64)
    with torch.no_grad():
        for batch in batches.epoch(0):
            if world.world_size == 1 and interrupted:
                return {}
            with torch.autocast(world.device.type, torch.bfloat16, precision == "bfloat16"):
                batch_sums = module(to_device(batch or batches.any(), world.device))
            if batch is not None:
                sums += torch.stack([value.double() for value in batch_sums])
    _, nll, correct, total = world.sum(sums).tolist()
    if not total:
        return {}
    mean = nll / total
    scores = {"loss": mean, "perplexity": perplexity(mean), "accuracy": correct / total}
    if isinstance(batches.examples, ClassificationDataset):
        del scores["perplexity"]
    return scores


def perplexity(nll: float) -> float:
    """The exponential of the mean negative log-likelihood of a token, kept finite."""
    return math.exp(min(nll, 700.0))
