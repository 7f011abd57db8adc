"""Steps of one shape give what the model's own steps give, whatever a search does in between."""

import gc
import random
from dataclasses import replace

import pytest
import torch

from limelight.decode.accel import accelerate
from limelight.decode.accel.cuda.runner import MAX_SLOTS, CudaGraphModel, DeviceSearchModel, rounded
from limelight.decode.config import DecodeConfig
from limelight.decode.engine import new_search
from limelight.decode.generate import write
from limelight.errors import UserError
from tests.decode.samples import Letters, requests_for, tiny
from tests.decode.test_cpu import VARIED, choice_of
from tests.model.samples import TRANSFORMERS, begin, small, tokens


def walk(model, writer, ragged, seed):
    """A prompt, then ten steps with random choices of rows; the largest difference on the way."""
    random.seed(seed)
    torch.manual_seed(seed)
    rows, width = 4, random.randint(1, 6)
    source, real = tokens(rows, 7), torch.arange(7) < torch.randint(1, 8, (rows, 1))
    state, own = begin(model, source, real), begin(writer, source, real)
    prompt = tokens(rows, width)
    real = torch.arange(width) < torch.randint(1, width + 1, (rows, 1)) if ragged else None
    expected, got = model.step(prompt, state, real), writer.step(prompt, own, real)
    apart = [(got - expected).abs().max().item()]
    for _ in range(10):
        if random.random() < 0.6:
            chosen = choice_of(rows)
            rows = len(chosen)
            state.select(chosen)
            own.select(chosen)
        new = tokens(rows, 1)
        expected, got = model.step(new, state), writer.step(new, own)
        apart.append((got - expected).abs().max().item())
    return max(apart)


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("changes", VARIED.values(), ids=VARIED)
@pytest.mark.parametrize("family", TRANSFORMERS[:2])
def test_fixed_steps_are_the_models_own(family, changes, ragged):
    model = small(family, torch.float64, **changes)
    writer = CudaGraphModel(model)  # one for all walks, so that places are used again
    for seed in range(2):
        assert walk(model, writer, ragged, seed) < 1e-12
    assert len(writer.slots) < 12


def test_a_row_that_was_not_moved_is_noticed(monkeypatch):
    """The control."""
    model = small("encoder-decoder", torch.float64)
    monkeypatch.setattr("limelight.decode.accel.cuda.graph_slot.GraphSlot.reorder", lambda *_: None)
    assert max(walk(model, CudaGraphModel(model), True, seed) for seed in range(6)) > 1e-3


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only"])
def test_search_finds_the_same(family, beam):
    model, tokenizer = tiny(family, 1, vocab=12), Letters(12)
    requests = requests_for(model, 9, limit=11, seed=1)
    config, writer = DecodeConfig(beam=beam), CudaGraphModel(model)
    found, wanted = (new_search(m, requests, config, tokenizer).run() for m in (writer, model))
    assert [texts[0].tokens for texts in found] == [texts[0].tokens for texts in wanted]
    if beam == 1:
        found, wanted = (write(m, requests, config, tokenizer) for m in (writer, model))
        assert [text.tokens for text in found] == [text.tokens for text in wanted]
        assert [text.score for text in found] == pytest.approx([text.score for text in wanted])


def assert_chooses_alike(writer, model, beam):
    """Texts of many lengths, so that rows leave; the last time all places are there already."""
    tokenizer, config, made = Letters(12), DecodeConfig(beam=beam), []
    for seed in (1, 2, 1):
        requests = [
            replace(request, limit=1 + 3 * i)
            for i, request in enumerate(requests_for(model, 8, limit=1, seed=seed))
        ]
        found, wanted = (
            new_search(m, requests, config, tokenizer, beam).run() for m in (writer, model)
        )
        for own, texts in zip(found, wanted, strict=True):
            assert [text.tokens for text in own] == [text.tokens for text in texts]
            assert [text.score for text in own] == pytest.approx([t.score for t in texts])
            assert own[0].logprobs == pytest.approx(texts[0].logprobs)
        for settings in (config, DecodeConfig(temperature=1.0)) if beam == 1 else ():
            found, wanted = (write(m, requests, settings, tokenizer) for m in (writer, model))
            assert [text.tokens for text in found] == [text.tokens for text in wanted]
            assert [text.score for text in found] == pytest.approx([t.score for t in wanted])
        made.append({id(beams) for slot in writer.slots for beams in slot.beams.values()})
    assert made[0] <= made[1] == made[2]


@pytest.mark.parametrize("beam", [1, 3, 5])
@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only"])
def test_what_is_chosen_with_the_step_is_what_search_chooses(family, beam):
    model = tiny(family, 2, vocab=12, sharp=1.0)
    assert_chooses_alike(DeviceSearchModel(model), model, beam)


