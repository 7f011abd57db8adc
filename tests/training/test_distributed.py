"""Two processes do what one does; and when one of them dies or meets a NaN, both know."""

import math
import os
import random
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

import limelight
from limelight.data.batching import BatchPlan, plan_epoch
from limelight.data.datasets import lengths_of
from limelight.data.token_store import open_or_build
from limelight.run.log import read_log, without_timing
from tests.training.processes import (
    ROOT,
    SECONDS,
    command,
    many,
    process,
    result,
    said_of,
    steps_logged,
    train_command,
)

STEPS = 20
EXACT = [
    f"--train.steps={STEPS}",
    "--train.precision=float64",
    "--train.validate-every=8",
    "--train.batch-tokens=40",
    "--train.ema=0.9",  # is what the weights in the end are
    "--train.eps=1e-6",  # biases of keys get no gradient but rounding, and Adam would enlarge that
]


def train_many(run, settings, work=command, *given):
    with many(work, train_command(run, settings), *given, folder=run) as children:
        for child, rank in zip(children, "01", strict=True):
            child.join(SECONDS)
            assert child.exitcode == 0, said_of(run, rank).read_text()


def train_with_turns_of_two(arguments):
    """One process, whose epochs end as those of two processes do: with nothing for the second."""
    epoch = BatchPlan.epoch

    def even(batches, number, position=0):
        taken = list(epoch(batches, number, position))
        return iter(taken + [None] * (len(taken) % 2))

    BatchPlan.epoch = even
    command(arguments)


def batches_in_an_epoch(run):
    loaded = limelight.load(run)
    stores = run.parent / "cache" / "stores"
    store = open_or_build(loaded.recipe.data, "train", loaded.tokenizer, stores)
    return len(plan_epoch(lengths_of(store), loaded.recipe.train.batch_tokens, 1, 0))


def weights_of(run):
    return load_file(run / "finished" / f"step-{STEPS:06}" / "weights.safetensors")


def validations(run):
    """What was measured, without what the model wrote: of shared weights nobody has the whole."""
    entries = [entry for entry in read_log(run / "log.jsonl") if entry.get("validation")]
    return [
        {k: v for k, v in without_timing(e).items() if k not in ("exact", "samples")}
        for e in entries
    ]


@pytest.mark.parametrize(("examples", "odd"), [(64, 0), (68, 1)])
def test_one_process_two_and_two_that_share_the_weights_are_equal(tmp_path, examples, odd):
    """Accumulating 4 batches, or 2 in each; where an epoch is odd, one is without a batch."""
    settings = [*EXACT, f"--data.toy-examples={examples}"]
    one, two, shared = (tmp_path / name for name in ("one", "two", "shared"))
    alone = train_command(one, [*settings, "--train.grad-accumulation=4"])
    work = train_with_turns_of_two if odd else command
    cache = str(tmp_path / "cache")
    with process(work, alone, said=said_of(one), LIMELIGHT_CACHE=cache) as child:
        child.join(SECONDS)
        assert child.exitcode == 0, said_of(one).read_text()
    train_many(two, [*settings, "--train.grad-accumulation=2"])
    train_many(shared, [*settings, "--train.grad-accumulation=2", "--train.fsdp"])
    assert batches_in_an_epoch(one) % 2 == odd
    wanted = weights_of(one)
    for run in (two, shared):
        found = weights_of(run)
        assert found.keys() == wanted.keys()
        for name, weight in found.items():
            assert weight.dtype == torch.float64
            torch.testing.assert_close(weight, wanted[name], rtol=0, atol=1e-10)
        steps = [entry["step"] for entry in read_log(run / "log.jsonl") if "lr" in entry]
        assert steps == list(range(1, STEPS + 1))  # written once, by the first
        assert said_of(run, "1").read_text() == ""
        assert len(validations(run)) == 3
        for ours, theirs in zip(validations(run), validations(one), strict=True):
            assert ours == pytest.approx(theirs, abs=1e-10)


KILLED = [
    f"--train.steps={STEPS}",
    "--train.grad-accumulation=2",
    "--train.checkpoint-every=3",
    "--train.validate-every=7",
]


