"""Exports to CTranslate2, GGUF and ONNX, run by those engines from the exported files alone."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import ctranslate2
import gguf
import onnxruntime
import pytest
import tokenizers
import torch

import limelight
from limelight.decode.accel import ctranslate2 as conversion
from limelight.errors import FailedError, UserError
from limelight.interop import export_model, gguf_export, gguf_file, names, onnx_export
from limelight.interop.export_model import export_model as export
from limelight.model import ModelConfig
from tests.decode.sentences import PAIRS
from tests.interop.exports import FAMILIES, random_config, tokenizer, write_run
from tests.interop.test_export import GPT2, LLAMA, PLAIN, PROMPTS, SEEDS, decoder

SENTENCES = [source for source, _ in PAIRS]
COMPUTED = {"float16": "float32", "int8_bfloat16": "int8_float32"}


def translated(folder, texts, precision="float32", beam=1, **more):
    """What CTranslate2 makes of texts, with the exported tokenizer."""
    tokens = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    engine = ctranslate2.Translator(str(folder), compute_type=COMPUTED.get(precision, precision))
    given = [tokens.encode(text).tokens for text in texts]
    options = {"beam_size": beam, "patience": (beam + 2) / beam, "length_penalty": 0, **more}
    found = [result.hypotheses[0] for result in engine.translate_batch(given, **options)]
    ids = ([tokens.token_to_id(word) for word in words] for words in found)
    return [tokens.decode([i for i in row if i is not None]).strip() for row in ids]


@pytest.mark.parametrize("precision", ["float32", "float16", "int8", "int8_bfloat16"])
def test_ctranslate2_translates_from_text_to_text(precision, tmp_path):
    found = export("chat", tmp_path / "out", "ctranslate2", precision)
    assert found.compared == "ctranslate2"
    assert found.largest_difference < (1e-4 if precision == "float32" else 0.5)
    texts = ["Hi how are you", "What is your name?"]
    ours = limelight.load("chat", device="cpu")
    expected = [each.text for each in ours.translate(texts, beam=1, engine="torch")]
    got = translated(tmp_path / "out", texts, precision)
    assert got == expected if precision == "float32" else all(got)


@pytest.mark.system
@pytest.mark.parametrize("beam", [1, 5])
def test_ctranslate2_translates_500_sentences_as_torch(beam, tmp_path):
    export("en-de", tmp_path / "out", "ctranslate2")
    ours = limelight.load("en-de", device="cpu", precision="float32")
    settings = {"beam": beam, "length_penalty": 0.0, "engine": "torch"}
    expected = [each.text for each in ours.translate(SENTENCES, **settings)]
    got = translated(tmp_path / "out", SENTENCES, beam=beam)
    assert sum(map(str.__eq__, got, expected)) >= 0.99 * len(SENTENCES)


@pytest.mark.parametrize("settings", [LLAMA, GPT2, {"norm_order": "post"}])
def test_ctranslate2_writes_as_ours(settings, tmp_path):
    write_run(tmp_path / "run", decoder(**settings), 2)
    export(tmp_path / "run", tmp_path / "out", "ctranslate2")
    tokens = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    engine = ctranslate2.Generator(str(tmp_path / "out"))
    options = {"max_length": 9, "include_prompt_in_result": False, "sampling_topk": 1}
    (found,) = engine.generate_batch([tokens.encode("the cat").tokens], **options)
    ours = limelight.load(tmp_path / "run", device="cpu")
    assert tokens.decode(found.sequences_ids[0]) == ours.write("the cat", max_tokens=9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind != "bert"])
def test_ctranslate2_computes_every_family_that_writes(kind, seed, tmp_path):
    drawn = vars_of(random_config(kind, seed))
    if drawn["rotary_scaling"] == "llama3":
        drawn["rotary_scaling"] = "linear"
    write_run(tmp_path / "run", ModelConfig(**drawn), seed)
    found = export(tmp_path / "run", tmp_path / "out", "ctranslate2")
    assert found.compared == "ctranslate2"
    assert found.largest_difference <= 1e-5 * max(1, found.largest_value)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2", "qwen3"])
def test_ctranslate2_writes_as_an_imported_model(kind, imported, tmp_path):
    run, _ = imported(kind)
    export(run, tmp_path / "out", "ctranslate2")
    ours = limelight.load(run, device="cpu", precision="float32")
    engine = ctranslate2.Generator(str(tmp_path / "out"))
    tokens = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    options = {"max_length": 9, "include_prompt_in_result": False, "sampling_topk": 1}
    (found,) = engine.generate_batch([tokens.encode("the cat").tokens], **options)
    truth = ours.write("the cat", max_tokens=9, **PLAIN)
    assert tokens.decode(found.sequences_ids[0]) == truth
    assert ours.write("the cat", max_tokens=9, engine="ctranslate2", **PLAIN) == truth


@pytest.mark.parametrize("kind", ["marian", "pegasus"])
def test_ctranslate2_translates_as_an_imported_model(kind, imported, tmp_path):
    run, _ = imported(kind)
    export(run, tmp_path / "out", "ctranslate2")
    ours = limelight.load(run, device="cpu", precision="float32")
    texts = ["the cat sat", "a dog ran home"]
    options = {"beam": 1, "max_tokens": 9}
    truth = [each.outputs[0] for each in ours.translate(texts, engine="torch", **options)]
    theirs = [each.outputs[0] for each in ours.translate(texts, engine="ctranslate2", **options)]
    assert [each.tokens for each in theirs] == [each.tokens for each in truth]
    assert all(each.tokens for each in truth)
    written = translated(tmp_path / "out", texts, max_decoding_length=9)
    assert written == [each.text for each in truth]


def test_a_difference_in_ctranslate2_leaves_nothing(tmp_path, monkeypatch):
    write_run(tmp_path / "run", decoder(**LLAMA))
    fill = conversion._fill_norm

    def wrong(spec, norm):
        fill(spec, norm)
        spec.gamma += 0.1

    monkeypatch.setattr(conversion, "_fill_norm", wrong)
    with pytest.raises(FailedError, match="our model and ctranslate2 differ"):
        export(tmp_path / "run", tmp_path / "out", "ctranslate2")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_only_what_was_just_written_is_loaded_by_ctranslate2(tmp_path, monkeypatch):
    """A folder that is there already is refused before CTranslate2 sees it."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.bin").write_bytes(b"hostile")
    opened, make = [], ctranslate2.Translator
    monkeypatch.setattr(
        ctranslate2,
        "Translator",
        lambda path, **options: opened.append(path) or make(path, **options),
    )
    with pytest.raises(UserError, match="is there already"):
        export("chat", tmp_path / "out", "ctranslate2")
    assert not opened
    export("chat", tmp_path / "other", "ctranslate2")
    assert re.fullmatch(r".*other\.tmp-[0-9a-f]{8}/unchecked", opened[0])


