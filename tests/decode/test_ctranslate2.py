"""CTranslate2 computes what torch does, or says that it cannot; only our own files reach it."""

import copy
import os
import shutil
import sys
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import limelight
from limelight.decode import simple
from limelight.decode.accel import Accelerated, ctranslate2
from limelight.decode.accel.ctranslate2 import CTranslate2Search, unknown_in_model
from limelight.decode.beam import length_penalty
from limelight.decode.config import DecodeConfig
from limelight.decode.engine import Engine
from limelight.decode.generate import write
from limelight.decode.request import DAMAGED, Request
from limelight.errors import EngineWarning, UserError
from limelight.evaluate.bleu import score_translations
from tests.decode.samples import END, START, Letters, logprobs_of
from tests.decode.sentences import PAIRS
from tests.decode.test_simple import assert_same, requests_of, transformers, writer
from tests.model.samples import EXPERIMENTS, PUBLISHED, VOCAB, small

TEXTS = Letters(VOCAB)
NOT_THERE = ("encoder-only", "llama3")  # a family and a scaling of rotary positions
IMPORTED = [
    (family, changes)
    for family, changes in PUBLISHED
    if not {family, changes.get("rotary_scaling")}.intersection(NOT_THERE)
]
imported = pytest.mark.parametrize(("family", "changes"), IMPORTED)
CHOSEN = DecodeConfig(beam=1, engine="ctranslate2")
PLAIN = DecodeConfig(beam=1)
SMALL = {"family": "encoder-decoder", "dtype": torch.float32}


def tiny(**changes):
    torch.manual_seed(0)
    return small(**{**SMALL, **changes})


def greedy(model, requests, config=CHOSEN, **options):
    return [best for best, *_ in Engine([model], TEXTS, **options).generate(requests, config)]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LIMELIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ctranslate2"


@pytest.fixture
def saved(monkeypatch):
    """How often files were written."""
    calls, save = [], ctranslate2.save

    def count(*given, **named):
        calls.append(given)
        save(*given, **named)

    monkeypatch.setattr(ctranslate2, "save", count)
    return calls


@transformers
def test_greedy_texts_and_log_probabilities_are_the_models(family, changes):
    model = writer(family, changes, torch.float32)
    requests = list(requests_of(model, count=12))
    truth = [simple.greedy_search(model, request, END) for request in requests]
    assert_same(greedy(model, requests), truth, 1e-4)
    stated = [text.total for text in greedy(model, requests)]
    assert stated == pytest.approx([sum(text.logprobs) for text in truth], abs=1e-4)


@imported
def test_settings_of_published_models_are_computed(family, changes):
    model = writer(family, changes, torch.float32)
    requests = list(requests_of(model, count=12))
    truth = [simple.greedy_search(model, request, END) for request in requests]
    assert_same(greedy(model, requests), truth, 1e-4)
    rounded = greedy(model, requests, PLAIN, int8=True)
    for request, text in zip(requests, rounded, strict=True):
        true = logprobs_of(model, request, [*text.tokens, *[END] * text.ended])
        assert text.logprobs == pytest.approx(true, abs=0.5)


@pytest.mark.parametrize("count", [VOCAB - 4, VOCAB + 7])
def test_a_source_may_have_fewer_or_more_tokens_than_the_target(count):
    model = tiny(source_vocab=count, tied="target")
    sources = [[i, count - 1, END] for i in range(3, count)]
    requests = [Request([START], 6, source=source) for source in sources]
    truth = [simple.greedy_search(model, request, END) for request in requests]
    assert_same(greedy(model, requests), truth, 1e-4)
    assert len({text.total for text in truth}) == len(truth)


@transformers
@pytest.mark.parametrize("alpha", [0.0, 1.4])
def test_hypotheses_of_a_beam_have_the_models_numbers_and_our_ranks(family, changes, alpha):
    model = writer(family, changes, torch.float32)
    requests = list(requests_of(model))
    config = DecodeConfig(beam=4, length_penalty=alpha, engine="ctranslate2")
    for request, found in zip(
        requests, Engine([model], TEXTS).generate(requests, config, nbest=4), strict=True
    ):
        assert len(found) == len({(*text.tokens, text.ended) for text in found}) == 4
        assert [text.score for text in found] == sorted((t.score for t in found), reverse=True)
        for text in found:
            written = [*text.tokens, *[END] * text.ended]
            assert len(written) == request.limit or (text.ended and len(written) < request.limit)
            true = logprobs_of(model, request, written)
            assert text.logprobs == pytest.approx(true, abs=1e-4)
            assert text.total == pytest.approx(sum(true), abs=1e-4)
            assert text.score == pytest.approx(sum(true) / length_penalty(len(true), alpha), 1e-4)


