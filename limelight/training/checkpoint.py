"""What must survive: checkpoints during training, and at its end the weights to be used.

A checkpoint holds all that the rest of a training depends on: tensors (weights, Adam's moments,
the moving average of the weights) and a few numbers. The state of random generators is not in it:
every step seeds its dropout from the run's seed, the step and the rank. Nor is the learning rate, a
function of the step.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from limelight.config import from_json
from limelight.errors import FailedError, UserError, describe_os_error
from limelight.files import read_bounded
from limelight.run import atomic
from limelight.run.atomic import find_damage, list_checkpoints
from limelight.run.log import Log
from limelight.run.weights import (
    OPTIMIZER,
    SHARD_NUMBERS,
    Header,
    check_tensors,
    name_of,
    read_header,
    read_tensors,
    shards_of,
    step_of,
    write_tensors,
)
from limelight.training.distributed import copy_into, full_tensor, local_tensor
from limelight.training.optimizer import copy_masters, moment_names
from limelight.training.trainer import Trainer, TrainState

STATE = "state.json"
_Tensors = dict[str, Tensor]


def save_checkpoint(trainer: Trainer, log: Log | None, must: bool) -> None:
    """Commit a checkpoint, then delete old ones. A full disk ends a run only if it `must` save."""
    state, config, run = trainer.state, trainer.config, trainer.run
    weights, moments = _tensors_of(trainer)
    _check_finite(trainer, {**weights, **moments})
    if trainer.world.is_main and log is not None:
        try:
            last = run.checkpoints / name_of(state.step)
            with _announcement(trainer) as announce:
                log.sync()
                needed = sum(t.nbytes for t in (*weights.values(), *moments.values()))
                atomic.check_disk_space(run.path, needed)
                atomic.commit(last, lambda path: _write(trainer, announce(path), weights, moments))
            trainer.written.add(last.name)
            best = [name_of(state.best_step)] if config.patience else []
            spare = [*best, *(folder.name for folder in _checkpoints_to_average(trainer))]
            atomic.prune(run.checkpoints, config.keep_checkpoints, spare, trainer.written)
        except OSError as error:
            why = describe_os_error(error) if error.errno else f"{error}; free some space"
            if not run.path.is_dir():
                why = f"{run.path} is no longer there; move it back"
            sentence = f"step {state.step} could not be saved: {why}"
            if must:
                raise FailedError(f"{sentence}, and run the same command again") from error
            trainer.report.warn(f"{sentence}. Training continues")
    elif trainer.is_sharded and (folder := trainer.world.from_main("")):
        with suppress(OSError):  # the main process reports it
            _write(trainer, Path(folder), weights, moments)
    trainer.world.barrier()


@contextmanager
def _announcement(trainer: Trainer) -> Iterator[Callable[[Path], Path]]:
    """Announce the folder for the shards to all processes; or, in the end, that there is none."""
    announced = not trainer.is_sharded

    def announce(folder: Path) -> Path:
        nonlocal announced
        announced = announced or bool(trainer.world.from_main(str(folder)))
        return folder

    try:
        yield announce
    finally:
        if not announced:
            trainer.world.from_main("")


def _tensors_of(trainer: Trainer) -> tuple[_Tensors, _Tensors]:
    """By name, maybe sharded: the weights, and the state of optimizer and EMA."""
    weights, moments = {}, {}
    for name, parameter in trainer.saved.items():
        weights[name] = parameter.detach()
        for key, value in trainer.optimizer.state.get(parameter, {}).items():
            moments[f"{key}.{name}"] = value.detach()
        if name in trainer.ema:
            moments[f"ema.{name}"] = trainer.ema[name]
    return weights, moments


def _check_finite(trainer: Trainer, tensors: _Tensors) -> None:
    bad = next((n for n, t in tensors.items() if not torch.isfinite(local_tensor(t)).all()), "")
    if trainer.world.any_rank(bool(bad)):
        raise FailedError(
            f"{bad or 'a shard'} has numbers that are not finite: it is not saved; the last good "
            "checkpoint is kept"
        )


def _write(trainer: Trainer, folder: Path, weights: _Tensors, moments: _Tensors) -> None:
    if trainer.is_sharded:
        files = dict.fromkeys(weights, trainer.weights_file) | dict.fromkeys(moments, OPTIMIZER)
        _write_shards(folder, {**weights, **moments}, files)
    else:
        write_tensors(folder / trainer.weights_file, _on_cpu(weights))
        write_tensors(folder / OPTIMIZER, _on_cpu(moments))
    if trainer.world.is_main:
        (folder / STATE).write_text(json.dumps(asdict(trainer.state), indent=1), "utf-8")


def _on_cpu(tensors: _Tensors) -> _Tensors:
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}


def _write_shards(folder: Path, tensors: _Tensors, files: Mapping[str, str]) -> None:
    """Every process writes what it has of each tensor, as safetensors files; all must call this."""
    from torch.distributed.checkpoint.api import CheckpointException  # takes a while
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    numbers = {name: SHARD_NUMBERS[file] for name, file in files.items()}
    writer = HuggingFaceStorageWriter(str(folder), numbers, save_distributed=True)
    try:
        save(tensors, storage_writer=writer)
    except CheckpointException as error:
        raise OSError(str(error)) from error


def restore(trainer: Trainer, folder: Path) -> None:
    """Set weights, optimizer, EMA and progress to those of a checkpoint, if they fit."""
    state = read_state(folder / STATE)
    _check_progress(trainer, state, folder)
    _check_headers(trainer, folder)
    files = (trainer.weights_file, OPTIMIZER)
    weights, moments = (_read_checked(trainer, folder / name, state.step) for name in files)
    for name, parameter in trainer.saved.items():
        copy_into(parameter, weights[name])
        if name in trainer.ema:
            copy_into(trainer.ema[name], moments[f"ema.{name}"])
        if f"step.{name}" not in moments:
            continue  # it was never moved: it is frozen, or no step was finite yet
        moved = trainer.optimizer.state[parameter]
        moved["step"] = moments[f"step.{name}"].to(parameter.device)
        for key in moment_names(trainer.optimizer, parameter):
            moved[key] = torch.zeros_like(parameter)
            copy_into(moved[key], moments[f"{key}.{name}"])
    copy_masters(trainer.masters)
    vars(trainer.state).update(vars(state))


def _read_checked(trainer: Trainer, path: Path, step: int) -> _Tensors:
    """The tensors of a file; if it is in shards, of each what this process needs."""
    if not shards_of(path):
        tensors = read_tensors(path)
    else:
        tensors = {}
        for name in read_header(path):
            kind, _, moved = name.partition(".")  # of the optimizer and the EMA
            own = trainer.saved[name if name in trainer.saved else moved]
            tensors[name] = torch.zeros(()) if kind == "step" else torch.zeros_like(own)
        _read_shards(path.parent, tensors)
    _check_values(path, tensors, step)
    return tensors


def _read_shards(folder: Path, into: _Tensors) -> None:
    """Fill tensors from the shards of any number of processes; all processes must call this."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    try:
        load(into, storage_reader=reader, no_dist=not torch.distributed.is_initialized())
    except CheckpointException as error:
        raise UserError(f"{folder} cannot be read: {error!s:.300}") from error


