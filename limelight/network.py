"""The network of a run with its weights: shapes are checked before anything is read.

Adapters are merged into the weights of the model that they are for.
"""

import warnings
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from limelight.errors import OlderWeightsWarning, UserError, escape_controls
from limelight.model import AnyConfig, build_empty
from limelight.recipe import Recipe, recipe_from_run
from limelight.run.bundled_models import MODELS, find_run, model_names
from limelight.run.folder import RunFolder
from limelight.run.weights import (
    ADAPTERS,
    WEIGHTS,
    check_tensors,
    hash_weights,
    read_weights,
    shapes_in,
    step_of,
)
from limelight.training.lora import merge, prepare_finetuning


def load_network(
    recipe: Recipe, run: RunFolder, step: int | None, above: Sequence[Path] = ()
) -> tuple[nn.Module, int]:
    """With the newest weights or those of a step, which it says; a trainer may prune these now."""
    file = ADAPTERS if recipe.train.lora_rank else WEIGHTS
    base = _base_weights(run, above) if recipe.train.lora_rank else {}

    def examine(folder: Path) -> None:
        _check_shapes(recipe, folder / file)

    while True:
        at_step = None if step is None else run.weights_at(step, examine)
        folder, passed_over = (at_step, []) if at_step else run.weights(examine)
        try:
            weights = read_weights(folder / file)
            if recipe.train.lora_rank:
                weights = merge(base, weights, recipe.train)
            model = _build_from(recipe.model, weights, run)
        except UserError:
            if folder.is_dir():
                raise
        else:
            if passed_over:
                used = f"{folder.parent.name}/{folder.name} is used"
                warning = "; ".join([f"{run.path}: {passed_over[0]}", *passed_over[1:], used])
                warning = escape_controls(warning)
                warnings.warn(warning, OlderWeightsWarning, stacklevel=1)  # once for each run
            return model, step_of(folder)


def _base_weights(run: RunFolder, above: Sequence[Path]) -> dict[str, Tensor]:
    """The weights of the model that a run's adapters are for, if it is where it was."""
    base, path = base_of(run), run.path.resolve()
    if path in above:
        raise UserError(f"{path / 'base.json'} leads back to the run itself")
    model, _ = load_network(recipe_from_run(base), base, None, (*above, path))
    check_base(run, model)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def base_of(run: RunFolder) -> RunFolder:
    """The model that a run's adapters are for: a bundled one, or at a path, even of `run`."""
    name, _ = _read_base(run)
    path = MODELS / name if name in model_names() else run.path / name
    try:
        return find_run(path)
    except UserError as error:
        raise UserError(
            f"{run.path} has adapters for {name}, which is not there: bring it back, or write "
            f"where it is now into {run.path / 'base.json'}"
        ) from error


def _read_base(run: RunFolder) -> tuple[str, str]:
    """The name of the base, and the hash of its weights."""
    match run.read_json("base.json"):
        case {"run": str(name), "sha256": str(sha256)}:
            return name, sha256
    raise UserError(f"{run.path / 'base.json'} is not what a training writes")


def check_base(run: RunFolder, model: nn.Module) -> None:
    """Adapters mean nothing to other weights than those that they were trained with."""
    name, sha256 = _read_base(run)
    if sha256 != hash_weights(model):
        raise UserError(
            f"{run.path} has adapters for {name}, whose weights have changed since: bring the old "
            "ones back"
        )


def _check_shapes(recipe: Recipe, path: Path) -> None:
    """Compare shapes before anything is allocated."""
    found, config, adapted = shapes_in(path), recipe.model, bool(recipe.train.lora_rank)
    if not adapted and config.layers > len(found):  # to build a thousand layers takes a while
        raise UserError(f"{path} has {len(found)} tensors: too few for {config.layers} layers")
    model = build_empty(config)
    if adapted:
        prepare_finetuning(model, recipe.train)
    parameters = model.named_parameters()
    wanted = {n: tuple(p.shape) for n, p in parameters if p.requires_grad or not adapted}
    check_tensors(path, found, wanted)


def _build_from(config: AnyConfig, weights: Mapping[str, Tensor], run: RunFolder) -> nn.Module:
    kind = reduce(torch.promote_types, (tensor.dtype for tensor in weights.values()))
    model: Any = build_empty(config)
    own = dict[nn.Parameter, Tensor]()
    for name, parameter in model.named_parameters():
        if name not in weights or weights[name].shape != parameter.shape:
            raise UserError(f"{run.path} has adapters for another model: {name} does not fit")
        own[parameter] = weights[name].to(kind).clone(memory_format=torch.contiguous_format)
    names = model.named_parameters(remove_duplicate=False)
    model.load_state_dict({name: own[parameter] for name, parameter in names}, assign=True)
    model.tie()
    return model
