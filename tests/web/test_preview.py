"""What others see of the page where somebody shares its address: a name, a sentence, a picture."""

import struct
from html.parser import HTMLParser

import pytest
from PIL import Image

from limelight.serve.static import page_files
from limelight.web.bundle import source_of

MOST = 60_000  # bytes: who shows a preview loads it for every reader
SMALLEST = (600, 315)  # what is smaller is shown as a stamp beside the text


class _Head(HTMLParser):
    """The metadata of a page, and all files that it names."""

    def __init__(self, text):
        super().__init__()
        self.facts, self.linked = {}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "meta" and (name := given.get("property", given.get("name"))):
            self.facts[name] = given["content"]
        self.linked += [x for x in (given.get("href"), given.get("src")) if x and x[0] == "/"]


@pytest.fixture(scope="module")
def head():
    return _Head(source_of("index.html"))


@pytest.fixture(scope="module")
def served():
    return page_files()


def test_the_picture_that_is_named_is_served_as_large_as_is_said(head, served):
    picture = served[f"/{head.facts['og:image']}"]  # the service puts its address before it
    assert picture.kind == "image/png"
    assert picture.body[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(picture.body) < MOST
    size = struct.unpack(">II", picture.body[16:24])
    assert size == tuple(int(head.facts[f"og:image:{side}"]) for side in ("width", "height"))
    assert all(a >= b for a, b in zip(size, SMALLEST, strict=True))
    assert size[0] / size[1] == pytest.approx(1.91, abs=0.02)  # or it is cut


def test_the_picture_shows_something(served, tmp_path):
    path = tmp_path / "preview.png"
    path.write_bytes(served["/page/preview.png"].body)
    shares = sorted((n for n, _ in Image.open(path).convert("RGB").getcolors(2**24)), reverse=True)
    assert len(shares) > 40
    assert 0.02 < 1 - sum(shares[:3]) / sum(shares) < 0.6  # words and lines on a calm ground


def test_a_preview_has_words_too_and_all_files_that_the_page_names_are_there(head, served):
    for name in ("og:title", "og:description", "og:image:alt", "description"):
        assert len(head.facts[name].split()) >= 4
    assert head.facts["twitter:card"] == "summary_large_image"
    assert len(head.linked) >= 3
    assert set(head.linked) <= served.keys()
