"""Imported models are run folders like others: commands, service, fine-tuning, names."""

import gzip
import hashlib
import io
import json
import zipfile
from types import SimpleNamespace

import pytest
import torch

import limelight
from limelight.cli import run_command
from limelight.errors import UserError
from limelight.interop import hub
from limelight.interop.known_models import import_by_name
from limelight.run import bundled_models, known_models
from limelight.run.known_models import KnownModel
from tests.data.serving import Server
from tests.interop.samples import TEXTS, hub_folder, theirs
from tests.interop.test_marian import SETTINGS, V, random_arrays, vocabulary
from tests.interop.test_marian import write as write_marian
from tests.serve.samples import Served


def command(*words):
    run_command([str(word) for word in words])


def test_the_command_says_how_near_it_is_and_info_shows_it_again(tmp_path, capsys):
    hub = hub_folder(tmp_path / "hub", theirs("llama", 4), "llama")
    command("import", hub, tmp_path / "run", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["compared"] == "transformers"
    command("info", tmp_path / "run")
    assert "from transformers" in " ".join(capsys.readouterr().out.split())
    command("write", tmp_path / "run", "the cat", "--max-tokens", "3")
    assert capsys.readouterr().out.startswith("the cat")
    command("chat", tmp_path / "run", "the dog", "--decode.max-tokens", "3", "--json")
    assert json.loads(capsys.readouterr().out)["text"] == "the dog"
    with pytest.raises(UserError, match="is there already"):
        command("import", hub, tmp_path / "run")
    with pytest.raises(UserError, match="name the run folder"):
        command("import", hub)


def test_the_service_honours_the_template(imported):
    folder, origin = imported("llama")
    loaded = limelight.load(folder)
    said = [{"role": "system", "content": "x"}, {"role": "user", "content": "the cat"}]
    prompt = loaded.chat_prompt(said)
    tokens = torch.tensor([prompt])
    seen, options = torch.ones_like(tokens), {"do_sample": False, "pad_token_id": 0}
    told = origin.generate(tokens, attention_mask=seen, max_new_tokens=6, **options)[0]
    with Served(folder) as service:
        way = "/v1/chat/completions"
        answer = service.post(way, messages=said, max_tokens=6, temperature=0).json()
        refused = service.post(way, messages=[{"role": "user", "content": "<|im_end|>"}])
        traced = service.post("/api/trace", text="the cat sat")
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    expected = loaded.tokenizer.decode(told[len(prompt) :].tolist())
    assert answer["choices"][0]["message"]["content"] == expected
    assert refused.status_code == 400
    assert "control token" in refused.text
    assert traced.status_code == 200, traced.text


def test_a_sentence_encoder_is_served(imported):
    folder, _ = imported("bert", "BertModel")
    with Served(folder) as service:
        found = service.post("/v1/embeddings", input=["the cat sat"]).json()
        example = service.client.get("/api/example").json()
    assert found["data"][0]["embedding"] == pytest.approx(
        limelight.load(folder).embed("the cat sat")
    )
    assert example["text"]


def labelled(folder):
    lines = [f"{text}\t{'cat' if 'cat' in text else 'other'}" for text in TEXTS]
    (folder / "labelled.tsv").write_text("\n".join(lines) + "\n")
    return str(folder / "labelled.tsv")


@pytest.mark.parametrize("kind", ["bert", "pegasus"])
def test_merges_of_others_are_not_undone_and_that_is_said(kind, imported, tmp_path):
    folder, _ = imported(kind)
    lines = "".join(f"{text}\t{text[:3]}\n" for text in TEXTS)
    (tmp_path / "lines.tsv").write_text(lines)
    changes = {"data.train": [str(tmp_path / "lines.tsv")], "train.bpe_dropout": 0.1}
    if kind == "bert":
        changes |= {"data.kind": "labelled", "model.classes": 0}
    with pytest.raises(UserError, match=r"bpe_dropout=0.1 .* or an imported one"):
        limelight.train(
            str(folder / "recipe.toml"),
            run=tmp_path / "tuned",
            start_from=folder,
            changes={**changes, "train.steps": 3, "train.batch_tokens": 256},
            silent=True,
        )


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "pegasus"])
def test_fine_tuning_starts_from_it_and_keeps_its_tokenizer(kind, rank, imported, tmp_path):
    """In full, or with LoRA."""
    folder, _ = imported(kind)
    files = {"data.train": [labelled(tmp_path)]}
    if kind == "bert":
        changes = {"data.kind": "labelled", "model.classes": 2}
    elif kind == "gpt2":
        (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
        changes, files = {}, {"data.train": [str(tmp_path / "texts.txt")]}
    else:
        lines = [f"{text}\t{text[:9]}" for text in TEXTS]
        (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
        changes, files = {}, {"data.train": [str(tmp_path / "pairs.tsv")]}
    steps = {
        "train.lora_rank": rank,
        "train.steps": 3,
        "train.batch_tokens": 256,
        "train.warmup": 1,
    }
    run = tmp_path / "tuned"
    limelight.train(
        str(folder / "recipe.toml"),
        run=run,
        start_from=folder,
        changes={**files, **changes, **steps, "train.learning_rate": 1e-3},
        silent=True,
    )
    tuned, before = limelight.load(run), limelight.load(folder)
    assert tuned.tokenizer.hash == before.tokenizer.hash
    assert tuned.step == 3
    if kind == "bert":
        assert set(tuned.classify("the cat")) == {"cat", "other"}
    name = next(n for n, p in before.model.named_parameters() if "layers.0" in n and p.dim() == 2)
    old, new = (dict(m.model.named_parameters())[name] for m in (before, tuned))
    assert 0 < (old - new).abs().max() < 0.1
    assert not torch.equal(old, new)


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A known model of our own, on a server of our own."""
    monkeypatch.setenv("LIMELIGHT_CACHE", str(tmp_path / "cache"))
    hub = hub_folder(tmp_path / "hub", theirs("gpt2", 4), "gpt2")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file in hub.iterdir():
            archive.writestr(f"package/model/{file.name}", file.read_bytes())
        archive.writestr("package/__init__.py", "raise SystemExit('executed')")
        archive.writestr("package/model/../../evil.json", "{}")
    with Server() as server:
        server.files["/tiny-1.whl"] = packed.getvalue()
        facts = {
            "about": "a tiny GPT-2",
            "megabytes": 1,
            "licence": "MIT",
            "page": "https://example.org",
            "url": f"{server.url}/tiny-1.whl",
            "sha256": hashlib.sha256(packed.getvalue()).hexdigest(),
            "members": "package/model/",
        }
        known = {"tiny": KnownModel(**facts), "other": KnownModel(**facts | {"sha256": "0" * 64})}
        for module in (known_models, bundled_models, import_by_name):
            where = getattr(module, "__globals__", None) or vars(module)
            monkeypatch.setitem(where, "known_models", lambda: known)
        yield server


def test_a_known_model_is_fetched_by_its_name_and_then_found_by_it(wheel, tmp_path, capsys):
    with pytest.raises(UserError, match=r"limelight import tiny fetches it"):
        limelight.load("tiny")
    command("import", "tiny")
    assert limelight.load("tiny").write("the", max_tokens=2) is not None
    assert not (tmp_path / "cache" / "models" / "evil.json").exists()
    capsys.readouterr()
    command("models", "--json")
    (facts, _) = json.loads(capsys.readouterr().out)["known"]
    assert (facts["name"], facts["here"], facts["licence"]) == ("tiny", True, "MIT")


def test_compressed_files_of_a_folder_are_fetched_checked_and_unpacked(wheel, tmp_path):
    names = {"model.xy.intgemm.bin": None, "vocab.xy.spm": vocabulary(V)}
    made = write_marian(tmp_path / "model.bin", random_arrays(), SETTINGS)
    packed = [gzip.compress(data or made.read_bytes()) for data in names.values()]
    facts = {"about": "x", "megabytes": 1, "licence": "MPL-2.0", "page": "https://example.org"}
    known = known_models.known_models()
    for name, data in zip(names, packed, strict=True):
        wheel.files[f"/{name}.gz"] = data
    hashes = tuple(hashlib.sha256(data).hexdigest() for data in packed)
    files = tuple(f"{name}.gz" for name in names)
    place = {"base": f"{wheel.url}/", "files": files}
    known["fox"] = KnownModel(**facts, **place, hashes=hashes)
    known["other fox"] = KnownModel(**facts, **place, hashes=hashes[::-1])
    import_by_name("fox")
    assert limelight.load("fox").translate("abc", max_tokens=2).text is not None
    assert (tmp_path / "cache/models/fox/files/vocab.xy.spm").read_bytes() == vocabulary(V)
    with pytest.raises(UserError, match="it is another file"):
        import_by_name("other fox")


class Keyboard(io.StringIO):
    """A person at a terminal, who answers so."""

    def isatty(self):
        return True


def test_a_known_model_is_offered_at_a_terminal(wheel, tmp_path, monkeypatch, capsys):
    run = tmp_path / "cache" / "imported" / "tiny"

    def asked(typed, *words):
        monkeypatch.setattr("sys.stdin", typed)
        command(*words)
        return capsys.readouterr()

    offer = "tiny is a published model (1 MB, MIT), not on this machine yet: fetch it now? [y/N]"
    write = ("write", "tiny", "the cat", "--max-tokens", "2")
    for answer in ("n\n", "\n", "nay\n"):
        with pytest.raises(UserError, match="limelight import tiny fetches it"):
            asked(Keyboard(answer), *write)
        assert offer in capsys.readouterr().err
    with pytest.raises(UserError, match="limelight import tiny fetches it"):
        asked(io.StringIO("y\n"), *write)  # a pipe is not asked
    assert "fetch it now" not in capsys.readouterr().err
    assert not run.exists()
    said = asked(Keyboard(" YES\n"), *write)
    assert offer in said.err
    assert said.out.startswith("the cat")
    assert (run / "run.json").is_file()
    said = asked(Keyboard(""), *write)  # it is there now, and nobody is asked
    assert "fetch it now" not in said.err
    assert said.out.startswith("the cat")


@pytest.mark.parametrize(("typed", "meant"), [("tny", "tiny"), ("othr", "other")])
def test_a_misspelt_name_gets_the_right_one(wheel, tmp_path, monkeypatch, typed, meant):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError) as refused:
        command("import", typed)
    named = f"there is no file and no known model {typed!r}: did you mean {meant!r}?"
    assert str(refused.value) == named
    with pytest.raises(UserError, match=rf"cannot be fetched .*; did you mean {meant!r}\?"):
        command("import", typed, tmp_path / "run")
    with pytest.raises(UserError, match="name the run folder that nobody/gpt should become"):
        command("import", "nobody/gpt")
    with pytest.raises(UserError, match=rf"did you mean {meant!r}"):
        command("write", typed, "the")
    (tmp_path / typed).mkdir()
    monkeypatch.chdir(tmp_path)  # a folder of that name is meant then
    with pytest.raises(UserError, match="name the run folder"):
        command("import", typed)


def test_a_file_with_another_hash_is_not_used(wheel):
    with pytest.raises(UserError, match="it is another file"):
        import_by_name("other")


def test_without_a_network_the_sentence_says_what_to_put_where(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr("limelight.data.download.PAUSES", ())
    packed = wheel.files.pop("/tiny-1.whl")
    with pytest.raises(UserError, match=r"download tiny-1.whl from .* put it into .*models/tiny"):
        import_by_name("tiny")
    folder = tmp_path / "cache" / "models" / "tiny"
    (folder / "tiny-1.whl").write_bytes(packed)
    assert import_by_name("tiny").compared == "transformers"


def test_the_models_that_come_known_are_well_described():
    for name, model in known_models.known_models().items():
        assert name == name.lower()
        assert model.page.startswith("https://")
        assert [bool(model.url), bool(model.hub), bool(model.base)].count(True) == 1
        assert len(model.sha256) == (64 if model.url else 0)
        assert [len(known) for known in model.hashes] == [64 for _ in model.files if model.base]
        assert bool(model.files) == (not model.url)
        assert model.megabytes > 0
        assert model.licence


def test_a_name_of_the_hub_that_cannot_be_fetched_says_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)  # where ../../etc has no such file
    with pytest.raises(UserError, match=r"huggingface.co/nobody/nothing-at-all/tree/main"):
        import_by_name("nobody/nothing-at-all", str(tmp_path / "run"))
    with pytest.raises(UserError, match="no file or folder here, and no name of the hub"):
        import_by_name("../../etc/passwd", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_of_a_repository_only_what_an_import_reads_is_downloaded():
    texts = ["config.json", "tokenizer.json", "vocab.txt", "source.spm", "1_Pooling/config.json"]
    weights = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    others = [
        *("pytorch_model.bin", "training_args.bin", "tf_model.h5", "modeling_own.py", "README.md"),
        *("onnx/config.json", "onnx/model.onnx", "openvino/vocab.txt", "model.msgpack"),
    ]
    found = hub.files_to_download("a/b", sorted([*texts, *weights, *others]))
    assert sorted(found) == sorted([*texts, *weights])
    older = hub.files_to_download("a/b", ["config.json", "pytorch_model.bin", "training_args.bin"])
    assert older == ["config.json", "pytorch_model.bin"]
    assert hub.files_to_download("a/b", ["README.md", "b.Q8_0.gguf"]) == ["b.Q8_0.gguf"]
    with pytest.raises(UserError, match="a/b has 2 models"):
        hub.files_to_download("a/b", ["b.Q4_0.gguf", "b.Q8_0.gguf"])


def test_a_repository_is_listed_first_and_found_again_without_a_network(tmp_path, monkeypatch):
    """The library itself is replaced: no network here."""
    asked = []
    names = ["config.json", "model.safetensors", "pytorch_model.bin"]
    files = [SimpleNamespace(rfilename=name) for name in names]

    def download(name, **given):
        asked.append((name, given))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    answer = SimpleNamespace(model_info=lambda *_, **__: SimpleNamespace(siblings=files))
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: answer)
    assert hub.download_from_hub("a/b@v1") == tmp_path
    wanted = ["config.json", "model.safetensors"]
    assert asked == [("a/b", {"revision": "v1", "allow_patterns": wanted})]

    files[:] = [SimpleNamespace(rfilename=name) for name in ("a.gguf", "b.gguf")]
    with pytest.raises(UserError, match=r"^a/b has 2 models"):
        hub.download_from_hub("a/b")

    def offline(*_, **__):
        raise RuntimeError("name or service not known")

    answer.model_info = offline
    assert hub.download_from_hub("a/b") == tmp_path
    assert asked[1] == ("a/b", {"revision": None, "local_files_only": True})
