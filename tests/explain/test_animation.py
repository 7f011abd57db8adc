"""The film of a walk: every number in it is the trace's, and no text can break out of it."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

import limelight
from limelight.errors import UserError
from limelight.explain.render.animation import as_svg
from tests.tasks.conftest import run  # noqa: F401  (a fixture)

TEXTS = {"reverse": "a b c", "writer": "the cat", "bert": "the ___ sits here.", "classifier": "a"}
SVG = "{http://www.w3.org/2000/svg}"


def frames(svg):
    root = ElementTree.fromstring(svg)
    return [g for g in root.iter(f"{SVG}g") if g.get("class") == "frame"]


def texts(element, kind=""):
    return [t.text for t in element.iter(f"{SVG}text") if kind in t.get("class")]


@pytest.mark.parametrize("name", TEXTS)
def test_a_frame_for_each_word_with_its_weights_and_candidates(run, name):  # noqa: F811
    trace = limelight.load(run(name)).explain(TEXTS[name])
    found = frames(as_svg(trace, layer=1, head=2))
    assert len(found) == 2 + len(trace.steps)
    crossing = len(trace.source) and len(trace.target)
    side = "decoder" if len(trace.target) else "encoder"
    weights = trace.tensor(f"{side}.0.{'cross' if crossing else 'self'}.weights", 2)
    cells = [float(one.get("opacity")) for one in found[1].iter(f"{SVG}rect")]
    assert cells == [round(w, 2) for w in weights[:24, :24].flatten().tolist() if w > 0.005]
    for step, frame in zip(trace.steps, found[2:], strict=True):
        shown = [text for text in texts(frame, "left") if text.endswith("%")]
        assert shown == [f"{100 * choice.probability:.1f}%" for choice in step.top[:3]]
        lines = [one for one in frame.iter(f"{SVG}path") if one.get("class") == "link"]
        row = weights[step.row].tolist()
        widths = [float(one.get("stroke-width")) for one in lines]
        assert widths == [round(0.8 + 7 * w, 1) for w in row if w > 0.04]


def test_the_frames_follow_each_other_and_the_last_one_stands_still(run):  # noqa: F811
    svg = as_svg(limelight.load(run("writer")).explain("the cat"))
    ends = [
        tuple(map(float, pair)) for pair in re.findall(r"([\d.]+)%, ([\d.]+)% \{ opacity: 1", svg)
    ]
    assert len(ends) == len(frames(svg))
    assert all(a < b for a, b in ends)
    assert all(b <= c for (_, b), (c, _) in pairwise(ends))
    assert "prefers-reduced-motion: reduce" in svg
    assert "<script" not in svg
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_hostile_text_is_text(run):  # noqa: F811
    model = limelight.load(run("writer"))
    hostile = "</text><script>\x00\x1b&]]>"
    svg = as_svg(model.explain(hostile))
    root = ElementTree.fromstring(svg)
    assert {one.tag.removeprefix(SVG) for one in root.iter()} <= {
        *("svg", "title", "style", "rect", "g", "text", "path")
    }


def test_a_recurrent_model_has_no_heads_to_show(run):  # noqa: F811
    trace = limelight.load(run("rnn")).explain("the cat")
    with pytest.raises(UserError, match="recurrent"):
        as_svg(trace)
