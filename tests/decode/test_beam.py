"""Beam search against greedy writing, against looking at everything, and against its own sums."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.decode.accel.cuda.device_beam import DeviceBeamSearch
from limelight.decode.beam import BeamSearch, is_unconstrained, length_penalty
from limelight.decode.config import DecodeConfig
from limelight.decode.engine import new_search
from limelight.decode.generate import write
from limelight.decode.request import Request
from limelight.errors import UserError
from tests.decode.samples import (
    END,
    FAMILIES,
    START,
    Letters,
    Ranking,
    all_texts,
    beam_search,
    logprobs_of,
    requests_for,
    tiny,
    total_logprobs,
)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(10))
def test_a_beam_of_one_is_greedy(family, seed):
    model = tiny(family, seed, vocab=12)
    requests = requests_for(model, 6, limit=12, seed=seed)
    config = DecodeConfig(beam=1)
    greedy = write(model, requests, config, Letters(12))
    (beams,) = zip(*beam_search(model, requests, config, Letters(12)), strict=True)
    assert [text.tokens for text in beams] == [text.tokens for text in greedy]
    assert [text.ended for text in beams] == [text.ended for text in greedy]


@pytest.mark.parametrize("family", ["encoder-decoder", "recurrent-encoder-decoder"])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("seeds", range(5))
def test_a_wide_beam_finds_what_exhaustive_search_finds(family, alpha, seeds):
    for seed in range(10 * seeds, 10 * seeds + 10):
        model = tiny(family, seed, sharp=1.0 + seed % 3)
        (request,) = requests_for(model, 1, limit=4, seed=seed)
        config = DecodeConfig(beam=128, length_penalty=alpha)
        found = beam_search(model, [request], config, Letters(4), nbest=5)[0]
        totals = total_logprobs(model, request, all_texts(4, 4))
        scores = {text: total / length_penalty(len(text), alpha) for text, total in totals.items()}
        best = sorted(scores, key=scores.__getitem__, reverse=True)[:5]
        assert [(*text.tokens, *[END] * text.ended) for text in found] == best
        assert [text.score for text in found] == pytest.approx([scores[text] for text in best])


def test_a_narrow_beam_does_not_find_all_that():
    """So the test above can fail."""
    missed = 0
    for seed in range(20):
        model = tiny("encoder-decoder", seed, sharp=1.0)
        (request,) = requests_for(model, 1, limit=4, seed=seed)
        narrow = beam_search(model, [request], DecodeConfig(beam=1), Letters(4))[0][0]
        wide = beam_search(model, [request], DecodeConfig(beam=128), Letters(4))[0][0]
        assert wide.score >= narrow.score - 1e-12
        missed += wide.tokens != narrow.tokens
    assert missed >= 3


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_score_is_the_texts_own_log_probability(family, dtype):
    model = tiny(family, 3, vocab=12, dtype=dtype)
    requests = requests_for(model, 8, limit=9, seed=3)
    config = DecodeConfig(beam=5)
    for request, texts in zip(
        requests, beam_search(model, requests, config, Letters(12), nbest=5), strict=True
    ):
        assert len(texts) == 5
        assert [text.score for text in texts] == sorted((t.score for t in texts), reverse=True)
        for text in texts:
            tokens = [*text.tokens, *[END] * text.ended]
            own = logprobs_of(model, request, tokens)
            assert text.logprobs == pytest.approx(own, abs=1e-5)
            over = length_penalty(len(tokens), 0.6)
            assert text.score == pytest.approx(sum(own) / over, abs=1e-5)


def test_the_length_penalty_by_hand():
    assert length_penalty(1, 0.6) == 1  # (5 + 1) / 6
    assert length_penalty(7, 1.0) == 2
    assert length_penalty(7, 0.5) == pytest.approx(math.sqrt(2))
    assert length_penalty(100, 0.0) == 1


class Scripted:
    """A model that follows a table: after these tokens, these probabilities."""

    class config:  # noqa: N801
        family = "decoder-only"
        vocab = 6
        max_len = 99

    def __init__(self, table):
        self.table = table

    def parameters(self):
        yield torch.zeros(1, dtype=torch.float64)

    class State:
        texts: list

        def select(self, rows):
            self.texts = [self.texts[i] for i in rows.tolist()]

    def start(self, rows, max_len=None):
        state = self.State()
        state.texts = [()] * rows
        return state

    def step(self, tokens, state, real=None):
        state.texts = [
            (*text, *row) for text, row in zip(state.texts, tokens.tolist(), strict=True)
        ]
        return torch.tensor([self.scores(text[1:]) for text in state.texts])

    def scores(self, text):
        chances = self.table.get("".join("___abc"[i] for i in text), {})
        left = 1 - sum(chances.values())
        odds = {"$": 2, "a": 3, "b": 4, "c": 5}
        row = torch.full((6,), left / 6 + 1e-9, dtype=torch.float64)
        for name, chance in chances.items():
            row[odds[name]] += chance
        return row.log().tolist()


def scripted(table, limit=6, **config):
    model = Scripted(table)
    (request,) = requests_for(tiny("decoder-only", 0, vocab=6), 1, limit=limit)
    request = replace(request, prompt=[1])
    texts = beam_search(model, [request], DecodeConfig(**config), Letters(6), config["beam"])[0]
    return [(Letters(6).decode(text.tokens), text.ended) for text in texts]


SHORT_OR_LONG = {"": {"$": 0.3, "a": 0.6}, "a": {"b": 0.7}, "ab": {"c": 0.9}, "abc": {"$": 0.9}}


def test_without_a_penalty_the_short_text_wins_and_with_one_the_long():
    # 0.3 against 0.6 * 0.7 * 0.9 * 0.9 = 0.34, but each step leaks a little to other tokens
    table = {**SHORT_OR_LONG, "": {"$": 0.38, "a": 0.55}}
    assert scripted(table, beam=3, length_penalty=0.0)[0] == ("", True)
    assert scripted(table, beam=3, length_penalty=1.0)[0] == ("abc", True)


def test_the_best_is_not_lost_when_another_ends_first():
    """A search that stops at the first end would give the empty text."""
    likely = {"a": {"b": 0.97}, "ab": {"c": 0.97}, "abc": {"$": 0.97}}
    table = {"": {"a": 0.45, "$": 0.5}, **likely}
    assert scripted(table, beam=2, length_penalty=1.0)[0] == ("abc", True)


def test_at_the_limit_nothing_is_lost():
    table = {"": {"a": 0.9}, "a": {"b": 0.9}, "ab": {"c": 0.9}}
    assert scripted(table, limit=2, beam=2)[0] == ("ab", False)
    assert len(scripted(table, limit=2, beam=2)) == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_requests_do_not_disturb_each_other(family):
    model = tiny(family, 5, vocab=12)
    requests = requests_for(model, 20, limit=10, seed=5)
    requests = [replace(r, limit=1 + i % 10) for i, r in enumerate(requests)]
    config = DecodeConfig(beam=4)
    together = beam_search(model, requests, config, Letters(12), nbest=4)
    for request, texts in zip(requests, together, strict=True):
        (alone,) = beam_search(model, [request], config, Letters(12), nbest=4)
        assert [text.tokens for text in texts] == [text.tokens for text in alone]


def test_groups_differ_more_than_one_beam_does():
    model = tiny("encoder-decoder", 1, vocab=30, sharp=1.0)
    requests = requests_for(model, 10, limit=8, seed=1)

    def first_tokens(**settings):
        config = DecodeConfig(beam=6, **settings)
        found = beam_search(model, requests, config, Letters(30), nbest=6)
        return sum(len({text.tokens[0] if text.tokens else END for text in f}) for f in found)

    one = first_tokens()
    assert first_tokens(beam_groups=3, diversity=5.0) > one
    assert first_tokens(beam_groups=6, diversity=100.0) == 60  # all of them begin differently


def test_groups_that_find_the_same_text_tell_it_once():
    double = 0
    for seed in range(10):
        model = tiny("encoder-decoder", seed, vocab=12)
        requests = requests_for(model, 4, limit=8, seed=seed)
        config = DecodeConfig(beam=4, beam_groups=4, diversity=0.3)
        for texts in beam_search(model, requests, config, Letters(12), nbest=4):
            kinds = {(*text.tokens, text.ended) for text in texts}
            assert len(kinds) == len(texts) >= 1
            double += 4 - len(texts)
    assert double  # there were some


def test_groups_avoid_what_others_write_and_not_what_nobody_does():
    """The first group has ended; what would be likely behind its end (`_`) is nobody's token."""
    likely = {"b": {"c": 0.9}, "bc": {"$": 0.9}, "_": {"c": 0.9}, "__": {"c": 0.9}}
    table = {"": {"$": 0.9, "b": 0.05}, **likely}
    settings = {"beam": 2, "beam_groups": 2, "diversity": 5.0}
    assert [text for text, _ in scripted(table, limit=3, **settings)] == ["", "bc"]