def test_damaged_weights_are_noticed_by_a_search_that_is_not_watched():
    model = tiny("encoder-decoder", 1, vocab=12)
    with torch.no_grad():
        model.classifier.weight[5] = torch.nan
    requests = requests_for(model, 3, limit=4)
    with pytest.raises(UserError, match="damaged"):
        new_search(DeviceSearchModel(model), requests, DecodeConfig(beam=3), Letters(12)).run()


def test_room_that_a_longer_row_has_left_is_used_again():
    model = small("decoder-only", torch.float64)
    writer, room = CudaGraphModel(model), 64
    state, own = writer.start(2, max_len=room), model.start(2, max_len=room)
    prompt, real = tokens(2, 50), torch.arange(50) < torch.tensor([[50], [3]])
    first = torch.tensor([1])
    for stepper, its in ((writer, state), (model, own)):
        stepper.step(prompt, its, real)
        stepper.step(prompt[:, :1], its)
        its.select(first)
    for _ in range(30):
        new = tokens(1, 1)
        assert (writer.step(new, state) - model.step(new, own)).abs().max() < 1e-12


def test_a_place_is_used_again_but_never_by_two():
    model = small("decoder-only", torch.float64)
    writer = CudaGraphModel(model)
    one, other = writer.start(2), writer.start(2)
    for state in (one, other):
        writer.step(tokens(2, 1), state)
    assert len(writer.slots) == 2
    del one, state
    gc.collect()
    writer.step(tokens(2, 1), writer.start(2))
    assert len(writer.slots) == 2
    writer.step(tokens(2, 1), other)


def test_places_that_nobody_has_used_for_long_are_given_up():
    model = small("decoder-only", torch.float64)
    writer, held = CudaGraphModel(model), []
    for rows in (1, 2, 3):
        held.append(writer.start(rows))
        writer.step(tokens(rows, 1), held[-1])
    for rows in (4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 4, 40, 48, 56):
        writer.step(tokens(rows, 1), writer.start(rows))
    sizes = [slot.shape[0] for slot in writer.slots]
    assert len(sizes) == MAX_SLOTS
    assert {1, 2, 3, 4, 56} <= set(sizes)  # in use, or used not long ago
    assert 5 not in sizes
    assert 6 not in sizes
    for rows, state in zip((1, 2, 3), held, strict=True):
        writer.step(tokens(rows, 1), state)


def test_few_numbers_of_rows_are_enough_for_all():
    sizes = {rounded(rows) for rows in range(1, 65)}
    assert sizes == {*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64}
    assert all(rows <= rounded(rows) <= 1.25 * rows for rows in range(1, 1000))


class OnGpu:
    """A writer on a GPU for those who hold their numbers on a CPU."""

    def __init__(self, model):
        self.writer, self.config = accelerate(model.to("cuda")), model.config

    def start(self, *given, **room):
        return self.writer.start(*(moved(x) for x in given), **room)

    def step(self, tokens, state, real=None):
        return self.writer.step(tokens.cuda(), state, moved(real)).cpu()


def moved(x):
    return x.cuda() if isinstance(x, torch.Tensor) else x


@pytest.mark.gpu
@pytest.mark.parametrize("few", [0, 64])  # rows: always with products of our own, or never
@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("changes", VARIED.values(), ids=VARIED)
@pytest.mark.parametrize("family", TRANSFORMERS[:2])
def test_recorded_steps_of_few_kernels_are_the_models_own(
    family, changes, ragged, few, monkeypatch
):
    monkeypatch.setattr("limelight.decode.accel.cuda.fused_model.FEW_ROWS", few)
    writer = OnGpu(small(family, torch.float64, **changes))
    model = small(family, torch.float64, **changes)
    with torch.no_grad():
        for own, its in zip(model.parameters(), writer.writer.parameters(), strict=True):
            own.copy_(its)
    for seed in range(4):
        assert walk(model, writer, ragged, seed) < 1e-11
    slots = writer.writer.slots
    assert slots
    assert all(type(slot).__name__ == "PagedSlot" and slot.graphs for slot in slots)


@pytest.mark.gpu
@pytest.mark.parametrize("beam", [1, 3, 5])
@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only"])
def test_a_search_on_a_gpu_finds_what_it_finds_on_a_cpu(family, beam):
    writer = accelerate(tiny(family, 2, vocab=12, sharp=1.0).to("cuda"))
    assert_chooses_alike(writer, tiny(family, 2, vocab=12, sharp=1.0), beam)
