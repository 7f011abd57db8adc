"""Attention as pictures: they are drawn, and drawn from the weights."""

from xml.etree import ElementTree

import pytest
import torch

from limelight.errors import UserError
from limelight.explain.explanation import explain
from limelight.explain.render import figures
from tests.explain.samples import KINDS, trained
from tests.explain.test_truth import by_hand, traced


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
@pytest.mark.parametrize("kind", ["paper", "gpt", "bert"])
def test_every_kind_of_file(kind, ending, tmp_path):
    file = tmp_path / f"attention.{ending}"
    figures.save(traced(kind), file, layer=2, head=1)
    start = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[ending]
    assert file.read_bytes().startswith(start)
    if ending == "svg":
        ElementTree.parse(file)


def test_the_same_picture_is_the_same_file(tmp_path):
    for name in ("a.svg", "b.svg"):
        figures.save(traced("paper"), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_means_are_over_what_was_not_chosen(kind):
    trace = traced(kind)
    values = by_hand(trace).values
    side = "decoder" if not len(trace.source) else "encoder"
    every = torch.tensor([values[f"{side}.{n}.self.weights"].tolist() for n in range(2)]).float()
    for layer, head in [(None, None), (1, None), (None, 2), (2, 4)]:
        own = every if layer is None else every[layer - 1 : layer]
        own = own if head is None else own[:, head - 1 : head]
        shown = trace.mean_attention(side, layer, head)
        torch.testing.assert_close(shown, own.mean(dim=(0, 1)), atol=1e-5, rtol=1e-4)


def test_odd_text_and_long_text_are_drawn(tmp_path):
    for text in ("$x^2$ <b> \n שלום", "e" * 40):
        figures.save(explain(trained("paper"), text), tmp_path / "odd.svg")
        ElementTree.parse(tmp_path / "odd.svg")


def test_other_files_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"must end in \.svg, \.png, \.pdf"):
        figures.save(traced("paper"), tmp_path / "a.gif")
    with pytest.raises(UserError, match="there is no layer 5"):
        figures.save(traced("paper"), tmp_path / "a.svg", layer=5)
