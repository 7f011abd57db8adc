"""The experiments that compare networks are fair, and theory's direction shows in miniature."""

import math

import pytest
import torch

from limelight.lab import distance, length, scale, scaling
from limelight.lab.networks import IGNORED, accuracy_of, config_of, make, matched, train
from limelight.lab.report import draw
from limelight.model.count import count_parameters


@pytest.mark.parametrize("task", ["needle", "recall"])
def test_parameters_match_within_five_percent(task):
    _, vocab, _, width, _ = distance._TASKS[task]
    sizes = {
        kind: sum(count_parameters(make(matched(kind, vocab, width, 32), 1)).values())
        for kind in distance.CONTESTANTS
    }
    for size in sizes.values():
        assert abs(size / sizes["transformer"] - 1) < 0.05
    naive = make(config_of("lstm", vocab, 1, width, 32), 1)
    assert sum(count_parameters(naive).values()) < 0.5 * sizes["transformer"], "equal width is not"


def test_needles_and_pairs_have_their_answers():
    tokens, labels = next(distance.needles(1, 16, 8))
    assert torch.equal(labels[:, 8], tokens[:, 0])
    assert (labels[:, :8] == IGNORED).all()
    assert (tokens[:, 1:] >= 8).all(), "no other letter"
    tokens, labels = next(distance.recalls(1, 16, 4))
    for text, wanted in zip(tokens.tolist(), labels.tolist(), strict=True):
        values = dict(zip(text[0:8:2], text[1:8:2], strict=True))
        assert wanted == [IGNORED] * 8 + [values[key] for key in text[8:]]
        assert sorted(text[8:]) == sorted(values), "every key is asked for once"


def test_contestants_read_the_same_batches_and_answer_the_same_questions(monkeypatch):
    read, asked = {}, {}

    def watched(model, batches, *_):
        read[kind].append(next(batches)[0])

    def answered(model, batch):
        asked[kind].append(batch[0])
        return 0.6 if len(asked[kind]) == 1 else 0.4

    monkeypatch.setattr(distance, "train", watched)
    monkeypatch.setattr(distance, "accuracy_of", answered)
    for kind in distance.CONTESTANTS:
        read[kind], asked[kind] = [], []
        found = distance._accuracies("needle", kind, 1e-3, 2, (4, 6, 8), 1)
        assert found == {"4": 0.6, "6": 0.4, "8": 1 / 8}, "after a failure, guessing"
        for seen in (read, asked):
            assert len(seen[kind]) == 2
            assert all(map(torch.equal, seen[kind], seen["rnn"]))
    assert not torch.equal(read["rnn"][0][:, :4], asked["rnn"][0][: len(read["rnn"][0]), :4])


def test_attention_over_own_states_is_causal_and_reaches_back():
    model = make(config_of("lstm with attention", 16, 1, 16, 64), 1).eval()
    tokens = torch.randint(16, (2, 64), generator=torch.Generator().manual_seed(1))
    before = model(tokens)
    later, earlier = tokens.clone(), tokens.clone()
    later[:, 40] += 1
    later %= 16
    assert torch.equal(model(later)[:, :40], before[:, :40])
    earlier[:, 0] = (earlier[:, 0] + 1) % 16
    moved = (model(earlier) - before)[:, -1].abs().max().item()
    plain = make(config_of("lstm", 16, 1, 16, 64), 1).eval()
    assert moved > 100 * (plain(earlier) - plain(tokens))[:, -1].abs().max().item()


def test_training_ends_when_the_watcher_says_so():
    seen = []

    def watch(step, _):
        seen.append(step)
        return step == 3

    train(make(config_of("gru", 32, 1, 8, 8), 1), distance.needles(1, 4, 8), 10, 1e-3, watch)
    assert seen == [1, 2, 3]


def test_attention_finds_the_needle_and_a_simple_recurrent_network_does_not():
    right = {}
    for kind in ("rnn", "lstm with attention"):
        model = make(matched(kind, 17, 32, 64), 1)
        train(model, distance.needles(1, 32, 48), 60, 8e-3)
        right[kind] = accuracy_of(model, next(distance.needles(10_001, 256, 48)))
    assert right["lstm with attention"] > 0.9
    assert right["rnn"] < 0.4


def test_what_contestants_reach_is_computed():
    values = {
        f"{task}: {kind}, rate {rate}, seed {seed}": {
            "8": 1.0,
            "16": 1.0 if kind == "gru" and rate == 0.002 and (seed == 1 or task == "needle") else 0,
        }
        for task in distance._TASKS
        for kind in distance.CONTESTANTS
        for rate in (0.002, 0.008)
        for seed in (1, 2)
    }
    found = distance.findings(values)
    needle, window, recall, _ = found.conclusion
    assert "gru 16" in needle
    assert "gru 1 of 2" in window
    assert "transformer 8" in needle
    assert "transformer 0 of 2" in window
    assert "gru 8" in recall, "one seed of two is not every seed"
    assert found.panels[0].curves["gru"] == {8: [1.0, 1.0], 16: [1.0, 1.0]}
    assert [ax.get_ylabel()[:6] for ax in draw(found.panels).axes] == ["needle", "recall"] * 2


def test_scores_grow_with_d_k_and_scaling_undoes_it():
    for d_k in (16, 64, 256):
        divided = scaling.at_the_start(scaling.network(d_k, True, 1), 1)
        plain = scaling.at_the_start(scaling.network(d_k, False, 1), 1)
        assert plain["variance"] == pytest.approx(d_k * divided["variance"], rel=1e-3)
        assert divided["variance"] == pytest.approx(1, abs=0.4)
        assert plain["entropy"] < divided["entropy"] - 0.3


