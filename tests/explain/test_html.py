"""The walk as one file: never larger than there is room for, and every number in it the model's."""

import base64
import json
import re
import zlib

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from limelight.explain.focus import focus_on
from limelight.explain.render import serialize
from limelight.explain.render.html import MAX_BYTES, _ExportPlan, as_html
from tests.explain.samples import KINDS, trained
from tests.explain.test_truth import by_hand, traced


def held(html):
    """The data in a file."""
    (found,) = re.findall(r'<script type="application/json" id="held">(.*?)</script>', html, re.S)
    data = json.loads(found)
    packed = {k: zlib.decompress(base64.b64decode(v)) for k, v in data["packed"].items()}
    planes = np.frombuffer(packed["single"], "u1").reshape(3, -1)
    single = np.vstack([np.zeros_like(planes[:1]), planes]).T.tobytes()
    data |= json.loads(packed["json"])
    for blob in data["blobs"].values():
        buffer, end = (
            single if blob["kind"] == "f32" else packed["small"],
            blob["at"] + blob["size"],
        )
        blob["data"] = buffer[blob["at"] : end]
    return data


def numbers(blob):
    """Bytes by the names they have."""
    kind = {"f32": "<f4", "f16": "<f2", "u8": "u1"}[blob["kind"]]
    flat, found = np.frombuffer(blob["data"], kind), {}
    for name, shape in blob["parts"]:
        size = int(np.prod(shape))
        found[name], flat = flat[:size].reshape(shape), flat[size:]
    assert not len(flat)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_a_file_is_the_one_computed_by_hand(kind):
    trace = traced(kind)
    html = as_html(trace)
    assert len(html.encode()) <= MAX_BYTES
    data, hand = held(html), by_hand(trace)
    assert data["manifest"] == json.loads(serialize.as_json(serialize.manifest(trace)))
    for part, path, _ in _ExportPlan(focus_on(trace, None, None, None)).items():
        assert path in data[part]  # every layer, head and word
    seen = set()
    for path, blob in data["blobs"].items():
        what, _, rest = path.partition("?")
        asked = dict(part.split("=") for part in rest.split("&") if part)
        for name, shown in numbers(blob).items():
            near = {"f32": 1e-4, "f16": 1e-3, "u8": 0.51}[blob["kind"]]
            near = 2.6e-4 if what == "logits" else near  # in steps of 1/2048
            np.testing.assert_allclose(
                shown, expected(hand, what, name, asked), rtol=1e-5, atol=near
            )
        seen.add(what.split("/")[0])
    classes = {"logits"} if not trace.config.classes else set()
    assert seen == {"focus", "tensor", "token", "thumbs"} | classes


def expected(hand, what, name, asked):
    """The same by hand."""
    if what == "focus":
        head, config = int(asked["head"]) - 1, hand.c
        shared = config.heads // (config.kv_heads or config.heads) if name in "kv" else 1
        return hand.values[f"{asked['at']}.{name}"][head // shared]
    if what == "thumbs":  # every pixel is the largest of those it stands for
        weights = torch.from_numpy(hand.values[f"{name}.weights"])
        return 255 * F.adaptive_max_pool2d(weights, [min(16, n) for n in weights.shape[1:]]).numpy()
    value = hand.values[name]
    if what in ("token", "logits"):
        return value[int(asked["row"])]
    if "rows" in asked:
        first, last = map(int, asked["rows"].split(":"))
        return value[..., first:last, :]
    return value


@pytest.mark.parametrize("kind", ["paper", "gpt", "bert", "bert-classifies"])
def test_what_is_asked_for_comes_first(kind):
    trace = traced(kind)
    least = len(as_html(trace, max_bytes=0).encode())
    small = held(as_html(trace, layer=2, head=3, max_bytes=least + 40_000))
    assert small["place"] == {"layer": 2, "head": 3}
    whole = held(as_html(trace, layer=2, head=3))
    assert len(small["facts"]) + len(small["blobs"]) < len(whole["facts"]) + len(whole["blobs"])
    side = "encoder" if len(trace.source) else "decoder"
    row = small["manifest"]["first_look"]["source" if side == "encoder" else "target"]
    word = f"{'source' if side == 'encoder' else 'target'}={row}"
    assert f"stop/scores?layer=2&head=3&{word}" in small["facts"]
    assert f"focus?at={side}.1.self&head=3" in small["blobs"]
    assert f"token?side={side}&row={row}" in small["blobs"]
    assert len(as_html(trace, max_bytes=least + 40_000).encode()) <= least + 40_000


def test_text_without_a_script_is_escaped():
    html = as_html(trained_on("<img src=x onerror=alert(1)>"))
    assert "<img" not in html
    assert "&lt;img src=x onerror=alert(1)&gt;" in html


def trained_on(text):
    from limelight.explain.explanation import explain

    return explain(trained("paper"), text)


def test_a_notebook_gets_a_frame_a_picture_and_text():
    explanation = traced("paper")
    frame = explanation._repr_html_()
    assert frame.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert frame.count("<") == 2  # the frame, and its end
    assert 'sandbox="allow-scripts allow-downloads"' in frame
    assert explanation._repr_png_().startswith(b"\x89PNG")
    assert explanation.html(layer=2) == as_html(explanation, layer=2)