def test_one_group_without_diversity_is_a_beam():
    model = tiny("encoder-decoder", 2, vocab=12)
    requests = requests_for(model, 5, limit=8, seed=2)
    one = beam_search(model, requests, DecodeConfig(beam=2), Letters(12))
    two = DecodeConfig(beam=4, beam_groups=2, diversity=0.0)
    same = beam_search(model, requests, two, Letters(12))
    assert [f[0].tokens for f in one] == [f[0].tokens for f in same]


def test_the_tree_leads_to_what_was_found():
    model = tiny("encoder-decoder", 4, vocab=12)
    (request,) = requests_for(model, 1, limit=8, seed=4)
    search = BeamSearch(model, [request], DecodeConfig(beam=3), Letters(12), 1, keep_trees=True)
    (best,) = search.run()[0]
    texts = {0: []}
    paths = []
    for step in search.trees[0]:
        nodes = [(node, [*texts[node.parent], node.token]) for node in step]
        paths += [(path, node.score) for node, path in nodes if node.ended or len(path) == 8]
        texts = {node.place: path for node, path in nodes}
    wanted = [*best.tokens, *[END] * best.ended]
    assert (wanted, pytest.approx(best.score)) in paths
    assert max(score for _, score in paths) == pytest.approx(best.score)


def test_what_cannot_be_written_takes_no_place_from_what_can():
    """Unless there is nothing else; then the places stay empty."""
    model = tiny("encoder-decoder", 3, vocab=30)
    (request,) = requests_for(model, 1, limit=9, seed=3, include=("xy",))
    search = BeamSearch(model, [request], DecodeConfig(beam=4), Letters(30), 1, keep_trees=True)
    search.run()
    assert [len(step) for step in search.trees[0][:3]] == [4, 4, 4]


