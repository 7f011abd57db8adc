"""Tables in Markdown and on a page say what their texts say."""

import html
import re

from hypothesis import given
from hypothesis import strategies as st

from limelight.evaluate.tables import markdown_table, page, plain

SVG = "<?xml?><svg></svg>"
TEXTS = st.text(st.sampled_from("ab_*`<>|[](){}\\&#;!~'\" "), min_size=1).map(
    lambda text: f"x {' '.join(text.split())} x"
)


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_texts_of_any_origin_are_shown_as_they_are(texts):
    markdown = f"# Title\n\n{markdown_table(texts, [texts])}\n\n- {plain(texts[0])}"
    shown = page(markdown, SVG)
    for tag, expected in (("th", texts), ("td", texts), ("li", texts[:1])):
        cells = re.findall(f"<{tag}>(.*?)</{tag}>", shown)
        assert [html.unescape(cell) for cell in cells] == expected


def test_the_image_becomes_the_figure_and_the_heading_the_title():
    shown = page("# Is it <b>?\n\n![All](figure.svg)\n", SVG)
    assert "<title>Is it &lt;b&gt;?</title>" in shown
    assert "<svg></svg>" in shown
    assert "img" not in shown
    assert "<?xml" not in shown
