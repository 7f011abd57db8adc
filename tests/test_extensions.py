"""Own parts of models: they work as if they were limelight's own, and come from no run folder."""

import json
import re
import signal

import pytest
import torch

import limelight
from limelight import config, extensions
from limelight.cli import main
from limelight.data.tokenizer import Tokenizer
from limelight.decode.accel import accelerate
from limelight.errors import UserError
from limelight.extensions import extend, extend_from_environment
from limelight.loading import load, save_run
from limelight.model import ModelConfig, build
from limelight.model.attention import Attention, explicit_attention
from limelight.recipe import load_recipe
from limelight.run.folder import RunFolder
from limelight.workflows.train import train
from tests.training.samples import hashes, labelled, log_of, texts, tiny, train_in

ALIBI = """
import torch
from torch import nn
from limelight.model.positions import BIASES

class ALiBi(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.heads

    def forward(self, queries, keys):
        slopes = 2 ** (-8 / self.heads * torch.arange(1, self.heads + 1, device=keys.device))
        distance = (queries[..., :, None] - keys[..., None, :]).abs()
        return -slopes[:, None, None] * distance[..., None, :, :]

BIASES["alibi"] = ALiBi
"""
PARTS = """
import torch
from torch import nn
from limelight.model.layers import ACTIVATIONS, NORMS
from limelight.model.positions import ADDED
from limelight.training.objectives import OBJECTIVES

class Gain(nn.Module):
    def __init__(self, d_model, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x):
        return torch.tanh(x) * self.weight

class Ramp(nn.Module):
    def forward(self, positions, dtype):
        return 0.1 * positions[..., None].to(dtype)

def half(model, batch, loss):
    states = model.decode(batch.target[:, :-1], model.encode(batch.source, batch.source_real))
    sums = loss(states, model.classifier.weight, model.classifier.bias, batch.target[:, 1:])
    return sums._replace(loss=sums.loss / 2)

ACTIVATIONS["squared-relu"] = lambda x: x.relu() ** 2
NORMS["gain"] = Gain
ADDED["ramp"] = lambda config: Ramp()
OBJECTIVES["half"] = half
"""
ADDED = {"activation": "squared-relu", "norm": "gain", "positions": "ramp"}


@pytest.fixture(autouse=True)
def forget():
    """What a test has loaded is gone after it."""
    tables = [table for _, table in extensions._tables()]
    tables += [config.EXTENSION_FILES, *config.EXTENDED.values()]
    before = [dict(table) for table in tables]
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)


