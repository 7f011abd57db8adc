"""Exports: other libraries compute our numbers, what they cannot is refused, nothing is left."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

import limelight
from limelight.cli import run_command
from limelight.errors import FailedError, UserError
from limelight.interop import certificate, huggingface, huggingface_export
from limelight.interop.export_model import export_model as export
from limelight.model import ModelConfig, RecurrentConfig
from limelight.run.atomic import lock
from tests.decode.sentences import PAIRS
from tests.interop.exports import FAMILIES, random_config, tokenizer, write_run
from tests.interop.nasty import nasty_texts
from tests.interop.samples import hub_folder, theirs

SENTENCES = [source for source, _ in PAIRS[::5]]  # 100
SEEDS = [*range(4), *(pytest.param(i, marks=pytest.mark.system) for i in range(4, 20))]
PLAIN = {"temperature": 0.0, "repetition_penalty": 1.0}


@pytest.fixture(scope="module")
def en_de(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "en-de"
    export("en-de", folder)
    return folder


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "writer"
    export("writer", folder)
    return folder


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", FAMILIES)
def test_what_goes_out_comes_back_and_computes_the_same(kind, seed, tmp_path):
    config = random_config(kind, seed)
    model = write_run(tmp_path / "run", config, seed)
    found = export(tmp_path / "run", tmp_path / "out")
    assert found.compared == "transformers"
    assert found.texts == 3
    assert found.largest_difference <= 1e-5 * max(1, found.largest_value)
    back = huggingface.read(tmp_path / "out")
    ours = dict(model.named_parameters())
    assert back.weights.keys() == ours.keys()
    assert all(torch.equal(back.weights[name], ours[name]) for name in ours)
    assert back.tokenizer.encode("the cat <b>") == tokenizer().encode("the cat <b>")
    assert back.config.vocab == config.vocab
    assert back.classes == tuple(f"class {i}" for i in range(config.classes))


@pytest.mark.parametrize("kind", FAMILIES)
def test_no_weight_of_theirs_is_left_at_random(kind, tmp_path):
    write_run(tmp_path / "run", random_config(kind, 1))
    export(tmp_path / "run", tmp_path / "out")
    said = json.loads((tmp_path / "out" / "config.json").read_text())
    load = getattr(hf, said["architectures"][0]).from_pretrained
    _, facts = load(tmp_path / "out", output_loading_info=True)
    assert not {name for name in facts["missing_keys"] if "pooler" not in name}
    assert not facts["unexpected_keys"]
    assert not facts["mismatched_keys"]


@pytest.mark.parametrize("tokens", ["bpe", "word", "char", "uncased"])
def test_auto_tokenizer_has_our_ids_texts_and_special_tokens(tokens, tmp_path):
    config = random_config("bert", 3)
    write_run(tmp_path / "run", config, tokens=tokens)
    export(tmp_path / "run", tmp_path / "out")
    got, ours = hf.AutoTokenizer.from_pretrained(tmp_path / "out"), tokenizer(tokens)
    back = huggingface.read(tmp_path / "out").tokenizer
    for text in [*nasty_texts(40), "a ⟨end⟩ b", "⟨mask⟩"]:
        ids = ours.encode(text)
        assert got(text)["input_ids"] == [ours.start, *ids, ours.end]
        assert back.encode(text) == ids
        assert got.decode([ours.start, *ids, ours.end], skip_special_tokens=True) == ours.decode(
            ids
        )
    assert (got.cls_token_id, got.sep_token_id) == (ours.start, ours.end)
    assert (got.pad_token_id, got.mask_token_id) == (ours.pad, ours.mask)


def generated(folder, text, **options):
    """What `transformers` makes of a text, from the files alone."""
    said = hf.AutoConfig.from_pretrained(folder)
    auto = hf.AutoModelForSeq2SeqLM if said.is_encoder_decoder else hf.AutoModelForCausalLM
    ours = auto.from_pretrained(folder), hf.AutoTokenizer.from_pretrained(folder)
    return [_generated(*ours, one, **options) for one in text]


def _generated(model, tokens, text, **options):
    given = tokens(text, return_tensors="pt", return_token_type_ids=False)
    made = model.generate(**given, do_sample=False, **options)[0]
    fresh = made if model.config.is_encoder_decoder else made[given["input_ids"].size(1) :]
    return tokens.decode(fresh, skip_special_tokens=True)


def same_translations(folder, sentences, beam):
    loaded = limelight.load("en-de", device="cpu", precision="float32")
    penalty = {"length_penalty": 0.0} if beam > 1 else {}
    got = generated(folder, sentences, num_beams=beam, max_length=100, **penalty)
    settings = {"beam": beam, "length_penalty": 0.0, "engine": "torch"}
    expected = [each.text for each in loaded.translate(sentences, **settings)]
    assert [text.strip() for text in got] == expected
    assert len({*expected}) > len(sentences) // 2


def same_continuations(folder, prompts, count):
    loaded = limelight.load("writer", device="cpu", precision="float32")
    got = generated(folder, prompts, max_new_tokens=count, num_beams=1, repetition_penalty=1.0)
    assert got == [loaded.write(text, max_tokens=count, **PLAIN) for text in prompts]


def test_transformers_translates_as_the_bundled_model(en_de):
    same_translations(en_de, SENTENCES[::20], 1)
    same_translations(en_de, SENTENCES[10::40], 5)


@pytest.mark.system
def test_transformers_translates_a_hundred_sentences_as_the_bundled_model(en_de):
    same_translations(en_de, SENTENCES, 1)
    same_translations(en_de, SENTENCES, 5)


PROMPTS = ["As Aliens entered our planet", "Once upon a time", "The captain said:"]


def test_transformers_writes_as_the_bundled_writer(writer):
    assert hf.AutoConfig.from_pretrained(writer).model_type == "qwen3"
    same_continuations(writer, PROMPTS[:2], 12)


@pytest.mark.system
def test_transformers_writes_long_texts_as_the_bundled_writer(writer):
    same_continuations(writer, [*PROMPTS, *SENTENCES[::10]], 60)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2", "qwen3", "starcoder2"])
def test_transformers_generates_what_we_write(kind, tmp_path):
    write_run(tmp_path / "run", replace(random_config(kind, 5), vocab=300))
    export(tmp_path / "run", tmp_path / "out")
    ours = limelight.load(tmp_path / "run")
    got = generated(tmp_path / "out", ["the cat", "a mat"], max_new_tokens=9)
    assert got == [ours.write(text, max_tokens=9) for text in ("the cat", "a mat")]


@pytest.mark.parametrize("seed", [1, 3])
@pytest.mark.parametrize("kind", ["marian", "pegasus"])
def test_transformers_generates_what_we_translate(kind, seed, tmp_path):
    """Greedy for many sentences; with a beam, by log-probability alone."""
    config = replace(random_config(kind, seed), vocab=300, max_len=100)
    write_run(tmp_path / "run", config, seed)
    export(tmp_path / "run", tmp_path / "out")
    ours = limelight.load(tmp_path / "run", device="cpu", precision="float32")
    for beam, sentences in ((1, SENTENCES), (4, SENTENCES[::5])):
        penalty = {"length_penalty": 0.0} if beam > 1 else {}
        options = {"num_beams": beam, "max_new_tokens": 12, **penalty}
        settings = {"beam": beam, "max_tokens": 12, "length_penalty": 0.0, "engine": "torch"}
        expected = [each.text for each in ours.translate(sentences, **settings)]
        got = generated(tmp_path / "out", sentences, **options)
        assert [text.strip() for text in got] == expected
        assert len({*expected}) >= 5  # it reads the source


def test_a_batch_with_padding_has_the_numbers_of_its_rows(en_de):
    model = hf.AutoModelForSeq2SeqLM.from_pretrained(en_de)
    tokens = hf.AutoTokenizer.from_pretrained(en_de)
    ours = limelight.load("en-de", device="cpu", precision="float32")
    both = tokens(["I am hungry.", "It was very cold outside, and nobody came."], padding=True,
                  return_tensors="pt", return_token_type_ids=False)  # fmt: skip
    start = torch.full((2, 1), ours.tokenizer.start)
    got = model(**both, decoder_input_ids=start).logits
    expected = ours.model(both["input_ids"], start, both["attention_mask"].bool())
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
    assert not both["attention_mask"].all()


def test_the_card_has_data_scores_and_licence(en_de, tmp_path):
    card = (en_de / "README.md").read_text()
    for fact in ("Apache-2.0", "CC BY 2.0 FR", "BLEU 45.4", "everyday-en-de", "translation"):
        assert fact in card
    write_run(tmp_path / "run", random_config("llama", 2))
    export(tmp_path / "run", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "not stated" in card
    assert "license:" not in card


def test_imported_models_go_out_again(tmp_path):
    origin = theirs("llama", 4)
    hub = hub_folder(tmp_path / "hub", origin, "llama")
    run_command(["import", str(hub), str(tmp_path / "run")])
    run_command(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "huggingface"])
    before, after = (load_file(folder / "model.safetensors") for folder in (hub, tmp_path / "out"))
    kept = [name for name in before if name in after]
    assert all(torch.equal(before[name], after[name]) for name in kept)
    assert len(kept) == len(after)
    was, now = (hf.AutoTokenizer.from_pretrained(f) for f in (hub, tmp_path / "out"))
    said = [{"role": "user", "content": "the cat"}]
    assert was.apply_chat_template(said) == now.apply_chat_template(said)
    assert was("the dog")["input_ids"] == now("the dog")["input_ids"]


# What has no equivalent


def decoder(**settings):
    basis = {"vocab": 300, "layers": 1, "d_model": 8, "heads": 2, "family": "decoder-only"}
    return ModelConfig(**{**basis, **settings})


GPT2 = {"norm_order": "pre", "positions": "learned"}
LLAMA = {
    **{"norm_order": "pre", "positions": "rotary", "norm": "rms", "activation": "swiglu"},
    "bias": False,
}
REFUSED = [
    ("huggingface", decoder(norm_order="pre"), "positions='sinusoidal'"),
    ("huggingface", decoder(**GPT2, norm="rms"), "norm='rms'"),
    ("huggingface", decoder(**{**GPT2, "norm": "none"}), "norm='none'"),
    ("huggingface", decoder(**GPT2, scaling=False), "scaling=False"),
    ("huggingface", decoder(**GPT2, mask=False), "mask=False"),
    ("huggingface", decoder(**GPT2, residual=False), "residual=False"),
    ("huggingface", decoder(**GPT2, bias=False), "bias=False"),
    ("huggingface", decoder(positions="learned"), "norm_order='post'"),
    ("huggingface", decoder(**{**LLAMA, "activation": "relu"}), "activation='relu'"),
    ("huggingface", decoder(**{**GPT2, "positions": "none"}), "positions='none'"),
    ("huggingface", decoder(**LLAMA, embedding_scale="on"), "embedding_scale='on'"),
    ("huggingface", decoder(**LLAMA, qk_norm=True, qkv_bias=True), "qkv_bias=True"),
    ("huggingface", decoder(family="encoder-decoder", norm_eps=1e-6), "norm_eps=1e-06"),
    ("huggingface", decoder(family="encoder-decoder", kv_heads=1), "kv_heads=1"),
    (
        "huggingface",
        decoder(family="encoder-decoder", norm_order="pre", tied="target"),
        "tied='target'",
    ),
    ("huggingface", decoder(family="encoder-only", positions="rotary"), "positions='rotary'"),
    ("huggingface", decoder(family="encoder-decoder", decoder_cell="ssru"), "decoder_cell='ssru'"),
    ("onnx", decoder(family="encoder-decoder", decoder_cell="ssru"), "decoder_cell='ssru'"),
    ("ctranslate2", decoder(family="encoder-only", positions="learned"), "family='encoder-only'"),
    (
        "ctranslate2",
        decoder(**LLAMA, rotary_scaling="llama3", rotary_factor=2.0),
        "rotary_scaling='llama3'",
    ),
    ("gguf", decoder(**GPT2), "positions='learned'"),
    ("gguf", decoder(**{**LLAMA, "bias": True}), "bias=True"),
    (
        "gguf",
        decoder(**LLAMA, rotary_scaling="linear", rotary_factor=2.0),
        "rotary_scaling='linear'",
    ),
]


@pytest.mark.parametrize(("to", "config", "named"), REFUSED)
def test_a_setting_without_equivalent_is_refused_by_its_name(to, config, named, tmp_path):
    write_run(tmp_path / "run", config)
    with pytest.raises(UserError, match=named.replace("(", r"\(")):
        export(tmp_path / "run", tmp_path / "out", to)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_recurrent_and_drawing_models_and_tokenizers_are_refused_by_name(tmp_path):
    config = RecurrentConfig(family="recurrent-decoder-only", vocab=300, layers=1, d_model=8)
    write_run(tmp_path / "run", config, kind="texts")
    with pytest.raises(UserError, match="family='recurrent-decoder-only'"):
        export(tmp_path / "run", tmp_path / "out")
    with pytest.raises(UserError, match=r"data\.kind='images'"):
        export("draw", tmp_path / "out")
    write_run(tmp_path / "char", decoder(**LLAMA), tokens="char")
    with pytest.raises(UserError, match=r"tokenizer\.kind='char'"):
        export(tmp_path / "char", tmp_path / "out", "gguf")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"to": "pytorch"}, "format 'pytorch'"),
        ({"to": "ctranslate2", "precision": "int4"}, "int4"),
        ({"to": "onnx", "precision": "int8"}, "precision='int8' is for --to ctranslate2"),
    ],
)
def test_wrong_options_are_refused(options, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        export("chat", tmp_path / "out", **options)
    assert not [*tmp_path.iterdir()]


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    write_run(tmp_path / "run", decoder(**LLAMA))
    export(tmp_path / "run", tmp_path / "out")  # an empty one is taken
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(UserError, match="is there already"):
        export(tmp_path / "run", tmp_path / "out")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}


# A difference, a missing package, a kill


def damage(monkeypatch, change):
    write = huggingface_export.save_file

    def damaged(tensors, path, metadata):
        write(change(tensors), path, metadata)

    monkeypatch.setattr(huggingface_export, "save_file", damaged)


def test_a_difference_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    write_run(tmp_path / "run", decoder(**LLAMA))

    def change(tensors):
        first = next(name for name in tensors if "k_proj" in name)
        return {**tensors, first: tensors[first].flip(0)}

    damage(monkeypatch, change)
    with pytest.raises(FailedError, match="our model and transformers differ"):
        export(tmp_path / "run", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_another_tokenizer_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    write_run(tmp_path / "run", decoder(**LLAMA))
    made = huggingface_export.tokenizer_files

    def other(loaded):
        return {**made(loaded), "tokenizer.json": tokenizer("char").files["tokenizer.json"]}

    monkeypatch.setattr(huggingface_export, "tokenizer_files", other)
    with pytest.raises(FailedError, match="our tokenizer and transformers' differ"):
        export(tmp_path / "run", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_without_transformers_the_certificate_says_so(tmp_path, monkeypatch):
    write_run(tmp_path / "run", decoder(**LLAMA))

    def missing(name):
        raise certificate.PackageNotFoundError(name)

    monkeypatch.setattr(certificate, "version", missing)
    found = export(tmp_path / "run", tmp_path / "out")
    assert found.compared == "nothing"
    assert "transformers is not installed" in found.why
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_killed_export_leaves_nothing_that_loads(tmp_path):
    write_run(tmp_path / "run", decoder(**LLAMA))
    words = ["-m", "tests.interop.kill_exports", str(tmp_path / "run"), str(tmp_path)]
    done = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True)
    *killed, again = map(json.loads, done.stdout.splitlines())
    assert len(killed) == len({(to, when) for to, when, *_ in killed}) == 9
    for to, when, ends, left, taken in killed:
        assert {*ends} == {-signal.SIGKILL}, (to, when)
        assert re.fullmatch(r"out\.tmp-[0-9a-f]{8}", *left), (to, when)  # of the second alone
        assert taken == 0, (to, when)
    assert again == ["again", 0, ["out"], 1]  # one library takes it then


def test_only_what_dead_exports_left_is_removed(tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    write_run(run, decoder(**LLAMA))
    others = [tmp_path / f"out.tmp-{digit * 8}" for digit in "0123"]
    for folder in others:
        (folder / "unchecked").mkdir(parents=True)
        (folder / ".lock").touch()
    (others[1] / "mine.txt").touch()
    (others[2] / ".lock").unlink()
    with lock(others[3]):  # its process lives
        export(run, out)
    assert [folder.exists() for folder in others] == [False, True, True, True]


MEMORY = """
import re, sys
from pathlib import Path
from limelight.interop.export_model import export_model

def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

run, first, out, to = sys.argv[1:]
export_model(first, out + "-first", to)  # which imports all that it needs
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = peak()
export_model(run, out, to)
print("taken:", peak() - before)
"""


BOTH = {"family": "encoder-decoder"}


@pytest.mark.parametrize(
    ("settings", "to", "times"),
    [
        *((LLAMA, to, times) for to, times in (("huggingface", 4), ("ctranslate2", 4))),
        (LLAMA, "gguf", 5.5),
        *((BOTH, to, times) for to, times in (("huggingface", 4), ("ctranslate2", 4))),
    ],
)
def test_an_export_takes_a_few_times_the_memory_of_its_weights(settings, to, times, tmp_path):
    write_run(tmp_path / "first", decoder(**settings))
    config = replace(decoder(**settings), layers=4, d_model=512, heads=8)
    weights = sum(p.nbytes for p in write_run(tmp_path / "run", config).parameters())
    words = [str(tmp_path / name) for name in ("run", "first", "out")]
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, *words, to], check=True, capture_output=True, text=True
    )
    taken = int(done.stdout.partition("taken:")[2])
    assert 0.5 * weights < taken < times * weights