def test_beams_are_mostly_those_of_our_own_search():
    """It widens its beam again when a text ends, so that some are others, and few are worse."""
    config, counts = DecodeConfig(beam=4, engine="ctranslate2"), Counter()
    for seed in range(5):
        model = writer("encoder-decoder", {}, torch.float32, seed)
        requests = list(requests_of(model, count=12))
        ours = [simple.beam_search(model, r, END, 4, 0.6, 1)[0] for r in requests]
        theirs = [best for best, *_ in Engine([model], TEXTS).generate(requests, config)]
        for a, b in zip(ours, theirs, strict=True):
            other = "better" if b.score > a.score else "worse"
            counts["same" if a.tokens == b.tokens else other] += 1
    assert counts["same"] >= 0.9 * counts.total()
    assert counts["worse"] <= 0.05 * counts.total()


def test_a_text_does_not_depend_on_those_beside_it():
    model = tiny()
    requests = list(requests_of(model, count=12))
    for config in (CHOSEN, replace(CHOSEN, beam=3)):
        engine = Engine([model], TEXTS)
        together = [best for best, *_ in engine.generate(requests, config)]
        alone = [engine.generate([request], config)[0][0] for request in requests]
        assert_same(alone, together, 1e-5)


def test_without_log_probabilities_the_sum_is_there():
    model = tiny()
    requests = list(requests_of(model))
    ((with_them, *_), *_) = Engine([model], TEXTS).generate(requests, CHOSEN)
    ((without, *_), *_) = Engine([model], TEXTS).generate(requests, CHOSEN, logprobs=False)
    assert without == replace(with_them, logprobs=[])
    assert without.total == pytest.approx(sum(with_them.logprobs), abs=1e-4)


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only"])
def test_int8_is_near_and_leaves_the_weights_alone(family):
    model = tiny(family=family, d_model=32, tied=False)
    before = copy.deepcopy(model.state_dict())
    requests = list(requests_of(model, count=12))
    rounded = greedy(model, requests, PLAIN, int8=True)
    for request, text in zip(requests, rounded, strict=True):
        true = logprobs_of(model, request, [*text.tokens, *[END] * text.ended])
        assert text.logprobs == pytest.approx(true, abs=0.3)
        assert text.logprobs != pytest.approx(true, abs=1e-4)  # float32 would be as near as that
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_tokens_come_one_by_one():
    model = tiny(family="decoder-only")
    for request in requests_of(model):
        truth = simple.greedy_search(model, request, END)
        events = [*Engine([model], TEXTS).stream(request, CHOSEN)]
        assert [event.token for event in events] == [*truth.tokens, *[END] * truth.ended]
        assert [event.logprob for event in events] == pytest.approx(truth.logprobs, abs=1e-4)


def test_a_stream_can_be_left():
    stream = Engine([tiny(family="decoder-only")], TEXTS).stream(Request([START], 40), CHOSEN)
    assert next(stream)
    stream.close()
    assert list(stream) == []


@pytest.mark.parametrize("name", sorted(EXPERIMENTS.keys() - {"no mask", "nothing of it"}))
def test_a_setting_without_an_equivalent_is_refused_by_its_name(name):
    setting, value = next(iter(EXPERIMENTS[name].items()))
    model = tiny(**EXPERIMENTS[name])
    requests = list(requests_of(model, count=2))
    with pytest.raises(UserError, match=f"not for a model with {setting}={value!r}: use torch"):
        greedy(model, requests)
    with pytest.raises(UserError, match=f"int8 is not for a model with {setting}={value!r}"):
        greedy(model, requests, PLAIN, int8=True)


