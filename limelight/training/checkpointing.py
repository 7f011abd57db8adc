"""What a training keeps: checkpoints while it goes, and at its end the weights to be used."""

import math
from pathlib import Path

from torch import Tensor

from limelight.errors import FailedError
from limelight.run.atomic import (
    check_disk_space,
    commit,
    find_damage,
    list_checkpoints,
    prune,
    remove_atomically,
)
from limelight.run.log import Log
from limelight.run.weights import WEIGHTS, name_of, read_tensors, step_of
from limelight.training.checkpoint import (
    OPTIMIZER,
    NotFiniteError,
    average_checkpoints,
    collect_tensors,
    same_tensors,
    write,
    write_tensors,
)
from limelight.training.trainer import Trainer


def save_checkpoint(trainer: Trainer, log: Log | None, must: bool) -> None:
    """Commit a checkpoint, then delete old ones. A full disk does not end a run before it must."""
    state, config, run = trainer.state, trainer.config, trainer.run
    weights, kept = collect_tensors(trainer.learner.model, trainer.optimizer, trainer.ema)
    if trainer.workers.is_main and log is not None:
        try:
            log.sync()
            needed = sum(t.nbytes for t in (*weights.values(), *kept.values()))
            check_disk_space(run.path, needed)
            last = run.checkpoints / name_of(state.step)
            commit(last, lambda f: write(f, weights, kept, state))
            trainer.written.add(last.name)
            best = [name_of(state.best_step)] if config.patience else []
            spare = [*best, *(folder.name for folder in _checkpoints_to_average(trainer))]
            prune(run.checkpoints, config.keep_checkpoints, spare, trainer.written)
        except NotFiniteError as error:
            raise FailedError(f"{error}; the last good checkpoint is kept") from error
        except OSError as error:
            why = f"{run.path}: {error.strerror or error}"
            sentence = f"step {state.step} could not be saved: {why}"
            if must:
                raise FailedError(f"{sentence}; free some space, and say the same again") from error
            trainer.report.warn(f"{sentence}. Training goes on; free some space")
    trainer.workers.barrier()


def _checkpoints_to_average(trainer: Trainer) -> list[Path]:
    """The last of the regular checkpoints; those that an interruption adds must change nothing."""
    config, last = trainer.config, trainer.run.checkpoints / name_of(trainer.state.step)
    made = list_checkpoints(trainer.run.checkpoints)
    regular = [f for f in made if f == last or step_of(f) % config.checkpoint_every == 0]
    return regular[: config.average_checkpoints]


def write_final_weights(trainer: Trainer) -> None:
    """Write the weights to be used, as the recipe says: an average, the best, or the last."""
    run, last = trainer.run, trainer.run.finished / name_of(trainer.state.step)
    weights, kept = collect_tensors(trainer.learner.model, trainer.optimizer, trainer.ema)
    if trainer.workers.is_main:
        weights = _select_final_weights(trainer, weights, kept)
        try:
            if find_damage(last) is None and not same_tensors(
                read_tensors(last / WEIGHTS), weights
            ):
                remove_atomically(last)  # it was made when the recipe asked for something else
            commit(last, lambda f: write_tensors(f / WEIGHTS, weights))
            for older in list_checkpoints(run.finished):
                if older != last:  # even one of more steps: a training that was begun again
                    remove_atomically(older)
        except OSError as error:
            raise FailedError(
                f"training is done, but its weights could not be written: {run.path}: "
                f"{error.strerror or error}. Free some space, and say the same again"
            ) from error
    trainer.workers.barrier()


def _select_final_weights(
    trainer: Trainer, last: dict[str, Tensor], kept: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The best weights if they are asked for, or the last; with `ema` their running average."""
    config, state, checkpoints = trainer.config, trainer.state, trainer.run.checkpoints
    if config.average_checkpoints and not config.ema:
        found = _checkpoints_to_average(trainer)
        wanted = min(config.average_checkpoints, math.ceil(state.step / config.checkpoint_every))
        if len(found) < wanted:
            trainer.report.warn(f"of {wanted} checkpoints to average only {len(found)} are left")
        return average_checkpoints(_valid_checkpoints(trainer, found)) or last
    if config.patience and state.best_step:
        for best in _valid_checkpoints(trainer, [checkpoints / name_of(state.best_step)]):
            last, kept = read_tensors(best / WEIGHTS), read_tensors(best / OPTIMIZER)
    return {name: kept[f"ema.{name}"] for name in last} if config.ema else last


def _valid_checkpoints(trainer: Trainer, folders: list[Path]) -> list[Path]:
    """Those of the checkpoints that are whole; what is wrong with the others is told."""
    whole = []
    for folder in folders:
        why = find_damage(folder)
        if why is None:
            whole.append(folder)
        else:
            trainer.report.warn(f"{folder.name} is left out of the finished weights: {why}")
    return whole