@given(
    words=st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=2),
    seed=st.integers(0, 50),
    beam=st.sampled_from([1, 2, 5]),
)
@settings(max_examples=60, deadline=None)
def test_words_that_must_appear_do(words, seed, beam):
    model = tiny("encoder-decoder", seed, vocab=10)
    requests = requests_for(model, 2, limit=20, seed=seed)
    requests[0] = replace(requests[0], include=tuple(words))
    promised, free = beam_search(model, requests, DecodeConfig(beam=beam), Letters(10))
    text = Letters(10).decode(promised[0].tokens)
    assert all(word in text for word in words)
    (alone,) = beam_search(model, requests[1:], DecodeConfig(beam=beam), Letters(10))
    assert free[0].tokens == alone[0].tokens


@given(
    words=st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=3),
    seed=st.integers(0, 50),
    beam=st.sampled_from([0, 1, 4]),
)
@settings(max_examples=60, deadline=None)
def test_words_that_must_not_appear_do_not(words, seed, beam):
    model = tiny("decoder-only", seed, vocab=10)
    requests = requests_for(model, 3, limit=15, seed=seed, exclude=tuple(words))
    if beam:
        found = beam_search(model, requests, DecodeConfig(beam=beam), Letters(10))
        texts = [texts[0] for texts in found]
    else:
        texts = write(model, requests, DecodeConfig(temperature=1.0), Letters(10))
    for text in texts:
        assert not any(word in Letters(10).decode(text.tokens) for word in words)


def test_impossible_wishes_are_refused():
    model = tiny("encoder-decoder", 0)
    (request,) = requests_for(model, 1, limit=3)
    with pytest.raises(UserError, match="nbest=5 of a beam of 4"):
        beam_search(model, [request], DecodeConfig(), Letters(4), nbest=5)
    with pytest.raises(UserError, match="groups=3 does not divide beam=4"):
        DecodeConfig(beam_groups=3)
    named = replace(request, include=("a",))
    with pytest.raises(UserError, match="cannot require words"):
        beam_search(model, [named], DecodeConfig(beam_groups=2), Letters(4))
    with pytest.raises(UserError, match="need a beam"):
        write(model, [named], DecodeConfig(), Letters(4))


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("beam", [1, 3, 5])
@pytest.mark.parametrize("family", FAMILIES[:2])
def test_a_search_by_ranks_finds_the_same(family, beam, ahead, monkeypatch):
    """Also where it does not wait for what it has found."""
    made = DeviceBeamSearch.__init__

    def running_ahead(self, *given):
        made(self, *given)
        self.in_flight.ahead = int(ahead)

    monkeypatch.setattr(DeviceBeamSearch, "__init__", running_ahead)
    for seed in range(5):
        model, tokenizer = tiny(family, seed, vocab=9), Letters(9)
        requests = requests_for(model, 7, limit=3 + seed, seed=seed)
        config = DecodeConfig(beam=beam)
        search = new_search(Ranking(model), requests, config, tokenizer, nbest=beam)
        assert isinstance(search, DeviceBeamSearch)
        found = search.run()
        wanted = beam_search(model, requests, config, tokenizer, nbest=beam)
        for own, texts in zip(found, wanted, strict=True):
            assert [text.tokens for text in own] == [text.tokens for text in texts]
            assert [text.score for text in own] == pytest.approx([t.score for t in texts])
            assert own[0].logprobs == pytest.approx(texts[0].logprobs)


def test_what_needs_more_than_ranks_is_not_searched_by_them():
    request = Request([START], 5)
    assert is_unconstrained([request], DecodeConfig(beam=5))
    assert not is_unconstrained([request], DecodeConfig(beam=9))
    assert not is_unconstrained([request], DecodeConfig(beam=4, beam_groups=2))
    assert not is_unconstrained([request], DecodeConfig(no_repeat_ngram=2))
    assert not is_unconstrained([Request([START], 5, exclude=("a",))], DecodeConfig())
    assert not is_unconstrained([request, Request([START], 5, include=("a",))], DecodeConfig())


def test_a_tree_is_kept_by_the_plain_search_alone():
    model = tiny("encoder-decoder", 4, vocab=12)
    requests, config = requests_for(model, 1, limit=8, seed=4), DecodeConfig(beam=3)
    for keep_tree, kind in ((False, DeviceBeamSearch), (True, BeamSearch)):
        search = new_search(Ranking(model), requests, config, Letters(12), keep_tree=keep_tree)
        assert type(search) is kind
        search.run()
        assert bool(search.trees[0]) == keep_tree