# GGUF


def gguf_config(kind, seed, **settings):
    """A drawn model, as far as llama.cpp knows its settings."""
    plain = {"rotary_factor": 1.0, "rotary_length": 8192, **gguf_export._CONSTANT[kind]}
    return replace(random_config(kind, seed), **plain, **settings)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["llama", "starcoder2", "qwen2", "qwen3"])
def test_gguf_has_the_numbers_of_ours(kind, seed, tmp_path):
    config = gguf_config(kind, seed)
    model = write_run(tmp_path / "run", config, seed)
    found = export(tmp_path / "run", tmp_path / "out", "gguf")
    assert found.texts == 3
    assert found.largest_difference <= 1e-5 * max(1, found.largest_value)
    if kind == "llama":  # what our own reader knows
        back = gguf_file.read(tmp_path / "out" / "model.gguf")
        ours = dict(model.named_parameters())
        assert back.weights.keys() == ours.keys()
        assert all(torch.equal(back.weights[name], ours[name]) for name in ours)
        assert back.tokenizer.text_start == tokenizer().text_start
        assert back.config.rotary_base == config.rotary_base
        assert back.tokenizer.ends == tokenizer().ends


def queries_as_they_are(monkeypatch):
    """Without the order of rotary numbers that llama.cpp expects of a Llama."""
    table = names.llama
    monkeypatch.setattr(names, "llama", lambda config, paired=False: table(config))


def keys_scaled(monkeypatch):
    add = gguf.GGUFWriter.add_tensor

    def scaled(self, name, tensor):
        add(self, name, tensor * (1.1 if name.endswith("attn_k.weight") else 1))

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", scaled)


def another_base(monkeypatch):
    add = gguf.GGUFWriter.add_rope_freq_base
    monkeypatch.setattr(gguf.GGUFWriter, "add_rope_freq_base", lambda self, base: add(self, 500.0))


def another_epsilon(monkeypatch):
    for name in ("add_layer_norm_rms_eps", "add_layer_norm_eps"):
        add = getattr(gguf.GGUFWriter, name)
        monkeypatch.setattr(gguf.GGUFWriter, name, lambda self, eps, add=add: add(self, 10 * eps))