_RENAMED = {"usual": "smoothed_loss", "tired": "validations_without_improvement"}  # since 0.1.0


def read_state(path: Path) -> TrainState:
    """The numbers of a checkpoint, each of its type and in its bounds."""
    try:
        values = json.loads(read_bounded(path)).items()
        values = {_RENAMED.get(name, name): value for name, value in values}
        for name in sorted(values.keys() ^ {f.name for f in fields(TrainState)}):
            raise UserError(f"{name:.80} is {'unknown' if name in values else 'missing'}")
        return from_json(TrainState, json.dumps(values))
    except (ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _check_progress(trainer: Trainer, state: TrainState, folder: Path) -> None:
    """Reject numbers that no training can have reached at this step."""
    step, examples = state.step, trainer.batches.examples
    if step != step_of(folder):
        raise UserError(f"{folder / STATE}: step={step} is not that of {folder.name}")
    often = 1 if examples.weights is None else 1 + int(examples.weights.max())
    most = {
        "epoch": step * trainer.config.grad_accumulation,  # each has a batch
        "position": len(examples.lengths) * often + trainer.batches.ranks,
        "skipped": 3,
        **dict.fromkeys(("validated", "best_step", "validations_without_improvement"), step),
    }
    for name, bound in most.items():
        if (value := getattr(state, name)) > bound:
            wrong = f"{name}={value} is out of range: at step {step} it is {bound} at most"
            raise UserError(f"{folder / STATE}: {wrong}")


def _check_headers(trainer: Trainer, folder: Path) -> None:
    """Compare names, types and shapes of all tensors with what this training would save."""
    weights: Header = {}
    moments: Header = {}
    tokens = read_state(folder / STATE).tokens
    found = read_header(folder / OPTIMIZER)
    moved = tokens > 0 or any(name.startswith("step.") for name in found)
    for name, parameter in trainer.saved.items():
        kind = ("F64" if parameter.dtype == torch.float64 else "F32", tuple(parameter.shape))
        weights[name] = kind
        if moved and parameter.requires_grad:
            moments[f"step.{name}"] = ("F32", ())
            kept = moment_names(trainer.optimizer, parameter)
            moments |= {f"{key}.{name}": kind for key in kept}
        if name in trainer.ema:
            moments[f"ema.{name}"] = kind
    file = folder / trainer.weights_file
    check_tensors(file, read_header(file), weights)
    check_tensors(folder / OPTIMIZER, found, moments)


def _check_values(path: Path, tensors: _Tensors, step: int) -> None:
    for name, shard in tensors.items():
        tensor = local_tensor(shard)
        fits = torch.isfinite(tensor)
        if name.startswith("step."):
            fits &= (tensor >= 0) & (tensor <= step) & (tensor == tensor.round())
        if name.startswith("exp_avg_sq."):
            fits &= tensor >= 0
        if not fits.all():
            wrong = tensor[~fits].flatten()[0].item()
            raise UserError(f"{path}: {name} is out of range: {wrong} cannot be after {step} steps")


def write_final_weights(trainer: Trainer) -> None:
    """Write the weights to be used, as the recipe says: an average, the best, or the last."""
    run, file = trainer.run, trainer.weights_file
    last = run.finished / name_of(trainer.state.step)
    weights, moments = _tensors_of(trainer)
    weights = _gather(trainer, weights)
    moments = _gather(trainer, {n: t for n, t in moments.items() if n.startswith("ema.")})
    if trainer.world.is_main:
        weights = _select_final_weights(trainer, weights, moments)
        try:
            if find_damage(last) is None and not _holds(last / file, weights):
                # It was made when the recipe asked for something else.
                atomic.remove_atomically(last)
            atomic.commit(last, lambda folder: write_tensors(folder / file, weights))
            for older in list_checkpoints(run.finished):
                if older != last:  # even one of more steps: a training that was begun again
                    atomic.remove_atomically(older)
        except OSError as error:
            raise FailedError(
                f"training is done, but its weights could not be written: {run.path}: "
                f"{error.strerror or error}. Free some space, and run the same command again"
            ) from error
    trainer.world.barrier()


def _gather(trainer: Trainer, tensors: _Tensors) -> _Tensors:
    """Full tensors on the CPU of the main process: finished weights are one file."""
    full: _Tensors = {}
    for name, shard in tensors.items():
        tensor = full_tensor(shard)  # all processes take part, one tensor at a time
        if trainer.world.is_main:
            full[name] = tensor.cpu().contiguous()
    return full


def _select_final_weights(trainer: Trainer, last: _Tensors, moments: _Tensors) -> _Tensors:
    config, state, checkpoints = trainer.config, trainer.state, trainer.run.checkpoints
    if config.average_checkpoints and not config.ema:
        found = _checkpoints_to_average(trainer)
        wanted = min(config.average_checkpoints, math.ceil(state.step / config.checkpoint_every))
        if len(found) < wanted:
            trainer.report.warn(f"of {wanted} checkpoints to average only {len(found)} are left")
        folders = _valid_checkpoints(trainer, found)
        return average_checkpoints([f / trainer.weights_file for f in folders]) or last
    if config.patience and state.best_step:
        for best in _valid_checkpoints(trainer, [checkpoints / name_of(state.best_step)]):
            last, moments = (read_tensors(best / f) for f in (trainer.weights_file, OPTIMIZER))
    return {name: moments[f"ema.{name}"] for name in last} if config.ema else last


def _checkpoints_to_average(trainer: Trainer) -> list[Path]:
    """The last of the regular checkpoints; those that an interruption adds must change nothing."""
    config, last = trainer.config, trainer.run.checkpoints / name_of(trainer.state.step)
    made = list_checkpoints(trainer.run.checkpoints)
    regular = [f for f in made if f == last or step_of(f) % config.checkpoint_every == 0]
    return regular[: config.average_checkpoints]


def _valid_checkpoints(trainer: Trainer, folders: list[Path]) -> list[Path]:
    examine = partial(_check_headers, trainer)
    damage = {folder: find_damage(folder, examine) for folder in folders}
    for folder, why in damage.items():
        if why is not None:
            trainer.report.warn(f"{folder.name} is left out of the finished weights: {why}")
    return [folder for folder, why in damage.items() if why is None]


def average_checkpoints(files: Sequence[Path]) -> _Tensors:
    """The mean of the weights of several checkpoints (section 6.1); of none, nothing."""
    total: _Tensors = {}
    dtypes: dict[str, torch.dtype] = {}
    for file in files:
        for name, tensor in read_tensors(file).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
            dtypes[name] = tensor.dtype
    return {name: (tensor / len(files)).to(dtypes[name]) for name, tensor in total.items()}


def _holds(path: Path, weights: Mapping[str, Tensor]) -> bool:
    """Whether a file has just these tensors; one that cannot be read has not."""
    try:
        found = read_tensors(path)
    except UserError:
        return False
    return found.keys() == weights.keys() and all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
        for name, tensor in weights.items()
    )
