"""The learning rate: the paper's formula, and what all schedules have in common."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import get_args

import pytest

from limelight.errors import UserError
from limelight.training.config import TrainConfig
from limelight.training.lr_schedule import learning_rate

SCHEDULES = get_args(TrainConfig.__dataclass_fields__["schedule"].type)
STEPS, WARMUP, PEAK, WIDTH = 1000, 100, 0.003, 64


def config(schedule, **changes):
    usual = {"steps": STEPS, "warmup": WARMUP, "learning_rate": PEAK}
    return TrainConfig(schedule=schedule, **{**usual, **changes})


def curve(schedule, **changes):
    """The rates of steps 1, 2, ...; the peak is at index warmup - 1."""
    made = config(schedule, **changes)
    return [learning_rate(made, WIDTH, step) for step in range(1, made.steps + 1)]


def peak_of(schedule):
    return PEAK * (WIDTH * WARMUP) ** -0.5 if schedule == "paper" else PEAK


@pytest.mark.parametrize("step", [1, 10, 3999, 4000, 4001, 100_000])
def test_the_paper_s_is_equation_3(step):
    rate = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
    assert learning_rate(TrainConfig(), 512, step) == pytest.approx(rate, rel=1e-14)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_rises_in_a_line_to_the_peak_and_never_again(schedule):
    rates = curve(schedule)
    for step in range(1, WARMUP + 1):
        assert rates[step - 1] == pytest.approx(peak_of(schedule) * step / WARMUP)
    after = rates[WARMUP - 1 :]
    assert after == sorted(after, reverse=True)
    assert all(rate > 0 for rate in rates)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_does_not_jump(schedule):
    rates = curve(schedule)
    jumps = [abs(b - a) for a, b in pairwise(rates)]
    assert max(jumps) <= 1.1 * peak_of(schedule) / WARMUP


@pytest.mark.parametrize(
    ("schedule", "end"),
    [
        ("paper", math.sqrt(WARMUP / STEPS)),
        ("inverse-sqrt", math.sqrt(WARMUP / STEPS)),
        ("cosine", 0.1),
        ("linear", 0.001),
        ("wsd", 0.001),
    ],
)
def test_where_it_ends(schedule, end):
    assert curve(schedule)[-1] == pytest.approx(peak_of(schedule) * end)


def test_wsd_is_stable_until_its_last_fifth():
    rates = curve("wsd", warmup=0)
    assert rates[:800] == [PEAK] * 800
    assert rates[801] < PEAK
    assert rates[899] == pytest.approx(PEAK / 2, rel=0.01)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_depends_on_the_step_alone(schedule):
    """Asked in any order, or twice, it says the same; only some look at the end."""
    forwards = curve(schedule)
    made = config(schedule)
    assert [learning_rate(made, WIDTH, step) for step in range(STEPS, 0, -1)] == forwards[::-1]
    longer = curve(schedule, steps=2 * STEPS)[:STEPS]
    assert (longer == forwards) == (schedule in ("paper", "inverse-sqrt"))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_may_begin_at_the_peak(schedule):
    rates = curve(schedule, warmup=0)
    assert rates[0] == max(rates)
    assert all(0 < rate < math.inf for rate in rates)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_a_warmup_that_leaves_nothing_is_refused(schedule):
    with pytest.raises(UserError, match=r"warmup=1000 leaves nothing of steps=1000"):
        replace(config(schedule), warmup=1000)
    assert replace(config("paper"), warmup=1000).warmup == 1000