FAULTS = [queries_as_they_are, keys_scaled, another_base, another_epsilon]


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        *(("llama", fault) for fault in FAULTS),
        *(("starcoder2", fault) for fault in FAULTS[1:]),
        *(("qwen3", fault) for fault in FAULTS[2:]),  # it norms its keys
    ],
)
def test_a_difference_in_gguf_leaves_nothing(kind, fault, tmp_path, monkeypatch):
    eps = {} if kind == "qwen3" else {"norm_eps": 1e-2}
    write_run(tmp_path / "run", gguf_config(kind, 1, rotary_base=10000.0, **eps))
    fault(monkeypatch)
    with pytest.raises(FailedError, match="our model and transformers differ"):
        export(tmp_path / "run", tmp_path / "out", "gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    monkeypatch.undo()
    assert export(tmp_path / "run", tmp_path / "out", "gguf").compared == "transformers"


def vars_of(config):
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


LLAMA_CPP = """
import json, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.warmup = sys.argv[1], 512, 1, False
params.cpuparams.n_threads, params.verbosity = 1, -1
server = xllamacpp.Server(params)
for prompt in json.loads(sys.argv[2]):
    got = []
    asked = {"prompt": prompt, "max_tokens": int(sys.argv[3]), "temperature": 0.0, "top_k": 1}
    server.handle_completions(json.dumps({**asked, "repeat_penalty": 1.0}), got.append)
    answer = got[0] if isinstance(got[0], dict) else json.loads(got[0])
    print("text:" + json.dumps(answer["choices"][0]["text"]))
"""


@pytest.mark.system
def test_llama_cpp_writes_as_the_bundled_writer(tmp_path):
    export("writer", tmp_path / "out", "gguf")
    words = [str(tmp_path / "out" / "model.gguf"), json.dumps(PROMPTS), "40"]
    done = subprocess.run(
        [sys.executable, "-c", LLAMA_CPP, *words], check=True, capture_output=True, text=True
    )
    got = [json.loads(line[5:]) for line in done.stdout.splitlines() if line[:5] == "text:"]
    ours = limelight.load("writer", device="cpu", precision="float32")
    assert got == [ours.write(prompt, max_tokens=40, **PLAIN) for prompt in PROMPTS]


# ONNX


def run_card(folder):
    """What the Python of its model card prints."""
    script = (folder / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=folder
    )
    return done.stdout.removesuffix("\n")


def test_onnx_writes_by_the_lines_of_its_card(tmp_path):
    write_run(tmp_path / "run", decoder(**LLAMA, kv_heads=1))
    found = export(tmp_path / "run", tmp_path / "out", "onnx")
    assert found.compared == "onnxruntime"
    assert found.largest_difference < 1e-4
    ours = limelight.load(tmp_path / "run", device="cpu")
    assert run_card(tmp_path / "out") == ours.write("It was", max_tokens=50)


@pytest.mark.system
@pytest.mark.parametrize("to", ["onnx", "ctranslate2", "huggingface"])
def test_the_card_of_a_translator_translates(to, tmp_path):
    export("en-de", tmp_path / "out", to)
    ours = limelight.load("en-de", device="cpu")
    assert run_card(tmp_path / "out").strip() == ours.translate("I am hungry.").text


@pytest.mark.system
@pytest.mark.parametrize("kind", ["marian", "pegasus", "gpt2", "llama", "qwen3", "bert"])
@pytest.mark.parametrize("seed", range(2))
def test_onnx_computes_every_family(kind, seed, tmp_path):
    write_run(tmp_path / "run", random_config(kind, seed), seed)
    assert export(tmp_path / "run", tmp_path / "out", "onnx").largest_difference < 1e-4


@pytest.mark.system
@pytest.mark.parametrize("name", ["en-de", "writer", "fill"])
def test_bundled_models_become_onnx(name, tmp_path):
    found = export(name, tmp_path / "out", "onnx")
    assert found.largest_difference < 1e-4
    assert not [path for path in (tmp_path / "out").iterdir() if path.suffix == ".data"]


def test_a_difference_in_onnx_leaves_nothing(tmp_path, monkeypatch):
    """A step that forgets its cache is noticed; the graph is not needed for that."""
    write_run(tmp_path / "run", decoder(**LLAMA))

    class Forgets:
        def __init__(self, *_):
            self.model = limelight.load(tmp_path / "run", device="cpu").model

        def run(self, _, given):
            logits = self.model(torch.from_numpy(given["input_ids"])).detach().numpy()
            return logits, given["past_keys"], given["past_values"]

    monkeypatch.setattr(export_model, "write_onnx", lambda loaded, folder: None)
    monkeypatch.setattr(onnxruntime, "InferenceSession", Forgets)
    with pytest.raises(FailedError, match="our model and onnxruntime differ"):
        export(tmp_path / "run", tmp_path / "out", "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("to", "module", "name", "said"),
    [
        ("onnx", onnx_export, "onnxscript", r"limelight\[onnx\]"),
        ("gguf", None, "gguf", r"limelight\[interop\]"),
        ("ctranslate2", None, "ctranslate2", r"limelight\[fast\]"),
    ],
)
def test_a_missing_package_is_named(to, module, name, said, tmp_path, monkeypatch):
    write_run(tmp_path / "run", decoder(**LLAMA))

    def missing(wanted):
        if wanted == name:
            raise onnx_export.PackageNotFoundError(name)
        return "1"

    if module:
        monkeypatch.setattr(module, "version", missing)
    else:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=said):
        export(tmp_path / "run", tmp_path / "out", to)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
