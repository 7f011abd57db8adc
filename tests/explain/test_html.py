"""The walk as one file: never larger than there is room for, and every number in it the model's."""

import base64
import json
import re
import zlib

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import limelight
from limelight.errors import UserError
from limelight.explain.focus import focus_on
from limelight.explain.render import serialize
from limelight.explain.render.html import (
    MAX_BYTES,
    _ExportPlan,
    _Packer,
    as_html,
    html_in_steps,
)
from limelight.explain.stage import number
from limelight.explain.starting_point import first_focus
from limelight.explain.traced_text import run_through
from tests.explain.samples import KINDS, trained
from tests.explain.test_truth import by_hand, traced
from tests.tasks.conftest import model, run  # noqa: F401  (fixtures)


def held(html):
    """The data in a file."""
    (found,) = re.findall(r'<script type="application/json" id="held">(.*?)</script>', html, re.S)
    data = json.loads(found)
    packed = {k: unpacked(v) for k, v in data["packed"].items()}
    ranks = np.vstack([np.frombuffer(packed[f"rank{n}"], "u1") for n in (1, 2, 3)])
    single = np.vstack([np.zeros_like(ranks[:1]), ranks]).T.tobytes()
    lines = b"".join(packed[name] for name in packed if name.startswith("stop/"))
    both = {"facts": lines, "blobs": packed["index"]}
    data |= {name: json.loads(b"{%b}" % found[:-1]) for name, found in both.items()}
    for blob in data["blobs"].values():
        buffer, end = (
            single if blob["kind"] == "f32" else packed["small"],
            blob["at"] + blob["size"],
        )
        blob["data"] = buffer[blob["at"] : end]
    return data


def unpacked(stream):
    """What was compressed."""
    return zlib.decompress(base64.b64decode(stream))


def numbers(blob):
    """Bytes by the names they have."""
    kind = {"f32": "<f4", "f16": "<f2", "u8": "u1"}[blob["kind"]]
    flat, found = np.frombuffer(blob["data"], kind), {}
    for name, shape in blob["parts"]:
        size = int(np.prod(shape))
        found[name], flat = flat[:size].reshape(shape), flat[size:]
    assert not len(flat)
    return found


def smallest(trace):
    """Bytes of a file that has nothing but the page and the words."""
    with pytest.raises(UserError, match="does not fit into a file") as refused:
        as_html(trace, max_bytes=0)
    return int(re.search(r"at least ([\d,]+) bytes", str(refused.value))[1].replace(",", ""))


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_a_file_is_the_one_computed_by_hand(kind):
    trace = traced(kind)
    html = as_html(trace)
    assert len(html.encode()) <= MAX_BYTES
    data, hand = held(html), by_hand(trace)
    assert data["manifest"] == json.loads(serialize.as_json(serialize.manifest(trace)))
    for path, _ in _ExportPlan(focus_on(trace, None, None, None)).items():
        assert path in data["facts"] | data["blobs"]  # every layer, head and word
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
    least = smallest(trace)
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