@pytest.fixture
def file(tmp_path):
    def write(text, name="mine.py"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def logits(model, tokens):
    with torch.no_grad():
        pair = model.config.family == "encoder-decoder"
        return model(tokens, tokens) if pair else model(tokens)


def alibi_model(family, **shape):
    torch.manual_seed(1)
    shape = {"vocab": 20, "layers": 2, "d_model": 16, "heads": 4, "d_ff": 16, **shape}
    return build(ModelConfig(family=family, positions="alibi", **shape)).double().eval()


FAMILIES = ("encoder-decoder", "decoder-only", "encoder-only")
TOKENS = torch.arange(12).view(2, 6) + 3


@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_added_to_scores_are_the_same_in_both_attentions(file, family):
    extend(file(ALIBI))
    model = alibi_model(family)
    fused = logits(model, TOKENS)
    for part in model.modules():
        if isinstance(part, Attention):
            part.attend = explicit_attention
    assert torch.allclose(logits(model, TOKENS), fused, atol=1e-12)
    stack = model.encoder if family != "decoder-only" else model.decoder
    stack.position_bias.forward = lambda q, k: torch.zeros(1, q.size(-1), k.size(-1))
    assert not torch.allclose(logits(model, TOKENS), fused, atol=1e-6)  # the control


def test_alibi_is_what_its_paper_says(file):
    """Of head h of 4: -2^(-2h) times the distance; later positions are masked."""
    extend(file(ALIBI))
    stack, positions = alibi_model("decoder-only").decoder, torch.arange(3)
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    bias = stack.biased(mask, positions, positions, torch.float64)
    inf = torch.inf
    first = [[0, -inf, -inf], [-1 / 4, 0, -inf], [-1 / 2, -1 / 4, 0]]
    assert bias.shape == (4, 3, 3)
    assert bias[0].tolist() == first
    assert torch.equal(bias[1], bias[0] / 4)


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only"])
def test_a_cached_step_equals_the_full_pass(file, family):
    extend(file(ALIBI))
    model = alibi_model(family)
    full = logits(model, TOKENS)
    state = model.start(TOKENS) if family == "encoder-decoder" else model.start(2)
    for i in range(TOKENS.size(1)):
        assert torch.allclose(model.step(TOKENS[:, i : i + 1], state), full[:, i], atol=1e-12)


def test_padding_and_later_tokens_change_nothing(file):
    extend(file(ALIBI))
    model = alibi_model("encoder-decoder")
    real = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    padded = model(TOKENS, TOKENS, real)
    other = torch.where(real, TOKENS, 1)
    assert torch.allclose(model(other, TOKENS, real), padded, atol=1e-12)
    later = TOKENS.clone()
    later[:, 4:] = 1
    assert torch.allclose(model(TOKENS, later, real)[:, :4], padded[:, :4], atol=1e-12)
    assert not torch.allclose(model(TOKENS, later, real)[:, 4:], padded[:, 4:])  # the control


def test_extended_models_are_not_accelerated(file):
    extend(file(ALIBI))
    extend(file(PARTS, "parts.py"))
    model = alibi_model("decoder-only")
    assert accelerate(model) is model
    shape = {"vocab": 20, "layers": 1, "d_model": 16, "heads": 4}
    for setting, value in ADDED.items():
        model = build(ModelConfig(family="decoder-only", **shape, **{setting: value})).eval()
        assert accelerate(model) is model
    plain = build(ModelConfig(family="decoder-only", **shape)).eval()
    assert accelerate(plain) is not plain  # the control


@pytest.mark.parametrize("family", FAMILIES)
def test_added_parts_train_and_load(file, tmp_path, family):
    extend(file(PARTS))
    data = texts(tmp_path) if family == "encoder-only" else None
    trainer = train_in(tmp_path / "run", tiny(family, data, ADDED))
    loaded = load(tmp_path / "run", device="cpu")
    assert torch.equal(
        logits(loaded.model, TOKENS), logits(trainer.loss_module.model.eval(), TOKENS)
    )
    meta = json.loads((tmp_path / "run" / "run.json").read_text())
    assert list(meta["extend"]) == ["mine.py"]
    train_in(tmp_path / "plain", tiny(family, data))  # it has nothing of it, though it is loaded
    assert "extend" not in json.loads((tmp_path / "plain" / "run.json").read_text())


def test_an_own_objective_is_what_is_minimised(file, tmp_path):
    extend(file(PARTS))
    train_in(tmp_path / "usual", tiny(steps=1, label_smoothing=0.0))
    train_in(tmp_path / "half", tiny(steps=1, label_smoothing=0.0, objective="half"))
    usual, half = (log_of(tmp_path / run)[0] for run in ("usual", "half"))
    assert half["objective"] < usual["objective"] == usual["loss"]
    with pytest.raises(UserError, match="there is no objective 'hlaf': did you mean 'half'"):
        tiny(objective="hlaf")


# What is refused


@pytest.fixture
def run(file, tmp_path):
    extend(file(ALIBI, "alibi.py"))
    train_in(tmp_path / "run", tiny(model={"positions": "alibi"}))
    config.EXTENSION_FILES.clear()
    config.EXTENDED["positions"].clear()
    extensions.BIASES.clear()
    return tmp_path / "run"


def test_a_run_is_refused_without_its_file_even_if_the_folder_has_it(run, tmp_path):
    (run / "alibi.py").write_text(ALIBI)
    sentence = "was trained with 'alibi.py', a Python file that is not part of it: .* --extend FILE"
    for use in (load, lambda path: train_in(path, tiny(model={"positions": "sinusoidal"}))):
        with pytest.raises(UserError, match=sentence):
            use(run)
    extend(tmp_path / "alibi.py")
    assert load(run).step == 10  # the control


def test_the_command_line_has_the_same_sentences(file, tmp_path, monkeypatch, capsys):
    def call(*words):
        monkeypatch.setattr("sys.argv", ["limelight", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as left:
            code = left.code
        return code, capsys.readouterr().err

    run, alibi, size = tmp_path / "run", file(ALIBI, "alibi.py"), ["--model.d-model", "16"]
    words = ["train", "reverse", "--model.positions", "alibi", "--run", run, *size, "--steps", "1"]
    code, said = call(*words)
    assert (code, "(another one comes from a Python file: --extend FILE)" in said) == (2, True)
    broken = file("def f(:\n", "broken.py")
    code, said = call(*words, "--extend", broken)
    assert (code, "broken.py, line 1: SyntaxError: invalid syntax" in said) == (2, True)
    assert call(*words, "--extend", alibi, "--train.warmup", "0")[0] == 0
    assert call("translate", run, "a b", "--extend", alibi)[0] == 0
    monkeypatch.delenv("LIMELIGHT_EXTEND")
    for table in (extensions.BIASES, config.EXTENDED["positions"], config.EXTENSION_FILES):
        table.clear()
    code, said = call("translate", run, "a b")
    assert (code, "a Python file that is not part of it: give yours with --extend" in said) == (
        2,
        True,
    )
    assert call("translate", run, "a b", "--extend", alibi)[0] == 0


def test_another_file_of_that_name_is_refused(run, file):
    extend(file(ALIBI + "\n# changed\n", "alibi.py"))
    with pytest.raises(UserError, match=r"trained with another alibi\.py: its SHA-256 was "):
        load(run)


def test_a_run_that_lists_nonsense_is_refused(run):
    text = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**text, "extend": ["alibi.py"]}))
    with pytest.raises(UserError, match=r"run\.json: extend must be a table"):
        load(run)


