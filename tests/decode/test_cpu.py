"""The fast step gives what the model's own step gives, whatever the model and the search do."""

import math
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import limelight.decode.accel.cpu.huge_pages
from limelight.decode.accel.cpu.huge_pages import (
    ARENA_SIZE,
    Arena,
    PagePool,
    alloc_huge_pages,
    new_pages,
)
from limelight.decode.accel.cpu.kv_cache import CpuDecodeState
from limelight.decode.accel.cpu.linear import PackedLinear
from limelight.decode.accel.cpu.model import CpuModel, attention, for_cpu
from limelight.errors import UserError
from tests.model.samples import PUBLISHED, TRANSFORMERS, VARIANTS, VOCAB, begin, small, tokens

ONEDNN_LINEAR = torch.ops.mkldnn._linear_pointwise.default if torch._C._has_mkldnn else None
VARIED = {
    **VARIANTS,
    "no bias, untied": {"bias": False, "tied": False, "norm": "rms"},
    "gated, after": {"activation": "swiglu", "positions": "learned"},
    "pre, grouped": {"norm_order": "pre", "kv_heads": 2, "positions": "rotary"},
}


@pytest.fixture(autouse=True)
def _whatever_was_in_memory_before(monkeypatch):
    """New memory is full of NaN."""
    for module in ("model", "kv_cache", "huge_pages"):
        monkeypatch.setattr(
            f"limelight.decode.accel.cpu.{module}.alloc_huge_pages",
            lambda like, count: torch.full((count,), math.nan, dtype=like.dtype),
        )


models = pytest.mark.parametrize(
    ("family", "changes"),
    [(f, v) for f in TRANSFORMERS[:2] for v in VARIED.values()]
    + [(f, v) for f, v in PUBLISHED if f != "encoder-only"],
)
precisions = pytest.mark.parametrize(
    ("dtype", "within"), [(torch.float64, 1e-10), (torch.float32, 1e-5)]
)


def sides(family, dtype=torch.float64, rows=4, **changes):
    """A model and its fast form, each with a state that has read the same ragged sources."""
    model = small(family, dtype, **changes)
    fast = for_cpu(model)
    assert isinstance(fast, CpuModel)
    source, lengths = tokens(rows, 7), torch.randint(1, 8, (rows, 1))
    real = torch.arange(7) < lengths
    return model, fast, begin(model, source, real), begin(fast, source, real)


def assert_walks_alike(*case, seeds=range(4), **named):
    for seed in seeds:
        random.seed(seed)
        torch.manual_seed(seed)
        assert_walk_alike(*case, **named)


def assert_walk_alike(family, dtype, within, changes, ragged):
    """A prompt, then ten steps with random choices of rows, and newcomers, between them."""
    model, fast, state, quick = sides(family, dtype, **changes)
    rows, width = 4, random.randint(1, 6)
    prompt = tokens(rows, width)
    real = torch.arange(width) < torch.randint(1, width + 1, (rows, 1)) if ragged else None
    expected, got = model.step(prompt, state, real), fast.step(prompt, quick, real)
    for _ in range(10):
        assert got.dtype == dtype
        torch.testing.assert_close(got, expected, rtol=0, atol=within * expected.abs().max().item())
        if random.random() < 0.6:
            chosen = choice_of(rows)
            rows = len(chosen)
            state.select(chosen)
            quick.select(chosen)
        if random.random() < 0.3:
            rows = newcomers_join(model, fast, state, quick, rows)
        new = tokens(rows, random.choice([1, 1, 1, 2]))
        expected, got = model.step(new, state), fast.step(new, quick)


def newcomers_join(model, fast, state, quick, rows):
    """One or two, with sources of their own, take places or come behind; how many there are now."""
    count, longest = random.randint(1, 2), random.randint(1, 9)
    source, prompt = tokens(count, longest), tokens(count, random.randint(1, 3))
    real = torch.arange(longest) < torch.randint(1, longest + 1, (count, 1))
    places = torch.tensor(random.sample(range(rows), min(count, rows)))
    if len(places) < count or random.random() < 0.5:
        places = torch.arange(rows, rows + count)
    for writer, joined in ((model, state), (fast, quick)):
        other = begin(writer, source, real)
        writer.step(prompt, other)
        joined.insert_rows(other, places)
    return max(rows, int(places.max()) + 1)


def choice_of(rows):
    """Fewer rows, a new order, anything, or the same number of beams for each."""
    some = random.sample(range(rows), random.randint(1, rows))
    beams = random.randint(1, 3)
    kinds = [
        sorted(some),
        random.sample(range(rows), rows),
        random.choices(range(rows), k=random.randint(1, 7)),
        [row for row in some for _ in range(beams)][:12],
    ]
    return torch.tensor(random.choice(kinds))


