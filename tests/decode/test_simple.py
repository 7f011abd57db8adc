"""The simple searches are the truth: everything faster finds the same texts and numbers."""

import random
from dataclasses import replace

import pytest
import torch

from limelight.decode import simple
from limelight.decode.accel import accelerate
from limelight.decode.accel.cpu.model import CpuModel
from limelight.decode.accel.cuda.runner import CudaGraphModel, DeviceSearchModel
from limelight.decode.config import DecodeConfig
from limelight.decode.engine import new_search
from limelight.decode.generate import write
from limelight.decode.request import Request
from tests.decode.samples import END, START, Letters
from tests.model.samples import (
    EXPERIMENTS,
    SWITCHED,
    TRANSFORMERS,
    VARIANTS,
    VOCAB,
    WRITERS,
    has_source,
    small,
)

BEAMS = {  # name: beam, length penalty, nbest
    "plain": (4, 0.0, 1),
    "length penalty": (4, 0.6, 1),
    "a strong penalty": (3, 2.0, 2),
    "n best": (5, 0.6, 5),
    "a beam of one": (1, 0.6, 1),
    "wider than the vocabulary": (VOCAB + 2, 1.0, 3),
}
writers = pytest.mark.parametrize(
    ("family", "changes"),
    WRITERS,
    ids=[f"{f} {' '.join(map(str, c.values()))}" for f, c in WRITERS],
)
transformers = pytest.mark.parametrize(
    ("family", "changes"),
    [(f, v) for f in TRANSFORMERS[:2] for v in VARIANTS.values()],
    ids=[f"{f} {name}" for f in TRANSFORMERS[:2] for name in VARIANTS],
)
precisions = pytest.mark.parametrize(
    ("dtype", "within"), [(torch.float64, 1e-9), (torch.float32, 1e-4)]
)


def writer(family, changes, dtype=torch.float64, seed=0):
    """A random model that ends some of its texts before the limit."""
    torch.manual_seed(seed)
    return small(family, dtype, **changes)


def requests_of(model, count=6, longest=9):
    """Prompts, sources and limits of many lengths."""
    dice = random.Random(count)

    def text(most):
        return [dice.randrange(3, VOCAB) for _ in range(dice.randint(1, most))]

    for _ in range(count):
        source = [*text(6), END] if has_source(model) else ()
        prompt = [START] if dice.random() < 0.5 else [START, *text(4)]
        yield Request(prompt, limit=dice.randint(1, longest), source=source)


def assert_same(found, truth, within):
    """Tokens are equal, numbers are close."""
    assert [text.tokens for text in found] == [text.tokens for text in truth]
    assert [text.ended for text in found] == [text.ended for text in truth]
    for text, true in zip(found, truth, strict=True):
        assert text.logprobs == pytest.approx(true.logprobs, abs=within)
        assert text.score == pytest.approx(true.score, abs=within)


def assert_greedy(stepper, model, within=1e-9):
    requests = list(requests_of(model))
    found = write(stepper, requests, DecodeConfig(beam=1), Letters(VOCAB))
    assert_same(found, [simple.greedy_search(model, r, END) for r in requests], within)


def assert_beams(stepper, model, way, within=1e-9):
    beam, alpha, nbest = BEAMS[way]
    requests = list(requests_of(model))
    config = DecodeConfig(beam=beam, length_penalty=alpha)
    found = new_search(stepper, requests, config, Letters(VOCAB), nbest).run()
    for request, texts in zip(requests, found, strict=True):
        truth = simple.beam_search(model, request, END, beam, alpha, nbest)
        assert len(truth) == nbest
        assert_same(texts, truth, within)


@writers
def test_generate_is_greedy_search(family, changes):
    model = writer(family, changes)
    assert_greedy(model, model)


@writers
@pytest.mark.parametrize("way", ["length penalty", "n best"])
def test_beam_is_beam_search(family, changes, way):
    model = writer(family, changes)
    assert_beams(model, model, way)


@pytest.mark.parametrize("way", BEAMS)
@pytest.mark.parametrize("seed", range(5))
def test_beam_is_beam_search_whatever_its_settings(way, seed):
    model = writer("encoder-decoder", {}, seed=seed)
    assert_beams(model, model, way)


@transformers
@precisions
def test_the_cpu_accelerator_finds_the_same(family, changes, dtype, within):
    model = writer(family, changes, dtype)
    fast = accelerate(model)
    assert isinstance(fast, CpuModel)
    assert_greedy(fast, model, within)
    for way in ("length penalty", "n best"):
        assert_beams(fast, model, way, within)


@transformers
@pytest.mark.parametrize("kind", [CudaGraphModel, DeviceSearchModel])
def test_graph_slots_find_the_same_without_a_gpu(family, changes, kind):
    """All but the kernels and the capture: the steps, the choices and the beams in fixed memory."""
    model = writer(family, changes)
    fast = kind(model)
    assert_greedy(fast, model)
    for way in ("length penalty", "n best"):
        assert_beams(fast, model, way)


@pytest.mark.parametrize(("family", "switch"), [s for s in SWITCHED if s[0] in TRANSFORMERS[:2]])
def test_experiments_decode_with_the_model_itself(family, switch):
    """But for the mask: what is off in training alone leaves decoding as it is."""
    model = writer(family, EXPERIMENTS[switch])
    fast = accelerate(model)
    if switch == "no mask":
        assert isinstance(fast, CpuModel)
    else:
        assert fast is model
    assert_greedy(fast, model)
    assert_beams(fast, model, "length penalty")


@pytest.mark.gpu
@transformers
@precisions
@pytest.mark.parametrize("kind", ["graphs", "kernels"])
def test_the_cuda_accelerators_find_the_same(family, changes, dtype, within, kind):
    model = writer(family, changes, dtype).cuda()
    fast = accelerate(model) if kind == "kernels" else CudaGraphModel(model)
    assert isinstance(fast, DeviceSearchModel) == (kind == "kernels")
    assert_greedy(fast, model, within)
    for way in ("length penalty", "n best"):
        assert_beams(fast, model, way, within)


def test_some_texts_end_and_some_reach_their_limit():
    """So the comparisons above see both."""
    models = [writer(family, changes) for family, changes in WRITERS]
    ended = [simple.greedy_search(m, r, END).ended for m in models for r in requests_of(m)]
    assert 0.1 < sum(ended) / len(ended) < 0.9


@pytest.mark.parametrize("wrong", ["the runner-up", "a forgotten source", "no length penalty"])
def test_an_error_is_noticed(monkeypatch, wrong):
    """The control: where the truth is another, the comparison fails."""
    model, true = writer("encoder-decoder", {}), simple.next_logprobs

    def runner_up(model, request, texts):
        logprobs = true(model, request, texts)
        return logprobs.scatter(1, logprobs.argmax(dim=1, keepdim=True), -99.0)

    def without_source(model, request, texts):
        return true(model, replace(request, source=request.source[-1:]), texts)

    errors = {"the runner-up": runner_up, "a forgotten source": without_source}
    monkeypatch.setattr(simple, "next_logprobs", errors.get(wrong, true))
    if wrong == "no length penalty":
        own = simple.beam_search
        monkeypatch.setattr(
            simple,
            "beam_search",
            lambda m, r, end, beam, _, nbest: own(m, r, end, beam, 0.0, nbest),
        )
    else:
        with pytest.raises(AssertionError):
            assert_greedy(model, model)
    with pytest.raises(AssertionError):
        assert_beams(model, model, "length penalty")
