"""Decoding with a cache gives what decoding without one gives; `select` moves rows faithfully."""

import pytest
import torch

from limelight.errors import UserError
from tests.model.samples import VOCAB, WRITERS, begin, has_source, logits, small, tokens

writers = pytest.mark.parametrize(("family", "changes"), WRITERS)


@writers
def test_cached_equals_uncached_on_random_prompts(family, changes):
    """100 prompts of 1 to 12 tokens, in ragged batches of 25, then 6 tokens greedily.

    One pass over the texts has the logits of all their steps, and what stands behind their ends
    changes nothing, for no model looks ahead.
    """
    model = small(family, **changes)
    with torch.no_grad():
        for _ in range(4):
            lengths = torch.randint(1, 13, (25,))
            prompt, source = tokens(25, 12), tokens(25, 7)
            real = torch.arange(12) < lengths[:, None]
            state = begin(model, source)
            steps = [model.step(prompt, state, real)]
            for _ in range(5):
                steps.append(model.step(steps[-1].argmax(dim=1)[:, None], state))
            written = torch.stack(steps).argmax(dim=2).T  # 25 6
            texts = torch.cat([prompt, tokens(25, 5)], dim=1)
            places = lengths[:, None] + torch.arange(-1, 5)  # of the last token read at each step
            texts.scatter_(1, places[:, 1:], written[:, :-1])
            rows = torch.arange(25)[:, None]
            full = logits(model, source, texts)[rows, places]  # 25 6 V
            cached = torch.stack(steps, dim=1)
            torch.testing.assert_close(cached, full, rtol=0, atol=1e-10)


@writers
def test_a_prompt_may_come_in_pieces(family, changes):
    model = small(family, **changes)
    source, text = tokens(3, 5), tokens(3, 11)
    with torch.no_grad():
        full = logits(model, source, text)
        state = begin(model, source)
        for piece in (slice(0, 4), slice(4, 5), slice(5, 11)):
            scores = model.step(text[:, piece], state)
            torch.testing.assert_close(scores, full[:, piece.stop - 1], rtol=0, atol=1e-10)


@writers
@pytest.mark.parametrize("rows", [[2, 0, 3, 1], [1, 1, 1, 0, 2, 2], [3], [0, 1, 2, 3]])
def test_select_reorders_repeats_and_drops_rows(family, changes, rows):
    model = small(family, **changes)
    source, text, more = tokens(4, 5), tokens(4, 6), tokens(len(rows), 3)
    lengths = torch.tensor([6, 2, 4, 1])
    source_real = torch.arange(5) < torch.tensor([[5], [2], [1], [4]])
    rows = torch.tensor(rows)
    with torch.no_grad():
        state = begin(model, source, source_real)
        model.step(text, state, torch.arange(6) < lengths[:, None])
        state.select(rows)
        chosen = [(model.step(more[:, i : i + 1], state)) for i in range(3)]
        for new, old in enumerate(rows.tolist()):
            whole = torch.cat([text[old, : lengths[old]], more[new]])[None]
            n = int(source_real[old].sum())
            full = logits(model, source[old : old + 1, :n], whole)[0, -3:]
            got = torch.stack([step[new] for step in chosen])
            torch.testing.assert_close(got, full, rtol=0, atol=1e-10)


def test_the_source_is_read_once():
    model = small("encoder-decoder")
    calls = []
    model.encoder.register_forward_hook(lambda *_: calls.append("encoder"))
    for layer in model.decoder.layers:
        layer.cross_attention.key.register_forward_hook(lambda *_: calls.append("key"))
    with torch.no_grad():
        state = model.start(tokens(2, 5))
        before = list(calls)
        for _ in range(4):
            model.step(tokens(2, 1), state)
    assert before == ["encoder", "key", "key"]
    assert calls == before


def test_a_step_works_only_on_what_is_new():
    """With 30 tokens behind it a step still sends a single position through the layers."""
    model = small("decoder-only")
    widths = []
    model.decoder.layers[0].feed_forward.register_forward_pre_hook(
        lambda _, inputs: widths.append(inputs[0].size(1))
    )
    with torch.no_grad():
        state = model.start(1)
        model.step(tokens(1, 30), state)
        model.step(tokens(1, 1), state)
    assert widths == [30, 1]


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only"])
def test_room_is_taken_once_and_its_end_is_said(family):
    model = small(family, max_len=8)
    with torch.no_grad():
        state = begin(model, tokens(2, 3))
        room = state.keys[0]
        model.step(tokens(2, 6), state)
        model.step(tokens(2, 2), state)
        state.select(torch.tensor([1, 0]))
        assert state.keys[0] is room
        with pytest.raises(UserError, match="9 tokens do not fit into a cache made for max_len=8"):
            model.step(tokens(2, 1), state)


