"""Every check finds the fault that is planted for it, and nothing in sound data."""

from functools import cache, partial

import numpy as np
import pytest

from limelight.errors import UserError
from limelight.lab import diagnose
from limelight.lab.experiment import Subject
from limelight.lab.report import draw
from limelight.recipe import load_recipe

WORDS = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay", "kid", "lark"]
RECIPE = """[data]
train = ["{train}"]
valid = ["{valid}"]
[tokenizer]
kind = "word"
vocab = 400
[model]
layers = 1
d_model = 32
heads = 2
d_ff = 32
max_len = 32
[train]
steps = 50
schedule = "inverse-sqrt"
warmup = 10
label_smoothing = 0.0
learning_rate = {rate}
"""


def sentences(seed, count):
    """Sentences of some words, and the same in capitals: every word has its translation."""
    random = np.random.default_rng(seed)
    lines = [" ".join(random.choice(WORDS, size=random.integers(2, 6))) for _ in range(count)]
    return [(line, line.upper()) for line in dict.fromkeys(lines)]


TRAIN = sentences(1, 160)
VALID = [pair for pair in sentences(2, 20) if pair not in TRAIN]
SHIFTED = [(a, TRAIN[i - 1][1]) for i, (a, _) in enumerate(TRAIN)]
MIXED = [(a, TRAIN[(7 * i + 3) % len(TRAIN)][1]) for i, (a, _) in enumerate(TRAIN)]
ONE_SOURCE = [(TRAIN[0][0], b) for _, b in TRAIN]
ONE_TARGET = [(a, "CAT" if i % 3 else b) for i, (a, b) in enumerate(TRAIN)]


@pytest.fixture
def checked(tmp_path):
    """What a check of these pairs says: the sentence that tells what to do, or nothing."""

    def judged(train, valid=VALID, rate=0.01):
        files = {}
        for split, pairs in (("train", train), ("valid", valid)):
            files[split] = tmp_path / f"{split}.tsv"
            files[split].write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
        path = tmp_path / "own.toml"
        path.write_text(RECIPE.format(rate=rate, **files))
        return diagnose.measurements(True, Subject(str(path), tmp_path))

    return judged


def test_sound_data_passes_every_check(checked):
    values = {name: measure() for name, measure in checked(TRAIN).items()}
    found = diagnose.findings(values)
    assert found.conclusion == ["All checks passed: nothing wrong was found."]
    assert [row[2] for row in found.table[1:]] == ["fine"] * 5
    assert [ax.get_xlabel() for ax in draw(found.panels).axes] == ["step", "learning rate"]


def test_leaks_are_found(checked):
    values = {name: measure() for name, measure in checked(TRAIN, [*VALID, *TRAIN[:5]]).items()}
    (found,) = diagnose.findings(values).conclusion
    assert found.startswith("data: 5 different sources of valid are also in train")


@pytest.mark.parametrize(
    ("pairs", "fault"),
    [
        (SHIFTED, "the line beside them better"),
        (MIXED, "no better than shuffled"),
        (ONE_SOURCE, "no better than shuffled"),
    ],
)
def test_targets_of_other_sources_are_found(checked, pairs, fault):
    assert fault in diagnose._judge_pairing(checked(pairs)["pairing"]())[1]


def test_what_cannot_be_learned_by_heart_is_found(checked):
    measure = checked(ONE_SOURCE)
    found = measure["overfitting"]()
    assert "cannot learn 8 examples" in diagnose._judge_overfitting(found["losses"])[1]
    assert "the same answer" in diagnose._judge_collapse(measure["data"](), found)[1]


def test_one_target_for_most_sources_is_found(checked):
    found = diagnose._judge_collapse(checked(ONE_TARGET)["data"](), {"answers": 8, "targets": 8})
    assert found[1].startswith("67% of all targets are 'CAT'")


@pytest.mark.parametrize(("rate", "fault"), [(30.0, "too high"), (1e-6, "is low")])
def test_a_rate_out_of_range_is_found(checked, rate, fault):
    assert fault in diagnose._judge_rate(checked(TRAIN, rate=rate)["rates"]())[1]


def test_the_suggested_rate_is_where_the_loss_falls():
    rates = np.geomspace(1e-6, 1, 61).tolist()
    losses = [5.0] * 30 + [5.0 - 0.2 * i for i in range(15)] + [2.0 + i for i in range(16)]
    fastest, highest = diagnose.limits({"rates": rates, "losses": losses})
    assert rates[30] <= fastest <= rates[45]
    assert highest == rates[45]
    broken = [*losses[:50], float("nan")]
    assert diagnose.limits({"rates": rates[:51], "losses": broken})[1] == rates[45]


@pytest.mark.parametrize("name", ["bert", "classifier", "writer", "lstm"])
def test_other_families_are_diagnosed(tmp_path, name):
    from limelight.recipe import write_recipe
    from tests.tasks.conftest import recipe_for

    recipe = recipe_for(name, tmp_path)
    path = tmp_path / "own.toml"
    path.write_text(write_recipe(recipe))
    prepared = cache(partial(diagnose._prepare, load_recipe(str(path))))
    pairing = diagnose._pairing(prepared)
    assert bool(pairing) == (name in ("classifier", "lstm"))
    losses = diagnose._overfitting(prepared, 5)["losses"]
    assert losses[-1] < losses[0]


def test_a_model_too_large_for_this_machine_is_refused(tmp_path):
    with pytest.raises(UserError, match="to train gpt3-175b takes about"):
        diagnose.measurements(True, Subject("gpt3-175b", tmp_path))


def test_texts_at_the_limit_are_learned_whole(tmp_path):
    """Whatever the recipe does to them: in pieces they would be too long for the model."""
    lines = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(12)]
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\t{line}\n" for line in lines))
    path = tmp_path / "own.toml"
    text = RECIPE.format(rate=0.01, train=tmp_path / "pairs.tsv", valid=tmp_path / "pairs.tsv")
    text = text.replace('"word"', '"bpe"').replace("max_len = 32", "max_len = 13")
    path.write_text(text + "bpe_dropout = 0.9\npack = 13\nbatch_tokens = 26\n")
    prepared = cache(partial(diagnose._prepare, load_recipe(str(path))))
    assert len(diagnose._overfitting(prepared, 3)["losses"]) == 3