@models
@precisions
@pytest.mark.parametrize("ragged", [False, True])
def test_steps_and_selections_at_random(family, changes, dtype, within, ragged):
    """Two walks in float64, where nothing hides in the rounding, and one in float32."""
    seeds = range(2) if dtype == torch.float64 else [2]
    assert_walks_alike(family, dtype, within, changes, ragged, seeds=seeds)


@pytest.mark.soak
@models
@precisions
@pytest.mark.parametrize("ragged", [False, True])
def test_many_steps_and_selections_at_random(family, changes, dtype, within, ragged):
    assert_walks_alike(family, dtype, within, changes, ragged, seeds=range(20))


@pytest.mark.parametrize("kept", ["past", "source", "length"])
def test_a_forgotten_selection_is_noticed(monkeypatch, kept):
    """The test above would fail if the past, the sources or the lengths stayed behind."""
    select = CpuDecodeState.select

    def forgetful(self, rows):
        before = self.kv.clone(), self.cache.length, self.source
        select(self, rows)
        if kept == "past" and len(rows) <= before[0].size(2):
            self.kv = before[0][:, :, : len(rows)]
        if kept == "length" and len(rows) <= len(before[1]):
            self.cache.length = before[1][: len(rows)]
        if kept == "source" and self.source.size(2) <= before[2].size(2):
            self.keep_source(before[2][:, :, : self.source.size(2)], self.source_hidden)

    monkeypatch.setattr(CpuDecodeState, "select", forgetful)
    with pytest.raises(AssertionError, match="not close"):
        assert_walks_alike("encoder-decoder", torch.float64, 1e-10, {}, ragged=True)


def test_beams_share_their_source():
    """Beams that come, move and change places never make a copy of what they look at."""
    _, fast, _, state = sides("encoder-decoder")
    fast.step(tokens(4, 1), state)
    there = state.source.data_ptr()
    state.select(torch.arange(4).repeat_interleave(3))
    for rows in ([0, 0, 1, 5, 4, 3, 6, 6, 6, 11, 9, 10], list(range(12))):
        fast.step(tokens(12, 1), state)
        state.select(torch.tensor(rows))
    assert state.source.data_ptr() == there
    assert state.source.size(2) == 4
    assert state.rows_per_source == 3


@pytest.mark.parametrize("changes", VARIED.values(), ids=VARIED)
@precisions
@pytest.mark.parametrize("beams", [1, 3])
def test_one_source_is_folded_into_the_weights(changes, dtype, within, beams):
    model, fast, state, quick = sides("encoder-decoder", dtype, rows=1, **changes)
    for new in (tokens(1, 1), tokens(beams, 1), tokens(beams, 1)):
        for side in (state, quick):
            side.select(torch.zeros(len(new), dtype=torch.long))
        expected, got = model.step(new, state), fast.step(new, quick)
        torch.testing.assert_close(got, expected, rtol=0, atol=within * expected.abs().max().item())
    assert len(quick.folded) == model.config.layers


def test_a_long_source_or_two_are_not_folded():
    model = small("encoder-decoder")
    fast = for_cpu(model)
    for source in (tokens(1, 9), tokens(2, 3)):  # 4 heads x 9 are more than 2 x 16
        state = fast.start(source)
        expected = model.step(source[:, :1], model.start(source))
        torch.testing.assert_close(fast.step(source[:, :1], state), expected)
        assert not state.folded


def test_beams_of_unequal_number_get_copies():
    model, fast, state, quick = sides("encoder-decoder")
    rows = torch.tensor([0, 0, 0, 1, 3, 3])
    for step in (model.step, fast.step):
        step(tokens(4, 1) * 0, state if step == model.step else quick)
    state.select(rows)
    quick.select(rows)
    new = tokens(6, 1)
    torch.testing.assert_close(fast.step(new, quick), model.step(new, state), rtol=0, atol=1e-10)


