"""Requests that join others: nobody's text changes by it, not even by the last bit of a choice."""

import random
from dataclasses import replace

import pytest
import torch

from limelight.decode.accel import accelerate
from limelight.decode.accel.cpu.kv_cache import CpuDecodeState
from limelight.decode.accel.cpu.model import for_cpu
from limelight.decode.accel.cuda.runner import CudaGraphModel, DeviceSearchModel
from limelight.decode.config import DecodeConfig
from limelight.decode.ensemble import Ensemble
from limelight.decode.generate import GenerationBatch, write
from limelight.errors import UserError
from tests.decode.samples import FAMILIES, Letters, Ranking, requests_for, tiny

CONFIGS = (
    DecodeConfig(beam=1),
    DecodeConfig(temperature=0.9, top_k=8),
    DecodeConfig(temperature=1.3, top_p=0.9, no_repeat_ngram=2),
    DecodeConfig(beam=1, repetition_penalty=1.5),
)


WAYS = ("lean", "turning", "fixed", "ahead")  # the last as on a GPU, which is not waited for
FAST = [f"{way} {family}" for way in WAYS for family in FAMILIES[:2]]


def model_of(name):
    if name == "ensemble":
        return Ensemble([for_cpu(tiny(FAMILIES[0], seed, vocab=20, sharp=1.0)) for seed in (5, 6)])
    way, family = name.split() if " " in name else ("", name)
    positions = {"positions": "rotary"} if way == "turning" else {}
    model = tiny(family, 3, vocab=20, sharp=1.0, **positions)
    ways = {
        "": lambda model: model,
        "fixed": CudaGraphModel,
        "ahead": lambda model: Ranking(CudaGraphModel(model)),
    }
    return ways.get(way, for_cpu)(model)


def jobs_for(model, count, dice, configs=CONFIGS):
    """Requests of all lengths, some of which shall be cancelled on the way."""
    for request in requests_for(model, count, limit=1, seed=dice.randrange(1000)):
        limit, seed = dice.choice([1, 3, 12, 40]), dice.randrange(10**6)
        leaves = dice.randint(1, limit) if dice.random() < 0.2 else None
        yield replace(request, limit=limit, seed=seed), dice.choice(configs), leaves


def test_who_cannot_join_changes_nothing(monkeypatch):
    """There is no memory for a newcomer: the others go on as if nobody had come."""
    model, letters = model_of("lean encoder-decoder"), Letters(20)
    first, second, third = requests_for(model, 3, limit=12, seed=7)
    alone = [text.tokens for text in write(model, [first, second], CONFIGS[0], letters)]

    def fails(*_):
        raise MemoryError

    writing, texts = GenerationBatch(model, [first, second], CONFIGS[0], letters), {0: [], 1: []}
    with torch.inference_mode():
        while writing.active:
            for event in writing.step():
                texts[event.row] += [event.token] * (event.token != letters.end)
            with monkeypatch.context() as patch:
                patch.setattr(CpuDecodeState, "insert_rows", fails)
                if len(writing.active) == 2:
                    with pytest.raises(MemoryError):
                        writing.add_requests([third], CONFIGS[:1])
    assert [*texts.values()] == alone


@pytest.mark.parametrize("name", [*FAMILIES, *FAST, "ensemble"])
def test_joining_changes_no_text(name):
    """40 requests come a few at a time, between any two steps, and some leave early."""
    assert_nothing_changes(name, model_of(name), ahead=name.startswith("ahead"))


@pytest.mark.gpu
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("family", FAMILIES[:2])
def test_joining_changes_no_text_on_a_gpu(family, positions):
    model = tiny(family, 3, vocab=20, sharp=1.0, positions=positions).cuda()
    fast = accelerate(model)
    assert_nothing_changes(f"{family} {positions}", fast, ahead=True, count=60)
    assert fast.grows
    assert sum(slot.shape[0] >= 8 for slot in fast.slots) <= 8  # few graphs


