"""The Transformer in one file is the package's: same weights, same numbers, same gradients."""

import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from limelight.model import ModelConfig, build
from tests.against.copying import compare, load, randomise, rename

PAGE = Path(__file__).parent.parent / "docs" / "hundred_lines.py"


@pytest.fixture(scope="module")
def page():
    spec = spec_from_file_location("hundred_lines", PAGE)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mapping(theirs):
    names = {
        "encoder.": "encoder.layers.",
        "decoder.": "decoder.layers.",
        "bias": "classifier.bias",
    }
    return rename(theirs, {**names, "tokens.": "target.tokens."}) | rename(
        theirs, {"tokens.": "source.tokens."}
    )


@pytest.mark.parametrize(("layers", "d_model", "heads"), [(1, 8, 1), (2, 16, 4), (3, 12, 2)])
def test_same_weights_same_numbers(page, layers, d_model, heads):
    sizes = {"vocab": 17, "layers": layers, "d_model": d_model, "heads": heads, "d_ff": 20}
    theirs = randomise(page.Transformer(**sizes))
    ours = build(ModelConfig(**sizes)).double().eval()
    load(ours, theirs, mapping)
    source, target = torch.randint(17, (3, 6)), torch.randint(17, (3, 5))
    real = torch.arange(6) < torch.tensor([[6], [3], [1]])
    a, b = ours(source, target, real), theirs(source, target, real)
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    compare(ours, theirs, a, b, mapping)


def test_its_defaults_are_the_papers_base_model(page):
    with torch.device("meta"):
        theirs, ours = page.Transformer(vocab=100), build(ModelConfig(vocab=100))
    sizes = [sum(p.numel() for p in model.parameters()) for model in (theirs, ours)]
    assert sizes[0] == sizes[1]


def test_it_starts_to_learn(page, capsys):
    untrained, model = page.train(steps=0), page.train(steps=100)
    source, target = page.batch(200)
    losses = [
        F.cross_entropy(
            net.eval()(source, target[:, :-1], source != page.PAD).flatten(0, 1),
            target[:, 1:].flatten(),
            ignore_index=page.PAD,
        )
        for net in (untrained, model)
    ]
    assert losses[1] < 0.7 * losses[0]
    assert "step 100  loss" in capsys.readouterr().out


def test_it_fits_on_a_page():
    lines = [line for line in PAGE.read_text().split('"""')[::2] for line in line.splitlines()]
    assert sum(bool(line.strip()) for line in lines) <= 125


@pytest.mark.soak
def test_run_as_the_page_says():
    done = subprocess.run([sys.executable, PAGE], capture_output=True, text=True, check=True)
    right = re.search(r"(\d+) of 1000 new rows", done.stdout)
    assert right
    assert int(right[1]) >= 950