WRONG = {
    "syntax": ("x = 1\ny = = 2\n", r"mine\.py, line 2: SyntaxError"),
    "error": ("x = 1\n\n1 / 0\n", r"mine\.py, line 3: ZeroDivisionError: division by zero"),
    "nothing": ("x = 1\n", r"mine\.py adds nothing"),
    "own": (
        'from limelight.model.layers import ACTIVATIONS\nACTIVATIONS["relu"] = abs\n',
        "changes the activation 'relu': add another name instead",
    ),
    "gone": (
        'from limelight.model.layers import NORMS\ndel NORMS["rms"]\n',
        "changes the norm 'rms'",
    ),
    "taken": (
        'from limelight.model.positions import BIASES\nBIASES["rotary"] = abs\n',
        "positions 'rotary' is taken",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_does_not_add_is_refused_and_leaves_nothing(file, name):
    text, sentence = WRONG[name]
    before = [dict(table) for _, table in extensions._tables()]
    with pytest.raises(UserError, match=sentence):
        extend(file(text))
    assert [dict(table) for _, table in extensions._tables()] == before
    assert not config.EXTENSION_FILES


def test_files_are_loaded_once_and_names_are_unique(file, tmp_path):
    extend(file(ALIBI))
    extend(file(ALIBI))
    with pytest.raises(UserError, match=r"another mine\.py is loaded already"):
        extend(file(ALIBI + "\n"))
    with pytest.raises(UserError, match=r"cannot read the extension: .*nowhere"):
        extend(tmp_path / "nowhere.py")
    with pytest.raises(UserError, match="changes the positions 'alibi'"):
        extend(file(ALIBI, "other.py"))


def test_buffers_would_be_lost_and_are_refused(file):
    extend(
        file(ALIBI.replace("self.heads = config.heads", "self.register_buffer('b', torch.ones(2))"))
    )
    with pytest.raises(UserError, match="has a buffer: compute it in `forward` instead"):
        alibi_model("decoder-only")


def test_unknown_names_are_refused_as_before():
    with pytest.raises(UserError, match="there is no activation 'rel': did you mean 'relu'"):
        tiny(model={"activation": "rel"})
    with pytest.raises(UserError, match=r"activation=3 must be 'relu'.* or text"):
        tiny(model={"activation": 3})


def test_explain_refuses_what_it_cannot_recompute(file, tmp_path):
    extend(file(ALIBI, "alibi.py"))
    extend(file(PARTS))
    train_in(tmp_path / "alibi", tiny(model={"positions": "alibi"}))
    with pytest.raises(UserError, match="does not know positions='alibi', which an extension"):
        load(tmp_path / "alibi").explain("abc")
    train_in(tmp_path / "square", tiny(model={"activation": "squared-relu"}))
    assert load(tmp_path / "square").explain("abc")


def test_processes_of_a_command_load_the_same_files(file, monkeypatch):
    monkeypatch.setenv("LIMELIGHT_EXTEND", str(file(ALIBI)))
    extend_from_environment()
    assert "alibi" in config.EXTENDED["positions"]


# Callbacks, data, results, own loops


def test_a_callback_stops_a_training_that_then_goes_on_to_the_same_end(tmp_path):
    seen = []

    def stop(entry, model):
        torch.rand(3)  # draws numbers, which changes nothing
        seen.append(entry["step"])
        return entry["step"] == 4 and not entry.get("validation")

    result = train(tiny(), tmp_path / "broken", silent=True, callbacks=[stop])
    assert (result, seen) == (signal.SIGTERM, [1, 2, 3, 4, 5])  # the next step had begun
    assert train(tiny(), tmp_path / "broken", silent=True) == 0
    assert train(tiny(), tmp_path / "whole", silent=True) == 0
    ends = [hashes(tmp_path / run / "finished") for run in ("broken", "whole")]
    assert ends[0] == ends[1]


def test_the_result_has_scores_and_the_model(tmp_path):
    result = train(tiny(validate_every=5), tmp_path / "run", silent=True)
    validations = [entry for entry in log_of(tmp_path / "run") if entry.get("validation")]
    assert result.scores["loss"] == min(entry["loss"] for entry in validations)
    assert result.model.step == 10
    assert result.model is result.model


PAIRS = [("abc", "cba"), ("ab", "ba"), ("bcd", "dcb")]


def test_own_examples_are_trained_on_and_kept(tmp_path):
    own = {"train": (pair for pair in PAIRS * 5), "valid": PAIRS}
    result = train(tiny(), tmp_path / "run", silent=True, data=own)
    kept = (tmp_path / "run" / "examples" / "train.jsonl").read_text().splitlines()
    assert [tuple(json.loads(line).values()) for line in kept] == PAIRS * 5
    assert result.model.recipe.data.toy == ""
    assert train(result.model.recipe, tmp_path / "run", ["train.steps=12"], silent=True) == 0
    with pytest.raises(UserError, match=r"the data of .* has changed since it was begun"):
        train(tiny(steps=14), tmp_path / "run", silent=True, data={**own, "train": PAIRS})


def test_a_dataset_is_as_long_as_it_says(tmp_path):
    """Those of torch need not raise IndexError, and would go on for ever."""

    class Doubled(torch.utils.data.Dataset):
        def __len__(self):
            return 7

        def __getitem__(self, i):
            return (f"say {i}", f"{i} {i}")

    train(tiny(), tmp_path / "run", silent=True, data={"train": Doubled(), "valid": PAIRS})
    kept = (tmp_path / "run" / "examples" / "train.jsonl").read_text().splitlines()
    assert [json.loads(line)["target"] for line in kept] == [f"{i} {i}" for i in range(7)]


def test_own_examples_of_a_classifier(tmp_path):
    recipe = tiny("encoder-only", labelled(tmp_path), {"classes": 2})
    own = {"train": [("xbc", "one"), ("ybc", "two")] * 4}
    assert train(recipe, tmp_path / "run", silent=True, data=own).model.classes == ("one", "two")


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({"tarin": PAIRS}, "there is no split 'tarin': did you mean 'train'"),
        (
            {"train": [("a", "b", "c")]},
            r"'c'\) is not an example of pairs: it needs source and",
        ),
        ({"train": []}, "there is no example to train on"),
        ({"train": ["ab", "cd"]}, "'ab' is not an example of pairs: it needs source and target"),
        (PAIRS, "data has examples by split: write data={'train': examples}"),
    ],
)
def test_what_are_no_examples_is_refused(tmp_path, own, sentence):
    with pytest.raises(UserError, match=sentence):
        train(tiny(), tmp_path / "run", silent=True, data=own)
    assert not RunFolder(tmp_path / "run").exists


