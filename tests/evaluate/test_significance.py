"""The bootstrap sees a difference that is there, and none that is not."""

import math
import random
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.errors import UserError
from limelight.evaluate.significance import compare_examples, compare_translations
from tests.evaluate.samples import sentences, spoiled

RUNS = ("runs/a", "runs/b")
SEEDS = range(20)
VALUES = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=30)


def coin(seed, chance, count=400):
    draw = random.Random(f"{seed} {chance}")
    return [float(draw.random() < chance) for _ in range(count)]


def test_translations_are_compared_as_by_the_command(tmp_path):
    references = sentences(1)
    systems = spoiled(references, 0.2, 1), spoiled(references, 0.3, 2)
    files = [tmp_path / name for name in ("reference", "a", "b")]
    for file, lines in zip(files, (references, *systems), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    # Its JSON fails on numbers of numpy 2, so its table is read.
    said = ["--paired-bs", "-m", "bleu", "chrf", "ter", "-w", "12", "-f", "latex"]
    command = [sys.executable, "-m", "sacrebleu", files[0], "-i", *files[1:], *said]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True)
    theirs = re.findall(r"([\d.]+) \(([\d.]+) ± ([\d.]+)\)(?: \(p = ([\d.]+)\))?", done.stdout)
    ours = compare_translations(RUNS, systems, references)
    assert [compared.name for compared in ours] == ["BLEU", "chrF2", "TER"]
    told = [(c.first, c.p_value) for c in ours] + [(c.second, c.p_value) for c in ours]
    for (mine, p_value), (score, mean, half, their_p) in zip(told, theirs, strict=True):
        assert mine.score == pytest.approx(float(score), abs=1e-6)
        assert mine.low < float(mean) < mine.high
        assert (mine.high - mine.low) / 2 == pytest.approx(float(half), abs=1e-5)  # its float32
        assert p_value == pytest.approx(float(their_p or p_value), abs=5e-5)
    assert all(compared.signature in done.stdout for compared in ours)


BEST = {"BLEU": 100, "chrF2": 100, "TER": 0}
WORST = {"BLEU": 0, "chrF2": 0, "TER": math.inf}


@pytest.mark.parametrize(("lines", "spoilt"), [(40, 1), (40, 39), (3, 2), (1, 1)])
def test_an_interval_has_possible_scores_and_the_estimate(lines, spoilt):
    """Nearly perfect, nearly all wrong, or of few lines: as far out as an interval can be."""
    references = sentences(1)[:lines]
    nearly = ["zzz zzz"] * spoilt + references[spoilt:]
    for compared in compare_translations(RUNS, (nearly, references), references, samples=200):
        least, most = sorted((BEST[compared.name], WORST[compared.name]))
        for found in (compared.first, compared.second):
            assert least - 1e-9 <= found.low <= found.score <= found.high <= most + 1e-9
        perfect = compared.second
        assert (perfect.low, perfect.high) == pytest.approx((perfect.score,) * 2, abs=1e-4)
        if 1 < spoilt < lines or lines == 40:  # the control: it is no interval of one point
            assert compared.first.high > compared.first.low


@pytest.mark.parametrize("seed", SEEDS)
def test_better_translations_are_told_from_worse_and_from_themselves(seed):
    references = sentences(seed)
    good, bad = spoiled(references, 0.1, seed), spoiled(references, 0.5, seed)
    for compared in compare_translations(RUNS, (good, bad), references, samples=100):
        better, worse = compared.first, compared.second
        assert compared.p_value < 0.05
        assert (better.score < worse.score) == (compared.better == "lower")
    for compared in compare_translations(RUNS, (good, list(good)), references, samples=100):
        assert compared.p_value == 1
        assert compared.first.low == compared.second.low


def test_another_seed_draws_other_samples_and_says_so(monkeypatch):
    references = sentences(1)
    systems = spoiled(references, 0.2, 1), spoiled(references, 0.3, 2)
    usual, _, _ = compare_translations(RUNS, systems, references, samples=100)
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    other, _, _ = compare_translations(RUNS, systems, references, samples=100)
    assert "seed:12345" in usual.signature
    assert "seed:7" in other.signature
    assert other.first.score == usual.first.score
    assert other.first.low != usual.first.low


def test_what_scores_the_same_is_not_called_different():
    references = sentences(1)
    spaced = [line.replace(" ", "  ") for line in references]  # no measure looks at spaces
    for compared in compare_translations(RUNS, (references, spaced), references, samples=100):
        assert compared.p_value == 1


def test_translations_in_the_other_order_give_the_same():
    references = sentences(3)
    systems = spoiled(references, 0.2, 1), spoiled(references, 0.25, 2)
    one = compare_translations(RUNS, systems, references, samples=200)
    other = compare_translations(RUNS[::-1], systems[::-1], references, samples=200)
    for a, b in zip(one, other, strict=True):
        assert (a.first, a.second, a.p_value) == (b.second, b.first, b.p_value)