@pytest.mark.parametrize(
    ("name", "text", "room"),
    [
        ("writer", "The king saw his son. " * 30, 700_000),  # too long for all facts
        ("writer", "The king saw his son.", 400_000),
        ("en-de", "A man is sleeping in the park.", 300_000),
    ],
)
def test_the_room_that_remains_is_smaller_than_anything_left_out(name, text, room):
    trace = limelight.load(name, device="cpu").explain(text)
    plan = _ExportPlan(first_focus(trace, None, None, None)).by_path()
    packer = _Packer(room)
    run_through(packer.fill(plan))
    sizes = [
        sum(len(name) + 6 + len(v) for name, v in p.packed.items()) for p in (_Packer(0), packer)
    ]
    assert packer.room == room - (sizes[1] - sizes[0]) >= 0
    packed = packer.packed.items()
    told = [v for k, v in packed if k == "index" or k.startswith("stop/")]
    kept = json.loads(b"{%b}" % b"".join(map(unpacked, told))[:-1])
    out = [path for path in plan if path not in kept]
    of_kinds = {path.split("?")[0]: path for path in reversed(out)}  # the first of each kind
    assert 0 < packer.count == len(kept) < len(plan)
    assert len(of_kinds) > 3
    for path in [*of_kinds.values(), *out[:: len(out) // 30 + 1]]:
        room = packer.room
        if packer.add(path, plan[path]()):  # facts that others are alike may add a few bytes
            assert path.startswith("stop/"), f"{path} would fit into {room} bytes"
            assert room - packer.room < 24


def test_a_long_text_fills_the_file():
    trace = limelight.load("writer", device="cpu").explain("The king saw his son. " * 30)
    page = as_html(trace, max_bytes=2_000_000)
    assert 2_000_000 - 100 < len(page.encode()) <= 2_000_000


def test_a_long_text_keeps_to_the_limit_and_has_numbers_all_the_same():
    trace = limelight.load("writer", device="cpu").explain("The king saw his son. " * 30)
    assert len(trace.target) > 150
    most = 2_000_000
    page, holds = run_through(html_in_steps(trace, max_bytes=most))
    assert len(page.encode()) <= most
    data = held(page)
    assert 0 < holds < 1
    planned = {path for path, _ in _ExportPlan(first_focus(trace, None, None, None)).items()}
    assert holds == pytest.approx((len(data["facts"]) + len(data["blobs"])) / len(planned))
    row = data["manifest"]["first_look"]["target"]
    assert f"token?side=decoder&row={row}" in data["blobs"]
    plain = re.search(r"<noscript>(.*?)</noscript>", page, re.S)[1]
    assert len(plain) < 0.21 * most
    caption, body = re.search(r"<caption>(.*?)</caption>(.*?)</table>", plain, re.S).groups()
    count = re.search(r"\((\d+) x (\d+) of (\d+) x (\d+), around the chosen place\)", caption)
    shown, _, rows, _ = map(int, count.groups())
    assert (rows, shown) == (len(trace.target), body.count("<tr>") - 1)
    block = first_focus(trace, None, None, None).block("decoder")
    weight = block.get("weights")[block.query_index, block.key_index].item()
    alike = re.findall(rf"<tr><th>{re.escape(block.rows[row])}</th>.*?</tr>", body)
    assert any(f">{number(weight)}</td>" in line for line in alike)  # the text repeats itself


def test_a_file_that_is_whole_says_so_and_one_without_room_for_its_words_is_refused():
    trace = traced("paper")
    page, holds = run_through(html_in_steps(trace))
    assert (page, holds) == (as_html(trace), 1)
    least = smallest(trace)
    assert 0 < run_through(html_in_steps(trace, max_bytes=least + 10_000)).holds < 1
    with pytest.raises(UserError, match=f"at least {least:,} bytes, and {least - 1:,} are"):
        as_html(trace, max_bytes=least - 1)


def test_a_notebook_has_a_picture_where_a_page_would_be_too_large(monkeypatch):
    monkeypatch.setattr("limelight.explain.explanation._NOTEBOOK", 1000)
    explanation = traced("paper")
    assert explanation._repr_html_() is None
    assert explanation._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("room", [1.0, 0.7, 0.4])
def test_tables_of_a_recurrent_model_are_cut_where_they_are_too_large(room, model):  # noqa: F811
    trace = model("lstm").explain("c a b " * 10)
    whole = as_html(trace)
    most = int(room * len(whole.encode()))
    page, holds = run_through(html_in_steps(trace, max_bytes=most))
    assert len(page.encode()) <= most
    assert holds == 1
    assert ("around the chosen place" in page) == (room < 1)
    assert page.count("<table>") == whole.count("<table>")
    with pytest.raises(UserError, match="shorten the text"):
        as_html(trace, max_bytes=1000)


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