def assert_nothing_changes(name, model, ahead, count=40):
    dice, letters = random.Random(name), Letters(20)
    waiting = list(jobs_for(model, count, dice, CONFIGS[:2] if ahead else CONFIGS))
    writing, jobs, texts = GenerationBatch(model, [], CONFIGS[0], letters), {}, {}
    writing.in_flight.ahead = int(ahead)
    with torch.inference_mode():
        while waiting or writing.active:
            while waiting and (not writing.active or dice.random() < 0.3):
                job = waiting.pop()
                silent = job[2] is None and dice.random() < 0.5
                (number,) = writing.add_requests([job[0]], [job[1]], [silent])
                jobs[number], texts[number] = job, []
            for event in writing.step():
                texts[event.row].append((event.token, event.logprob))
                if len(texts[event.row]) == jobs[event.row][2]:
                    writing.stop(event.row)
        assert len(writing.finished) > 5  # silent requests
        for number, written in writing.finished.items():
            assert not texts[number]
            texts[number] = list(zip(*written, strict=True))
        for number, (request, config, leaves) in jobs.items():
            (alone,) = write(model, [request], config, letters)
            tokens = [*alone.tokens, *[letters.end] * alone.ended][:leaves]
            assert [token for token, _ in texts[number]] == tokens
            logprobs = [logprob for _, logprob in texts[number]]
            assert logprobs == pytest.approx(alone.logprobs[:leaves], abs=1e-12)
    assert len(writing.texts) <= len(writing.rows)  # nothing is kept of those who left


@pytest.mark.parametrize("family", FAMILIES[:2])
def test_several_steps_at_once_change_no_text(family, monkeypatch):
    assert_silent_texts(DeviceSearchModel(tiny(family, 3, vocab=20, sharp=1.0)), monkeypatch)


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES[:2])
def test_several_steps_at_once_change_no_text_on_a_gpu(family, monkeypatch):
    assert_silent_texts(accelerate(tiny(family, 3, vocab=20, sharp=1.0).cuda()), monkeypatch)


def assert_silent_texts(model, monkeypatch):
    """Texts that nobody reads before their end come in several steps, as more of them join."""
    dice, letters, made = random.Random(5), Letters(20), []
    step = model.step_greedy

    def counted(tokens, state, most=1):
        found = step(tokens, state, most)
        made.append(len(found[0]))
        return found

    monkeypatch.setattr(model, "step_greedy", counted)
    waiting = [job[0] for job in jobs_for(model, 120, dice, CONFIGS[:1])]
    writing, jobs = GenerationBatch(model, [], CONFIGS[0], letters), {}
    writing.in_flight.ahead = 1
    with torch.inference_mode():
        while waiting or writing.active:
            if waiting and len(writing.active) < 40:
                some = [waiting.pop() for _ in range(min(len(waiting), dice.randint(1, 40)))]
                numbers = writing.add_requests(some, CONFIGS[:1] * len(some), [True] * len(some))
                jobs.update(zip(numbers, some, strict=True))
            assert writing.step() == []
        assert len(writing.finished) == 120
        assert max(made) > 4
        for number, request in jobs.items():
            (alone,) = write(model, [request], CONFIGS[0], letters)
            tokens, logprobs = writing.finished[number]
            assert tokens == [*alone.tokens, *[letters.end] * alone.ended]
            assert logprobs == pytest.approx(alone.logprobs, abs=1e-12)


def test_a_damaged_model_is_noticed_in_several_steps():
    model = tiny("decoder-only", 3, vocab=20)
    model.classifier.weight.data[5] = float("nan")
    requests = [replace(one, prompt=one.prompt[:1]) for one in requests_for(model, 40, limit=12)]
    writing = GenerationBatch(DeviceSearchModel(model), [], CONFIGS[0], Letters(20))
    writing.in_flight.ahead = 1
    with torch.inference_mode():
        writing.add_requests(requests, CONFIGS[:1] * 40, [True] * 40)
        with pytest.raises(UserError, match="damaged"):
            writing.step()


def test_the_likeliest_tokens_are_told_to_those_who_ask():
    model, letters = tiny("decoder-only", 1, vocab=12), Letters(12)
    plain, asking = requests_for(model, 2, limit=4)
    writing = GenerationBatch(model, [plain, replace(asking, top=3)], CONFIGS[0], letters)
    told = []
    while writing.active:
        told += writing.step()
    for event in told:
        assert len(event.top) == (3 if event.row else 0)
        if event.row:  # greedy takes the likeliest
            assert event.top[0][0] == event.token
            assert event.top[0][1] == pytest.approx(event.logprob)
            assert event.top[0][1] >= event.top[1][1] >= event.top[2][1]
