"""Greedy writing and sampling: alone and among others, within bounds, with the chances promised."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.decode.config import DecodeConfig
from limelight.decode.ensemble import Ensemble
from limelight.decode.generate import GenerationBatch, write
from limelight.decode.request import Request
from limelight.decode.sampling import (
    apply_repetition_penalty,
    sample,
    top_k_top_p_mask,
    uniform_draws,
)
from limelight.errors import UserError
from tests.decode.samples import (
    END,
    FAMILIES,
    START,
    Letters,
    beam_search,
    logprobs_of,
    requests_for,
    tiny,
)

GREEDY = DecodeConfig(beam=1)


@torch.no_grad()
def greedy_by_hand(model, request):
    """No cache, no batch: the whole text is read again for every token."""
    tokens = []
    while len(tokens) < request.limit:
        read = torch.tensor([[*request.prompt, *tokens]])
        given = (torch.tensor([request.source]), read) if request.source else (read,)
        tokens.append(model(*given)[0, -1].argmax().item())
        if tokens[-1] == END:
            break
    return tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_the_likeliest_token_again_and_again(family):
    model = tiny(family, 1, vocab=12)
    requests = requests_for(model, 12, limit=9, seed=1)
    for request, text in zip(requests, write(model, requests, GREEDY, Letters(12)), strict=True):
        tokens = [*text.tokens, *[END] * text.ended]
        assert tokens == greedy_by_hand(model, request)
        assert text.logprobs == pytest.approx(logprobs_of(model, request, tokens))
        assert text.score == pytest.approx(sum(text.logprobs))


WAYS = {
    "greedy": GREEDY,
    "beam": DecodeConfig(beam=4),
    "sampled": DecodeConfig(temperature=0.9, top_k=8, top_p=0.95),
}


def texts_of(model, requests, config, tokenizer):
    if config.temperature or config.beam == 1:
        return [text.tokens for text in write(model, requests, config, tokenizer)]
    return [texts[0].tokens for texts in beam_search(model, requests, config, tokenizer)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_request_is_answered_the_same_alone_and_in_any_company(family, way):
    """50 requests of each family, in random batches with random neighbours: 200 in all."""
    model, tokenizer = tiny(family, 2, vocab=20, sharp=1.0), Letters(20)
    dice = random.Random(f"{family} {way}")
    requests = [
        replace(request, limit=dice.randint(1, 12), seed=dice.randrange(10**6))
        for request in requests_for(model, 50, limit=1, seed=2)
    ]
    alone = [texts_of(model, [request], WAYS[way], tokenizer)[0] for request in requests]
    order = list(range(50))
    dice.shuffle(order)
    while order:
        batch = [order.pop() for _ in range(min(len(order), dice.randint(1, 17)))]
        together = texts_of(model, [requests[i] for i in batch], WAYS[way], tokenizer)
        assert together == [alone[i] for i in batch]


@pytest.mark.parametrize("way", WAYS)
def test_in_float32_it_differs_only_at_near_ties(way):
    model, tokenizer = (
        tiny("encoder-decoder", 2, vocab=20, sharp=1.0, dtype=torch.float32),
        Letters(20),
    )
    requests = requests_for(model, 60, limit=10, seed=6)
    together = texts_of(model, requests, WAYS[way], tokenizer)
    different = 0
    for request, text in zip(requests, together, strict=True):
        (alone,) = texts_of(model, [request], WAYS[way], tokenizer)
        if alone != text:
            different += 1
            place = next(i for i, (a, b) in enumerate(zip(alone, text, strict=False)) if a != b)
            one, other = (sum(logprobs_of(model, request, t[: place + 1])) for t in (alone, text))
            assert abs(one - other) < 1e-5
    assert different <= 2


def test_seeds_matter():
    """So the tests above can fail for sampling."""
    model, tokenizer = tiny("decoder-only", 2, vocab=20, sharp=1.0), Letters(20)
    (request,) = requests_for(model, 1, limit=10)
    one, other = (replace(request, seed=seed) for seed in (1, 2))
    texts = texts_of(model, [one, other, one], WAYS["sampled"], tokenizer)
    assert texts[0] == texts[2] != texts[1]


# Sampling itself

TEN_SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"temperature": 1.0, "top_k": 4},
    {"temperature": 0.7, "top_k": 6},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.3, "top_p": 0.5},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 2.0, "min_p": 0.3},
    {"temperature": 0.9, "top_k": 8, "top_p": 0.9, "min_p": 0.02},
]


def chances_by_hand(logits, config):
    """The distribution that is promised, one token after the other."""
    weights = [(value / config.temperature).exp().item() for value in logits.double()]
    ranked = sorted(range(len(weights)), key=lambda i: -weights[i])
    if config.top_k:
        ranked = ranked[: config.top_k]
    total = sum(weights[i] for i in ranked)
    kept, reached = [], 0.0
    for i in ranked:
        if reached < config.top_p * total:
            kept.append(i)
        reached += weights[i]
    kept = [i for i in kept if weights[i] >= config.min_p * weights[ranked[0]]]
    total = sum(weights[i] for i in kept)
    return {i: weights[i] / total for i in kept}


@pytest.mark.parametrize("options", TEN_SETTINGS)
def test_a_hundred_thousand_draws_have_the_promised_chances(options):
    config = DecodeConfig(**options)
    logits = torch.randn(12, generator=torch.Generator().manual_seed(5)) * 1.5
    count = 100_000
    drawn = sample(logits.expand(count, -1), uniform_draws(7, count), config)
    counts = torch.bincount(drawn, minlength=12).tolist()
    wanted = chances_by_hand(logits, config)
    assert {i for i, n in enumerate(counts) if n} <= wanted.keys()  # never outside the support
    chi_square = sum((counts[i] - count * p) ** 2 / (count * p) for i, p in wanted.items())
    freedom = max(1, len(wanted) - 1)
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5 + 5  # about one in a million


def test_the_chi_square_notices_a_wrong_temperature():
    logits = torch.randn(12, generator=torch.Generator().manual_seed(5)) * 1.5
    drawn = sample(
        logits.expand(100_000, -1), uniform_draws(7, 100_000), DecodeConfig(temperature=1.05)
    )
    counts = torch.bincount(drawn, minlength=12).tolist()
    wanted = chances_by_hand(logits, DecodeConfig(temperature=1.0))
    chi_square = sum((counts[i] - 1e5 * p) ** 2 / (1e5 * p) for i, p in wanted.items())
    assert chi_square > 11 + 5 * 22**0.5 + 5


@given(
    logits=st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=30),
    luck=st.floats(0, 1, exclude_max=True),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 0.99),
    temperature=st.floats(1e-30, 100, exclude_min=True),
)
@settings(max_examples=300, deadline=None)
def test_a_draw_stays_in_its_support(logits, luck, top_k, top_p, min_p, temperature):
    config = DecodeConfig(top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
    row = torch.tensor([logits])
    (token,) = sample(row, torch.tensor([luck], dtype=torch.float64), config).tolist()
    higher = sum(value > logits[token] for value in logits)
    assert not top_k or higher < top_k
    chances = ((row - row.max()).double() / temperature).softmax(dim=-1)[0]
    assert chances[token] >= min_p * chances.max() * (1 - 1e-9)
    assert chances[row[0] > logits[token]].sum() < top_p + 1e-9


def test_a_cold_draw_is_greedy():
    logits = torch.randn(1000, 50)
    cold = sample(logits, torch.rand(1000).double(), DecodeConfig(temperature=1e-6))
    assert (cold == logits.argmax(dim=-1)).all()


def test_the_likeliest_always_stays():
    ranked = torch.tensor([[0.5, 0.3, 0.2]]).double()
    config = DecodeConfig(temperature=1.0, top_p=1e-9, min_p=0.99, top_k=1)
    assert top_k_top_p_mask(ranked, config).tolist() == [[True, False, False]]


# Repetitions


def test_a_penalty_by_hand():
    logits = torch.tensor([[1.0, -1.0, 2.0, 0.5]])
    history = torch.tensor([[-1, 1, 2]])
    config = DecodeConfig(repetition_penalty=2.0)
    for special, expected in (((), [1.0, -2.0, 1.0, 0.5]), ((0, 1), [1.0, -1.0, 1.0, 0.5])):
        assert apply_repetition_penalty(logits, history, config, special).tolist() == [expected]


@pytest.mark.parametrize("beam", [0, 1, 3])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_sequence_of_n_tokens_comes_twice(beam, n):
    model, tokenizer = tiny("encoder-decoder", 3, vocab=24, sharp=1.0), Letters(24)
    with torch.no_grad():
        model.classifier.bias[END] = -9.0  # it does not end by itself
    requests = [replace(r, limit=12 + i) for i, r in enumerate(requests_for(model, 6, 1, seed=3))]

    def repeats(**settings):
        config = DecodeConfig(beam=max(1, beam), temperature=0.0 if beam else 0.3, **settings)
        count = 0
        for request, text in zip(
            requests, texts_of(model, requests, config, tokenizer), strict=True
        ):
            read = [*request.prompt, *text]
            seen = [tuple(read[i : i + n]) for i in range(len(read) - n + 1)]
            given = len(request.prompt) - n + 1  # what was given may repeat itself
            again = (s in seen[: given + i] for i, s in enumerate(seen[given:]))
            plain = (
                min(s) >= tokenizer.first_text_id for s in seen[given:]
            )  # no special token in it
            count += sum(map(min, again, plain))
        return count

    assert repeats(no_repeat_ngram=n) == 0
    assert repeats() > 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", [{"repetition_penalty": 1.7}, {"no_repeat_ngram": 2}])
def test_repetitions_are_the_same_to_a_beam_of_one(family, settings):
    model = tiny(family, 5, vocab=12, sharp=2.0)
    requests, config = requests_for(model, 20, 8, seed=5), DecodeConfig(beam=1, **settings)
    found = beam_search(model, requests, config, Letters(12))
    assert [best.tokens for (best,) in found] == texts_of(model, requests, config, Letters(12))
    plain = texts_of(model, requests, DecodeConfig(beam=1), Letters(12))
    changed = sum(a.tokens != b for (a,), b in zip(found, plain, strict=True))
    assert changed > 2  # it has an effect


@pytest.mark.parametrize("beam", [0, 1, 3])
def test_a_text_may_end_when_nothing_new_is_left(beam):
    """Also where an end stands before it, as it does between two texts."""
    model, tokenizer = tiny("decoder-only", 3, vocab=8, sharp=1.0), Letters(8)
    config = DecodeConfig(beam=max(1, beam), temperature=0.0 if beam else 1.0, no_repeat_ngram=1)
    for text in texts_of(model, [Request([END, 4], 40), Request([END], 40)], config, tokenizer):
        plain = [token for token in text if token >= tokenizer.first_text_id]
        assert len(plain) == len(set(plain))
        assert len(text) < 40


@pytest.mark.parametrize("beam", [1, 3])
def test_what_is_read_no_more_is_still_a_repetition(beam):
    model, tokenizer = tiny("decoder-only", 3, vocab=8, sharp=1.0), Letters(8)
    config = DecodeConfig(beam=beam, no_repeat_ngram=1)
    request = Request([START, 4], 9)
    (plain,) = texts_of(model, [request], config, tokenizer)
    gone = next(token for token in plain if token >= tokenizer.first_text_id)
    (text,) = texts_of(model, [replace(request, truncated_prompt=[gone])], config, tokenizer)
    assert gone not in text


# All settings


@given(
    name=st.sampled_from(
        [
            "beam",
            "beam_groups",
            "top_k",
            "no_repeat_ngram",
            "max_tokens",
            "max_extra_tokens",
            "seed",
        ]
    ),
    value=st.sampled_from([-1, 10**30, 2.5, "x", None, float("nan"), True]),
)
def test_wrong_counts_are_refused(name, value):
    with pytest.raises(UserError, match=name):
        DecodeConfig(**{name: value})


@given(
    name=st.sampled_from(
        ["temperature", "top_p", "min_p", "length_penalty", "repetition_penalty", "diversity"]
    ),
    value=st.sampled_from([-1.0, 1e30, float("nan"), float("inf"), -float("inf"), "x", None]),
)
def test_wrong_numbers_are_refused(name, value):
    with pytest.raises(UserError, match=name):
        DecodeConfig(**{name: value})


@pytest.mark.parametrize("limit", [0, -1, 10**9])
def test_wrong_limits_are_refused(limit):
    with pytest.raises(UserError, match=f"limit={limit}"):
        Request(prompt=[START], limit=limit)


def test_damaged_weights_are_told():
    model = tiny("decoder-only", 0)
    with torch.no_grad():
        model.classifier.weight[1] = float("nan")
    with pytest.raises(UserError, match="NaN"):
        write(model, requests_for(model, 1, limit=3), GREEDY, Letters(4))


@pytest.mark.parametrize("beam", [1, 4])
def test_damage_that_shows_only_later_is_told_too(beam):
    """The first tokens have sound scores, those after a letter have none."""
    model = tiny("decoder-only", 1, vocab=9, tied=False)
    with torch.no_grad():
        model.target.tokens.weight[3:] = float("nan")
    request = Request(prompt=[START], limit=10)
    search = beam_search if beam > 1 else write
    with pytest.raises(UserError, match="NaN"):
        search(model, [request], DecodeConfig(beam=beam), Letters(9))


# Leaving


def test_who_has_ended_leaves_the_batch():
    model, tokenizer = tiny("decoder-only", 4, vocab=12), Letters(12)
    requests = [replace(r, limit=1 + i) for i, r in enumerate(requests_for(model, 16, 1, seed=4))]
    writing = GenerationBatch(model, requests, DecodeConfig(temperature=1.0), tokenizer)
    sizes = []
    while writing.active:
        writing.step()
        sizes.append(len(writing.rows))
    assert sizes[0] == 16
    assert sizes[-1] <= 2
    assert sizes == sorted(sizes, reverse=True)


def test_whoever_watches_can_say_enough():
    model, tokenizer = tiny("decoder-only", 4, vocab=12), Letters(12)
    requests = requests_for(model, 3, limit=9, seed=4)
    whole = write(model, requests, GREEDY, tokenizer)
    seen = []

    def watch(event):
        seen.append(event)
        return event.row == 1

    cut = write(model, requests, GREEDY, tokenizer, watch)
    assert [text.tokens for text in cut] == [whole[0].tokens, whole[1].tokens[:1], whole[2].tokens]
    assert [e.token for e in seen if e.row == 0] == [*whole[0].tokens, *[END] * whole[0].ended]


# Several models


def test_an_ensemble_of_one_model_twice_is_that_model():
    model, tokenizer = tiny("encoder-decoder", 5, vocab=12), Letters(12)
    requests = requests_for(model, 8, limit=8, seed=5)
    for config in WAYS.values():
        one = texts_of(model, requests, config, tokenizer)
        assert texts_of(Ensemble([model, model]), requests, config, tokenizer) == one


def test_an_ensemble_averages_probabilities():
    models = [
        tiny(family, 6, vocab=12) for family in ("encoder-decoder", "recurrent-encoder-decoder")
    ]
    (request,) = requests_for(models[0], 1, limit=5, seed=6)
    (text,) = write(Ensemble(models), [request], GREEDY, Letters(12))
    tokens = [*text.tokens, *[END] * text.ended]
    each = torch.tensor([logprobs_of(model, request, tokens) for model in models])
    assert text.logprobs == pytest.approx(each.exp().mean(dim=0).log().tolist())


def test_an_ensemble_of_strangers_is_refused():
    with pytest.raises(UserError, match="of one kind"):
        Ensemble([tiny("encoder-decoder", 0), tiny("decoder-only", 0)])
    with pytest.raises(UserError, match="same vocabulary"):
        Ensemble([tiny("decoder-only", 0, vocab=4), tiny("decoder-only", 0, vocab=5)])
