"""Random small models of each family: the same numbers, tokens and ids as in `transformers`."""

import io
import json
import random

import pytest
import sentencepiece
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from transformers.utils.chat_template_utils import render_jinja_template

import limelight
from limelight.decode.config import DecodeConfig
from limelight.decode.engine import Engine
from limelight.decode.request import Request
from limelight.errors import FailedError, UserError
from limelight.interop import certificate, huggingface, names
from limelight.interop.chat_template import render
from limelight.interop.export_model import export_model
from limelight.interop.import_model import import_model
from limelight.model import build
from tests.interop import samples
from tests.interop.samples import CHAT, FAMILIES, TEXTS, hub_folder, theirs

TABLES = {"gpt2": names.gpt2, "bert": names.bert, "marian": names.marian, "pegasus": names.marian}


def ours_of(imported):
    model = build(imported.config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(imported.weights[name])
    return model


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", FAMILIES)
def test_logits_are_those_of_transformers_and_names_go_there_and_back(kind, seed, tmp_path):
    origin = theirs(kind, seed)
    imported = huggingface.read(hub_folder(tmp_path, origin, kind))
    model = ours_of(imported)
    text = torch.randint(3, 90, (2, 9))
    with torch.no_grad():
        if kind in ("marian", "pegasus"):
            target = torch.randint(3, 90, (2, 6))
            got, expected = model(text, target), origin(text, decoder_input_ids=target).logits
            got, expected = got[..., 1:], expected[..., 1:]  # padding is made impossible
        else:
            got, expected = model(text), origin(text).logits
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5 * expected.abs().max().item())
    if kind != "bert":
        assert_same_tokens(model, imported, origin, text[0].tolist())
    table = TABLES.get(kind, names.llama)(imported.config)
    before = {e.theirs: v for e in table.entries for v in [load_file(tmp_path / WEIGHTS)[e.theirs]]}
    after = table.to_theirs(table.to_ours(before, "the file"))
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert after.keys() == before.keys()


WEIGHTS = "model.safetensors"


def assert_same_tokens(model, imported, origin, text):
    """Eight tokens, greedily, by our engine and by their `generate`."""
    two_sided, tokenizer = model.config.family == "encoder-decoder", imported.tokenizer
    request = Request([tokenizer.start], 8, text) if two_sided else Request(text, 8)
    (best,), *_ = Engine([model], tokenizer).generate([request], DecodeConfig(beam=1))
    ends = sorted(tokenizer.ends)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": ends, "pad_token_id": 0}
    options |= {"bad_words_ids": [[0]]} if two_sided else {}  # padding is impossible
    told = origin.generate(torch.tensor([text]), **options)[0].tolist()
    told = told[1:] if two_sided else told[len(text) :]
    assert [*best.tokens] == [token for token in told if token not in ends]


def generated(origin, prompt, most):
    """What `transformers` writes, greedily."""
    tokens = torch.tensor([prompt])
    seen = torch.ones_like(tokens)  # or it would mask a start token that is its padding too
    options = {"max_new_tokens": most, "do_sample": False, "pad_token_id": 0}
    found = origin.generate(tokens, attention_mask=seen, **options)
    return found[0, len(prompt) :].tolist()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2", "qwen3"])
def test_it_writes_the_tokens_that_transformers_generates(kind, imported):
    folder, origin = imported(kind)
    loaded = limelight.load(folder)
    for text in TEXTS[:4]:
        prompt = [*loaded.tokenizer.text_start, *loaded.tokenizer.encode(text)]
        told = generated(origin, prompt, 12)
        ends = loaded.tokenizer.ends
        until = next((i for i, token in enumerate(told) if token in ends), len(told))
        expected = loaded.tokenizer.decode(told[:until])
        assert loaded.write(text, max_tokens=12) == expected


@pytest.mark.parametrize("kind", ["marian", "pegasus"])
def test_it_translates_to_the_tokens_that_transformers_generates(kind, imported):
    folder, origin = imported(kind)
    loaded = limelight.load(folder)
    for text in TEXTS[:4]:
        source = [*loaded.tokenizer.source.encode(text), 1]
        options = {"max_new_tokens": 12, "num_beams": 1, "bad_words_ids": [[0]]}
        told = origin.generate(torch.tensor([source]), do_sample=False, **options)[0, 1:].tolist()
        expected = loaded.tokenizer.decode(told[: told.index(1) if 1 in told else None]).strip()
        assert loaded.translate(text, beam=1, max_tokens=12).text == expected