def test_a_row_with_nothing_new_stays_where_it_was():
    model, fast, state, quick = sides("decoder-only", rows=2)
    for new, real in ((tokens(2, 3), None), (tokens(2, 1), torch.tensor([[True], [False]]))):
        model.step(new, state, real)
        fast.step(new, quick, real)
    new = tokens(2, 1)
    torch.testing.assert_close(fast.step(new, quick), model.step(new, state), rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", TRANSFORMERS[:2])
def test_no_rows_at_all_is_no_error(family):
    _, fast, _, state = sides(family)
    fast.step(tokens(4, 2), state)
    state.select(torch.tensor([], dtype=torch.long))
    assert fast.step(tokens(4, 1)[:0], state).shape == (0, VOCAB)


def test_the_end_of_the_room_is_said():
    _, fast, _, state = sides("encoder-decoder", max_len=3)
    for _ in range(3):
        fast.step(tokens(4, 1), state)
    with pytest.raises(UserError, match="4 tokens do not fit into a cache made for max_len=3"):
        fast.step(tokens(4, 1), state)


def test_a_longer_cache_may_be_asked_for():
    model = small("decoder-only", max_len=4)
    fast, text = for_cpu(model), tokens(1, 9)
    for room in (6, 9):
        state = fast.start(1, max_len=room)
        for i in range(room):
            scores = fast.step(text[:, i : i + 1], state)
        torch.testing.assert_close(scores, model(text[:, :room])[:, -1])


def test_a_state_that_lost_all_its_rows_takes_new_ones():
    model, fast, state, quick = sides("encoder-decoder")
    for each in (state, quick):
        each.select(torch.tensor([], dtype=torch.long))
    rows = newcomers_join(model, fast, state, quick, 0)
    new = tokens(rows, 1)
    torch.testing.assert_close(fast.step(new, quick), model.step(new, state))


@pytest.mark.parametrize("family", ["recurrent-encoder-decoder", "recurrent-decoder-only"])
def test_where_no_faster_way_is_known_the_model_writes_itself(family):
    model = small(family)
    assert for_cpu(model) is model
    half = small("decoder-only", torch.bfloat16)
    assert for_cpu(half) is half


@pytest.mark.parametrize("family", TRANSFORMERS[:2])
@pytest.mark.parametrize("positions", ["learned", "rotary", "sinusoidal"])
def test_sources_and_texts_as_long_as_the_model_allows(family, positions):
    model = small(family, positions=positions, max_len=8)
    fast, source, text = for_cpu(model), tokens(2, 8), tokens(2, 8)
    state, quick = begin(model, source), begin(fast, source)
    for i in range(8):
        new = text[:, i : i + 1]
        torch.testing.assert_close(fast.step(new, quick), model.step(new, state))


def test_a_source_of_padding_alone_is_read_as_the_model_reads_it():
    model = small("encoder-decoder")
    fast, source, first = for_cpu(model), tokens(3, 5), tokens(3, 1)
    real = torch.arange(5) >= torch.tensor([[5], [2], [0]])  # padding comes first here
    expected = model.step(first, model.start(source, real))
    torch.testing.assert_close(fast.step(first, fast.start(source, real)), expected)


@pytest.mark.parametrize("count", [0, 5, 2**20])
def test_large_pages_are_ordinary_memory(count):
    like = torch.empty(1, dtype=torch.float64)
    numbers = alloc_huge_pages(like, count)
    assert numbers.shape == (count,)
    assert numbers.dtype == torch.float64
    assert torch.equal(numbers.fill_(3).view(-1, 1).sum(), torch.tensor(3.0 * count).double())


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("slots", [1, 6, 7, 15, 16, 30])
@pytest.mark.parametrize("rows", [1, 128])
def test_looking_at_few_or_many_is_attention(rows, slots, queries):
    q, keys, values = (torch.randn(rows, n, 5).double() for n in (queries, slots, slots))
    hidden = torch.rand(rows, 1, slots) < 0.3
    hidden[..., -1] = False
    for unseen in (None, hidden):
        truth = F.scaled_dot_product_attention(
            q, keys, values, None if unseen is None else ~unseen, scale=1.0
        )
        got = attention(q, keys.mT, values, unseen)
        torch.testing.assert_close(got, truth, rtol=0, atol=1e-12)


@pytest.fixture
def rooms(monkeypatch):
    monkeypatch.setattr("limelight.decode.accel.cpu.huge_pages.POOL", PagePool())
    return limelight.decode.accel.cpu.huge_pages.POOL


def test_pages_are_used_again_once_no_tensor_lies_in_them(rooms):
    like, count = torch.empty(1), 2**20
    first = alloc_huge_pages(like, count).fill_(1)
    view, where = first.view(4, -1)[2], first.data_ptr()
    del first
    second = alloc_huge_pages(like, count).fill_(2)
    assert second.data_ptr() != where
    assert view.eq(1).all()
    del view
    third = alloc_huge_pages(like.double(), count // 2 - 7).fill_(3)
    assert third.data_ptr() == where
    assert third.numel() == count // 2 - 7
    assert second.eq(2).all()


def test_few_pages_are_kept_and_none_for_ever_that_fit_nobody(rooms, monkeypatch):
    monkeypatch.setattr("limelight.decode.accel.cpu.huge_pages.KEPT", 2**23)
    like = torch.empty(1)
    small, large = alloc_huge_pages(like, 2**19), alloc_huge_pages(like, 2**22)
    del small, large
    assert [len(room) for room in rooms.free] == [2**21]
    much = alloc_huge_pages(like, 2**22)
    assert much.numel() == 2**22
    assert rooms.free == []


def test_when_memory_ends_kept_pages_are_given_up_before_anybody_is_refused(rooms, monkeypatch):
    like = torch.empty(1)
    both = [alloc_huge_pages(like, 2**20) for _ in range(2)]
    del both
    assert len(rooms.free) == 2  # of which one is given up in any case

    def while_nothing_is_kept(size):
        if rooms.free:
            raise MemoryError
        return new_pages(size)

    monkeypatch.setattr("limelight.decode.accel.cpu.huge_pages.new_pages", while_nothing_is_kept)
    much = alloc_huge_pages(like, 2**21)
    assert rooms.free == []
    assert much.numel() == 2**21


def test_pages_that_the_system_has_not_are_missing_memory():
    with pytest.raises(MemoryError, match="bytes are left"):
        new_pages(2**62)


@pytest.mark.parametrize("failing", ["past", "sources"])
def test_a_state_without_memory_for_newcomers_is_as_it_was(monkeypatch, failing):
    model, fast, state, quick = sides("encoder-decoder")
    first, new = tokens(4, 1), tokens(4, 1)
    model.step(first, state)
    fast.step(first, quick)
    other = begin(fast, tokens(3, 9), None)
    fast.step(tokens(3, 5), other)

    def fails(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(CpuDecodeState, "move" if failing == "past" else "sources_with", fails)
        with pytest.raises(MemoryError):
            quick.insert_rows(other, torch.tensor([1, 4, 5]))
    torch.testing.assert_close(fast.step(new, quick), model.step(new, state))


def test_scores_are_a_states_own_until_its_next_step(monkeypatch):
    monkeypatch.setattr("limelight.decode.accel.cpu.linear.ONEDNN", None)
    monkeypatch.setattr("limelight.decode.accel.cpu.linear.MANY_OUTPUTS", 0)
    _, fast, _, state = sides("encoder-decoder", vocab=41)
    other = begin(fast, tokens(4, 7), None)
    new = tokens(4, 1)
    scores = fast.step(new, state)
    kept = scores.clone()
    fast.step(new, other)
    assert torch.equal(scores, kept)
    assert fast.step(new, state).data_ptr() == scores.data_ptr()


@models
def test_the_ways_for_much_and_for_many_give_the_same(monkeypatch, family, changes):
    """As with large vocabularies and many rows, which would take long to walk with."""
    monkeypatch.setattr("limelight.decode.accel.cpu.linear.ONEDNN", None)
    monkeypatch.setattr("limelight.decode.accel.cpu.linear.MANY_OUTPUTS", 0)
    changes = {**changes, "vocab": 41}
    assert_walks_alike(family, torch.float64, 1e-10, changes, ragged=True, seeds=range(2))


def test_a_source_that_is_too_long_is_refused_with_its_length():
    model = small("encoder-decoder", positions="learned", max_len=8)
    for writer in (model, for_cpu(model)):
        with pytest.raises(UserError, match=r"^9 tokens are too many"):
            writer.start(tokens(1, 9))


@pytest.mark.parametrize("kernel", [ONEDNN_LINEAR, None], ids=["onednn", "torch"])
@pytest.mark.parametrize(("inputs", "outputs"), [(24, 24), (24, 56), (40, 24), (24, 1000)])
@pytest.mark.parametrize("rows", [1, 2, 7, 300])
def test_a_product_is_a_linear_layer_with_any_kernel(monkeypatch, kernel, inputs, outputs, rows):
    if kernel is None or torch._C._has_mkldnn:
        monkeypatch.setattr("limelight.decode.accel.cpu.linear.ONEDNN", kernel)
    layer = nn.Linear(inputs, outputs)
    x, onto = torch.randn(rows, inputs), torch.randn(rows, outputs)
    with torch.no_grad():
        product, truth = PackedLinear(layer), layer(x)
        torch.testing.assert_close(product(x), truth, rtol=1e-5, atol=1e-5)
        with_room = product(x, torch.full_like(truth, math.nan))
        torch.testing.assert_close(with_room, truth, rtol=1e-5, atol=1e-5)
        expected = onto + truth
        torch.testing.assert_close(product.add_into(onto, x), expected, rtol=1e-5, atol=1e-5)


def test_matrices_on_a_shelf_do_not_touch_each_other():
    arena = Arena()
    kinds = [torch.empty(0), torch.empty(0, dtype=torch.float64)]
    shapes = [(3, 5), (1, 1), (700, 700), (2, ARENA_SIZE // 2 + 1), (7, 9)] * 3
    placed = [arena.empty(kinds[i % 2], *shape).fill_(i) for i, shape in enumerate(shapes)]
    for i, (matrix, shape) in enumerate(zip(placed, shapes, strict=True)):
        assert matrix.shape == shape
        assert matrix.dtype == kinds[i % 2].dtype
        assert matrix.eq(i).all()