def test_llama3_scaling_is_refused_by_its_name():
    settings = {"rotary_factor": 8.0, "rotary_length": 16, "positions": "rotary"}
    model = tiny(family="decoder-only", rotary_scaling="llama3", **settings)
    assert unknown_in_model(model) == "rotary_scaling='llama3'"


def test_a_setting_that_is_not_known_must_have_its_default(monkeypatch):
    """As one that a later version adds."""
    monkeypatch.delitem(ctranslate2._KNOWN, "norm_order")
    assert unknown_in_model(tiny()) == ""
    assert unknown_in_model(tiny(norm_order="pre")) == "norm_order='pre'"


def test_other_models_are_refused():
    recurrent = tiny(family="recurrent-encoder-decoder")
    requests = list(requests_of(recurrent, count=2))
    with pytest.raises(UserError, match="a model with family='recurrent-encoder-decoder'"):
        greedy(recurrent, requests)
    with pytest.raises(UserError, match="weights in float64 on cpu: use torch"):
        greedy(tiny(dtype=torch.float64), requests)
    hooked = tiny()
    hooked.decoder.layers[0].self_attention.value.register_forward_hook(lambda *_: None)
    with pytest.raises(UserError, match=r"int8 is not for a model with a hook in decoder\.layers"):
        greedy(hooked, requests, PLAIN, int8=True)
    hooked.decoder.layers.append(nn.Identity())
    with pytest.raises(UserError, match=r"another module decoder\.layers\.2: use torch"):
        greedy(hooked, requests)