def test_bert_fills_classifies_and_embeds_as_theirs(imported):
    folder, origin = imported("bert")
    loaded = limelight.load(folder)
    tokens = torch.tensor([[2, *loaded.tokenizer.encode("the cat"), 4, 3]])
    chances = origin(tokens).logits[0, -2].softmax(dim=-1)
    chances[[i for i in range(len(chances)) if not loaded.tokenizer.is_text(i)]] = 0
    best = loaded.tokenizer.pieces([int(chances.argmax())])[0].strip()
    assert loaded.fill("the cat ___").blanks[0][0].text == best

    folder, origin = imported("bert", "BertForSequenceClassification")
    loaded = limelight.load(folder)
    tokens = torch.tensor([[2, *loaded.tokenizer.encode("the cat sat"), 3]])
    expected = origin(tokens).logits[0].softmax(dim=-1).tolist()
    got = loaded.classify("the cat sat")
    assert [got[f"LABEL_{i}"] for i in range(3)] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token"])
def test_a_sentence_encoder_has_the_pooling_of_its_folder(pooling, tmp_path):
    origin = theirs("bert", 5, "BertModel")
    hub = hub_folder(tmp_path / "hub", origin, "bert")
    kinds = [{"type": f"sentence_transformers.models.{k}"} for k in ("Transformer", "Pooling")]
    (hub / "modules.json").write_text(json.dumps(kinds))
    (hub / "1_Pooling").mkdir()
    (hub / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    (hub / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8}))
    import_model(hub, tmp_path / "run")
    loaded = limelight.load(tmp_path / "run")
    text = " ".join(TEXTS[:3])
    tokens = torch.tensor([[2, *loaded.tokenizer.encode(text)[:6], 3]])
    states = origin(tokens).last_hidden_state[0]
    vector = states[0] if pooling == "cls_token" else states.mean(dim=0)
    expected = (vector / vector.norm()).tolist()
    assert loaded.embed(text) == pytest.approx(expected, abs=1e-5)
    assert loaded.tasks == ("embed",)
    trace = loaded.explain("the cat sat")
    assert all(check.passed for stop in trace.walk() for check in stop.checks)


NASTY = [
    *("", " ", "  the  cat ", "\n\n\tthe", "THE CAT", "th\u00e9 c\u00e5t", "don't", "12,345.67"),
    *(
        "a" * 300,
        "\u65e5\u672c\u8a9e",
        "\u0627\u0644",
        "\U0001f642\u200d\U0001f467",
        "\u200b\ufeff",
    ),
    *("\ufb01 \ufb02", "e\u0301", "\x00\x01", "<b>&amp;</b>", "http://x.y/z?q=1#a", "x\r\ny"),
    *("\u2028", "\u0967\u0968", "\u00df \u1e9e", "\u0130", "\u2026\u2014\u2019", "_ __ ___"),
]


def nasty_strings(count):
    draw = random.Random(0)
    pieces = [*NASTY, *TEXTS, *"abc ,.!?\n\t"]
    made = ("".join(draw.choices(pieces, k=draw.randint(1, 4))) for _ in range(count))
    return [*NASTY, *made]


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "pegasus"])
def test_ids_are_the_origins_own_on_a_thousand_nasty_strings(kind, imported):
    folder, _ = imported(kind)
    ours = limelight.load(folder).tokenizer.source
    origin = hf.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    strings = nasty_strings(1000)
    expected = origin(strings, add_special_tokens=False)["input_ids"]
    assert ours.encode_many(strings) == expected