def test_a_longer_cache_may_be_asked_for():
    model = small("decoder-only", max_len=4, positions="rotary")
    text = tokens(1, 9)
    with torch.no_grad():
        state = model.start(1, max_len=9)
        torch.testing.assert_close(model.step(text, state), model(text)[:, -1])


def test_stale_slots_are_never_read():
    """What lies in the slots behind a row's end, such as padding of a prompt, has no influence."""
    model = small("decoder-only")
    text, real = tokens(2, 6), torch.arange(6) < torch.tensor([[6], [2]])
    with torch.no_grad():
        answers = []
        for noise in (0.0, 1e3):
            state = model.start(2)
            for kept in (*state.keys, *state.values):
                kept.add_(noise)
            model.step(text, state, real)
            answers.append(model.step(tokens(2, 1) * 0, state))
    assert torch.equal(*answers)


def test_recurrent_state_does_not_grow():
    model = small("recurrent-encoder-decoder")
    assert has_source(model)
    with torch.no_grad():
        state = model.start(tokens(2, 3))
        before = [h.shape for h in state.hidden]
        for _ in range(5):
            assert model.step(tokens(2, 1), state).shape == (2, VOCAB)
    assert [h.shape for h in state.hidden] == before


@writers
def test_a_row_with_nothing_new_stays_where_it_was(family, changes):
    model = small(family, **changes)
    source, text = tokens(2, 5), tokens(2, 4)
    nothing = torch.tensor([[True] * 3, [False] * 3])
    state, alone = begin(model, source), begin(model, source[1:])
    model.step(text[:, :3], state)
    model.step(text[1:, :3], alone)
    model.step(tokens(2, 3), state, nothing)  # only the first row reads on
    torch.testing.assert_close(model.step(text[:, 3:], state)[1:], model.step(text[1:, 3:], alone))


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only"])
def test_no_rows_at_all_is_no_error(family):
    """What a search is left with when every row has finished."""
    model = small(family)
    state = begin(model, tokens(3, 5))
    model.step(tokens(3, 2), state)
    state.select(torch.tensor([], dtype=torch.long))
    assert model.step(tokens(3, 1)[:0], state).shape == (0, VOCAB)


def test_padding_takes_no_room():
    model = small("decoder-only", max_len=8)
    state = model.start(2)
    for _ in range(2):
        model.step(tokens(2, 4), state, torch.tensor([[True] * 3 + [False], [True] + [False] * 3]))
    assert state.length.tolist() == [6, 2]
    for _ in range(2):
        model.step(tokens(2, 1), state)  # slots 6 and 7 of the longer row
    assert state.max_used == 8


def test_a_step_that_fails_changes_nothing():
    model = small("decoder-only")
    text = tokens(1, 5)
    state = model.start(1)
    model.step(text[:, :3], state)
    with pytest.raises(IndexError):
        model.step(torch.tensor([[VOCAB]]), state)  # no such token
    torch.testing.assert_close(model.step(text[:, 3:], state), model(text)[:, -1])


def test_learned_positions_bound_the_cache():
    model = small("decoder-only", positions="learned", max_len=8)
    with pytest.raises(UserError, match=r"max_len=12 is of no use: .* end at max_len=8"):
        model.start(1, max_len=12)


def test_keys_of_another_precision_are_kept_in_the_caches_own():
    """As autocast gives them: half precision from weights in single precision."""
    state = small("decoder-only", torch.float32).start(2)
    state.begin(3)
    k, v = state.update(0, *torch.randn(2, 2, 4, 3, 4).half())
    assert k.dtype == v.dtype == torch.float32
    assert k.abs().sum() > 0


@writers
def test_decoding_keeps_no_graph(family, changes):
    model = small(family, **changes)
    state = begin(model, tokens(2, 3))
    assert not model.step(tokens(2, 2), state).requires_grad