@pytest.mark.parametrize("seed", SEEDS)
def test_accuracies_are_told_apart_only_if_they_differ(seed):
    good, bad = coin(seed, 0.9), coin(seed, 0.6)
    assert compare_examples("accuracy", RUNS, (good, bad), seed=seed).p_value < 0.05
    assert compare_examples("accuracy", RUNS, (good, good), seed=seed).p_value == 1
    # 400 of 800 for both, in another order: no difference to be found.
    turned = [1 - value for value in coin(seed, 0.5)]
    mixed = coin(seed, 0.5) + turned
    assert compare_examples("accuracy", RUNS, (mixed, mixed[::-1]), seed=seed).p_value > 0.5


def test_equal_systems_are_called_different_about_as_rarely_as_promised():
    found = [
        compare_examples("accuracy", RUNS, (coin(i, 0.7, 200), coin(-1 - i, 0.7, 200))).p_value
        for i in range(100)
    ]
    assert sum(p < 0.05 for p in found) <= 12  # 5 are due; more than 12 would be bad luck 1 in 500
    assert np.mean(found) > 0.35


def test_paired_examples_show_what_single_ones_hide():
    # One run is better by a little everywhere, while examples differ a lot among themselves.
    draw = random.Random(1)
    hard = [draw.uniform(1, 100) for _ in range(50)]
    easier = [value - 0.1 - draw.uniform(0, 0.1) for value in hard]
    compared = compare_examples("loss", RUNS, (hard, easier), better="lower")
    assert compared.p_value < 0.01
    assert compared.first.low < compared.second.high  # the intervals overlap all the same
    draw.shuffle(easier)
    assert compare_examples("loss", RUNS, (hard, easier), better="lower").p_value > 0.05


def test_the_interval_of_a_coin_is_the_known_one():
    heads = [1.0] * 700 + [0.0] * 300
    compared = compare_examples("accuracy", RUNS, (heads, heads), samples=5000)
    half = 1.96 * math.sqrt(0.7 * 0.3 / 1000)
    assert compared.first.score == 0.7
    assert (compared.first.low, compared.first.high) == pytest.approx(
        (0.7 - half, 0.7 + half), abs=0.003
    )
    for constant in ([1.0] * 10, [0.25] * 10):
        sure = compare_examples("accuracy", RUNS, (constant, constant)).first
        assert (sure.low, sure.high) == pytest.approx((sure.score, sure.score))


def test_of_losses_every_token_counts_the_same():
    long_and_bad, short_and_good = 90.0, 1.0
    losses = [long_and_bad, short_and_good]
    compared = compare_examples("loss", RUNS, (losses, losses), counts=[30, 10], better="lower")
    assert compared.first.score == pytest.approx(91 / 40)
    assert (compared.first.low, compared.first.high) == pytest.approx((0.1, 3))


@settings(deadline=None, max_examples=50)
@given(VALUES, st.integers(0, 2**32))
def test_bounds_symmetry_and_the_same_again(pairs, seed):
    first, second = ([p[side] for p in pairs] for side in (0, 1))
    options = {"samples": 100, "seed": seed}
    one = compare_examples("loss", RUNS, (first, second), **options)
    other = compare_examples("loss", RUNS[::-1], (second, first), **options)
    assert 0 < one.p_value <= 1
    for estimate, values in ((one.first, first), (one.second, second)):
        assert min(values) - 1e-9 <= estimate.low <= estimate.high <= max(values) + 1e-9
    assert (one.first, one.second, one.p_value) == (other.second, other.first, other.p_value)
    assert one == compare_examples("loss", RUNS, (first, second), **options)


def test_another_seed_draws_others():
    values = coin(1, 0.5), coin(2, 0.52)
    one, other = (compare_examples("accuracy", RUNS, values, seed=seed) for seed in (1, 2))
    assert one.first.score == other.first.score
    assert one.p_value != other.p_value
    assert "seed:2" in other.signature


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(UserError, match="2 and 3 examples"):
        compare_examples("accuracy", RUNS, ([1, 0], [1, 0, 1]))
    with pytest.raises(UserError, match="with 1 counts"):
        compare_examples("loss", RUNS, ([1, 0], [1, 0]), counts=[1])
    with pytest.raises(UserError, match="no examples"):
        compare_examples("accuracy", RUNS, ([], []))
    with pytest.raises(UserError, match="not finite"):
        compare_examples("loss", RUNS, ([1.0, math.nan], [1.0, 2.0]))
    with pytest.raises(UserError, match="one of 0"):
        compare_examples("loss", RUNS, ([1.0, 2.0], [1.0, 2.0]), counts=[0, 3])
    with pytest.raises(UserError, match="samples=5"):
        compare_examples("loss", RUNS, ([1.0], [1.0]), samples=5)
    with pytest.raises(UserError, match="1 outputs and 2 references"):
        compare_translations(RUNS, (["a", "b"], ["a"]), ["a", "b"])