def test_older_files_of_gpt2_and_bert_give_the_same_ids(tmp_path):
    strings = nasty_strings(200)
    model = json.loads(samples.byte_level())["model"]
    gpt2 = hub_folder(tmp_path / "gpt2", theirs("gpt2", 1), "gpt2")
    (gpt2 / "tokenizer.json").unlink()
    (gpt2 / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "".join(f"{a} {b}\n" for a, b in model["merges"])
    (gpt2 / "merges.txt").write_text(f"#version: 0.2\n{merges}")
    origin = hf.GPT2Tokenizer.from_pretrained(gpt2)
    assert isinstance(origin, hf.GPT2Tokenizer)
    got = huggingface.read(gpt2).tokenizer.encode_many(strings)
    assert got == origin(strings, add_special_tokens=False)["input_ids"]

    vocab = json.loads(samples.wordpiece())["model"]["vocab"]
    bert = hub_folder(tmp_path / "bert", theirs("bert", 1), "bert")
    (bert / "tokenizer.json").unlink()
    (bert / "vocab.txt").write_text("".join(f"{t}\n" for t in sorted(vocab, key=vocab.get)))
    facts = json.loads((bert / "tokenizer_config.json").read_text())
    facts["tokenizer_class"] = "BertTokenizer"
    (bert / "tokenizer_config.json").write_text(json.dumps(facts))
    origin = hf.BertTokenizer.from_pretrained(bert)
    got = huggingface.read(bert).tokenizer.encode_many(strings)
    assert got == origin(strings, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(("pieces", "expected"), [("C\nc", "Cc"), ("c\nd", "cc")])
def test_a_bare_vocabulary_with_capitals_keeps_them(pieces, expected, tmp_path):
    """As rxnfp's, where C is another atom than c; nothing else says whether to lowercase."""
    bert = hub_folder(tmp_path, theirs("bert", 1), "bert")
    (bert / "tokenizer.json").unlink()
    (bert / "tokenizer_config.json").unlink()
    (bert / "vocab.txt").write_text(f"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n{pieces}\n")
    tokenizer = huggingface.read(bert).tokenizer
    assert "".join(p.strip() for p in tokenizer.pieces(tokenizer.encode("C c"))) == expected


def marian_pieces(folder):
    """SentencePiece models of both sides, and one table of ids in an order of its own."""
    pieces = set()
    for side in ("source", "target"):
        texts = TEXTS if side == "source" else [text[::-1] for text in TEXTS]
        written = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts * 5), model_writer=written, vocab_size=60,
            hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
        (folder / f"{side}.spm").write_bytes(written.getvalue())
        core = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
        pieces |= {core.id_to_piece(i) for i in range(3, len(core))}
    names = ["</s>", "<unk>", ">>fra<<", *sorted(pieces, reverse=True), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(names)}))
    return len(names)


def test_marian_has_the_ids_of_vocab_json_and_not_of_sentencepiece(tmp_path):
    vocab = marian_pieces(tmp_path)
    torch.manual_seed(0)
    config = hf.MarianConfig(
        vocab_size=vocab, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=8,
        decoder_ffn_dim=8, encoder_attention_heads=2, decoder_attention_heads=2,
        max_position_embeddings=64, pad_token_id=vocab - 1, decoder_start_token_id=vocab - 1,
        eos_token_id=0, forced_eos_token_id=None,
    )  # fmt: skip
    origin = hf.MarianMTModel(config).eval()
    origin.generation_config.bad_words_ids = [[vocab - 1]]
    origin.save_pretrained(tmp_path)
    theirs_ = hf.MarianTokenizer.from_pretrained(tmp_path)
    assert import_model(tmp_path, tmp_path / "run").texts == 3
    loaded = limelight.load(tmp_path / "run")
    strings = [*nasty_strings(300), ">>fra<< the cat", "</s> <pad>", "a >>fra<< b"]
    plain = [text for text in strings if "<pad>" not in text]
    expected = theirs_(plain, add_special_tokens=False)["input_ids"]
    assert loaded.tokenizer.source.encode_many(plain) == expected
    told = theirs_(text_target=plain, add_special_tokens=False)["input_ids"]
    assert loaded.tokenizer.encode_many(plain) == told
    assert not {0, vocab - 1} & {*loaded.tokenizer.encode("</s> <pad>")}

    tokens = theirs_([TEXTS[0]], return_tensors="pt")
    assert tokens["input_ids"][0].tolist() == [*loaded.tokenizer.source.encode(TEXTS[0]), 0]
    written = origin.generate(**tokens, num_beams=1, do_sample=False, max_new_tokens=10)
    expected = theirs_.decode(written[0], skip_special_tokens=True).strip()
    assert loaded.translate(TEXTS[0], beam=1, max_tokens=10).text == expected
    trace = loaded.explain(TEXTS[0], max_tokens=4)
    assert all(check.passed for stop in trace.walk() for check in stop.checks)

    assert export_model(tmp_path / "run", tmp_path / "out").texts == 3  # and out again
    again = hf.MarianTokenizer.from_pretrained(tmp_path / "out")
    assert again(plain)["input_ids"] == theirs_(plain)["input_ids"]