UNKNOWN = {
    "temperature=0.8": ({"temperature": 0.8}, {}),
    "repetition_penalty=1.5": ({"repetition_penalty": 1.5}, {}),
    "no_repeat_ngram=2": ({"no_repeat_ngram": 2}, {}),
    "beam_groups=2": ({"beam": 4, "beam_groups": 2}, {}),
    "words to include": ({"beam": 3}, {"include": ("a",)}),
    "words to include or to exclude": ({}, {"exclude": ("ab",)}),
    "the most likely tokens": ({}, {"top": 2}),
    "a text that is longer than max_len=48": ({}, {"limit": 48}),
    "beam=7 with a vocabulary of 13": ({"beam": 7}, {}),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_it_does_not_know_is_computed_by_torch_or_refused(what):
    settings, wishes = UNKNOWN[what]
    model = tiny()
    requests = [replace(request, **wishes) for request in requests_of(model, count=2)]
    config = DecodeConfig(**{"beam": 1, **settings})
    engine, truth = Engine([model], TEXTS, int8=True), Engine([model], TEXTS)
    with pytest.warns(EngineWarning, match=f"int8 does not know {what}.*in float32"):
        found = engine.generate(requests, config)
    assert found == truth.generate(requests, config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert engine.generate(requests, config) == found  # it is said once
    with pytest.raises(UserError, match=f"engine='ctranslate2' does not know {what}"):
        truth.generate(requests, replace(config, engine="ctranslate2"))


def test_ensembles_and_trees_are_torchs():
    models = [tiny(), tiny(positions="learned")]
    requests = list(requests_of(models[0], count=2))
    with pytest.raises(UserError, match="does not know ensembles: set engine to 'auto'"):
        Engine(models, TEXTS).generate(requests, CHOSEN)
    with pytest.raises(UserError, match="does not know a tree of beams"):
        Engine(models[:1], TEXTS).new_search(requests, replace(CHOSEN, beam=3), keep_tree=True)
    kept = Engine(models[:1], TEXTS).new_search(requests, DecodeConfig(beam=3), keep_tree=True)
    kept.run()
    assert all(kept.trees)


def test_auto_is_torch_in_float32_and_int8_is_never_torch(monkeypatch):
    model = tiny()
    requests = list(requests_of(model, count=2))
    with pytest.raises(UserError, match="precision='int8' is computed by CTranslate2"):
        greedy(model, requests, replace(PLAIN, engine="torch"), int8=True)
    monkeypatch.setattr(Accelerated, "in_ctranslate2", lambda *_: pytest.fail("not to be used"))
    for engine in ("auto", "torch"):
        found = greedy(model, requests, replace(PLAIN, engine=engine))
        assert_same(found, write(model, requests, PLAIN, TEXTS), 1e-5)


def test_damaged_weights_are_noticed():
    """CTranslate2 itself would write something."""
    model = tiny()
    with torch.no_grad():
        model.classifier.bias[3] = torch.nan
    with pytest.raises(UserError, match=DAMAGED[:30]):
        greedy(model, list(requests_of(model, count=2)))


def test_too_large_a_nbest_is_refused():
    model = tiny()
    with pytest.raises(UserError, match="nbest=2 of a beam of 1"):
        Engine([model], TEXTS).generate(list(requests_of(model)), CHOSEN, nbest=2)


@pytest.mark.parametrize("int8", [False, True])
def test_changed_weights_are_noticed(int8):
    used, fresh = tiny(), tiny()
    requests, engine = list(requests_of(used, count=6)), Engine([used], TEXTS, int8=int8)
    before = engine.generate(requests, CHOSEN)
    for model in (used, fresh):
        with torch.no_grad():
            model.decoder.layers[0].cross_attention.output.weight.neg_()
    assert engine.generate(requests, CHOSEN) != before
    assert engine.generate(requests, CHOSEN) == Engine([fresh], TEXTS, int8=int8).generate(
        requests, CHOSEN
    )


def test_files_are_written_once_and_named_by_the_weights(cache, saved):
    model, other = tiny(), tiny(norm_order="pre")
    requests = list(requests_of(model))
    first = greedy(model, requests)
    assert greedy(model, requests) == first
    assert len(saved) == 1
    greedy(model, requests, PLAIN, int8=True)
    greedy(other, requests)
    assert len(saved) == 3
    with torch.no_grad():
        other.encoder.norm.bias[0] += 1e-3
    greedy(other, requests)
    assert len(saved) == 4
    assert len(list(cache.iterdir())) == 4
    assert greedy(model, requests) == first


@pytest.mark.parametrize("damage", ["a flipped bit", "cut short", "a file more", "a link", "empty"])
def test_damaged_files_are_written_anew(cache, saved, tmp_path, damage):
    model = tiny()
    requests = list(requests_of(model))
    first = greedy(model, requests)
    (folder,) = cache.iterdir()
    weights = folder / "model.bin"
    data = bytearray(weights.read_bytes())
    if damage == "a flipped bit":
        data[len(data) // 2] ^= 64
        weights.write_bytes(data)
    elif damage == "cut short":
        weights.write_bytes(data[:-1])
    elif damage == "a file more":
        (folder / "vmap.txt").write_text("1\t2\n")
    elif damage == "a link":
        shutil.move(folder, tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        weights.unlink()
    assert greedy(model, requests) == first
    assert len(saved) == 2
    assert not folder.is_symlink()
    assert weights.read_bytes() != (data if damage == "a flipped bit" else b"")


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_that_others_can_write_to_is_not_used(cache, saved, monkeypatch, mode):
    """A stranger's file has a stranger's hashes: only who could write it counts."""
    model = tiny()
    requests, opened = list(requests_of(model)), []
    first = greedy(model, requests)
    (folder,) = cache.iterdir()
    package = ctranslate2.require_package()
    make = package.Translator
    monkeypatch.setattr(
        package, "Translator", lambda path, **named: opened.append(path) or make(path, **named)
    )
    assert greedy(model, requests) == first
    cache.chmod(mode)
    assert greedy(model, requests) == first
    assert opened[0] == str(folder)
    assert not opened[1].startswith(str(cache))
    assert not Path(opened[1]).exists()  # it was temporary
    assert len(saved) == 2


@pytest.mark.parametrize("when", ["before", "in the middle", "at the end"])
def test_a_conversion_that_is_killed_leaves_nothing_that_loads(cache, monkeypatch, when):
    model, save = tiny(), ctranslate2.save
    requests = list(requests_of(model))

    def killed(model, folder, **named):
        if when != "before":
            save(model, folder, **named)
        if when == "in the middle":
            (folder / "model.bin").write_bytes((folder / "model.bin").read_bytes()[:100])
        os._exit(9)

    if (child := os.fork()) == 0:  # what it leaves is left as by `kill -9`
        monkeypatch.setattr(ctranslate2, "save", killed)
        greedy(model, requests)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert all(".tmp-" in path.name for path in cache.iterdir())
    truth = [simple.greedy_search(model, request, END) for request in requests]
    assert_same(greedy(model, requests), truth, 1e-4)


def test_a_cache_that_cannot_be_written_to_is_done_without(tmp_path, monkeypatch, saved):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LIMELIGHT_CACHE", str(tmp_path / "file"))
    model = tiny()
    requests = list(requests_of(model))
    truth = [simple.greedy_search(model, request, END) for request in requests]
    assert_same(greedy(model, requests), truth, 1e-4)
    assert len(saved) == 1


def test_only_the_files_that_were_used_last_are_kept(cache, monkeypatch, saved):
    monkeypatch.setattr(ctranslate2, "_KEPT", 2)
    first, second, third = (tiny(d_ff=d_ff) for d_ff in (24, 32, 40))
    requests = list(requests_of(first, count=1))

    def use(model, when):
        greedy(model, requests)
        newest = max(cache.iterdir(), key=lambda path: path.stat().st_mtime)
        os.utime(newest, (when, when))
        return newest

    kept, dropped = use(first, 1), use(second, 2)
    assert use(first, 3) == kept
    newest = use(third, 4)
    assert {*cache.iterdir()} == {kept, newest}
    assert not dropped.exists()
    assert len(saved) == 3


def test_it_must_be_installed_and_new_enough(monkeypatch):
    package = ctranslate2.require_package()
    monkeypatch.setattr(package, "__version__", "4.8.0")
    with pytest.raises(UserError, match=r"CTranslate2 4\.8\.0 is too old, 4\.8\.1 is needed: pip"):
        ctranslate2.require_package()
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r"need CTranslate2: pip install limelight\[fast\]"):
        limelight.load("chat", precision="int8")
    with pytest.raises(UserError, match=r"need CTranslate2: pip install limelight\[fast\]"):
        limelight.load("chat", device="cpu").translate("Hello", engine="ctranslate2")


@pytest.fixture(scope="module")
def translator():
    return limelight.load("en-de", device="cpu")


def compared(translator, sources, beam):
    """How many texts are torch's, and the largest difference of log-probabilities in these."""
    ours = translator.translate_all(sources, beam=beam)
    theirs = translator.translate_all(sources, beam=beam, engine="ctranslate2")
    outputs = [(a.outputs[0], b.outputs[0]) for a, b in zip(ours, theirs, strict=True)]
    same = [(a, b) for a, b in outputs if a.text == b.text]
    moved = [abs(x - y) for a, b in same for x, y in zip(a.logprobs, b.logprobs, strict=True)]
    return len(same), max(moved)


@pytest.mark.parametrize("beam", [1, 5])
def test_a_bundled_model_translates_as_with_torch(translator, beam):
    sources = [source for source, _ in PAIRS[:: len(PAIRS) // 60]][:60]
    same, moved = compared(translator, sources, beam)
    assert same == 60
    assert 0 < moved < 1e-4  # equal in every bit it would be torch


@pytest.mark.soak
@pytest.mark.parametrize("beam", [1, 5])
def test_500_sentences_are_translated_as_with_torch(translator, beam):
    same, _ = compared(translator, [source for source, _ in PAIRS], beam)
    assert same >= 495


@pytest.mark.soak
def test_int8_costs_at_most_a_third_of_a_point(translator):
    sources, references = (list(side) for side in zip(*PAIRS, strict=True))
    rounded = limelight.load("en-de", precision="int8")
    bleu = [
        score_translations([t.text for t in model.translate_all(sources)], references)[0].score
        for model in (translator, rounded)
    ]
    assert bleu[0] > 20
    assert bleu[1] > bleu[0] - 0.3


def test_a_search_can_be_asked_whether_it_is_done():
    """As the service does, between two tokens of others."""
    model = tiny()
    requests = list(requests_of(model))
    fast = Accelerated(model).in_ctranslate2(END, "float32")
    search = CTranslate2Search(fast, requests, replace(CHOSEN, beam=3), 2)
    search.stop(0)
    while search.step():
        pass
    found = [search.best_of(row) for row in range(len(requests))]
    assert found == Engine([model], TEXTS).generate(requests, replace(CHOSEN, beam=3), 2)
