"""What experiments measure is true, and their direction is what theory says."""

import pytest
import torch

from limelight.lab import gradient, induction, loop, parallel
from limelight.lab.networks import IGNORED, KINDS, config_of, loss_of, make, train
from limelight.model.count import count_parameters


def test_a_gradient_is_a_finite_difference():
    model = make(config_of("transformer", 32, 2, 16, 8), 1).double()
    batch = next(gradient.first_tokens(1, 1, 8))
    sizes = gradient.gradients(model, batch)
    table = model.target.tokens
    position, step = 3, 1e-6
    token = batch[0][0, position]
    slopes = []
    for i in range(16):  # move the embedding at one position alone
        losses = []
        for sign in (1, -1):

            def moved(_, __, output, i=i, sign=sign):
                output = output.clone()
                output[0, position, i] += sign * step
                return output

            handle = table.register_forward_hook(moved)
            losses.append(loss_of(model, batch).item())
            handle.remove()
        slopes.append((losses[0] - losses[1]) / (2 * step))
    assert token in batch[0]
    assert sizes[position].item() == pytest.approx(torch.tensor(slopes).norm().item(), rel=1e-5)
    assert not table._forward_hooks, "nothing is left behind"


def test_the_gradient_fades_in_recurrent_networks_and_not_in_attention():
    values = {}
    for kind in KINDS:
        for state in ("untrained", "trained"):  # theory speaks of the untrained ones
            values[f"{kind} {state}"] = gradient._ratios(kind, "untrained", (1,), 0)
    ratios = {kind: values[f"{kind} untrained"][0] for kind in KINDS}
    for far in (1, 2, 3):
        assert ratios["rnn"][far] <= ratios["gru"][far] <= ratios["lstm"][far]
        assert ratios["lstm"][far] < ratios["transformer"][far]
    assert ratios["transformer"][3] > 1e-4
    assert "does not grow with the distance" in gradient.findings(values).conclusion[-1]
    swapped = {name: [[1.0] * 4] if "lstm" in name else own for name, own in values.items()}
    assert "at least as far" in gradient.findings(swapped).conclusion[-1], (
        "it is computed, not written"
    )


def test_the_token_after_the_last_time():
    tokens = torch.tensor([[5, 7, 5, 9, 7, 5, 5]])
    found = induction._token_after_last_time(tokens)[0]
    expected = {2: 1, 4: 2, 5: 3, 6: 6}  # position: where its token's last occurrence went on
    for position in range(7):
        where = found[position].nonzero().flatten().tolist()
        assert where == ([expected[position]] if position in expected else [])


def test_only_what_can_be_copied_is_predicted():
    tokens, labels = next(induction.repeated(3, 16))
    for row, wanted in zip(tokens.tolist(), labels.tolist(), strict=True):
        period = next(i for i, label in enumerate(wanted) if label != IGNORED) + 1
        assert 8 <= period <= 24
        for t, label in enumerate(wanted):
            if label != IGNORED:
                assert label == row[t + 1 - period]


def test_two_layers_learn_induction_and_one_does_not():
    values = {name: measure() for name, measure in induction.measurements(True).items()}
    one, two = values["1 layer, seed 1"], values["2 layers, seed 1"]
    assert two["loss"] < 1.0
    assert one["loss"] > 2.0
    assert max(map(max, two["scores"])) > 5 * max(map(max, one["scores"]))
    assert "Every network of two layers copies" in induction.findings(values).conclusion[0]


def test_all_contestants_train_on_the_same_tokens_by_the_same_loop():
    seen = {}
    for kind in KINDS:
        losses, batches = [], []
        model = make(config_of(kind, 32, 1, 16, 16), 1)

        def watched(batches=batches):
            for batch in gradient.first_tokens(1, 8, 16):
                batches.append(batch)
                yield batch

        train(model, watched(), 3, 1e-3, lambda _, loss, losses=losses: losses.append(loss))
        assert len(losses) == 3
        seen[kind] = torch.stack([tokens for tokens, _ in batches])
    assert all(torch.equal(seen["rnn"], own) for own in seen.values())


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_decides_the_weights_alone(seed):
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    config = config_of("gru", 32, 1, 16, 16)
    first, again, other = make(config, seed), make(config, seed), make(config, seed + 1)
    pairs = list(zip(first.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)
    assert torch.equal(before, torch.random.get_rng_state()), "the caller's randomness is untouched"
    assert sum(count_parameters(first).values()) > 0


def test_what_a_token_costs_is_compared_as_measured():
    values = {
        f"{way} at {n}": float(n if way == "no cache" else 2)
        for way in loop._WAYS
        for n in (16, 64)
    }
    found = loop.findings(values)
    assert "the cache makes a token 32.0 times cheaper" in found.conclusion[-1]
    assert found.panels[0].curves["no cache"] == {16: [16.0], 64: [64.0]}
    measured = loop._milliseconds("KV cache", 16)
    assert measured > 0


def test_an_effect_that_does_not_show_is_reported():
    shows = {
        f"{kind} at {n}": (n if kind == "lstm" else 10.0)
        for kind in ("transformer", "lstm")
        for n in (32, 4096)
    }
    assert "409.6 times faster" in parallel.findings(shows).conclusion[-1]
    fails = dict.fromkeys(shows, 10.0)
    assert "does not show" in parallel.findings(fails).conclusion[-1]
    assert parallel.steps_in_sequence("lstm", 4096) == 8192
    assert parallel.steps_in_sequence("transformer", 4096) == 2