def test_a_text_never_spells_a_special_token(imported):
    loaded = limelight.load(imported("llama")[0])
    ids = loaded.tokenizer.encode("a<|im_end|>b")
    assert not loaded.tokenizer.special_ids & set(ids)
    assert loaded.tokenizer.decode(ids) == "a<|im_end|>b"


def test_chat_follows_the_template_as_transformers_renders_it(imported):
    folder, origin = imported("llama")
    loaded = limelight.load(folder)
    templates = hf.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), chat_template=CHAT
    )
    said = [{"role": "system", "content": "be\nkind "}, {"role": "user", "content": "the cat?"}]
    text = templates.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
    expected = templates(text, add_special_tokens=False)["input_ids"]
    assert loaded.chat_prompt(said) == expected
    assert loaded.tokenizer.special["im_end"] in expected
    assert "chat" in loaded.tasks

    prompt = loaded.chat_prompt([{"role": "user", "content": "the dog"}])
    told = generated(origin, prompt, 8)
    conversation = loaded.chat(max_tokens=8)
    assert conversation.reply("the dog") == loaded.tokenizer.decode(told).strip()
    assert conversation.turns[0] == "the dog"
    with pytest.raises(UserError, match="control token"):
        conversation.reply("the <|im_end|> dog")


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages|map(attribute='content')|join(', ') }}",
        "{% for m in messages[1:] %}{{ loop.index0 }}{{ m|tojson(indent=2) }}{% endfor %}",
        "{% for k, v in messages[0]|items %}{{ k ~ '=' ~ v }};{% endfor %}",
        "{% set n = namespace(seen=[]) %}{% for m in messages %}"
        "{% set n.seen = n.seen + [m.role] %}{% endfor %}{{ n.seen|unique|list }}{{ n.seen }}",
        "{%- macro turn(m) %}<{{ m.role|upper }}>{{ m['content'].split('x')[-1].strip() }}"
        "{% endmacro %}{% for m in messages if m.role != 'system' %}{{ turn(m) }}{% endfor %}",
        "{% set said = messages|selectattr('role', 'equalto', 'user')|list %}{{ said|length * 2 }}",
        "{% set text %}{{ messages[0].content }}!{% endset %}{{ text|replace('e', 'ee')|title }}",
        "{{ {'a': (1, 2.5, none, true)} }}{{ [1, 2, 3][::-1] }}{{ 'a' in 'cat' }}{{ bos_token }}",
    ],
)
def test_what_templates_use_is_rendered_as_transformers_renders_it(template):
    said = [
        {"role": role, "content": f" be {role}x{i} "}
        for i, role in enumerate(("system", "user", "assistant", "user"))
    ]
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    theirs, _ = render_jinja_template(
        [said], chat_template=template, add_generation_prompt=True, **tokens
    )
    assert render(template, said, tokens) == theirs[0]


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_stage_of_explain_holds_on_it(kind, imported):
    loaded = limelight.load(imported(kind)[0])
    text = "the cat ___ on" if kind == "bert" else "the cat sat on"
    trace = loaded.explain(text, max_tokens=4)
    failed = [c for stop in trace.walk() for c in stop.checks if not c.passed]
    assert failed == []
    assert len(trace.walk()) > 10


def test_scores_are_the_log_probabilities_of_theirs(imported):
    folder, origin = imported("gpt2")
    loaded = limelight.load(folder)
    ids = [*loaded.tokenizer.encode("the cat sat"), loaded.tokenizer.end]
    logprobs = origin(torch.tensor([ids])).logits[0].log_softmax(dim=-1)
    expected = [logprobs[i, token].item() for i, token in enumerate(ids[1:])]
    assert loaded.score("the cat sat").logprobs == pytest.approx(expected, abs=1e-4)


def test_the_certificate_says_what_was_compared(imported):
    folder, _ = imported("qwen3")
    found = json.loads((folder / "certificate.json").read_text())
    assert found["compared"] == "transformers"
    assert found["largest_difference"] < 1e-4
    assert found["tokens"] > 10
    assert found["texts"] == 3
    assert found["versions"]["transformers"] == hf.__version__


