"""Scores of runs, as others would compute them from the same texts; and two runs compared."""

import hashlib
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import sacrebleu
import torch
from torch._inductor import config as inductor

from limelight.data.config import DataConfig
from limelight.data.corpora import read_split
from limelight.data.lines import LineStats
from limelight.errors import UserError
from limelight.loading import load
from limelight.recipe import load_recipe
from limelight.workflows import evaluate
from limelight.workflows.evaluate import compare_runs, score_run
from limelight.workflows.train import train
from tests.training.samples import accept, tiny, train_in

TOY = {"toy": "copy", "toy_length": 2, "toy_examples": 1000}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A toy learned well, the same learned badly, a language model, and a classifier."""
    place = tmp_path_factory.mktemp("runs")
    toy = [f"data.{name}={value}" for name, value in TOY.items()]
    size = ["model.layers=1", "model.d_model=32", "model.d_ff=64", "model.heads=2"]
    sooner = [
        "train.batch_tokens=256",
        "train.grad_accumulation=1",
        "train.warmup=60",
        "train.average_checkpoints=0",
    ]
    sooner += ["train.schedule=paper", "train.learning_rate=0.5", "train.clip_grad_norm=0"]
    sooner += ["train.label_smoothing=0.1", "model.dropout=0.1"]
    for name, steps in (("good", 200), ("bad", 20)):
        changes = [*toy, *size, *sooner, f"train.steps={steps}"]
        train("reverse", place / name, changes, silent=True)
    (place / "texts.txt").write_text("".join(f"the cat sat {i} times.\nä b\n" for i in range(40)))
    small = ["model.layers=1", "model.d_model=16", "model.heads=2", "model.max_len=16"]
    text = [f"data.train={place / 'texts.txt'}", f"data.test={place / 'texts.txt'}"]
    plain = ["data.name=", "data.kind=texts", "data.valid_tail=0.0", "train.batch_tokens=128"]
    few = ["train.steps=20", "train.warmup=5", "train.patience=0"]
    train("shakespeare-char", place / "writer", [*small, *text, *plain, *few], silent=True)
    lines = "".join(f"{'good' if i % 2 else 'bad'} film {i}\t{i % 2}\n" for i in range(60))
    (place / "labels.tsv").write_text(lines)
    label = [f"data.{s}={place / 'labels.tsv'}" for s in ("train", "valid", "test")]
    more = [*label, *small, "data.name=", "data.kind=labelled", "data.header=false", *few]
    train("sst2", place / "judge", [*more, "train.validate_every=20"], silent=True)
    return place


def test_translations_are_scored_as_sacrebleu_scores_them(runs):
    told = score_run(runs / "bad", silent=True)
    model = load(runs / "bad")
    sources, references = read_toy()
    outputs = [model.translate(source).text for source in sources]
    assert told["lines"] == len(sources) == 100
    for name, metric in (("BLEU", sacrebleu.BLEU()), ("chrF2", sacrebleu.CHRF())):
        wanted = metric.corpus_score(outputs, [references])
        assert told["scores"][name]["score"] == pytest.approx(wanted.score)
        assert told["scores"][name]["signature"] == str(metric.get_signature())
    data = "".join(f"{line}\n" for column in (sources, references) for line in column)
    assert told["data_sha256"] == hashlib.sha256(data.encode()).hexdigest()
    assert told["decoding"]["beam"] == model.decode.beam


def read_toy():
    sources, references = zip(*read_split(DataConfig(**TOY), "test", LineStats()), strict=True)
    return list(sources), list(references)


def test_a_change_of_decoding_is_told(runs):
    told = score_run(runs / "good", changes=["decode.beam=2"], silent=True)
    assert told["decoding"]["beam"] == 2
    assert told["exact"] >= 0.9


@torch.no_grad()
def test_bits_per_byte_by_hand(runs):
    model = load(runs / "writer")
    texts = (runs / "texts.txt").read_text().splitlines()
    told = score_run(runs / "writer", silent=True)["scores"]["bits per byte"]["score"]
    nats = 0.0
    for text in texts:
        whole = [model.tokenizer.end, *model.tokenizer.encode(text), model.tokenizer.end]
        for begin in range(0, len(whole) - 1, 16):
            read = torch.tensor([whole[begin : begin + 17]])
            logprobs = model.model(read[:, :-1]).log_softmax(-1)
            nats -= logprobs.gather(2, read[:, 1:, None]).sum().item()
    assert told == pytest.approx(nats / math.log(2) / len("".join(texts).encode()), rel=1e-5)


def test_weights_of_a_training_in_half_precision_are_measured_in_the_precision_asked_for(
    tmp_path, monkeypatch
):
    own = tiny(master_weights=True, precision="bfloat16", steps=1)
    train_in(tmp_path / "run", own)
    seen = []
    real = evaluate.loss_on

    def noted(module, *given):
        seen.extend({weight.dtype for weight in module.parameters()})
        return real(module, *given)

    monkeypatch.setattr(evaluate, "loss_on", noted)
    assert evaluate.evaluate_run(
        tmp_path / "run", "valid", {"train.precision": "float32"}, silent=True
    )
    assert seen == [torch.float32]


def test_labels_are_counted(runs):
    told = score_run(runs / "judge", silent=True)
    model = load(runs / "judge")
    lines = [line.split("\t") for line in (runs / "labels.tsv").read_text().splitlines()]
    right = [next(iter(model.classify(text))) == label for text, label in lines]
    assert told["scores"]["accuracy"]["score"] == sum(right) / len(lines)
    assert told["accuracy"] == pytest.approx(sum(right) / len(lines))


def test_a_better_run_is_told_from_a_worse_one(runs):
    told = compare_runs((runs / "good", runs / "bad"), silent=True)
    for name in ("chrF2", "TER"):  # BLEU looks at four words in a row, and there are two
        assert told["comparisons"][name]["p_value"] < 0.05
    first, second = (told["comparisons"]["chrF2"][which] for which in ("first", "second"))
    assert first["score"] > second["score"]
    assert first["low"] <= first["score"] <= first["high"]


@pytest.mark.parametrize("name", ["good", "writer", "judge"])
def test_a_run_is_no_better_than_itself(runs, name):
    told = compare_runs((runs / name, runs / name), silent=True)
    assert {c["p_value"] for c in told["comparisons"].values()} == {1.0}


def test_runs_of_different_kinds_or_texts_are_not_compared(runs, tmp_path):
    for same in ([], [f"data.test={runs / 'texts.txt'}"]):
        with pytest.raises(UserError, match=r"can translate.*, and .* write.*: no comparison"):
            compare_runs((runs / "good", runs / "writer"), changes=same, silent=True)
    shutil.copytree(runs / "writer", tmp_path / "other")
    recipe = (tmp_path / "other" / "recipe.toml").read_text()
    (tmp_path / "own.txt").write_text("a text of its own\n")
    texts = str(runs / "texts.txt")
    assert texts in recipe
    (tmp_path / "other" / "recipe.toml").write_text(
        recipe.replace(texts, str(tmp_path / "own.txt"))
    )
    accept(tmp_path / "other")
    with pytest.raises(UserError, match="have other test texts: name the same for both"):
        compare_runs((runs / "writer", tmp_path / "other"), silent=True)


# Texts of one's own

OWN = {  # of each kind of run: files, how they are read, and what else a recipe may learn from
    "good": (
        {"own.in": "a b\nb a\n", "own.out": "a b\nb b\n"},
        ['kind = "pairs"'],
        {"name": "multi30k-en-de", "hub": "de-en", "toy": "sort", "hold_out": 0.1},
    ),
    "writer": (
        {"own.txt": "the cat sat.\n\nä b\n"},
        ['kind = "texts"', 'separator = "<|endoftext|>"'],
        {"name": "stories", "valid_tail": 0.1},
    ),
    "judge": (
        {"own.tsv": "text\tlabel\ngood film 7\t1\nbad film 8\t1\n"},
        ['kind = "labelled"', "header = true"],
        {"name": "sst2", "hold_out": 0.1},
    ),
}


def with_data(run, folder, *settings):
    """The same run, of a recipe that has other data."""
    shutil.copytree(run, folder)
    before, rest = (folder / "recipe.toml").read_text().split("[data]\n")
    rest = rest[rest.index("[tokenizer]") :]
    (folder / "recipe.toml").write_text("\n".join([before, "[data]", *settings, rest]))
    accept(folder)
    return folder


def put(folder, texts):
    """Files, and what names them as the texts of the test."""
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [f"data.test={folder / name}" for name in texts]


@pytest.mark.parametrize("name", OWN)
def test_your_own_texts_are_read_whatever_the_recipe_learned_from(runs, tmp_path, name):
    """A corpus that is not even here, several of them, a toy, or a share that was held out."""
    texts, how, others = OWN[name]
    files = put(tmp_path, texts)
    learned = [[f"{key} = {value!r}"] for key, value in others.items()]
    learned += [[f"corpora = [{{{how[0]}, {learned[0][0]}}}]"]]
    given = score_run(with_data(runs / name, tmp_path / "given", *how), changes=files, silent=True)
    assert given["lines"] == {"good": 2, "writer": 1, "judge": 2}[name]
    for i, setting in enumerate(learned):
        run = with_data(runs / name, tmp_path / str(i), *how, *setting)
        assert score_run(run, changes=files, silent=True) == {**given, "run": str(run)}
    run = with_data(runs / name, tmp_path / "known", *learned[0])  # a corpus knows how it is read
    assert score_run(run, changes=files, silent=True) == {**given, "run": str(run)}


@pytest.mark.parametrize("name", ["writer", "fill", "chat", "en-de"])
def test_a_bundled_model_takes_your_own_texts_and_needs_none_of_its_corpora(tmp_path, name):
    texts = {"own.txt": "Once upon a time there was a king who had a daughter.\n"}
    if name in ("chat", "en-de"):
        texts = {"own.tsv": "Hello!\tHello! How are you?\nThank you.\tDanke.\n"}
    told = score_run(name, changes=put(tmp_path, texts), silent=True)
    assert told["lines"] == len(texts.popitem()[1].splitlines())
    assert math.isfinite(told["loss"])


def test_a_corpus_can_be_named_instead_and_needs_no_more_than_the_split(runs):
    told = score_run(runs / "bad", "valid", ["data.name=greetings"], silent=True)
    assert told["lines"] == 90
    told = score_run("chat", "valid", ["data.name=greetings", "data.kind=pairs"], silent=True)
    assert told["lines"] == 90


def test_texts_of_another_split_are_not_taken_for_those_asked_for(runs, tmp_path):
    files = put(tmp_path, {"own.txt": "the cat sat.\n"})
    with pytest.raises(UserError, match="names texts of another split: use --split test"):
        score_run(runs / "writer", "valid", files)


def test_texts_that_cannot_be_used_are_told_with_the_reason(tmp_path):
    files = put(tmp_path, {"own.txt": "no conversation\nat all\n"})
    with pytest.raises(
        UserError, match=r"2 of 2 lines cannot be used \(2 no dialogue of two turns\)"
    ):
        score_run("chat", changes=files)


BAD_LINES = b"a b\tb a\nno tab\n\xff\xfe\tx\nalone\n"
TOLD = "warning: 3 of 4 lines cannot be used (1 invalid UTF-8, 2 not two columns) and are not"


@pytest.mark.parametrize("many", [1, 2])
def test_lines_that_cannot_be_used_are_told_and_counted(runs, tmp_path, capsys, many):
    """Of one run and of two compared."""
    (tmp_path / "own.tsv").write_bytes(BAD_LINES)

    def told_of(silent):
        files = [f"data.test={tmp_path / 'own.tsv'}"]
        if many == 1:
            return score_run(runs / "bad", changes=files, silent=silent)
        return compare_runs((runs / "bad", runs / "bad"), changes=files, silent=silent)

    told = told_of(silent=False)
    said = capsys.readouterr()
    assert said.err.count(TOLD) == 1
    assert said.out == ""
    assert told["lines"] == 1
    rejected = {"not two columns": 2, "invalid UTF-8": 1}
    assert told["tally"] == {"read": 4, "used": 1, "rejected": rejected, "repaired": {}}
    assert json.loads(json.dumps(told)) == told
    assert told_of(silent=True) == told
    assert capsys.readouterr().err == ""


def test_of_lines_that_are_as_they_should_be_nothing_is_told(runs, tmp_path, capsys):
    """The control: a header, and lines that are held out for another split, are no faults."""
    files = put(tmp_path, OWN["judge"][0])
    told = score_run(runs / "judge", changes=[*files, "data.header=true"])
    assert told["tally"]["rejected"] == {"header": 1}
    parts = [f"train = ['{runs / 'labels.tsv'}']", 'kind = "labelled"', "hold_out = 0.2"]
    told = score_run(with_data(runs / "judge", tmp_path / "parts", *parts))
    assert told["tally"]["rejected"] == {"in another split": 60 - told["lines"]}
    assert "cannot be used" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["good", "writer", "judge"])
def test_an_empty_file_is_called_empty(runs, tmp_path, name):
    files = put(tmp_path, {"own.tsv": ""})
    with pytest.raises(UserError, match=r"nothing to score in the test split: it is empty$"):
        score_run(runs / name, changes=files)


# Settings that would be ignored


@pytest.mark.parametrize(
    "setting",
    [
        "model.layers=3",
        "model.max-len=5",
        "tokenizer.vocab=300",
        "train.steps=5",
        "train.learning-rate=2",
        "train.cuda_graphs=true",
        "train.seed=2",
        "train.mask-rate=0.5",
        "train.devise=cpu",
        "published.source=us",
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(runs, setting):
    name = setting.partition("=")[0].replace("-", "_")
    refused = f"^'{name}' cannot be changed any more: only .* batch_tokens, compile, device, "
    with pytest.raises(UserError, match=refused):
        score_run(runs / "judge", changes=[setting])
    with pytest.raises(UserError, match=refused):
        compare_runs((runs / "judge", runs / "judge"), changes=[setting])


@pytest.mark.parametrize(
    "setting",
    ["train.batch-tokens=32", "train.device=cpu", "train.data_workers=1", "data.max_chars=99"],
)
def test_a_setting_that_says_how_the_loss_is_computed_is_taken(runs, setting):
    """The control: they change what they should, and no score."""
    plain, told = (score_run(runs / "bad", changes=c, silent=True) for c in ([], [setting]))
    assert told["loss"] == pytest.approx(plain.pop("loss"), rel=1e-5)
    assert told["scores"] == plain["scores"]


@pytest.fixture
def nothing_to_compile_with():
    """As on a machine without g++."""
    with inductor.patch({"cpp.cxx": ("/nowhere/g++",)}):
        yield


@pytest.mark.usefixtures("nothing_to_compile_with")
def test_nothing_is_compiled_unless_it_is_asked_for(runs, tmp_path):
    """Also if the recipe had it compiled for its training."""
    shutil.copytree(runs / "writer", tmp_path / "run")
    recipe = tmp_path / "run" / "recipe.toml"
    assert "\ncompile = false" in recipe.read_text()
    recipe.write_text(recipe.read_text().replace("\ncompile = false", "\ncompile = true"))
    accept(tmp_path / "run")
    told = score_run(tmp_path / "run", silent=True)
    assert told == {**score_run(runs / "writer", silent=True), "run": str(tmp_path / "run")}
    for run in (runs / "writer", tmp_path / "run"):
        with pytest.raises(UserError, match=r"^compile=true needs a C\+\+ compiler"):
            score_run(run, changes=["train.compile=true"], silent=True)


def test_settings_that_say_what_is_hidden_are_for_models_that_fill_in(tmp_path):
    text = "Once upon a time there was a king who had a daughter, and she was very fair.\n"
    files = put(tmp_path, {"own.txt": text * 3})
    losses = [
        score_run("fill", changes=[*files, *more], silent=True)["loss"]
        for more in ([], ["train.seed=7"], ["train.mask_rate=0.5"])
    ]
    assert len(set(losses)) == 3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["nonsense"], "'nonsense' is not a change: write table.setting=value"),
        (["modle.layers=3"], "there is no table 'modle': did you mean 'model'?"),
        (["data.tset=x"], "there is no setting 'tset': did you mean 'test'?"),
    ],
)
def test_what_is_no_setting_is_answered_as_everywhere(runs, changes, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        score_run(runs / "judge", changes=changes)


def test_a_change_that_is_in_no_list_is_told_what_to_write(runs):
    sentence = re.escape("write ['data.header=true']")
    with pytest.raises(UserError, match=sentence):
        score_run(runs / "judge", changes="data.header=true")
    with pytest.raises(UserError, match=sentence):
        compare_runs((runs / "judge", runs / "judge"), changes="data.header=true")


def test_what_is_no_split_is_answered_with_the_nearest(runs):
    with pytest.raises(UserError, match="there is no split 'tset': did you mean 'test'"):
        score_run(runs / "judge", "tset")


# Texts that are not here


@pytest.mark.parametrize("split", ["valid", "test"])
def test_where_a_corpus_is_not_to_be_had_your_own_texts_are_proposed(tmp_path, monkeypatch, split):
    monkeypatch.setenv("LIMELIGHT_DATA", str(tmp_path))
    monkeypatch.setenv("LIMELIGHT_CACHE", str(tmp_path))
    with pytest.raises(UserError) as told:
        score_run("en-de", split)
    assert "needs tatoeba/anki.en-de.tsv" in str(told.value)
    assert str(told.value).endswith(f"name your own texts instead: --data.{split} FILE ...")


def test_a_run_without_weights_is_refused_before_texts_are_looked_for(runs, tmp_path):
    run = with_data(runs / "bad", tmp_path / "run", 'name = "multi30k-en-de"')
    for folder in ("finished", "checkpoints"):
        shutil.rmtree(run / folder, ignore_errors=True)
    with pytest.raises(UserError, match="has no weights yet"):
        score_run(run)
    with pytest.raises(UserError, match="has no weights yet"):
        compare_runs((run, run))


def test_two_runs_are_compared_on_texts_of_your_own(runs, tmp_path):
    """Also if they learned from different ones."""
    files = put(tmp_path, OWN["good"][0])
    one = with_data(runs / "good", tmp_path / "one", 'name = "multi30k-en-de"')
    told = compare_runs((one, runs / "bad"), changes=files, silent=True)
    assert told["lines"] == 2


@pytest.fixture(scope="module")
def tagged(tmp_path_factory):
    """A run that writes a text as it is or backwards, as its tag says; its recipe asks for that."""
    toys = [DataConfig(**{**TOY, "toy": toy}, tag=toy) for toy in ("copy", "reverse")]
    recipe = replace(load_recipe("reverse"), data=DataConfig(tag="reverse", corpora=tuple(toys)))
    size = ["tokenizer.vocab=263", "model.vocab=263", "model.layers=1", "model.d_model=32"]
    place = tmp_path_factory.mktemp("tagged")
    train(recipe, place, [*size, "train.steps=20", "train.warmup=10"], silent=True)
    return place


def test_each_of_two_runs_is_asked_with_its_own_tags(runs, tagged, tmp_path):
    """So that it does not matter which is named first, and if only one of them has learned any."""
    files = put(tmp_path, OWN["good"][0])
    there, back = (
        compare_runs(pair, changes=files, silent=True)["comparisons"]
        for pair in ((tagged, runs / "good"), (runs / "good", tagged))
    )
    for name, alone in score_run(tagged, changes=files, silent=True)["scores"].items():
        assert there[name]["first"]["score"] == alone["score"]
        assert there[name]["first"] == back[name]["second"]
        assert there[name]["second"] == back[name]["first"]
        assert there[name]["p_value"] == back[name]["p_value"]


def test_the_command_prints_one_document(runs, programs):
    command = [programs / "limelight", "evaluate", str(runs / "judge"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["scores"]["accuracy"]
    two = [*command[:2], str(runs / "good"), str(runs / "bad")]
    done = subprocess.run(two, capture_output=True, text=True, check=True)
    assert "chrF2" in done.stdout