def test_a_wide_head_learns_with_scaling_and_not_without():
    divided, plain = (scaling._measure(way, 256, 1, 30) for way in scaling._WAYS)
    assert divided["loss"] < 1.0
    assert plain["loss"] > 1.5
    values = {"with scaling, seed 1 at 256": divided, "without, seed 1 at 256": plain}
    assert "higher in every seed at d_k = 256" in scaling.findings(values).conclusion[-1]
    swapped = dict(zip(values, reversed(values.values()), strict=True))
    assert "lower in every seed at 256" in scaling.findings(swapped).conclusion[-1]


def test_echoes_have_the_entropy_that_the_setting_names():
    tokens, labels = next(length.echoes(1, 64, 256))
    assert torch.equal(tokens[:, 1:], labels[:, :-1])
    share = (labels[:, 4:] == tokens[:, 1:-3]).double().mean().item()
    assert share == pytest.approx(0.9 + 0.1 / 16, abs=0.01)
    other = 0.1 / 16
    entropy = -(0.9 + other) * math.log(0.9 + other) - 15 * other * math.log(other)
    assert f"{entropy:.2f} nats" in length.__doc__
    assert pytest.approx(entropy, abs=0.005) == length._FLOOR


def test_a_table_of_positions_ends_and_formulas_do_not():
    for kind in length.KINDS:
        found = length.loss_at_the_end(length.network(kind, 1), 1, 128)
        assert isinstance(found, str) == (kind == "learned")
    refused = length.loss_at_the_end(length.network("learned", 1), 1, 128)
    assert "end at max_len=64" in refused


def test_the_price_of_length_is_that_of_the_real_cache():
    prices = length._prices()
    state = length.network("rotary", 1).start(1, 64)
    size = sum(t.nbytes for t in (*state.keys, *state.values))
    assert prices["64"]["MB of KV cache"] == pytest.approx(1e-6 * size)
    for key, growth in (("MB of KV cache", 16), ("MB of weights", 256)):
        assert prices["1024"][key] / prices["64"][key] == pytest.approx(growth)


def test_relative_positions_learn_a_fixed_distance():
    losses = {}
    for kind in ("rotary", "none"):
        model = length.network(kind, 1)
        train(model, length.echoes(1, 16, 64), 80, 4e-3)
        losses[kind] = length.loss_at_the_end(model, 1, 64)
    assert losses["rotary"] < losses["none"] - 0.3


def test_the_language_follows_its_table_and_its_entropy():
    tokens, labels = scale.language(torch.Generator().manual_seed(1), 512)
    assert (labels[:, 0] == IGNORED).all()
    again = {}
    for text, wanted in zip(tokens.tolist(), labels.tolist(), strict=True):
        for a, b, c in zip(text, text[1:], wanted[1:], strict=False):
            again.setdefault((a, b), []).append(c)
    often = [own for own in again.values() if len(own) > 50]
    shares = [max(map(own.count, own)) / len(own) for own in often]
    assert sum(shares) / len(shares) == pytest.approx(0.9, abs=0.03)
    p = torch.full((32,), 0.1 / 32)
    p[7] += 0.9
    assert scale.entropy() == pytest.approx(torch.distributions.Categorical(p).entropy().item())


def test_few_shot_texts_show_one_function():
    tokens, labels = scale.few_shot(torch.Generator().manual_seed(1), 64)
    functions = set()
    for text, wanted in zip(tokens.tolist(), labels.tolist(), strict=True):
        pairs = dict(zip(text[1::2], text[2::2], strict=True))
        assert [pairs[x] for x in text[1::2]] == text[2::2]
        assert [y for y in wanted if y != IGNORED] == text[2::2]
        functions.add(min(pairs.values()) // 8)
    assert functions == {0, 1, 2, 3}


def test_a_known_power_law_is_found_again():
    exact = [(10.0**n, scale.entropy() + 50 * 10 ** (-0.3 * n)) for n in range(3, 9)]
    a, b, error = scale.power_law(exact)
    assert (a, b) == (pytest.approx(50), pytest.approx(0.3))
    assert error < 1e-6
    rough = [
        (c, scale.entropy() + (loss - scale.entropy()) * (1.2 if i % 2 else 0.8))
        for i, (c, loss) in enumerate(exact)
    ]
    assert scale.power_law(rough)[2] > 0.005, "scatter is uncertainty"
    assert scale.frontier([[(1, 3.0), (4, 2.0)], [(2, 2.5), (8, 2.2)]]) == [
        (1, 3.0),
        (2, 2.5),
        (4, 2.0),
    ]


def test_a_larger_model_learns_more_from_the_same_tokens():
    small, large = (scale._learn(width, 1, 25) for width in (16, 64))
    assert large["curve"][-1][1] < small["curve"][-1][1] - 0.3
    ratio = large["curve"][-1][0] / small["curve"][-1][0]
    assert ratio == large["parameters"] / small["parameters"], "equal tokens"


def test_the_reported_law_is_that_of_the_best_sizes():
    values = {}
    for width in scale.WIDTHS:
        compute = [width**2 * 10.0**n for n in (4, 5)]
        curve = [(c, scale.entropy() + 9 * c**-0.25) for c in compute]
        right = {str(n): 0.25 if n == 0 or width == 16 else 1.0 for n in scale._SHOTS}
        run = {"parameters": width**2, "curve": curve, "right": right}
        values[f"width {width}, seed 1"] = run
    found = scale.findings(values)
    law, shots, _ = found.conclusion
    assert "FLOPs^-0.250, the exponent +- 0.000" in law
    assert "256 parameters 25%" in shots
    assert "16,384 parameters 100%" in shots
    assert len(draw(found.panels).axes) == 2