def test_a_divergence_is_an_error_that_leaves_nothing(monkeypatch, tmp_path):
    hub = hub_folder(tmp_path / "hub", theirs("llama", 3), "llama")
    read = huggingface.read

    def wrong(path):
        imported = read(path)
        with torch.no_grad():
            imported.weights["decoder.layers.0.self_attention.query.weight"] *= 1.5
        return imported

    monkeypatch.setitem(import_model.__globals__["READERS"], "huggingface", (lambda _: True, wrong))
    with pytest.raises(FailedError, match="our model and transformers differ"):
        import_model(hub, tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["hub"]


def test_without_transformers_the_certificate_says_that_nothing_was_compared(monkeypatch, imported):
    def missing(name):
        raise certificate.PackageNotFoundError(name)

    monkeypatch.setattr(certificate, "version", missing)
    folder, _ = imported("gpt2")
    model = huggingface.read(folder.parent / f"{folder.name}-hub")
    found = certificate.certify(model, folder)
    assert found.compared == "nothing"
    assert "transformers is not installed" in found.why


def test_without_transformers_a_known_model_is_compared_with_golden_numbers(
    monkeypatch, imported, tmp_path
):
    folder, _ = imported("gpt2")
    hub = folder.parent / f"{folder.name}-hub"
    model = huggingface.read(hub)
    origin, _ = certificate.COMPARISONS["huggingface"](model, hub)
    with torch.no_grad():
        told = origin(*certificate.sample_tokens(model.config, model.tokenizer))
    known = {"versions": {"transformers": "5"}, "largest": told[0].amax(dim=-1).tolist()}
    golden = {model.origin.files[WEIGHTS]: known}
    monkeypatch.setattr(certificate.tomllib, "loads", lambda _: golden)

    def missing(name):
        raise certificate.PackageNotFoundError(name)

    monkeypatch.setattr(certificate, "version", missing)
    found = certificate.certify(model, hub)
    assert (found.compared, found.tokens) == ("golden numbers", len(known["largest"]))
    assert found.tokens > 10
    assert found.largest_difference < 1e-4
    known["largest"][-1] += 0.1
    with pytest.raises(FailedError, match="our model and golden numbers differ"):
        certificate.certify(model, hub)


def test_a_format_that_nobody_else_reads_is_not_compared(monkeypatch, imported):
    folder, _ = imported("gpt2")
    monkeypatch.delitem(certificate.COMPARISONS, "huggingface")
    model = huggingface.read(folder.parent / f"{folder.name}-hub")
    assert certificate.certify(model, folder).compared == "nothing"


def test_shards_are_read_as_one_file(tmp_path):
    origin = theirs("gpt2", 1)
    whole = hub_folder(tmp_path / "one", origin, "gpt2")
    parts = hub_folder(tmp_path / "two", origin, "gpt2")
    tensors = load_file(parts / WEIGHTS)
    (parts / WEIGHTS).unlink()
    halves = [dict(list(tensors.items())[::2]), dict(list(tensors.items())[1::2])]
    index = {}
    for n, half in enumerate(halves):
        file = f"model-0000{n + 1}-of-00002.safetensors"
        save_file(half, parts / file)
        index |= dict.fromkeys(half, file)
    (parts / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert len(huggingface.weight_files(parts)) == 2
    one, two = huggingface.read(whole), huggingface.read(parts)
    assert one.weights.keys() == two.weights.keys()
    assert all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights)


def test_half_precision_becomes_single(tmp_path):
    origin = theirs("llama", 2)
    hub = hub_folder(tmp_path, origin.bfloat16(), "llama")
    imported = huggingface.read(hub)
    assert {w.dtype for w in imported.weights.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.pop("model.norm.weight"), "lacks the tensor model.norm.weight"),
        (lambda t: t.update(extra=torch.zeros(2)), "unknown tensor extra"),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(3)}),
            r"decoder.norm.weight is \(3,\)",
        ),
        (
            lambda t: t["model.norm.weight"].fill_(float("nan")),
            "decoder.norm.weight has values that are not finite",
        ),
    ],
)
def test_missing_unknown_and_misshaped_tensors_are_refused_by_name(change, sentence, tmp_path):
    hub = hub_folder(tmp_path, theirs("qwen2", 1), "qwen2")
    tensors = load_file(hub / WEIGHTS)
    change(tensors)
    save_file(tensors, hub / WEIGHTS)
    with pytest.raises(UserError, match=sentence):
        huggingface.read(hub)