def torchrun(run, settings, meet=("--standalone", "--nproc-per-node=2"), name="0"):
    """Two processes, that are started again when one of them dies."""
    starter = [sys.executable, "-m", "torch.distributed.run", *meet]
    # Without the "--" torchrun takes our --run for the beginning of its own --run-path.
    words = [*starter, "--max-restarts=3", "-m", "--", "tests.training.processes", str(run.parent)]
    ours = {"OMP_NUM_THREADS": "1", "LIMELIGHT_CACHE": str(run.parent / "cache")}
    ours["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # of an attempt before, between machines
    with said_of(run, name).open("w") as said:
        return subprocess.Popen(
            [*words, *train_command(run, settings)],
            cwd=ROOT,
            env=os.environ | ours,
            stdout=said,
            stderr=said,
        )


@pytest.mark.system
@pytest.mark.parametrize("how", [[], ["--train.fsdp"]])
def test_two_machines_with_a_process_each_start_again_together(tmp_path, how):
    """Two launchers that meet at an address, as on two machines that share a disk."""
    train_many(tmp_path / "whole", [*KILLED, *how])
    run = tmp_path / "run"
    with socket.create_server(("localhost", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
    meet = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={address}"]
    machines = []
    try:
        for number in "ab":
            machines.append(torchrun(run, [*KILLED, *how], meet, f"machine-{number}"))
        kill_one(run, 1, 5, machines[0])
        for number, machine in zip("ab", machines, strict=True):
            assert machine.wait(2 * SECONDS) == 0, said_of(run, f"machine-{number}").read_text()
    finally:
        for machine in machines:
            machine.terminate()
            machine.wait()
    assert result(run) == result(tmp_path / "whole")


def process_of(run, rank):
    """The number of the process with this rank, or none yet."""
    told = run.parent / f"process-{rank}"
    return int(told.read_text() or "0") if told.exists() else 0


def is_alive(number):
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def wait_while(so, starter):
    end = time.monotonic() + 2 * SECONDS
    while so():
        assert starter.poll() is None
        assert time.monotonic() < end
        time.sleep(0.005)


def kill_one(run, rank, step, starter):
    """Kill a rank after a step; the other one must end too, and both be started again."""
    wait_while(lambda: steps_logged(run) < step, starter)
    both = [process_of(run, 0), process_of(run, 1)]
    os.kill(both[rank], signal.SIGKILL)
    wait_while(lambda: is_alive(both[1 - rank]), starter)
    wait_while(lambda: {process_of(run, 0), process_of(run, 1)} & {0, *both}, starter)


@pytest.mark.parametrize(
    ("launches", "ranks", "how"),
    [
        (1, [1], []),
        pytest.param(1, [0, 1], [], marks=pytest.mark.system),  # six processes, one by one
        pytest.param(1, [0, 1], ["--train.fsdp"], marks=pytest.mark.system),
        pytest.param(1, [1], ["--train.tensor-parallel=2"], marks=pytest.mark.system),
        pytest.param(5, [0, 1], [], marks=pytest.mark.soak),
    ],
)
def test_when_a_rank_is_killed_both_start_again_and_end_the_same(tmp_path, launches, ranks, how):
    draw = random.Random(launches)
    settings = [*KILLED, *how]
    train_many(tmp_path / "whole", settings)
    for launch in range(launches):
        folder = tmp_path / str(launch)
        folder.mkdir()
        run = folder / "run"
        starter = torchrun(run, settings)
        try:
            for rank in ranks:
                first, last = (1, 9) if rank == ranks[0] else (10, STEPS - 1)
                kill_one(run, rank, draw.randint(first, last), starter)
            assert starter.wait(2 * SECONDS) == 0, said_of(run).read_text()
        finally:
            starter.terminate()
            starter.wait()
        assert result(run) == result(tmp_path / "whole")


def train_with_nan(arguments, spoiled, folder):
    """In one rank the loss of the third step is no number; each keeps the weights it ends with."""
    from limelight.training.objectives import LossModule
    from limelight.workflows import train

    rank = os.environ["RANK"]
    forward, fit = LossModule.forward, train.fit
    calls = 0

    def spoil(learner, batch):
        nonlocal calls
        calls += learner.training
        score = forward(learner, batch)
        bad = rank == spoiled and learner.training and calls == 3
        return score._replace(loss=score.loss * math.nan) if bad else score

    def keep(trainer):
        left = fit(trainer)
        weights = dict(trainer.loss_module.model.named_parameters())
        save_file({name: p.detach() for name, p in weights.items()}, folder / f"{rank}.safetensors")
        return left

    LossModule.forward, train.fit = spoil, keep
    command(arguments)


def test_a_nan_in_one_rank_is_skipped_by_both(tmp_path):
    """Whichever it is: the weights that all four end with are the same."""
    ends = []
    for spoiled in "01":
        run = tmp_path / f"run-{spoiled}"
        run.mkdir()
        train_many(run, [f"--train.steps={STEPS}"], train_with_nan, spoiled, run)
        skipped = [e["step"] for e in read_log(run / "log.jsonl") if e.get("skipped")]
        assert skipped == [3]
        assert "step 3 was skipped" in said_of(run).read_text()
        ends += [load_file(run / f"{rank}.safetensors") for rank in "01"]
    for end in ends:
        assert all(tensor.isfinite().all() for tensor in end.values())
        assert all(torch.equal(tensor, ends[0][name]) for name, tensor in end.items())