def made(**changes):
    tokenizer = Tokenizer.train("char", ["abc"], 300)
    size = {"tokenizer.vocab": len(tokenizer), "model.vocab": len(tokenizer)}
    small = {"model.layers": 1, "model.d_model": 8, "model.heads": 2, **size, **changes}
    recipe = load_recipe("reverse", small)
    return build(recipe.model), tokenizer, recipe


def test_a_model_of_an_own_loop_becomes_a_run(tmp_path):
    model, tokenizer, recipe = made()
    saved = save_run(model, tokenizer, recipe, tmp_path / "run", step=7)
    again = limelight.load(tmp_path / "run", device="cpu")
    assert (saved.step, again.step, again.recipe.name) == (7, 7, "reverse")
    ours, theirs = (dict(m.named_parameters()) for m in (model, again.model))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert again.tokenizer.hash == tokenizer.hash
    with pytest.raises(UserError, match="run is not empty: choose another folder"):
        save_run(model, tokenizer, recipe, tmp_path / "run")


def test_what_is_not_of_the_recipe_is_not_saved(tmp_path):
    model, tokenizer, recipe = made()
    other, *_ = made(**{"model.d_model": 16})
    with pytest.raises(UserError, match=re.escape("not what build(recipe.model) makes")):
        save_run(other, tokenizer, recipe, tmp_path / "run")
    with torch.no_grad():
        model.classifier.bias[0] = torch.nan
    with pytest.raises(UserError, match=r"classifier\.bias has numbers that are not finite"):
        save_run(model, tokenizer, recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
