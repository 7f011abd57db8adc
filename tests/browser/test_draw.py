"""Draw: a picture comes patch by patch, and every patch could have been another one."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

import limelight
from tests.browser.conftest import ready, serious, visit
from tests.browser.number_format import is_share
from tests.serve.samples import Served

pytestmark = pytest.mark.system

CAPTION = "a small red circle above a large blue square"


@pytest.fixture(scope="module")
def artist(run):
    with Served(run("draw"), run("writer")) as served:
        yield served


@pytest.fixture
def page(new_page, artist):
    return visit(new_page(artist.url), model="draw", text=CAPTION)


def pixels_of(image):
    source = image.get_attribute("src").removeprefix("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(source))))


def choose(page, row, column):
    page.get_by_label(f"Patch in row {row}, column {column}", exact=True).click()
    page.wait_for_selector(f"h2:has-text('row {row}, column {column}') ~ .draw-candidates")
    return ready(page)


def test_a_picture_is_drawn_inspected_and_chosen_otherwise(page, known_artist):
    loaded = known_artist
    assert page.get_by_role("tab").all_inner_texts() == ["Draw", "Explain", "Training", "Model"]
    drawing = loaded.draw(CAPTION)
    assert np.array_equal(pixels_of(page.locator(".draw-image")), drawing.pixels[0])
    assert page.locator(".draw-cell.blank").count() == 0
    choose(page, 4, 4)
    view = loaded.drawer().inspect(CAPTION, drawing.tokens[0], 27, 8, loaded.decode)
    shown = page.locator(".draw-candidate")
    for i, share in enumerate(view.probabilities):
        assert is_share(shown.nth(i).inner_text(), share)
        assert np.array_equal(pixels_of(shown.nth(i).locator("img")), view.pixels[i])
    words = page.locator(".share-line .share").all_inner_texts()
    last = view.attention[-1]
    assert [one.split()[0] for one in words] == [*CAPTION.split(), "padding", "separator"]
    for one, share in zip(words, [*last.words, last.padding, last.separator], strict=True):
        assert is_share(one.split()[1], share)
    other = next(t for t in view.tokens if t != drawing.tokens[0][27])
    page.get_by_label(f"Token {other}, ").click()
    page.wait_for_selector(f".draw-candidate[aria-label^='Token {other},'][aria-pressed=true]")
    ready(page)
    given = [*drawing.tokens[0][:27], other]
    *_, anew = loaded.drawer().draw_in_steps(CAPTION, 1, 1, loaded.decode, given)
    assert anew.tokens[0][:28] == given
    assert np.array_equal(pixels_of(page.locator(".draw-image")), anew.pixels[0])


def test_with_the_keyboard_alone_and_several_pictures(page, known_artist):
    page.locator("#sentence").fill("a red zebra <b>")
    page.get_by_label("pictures").fill("3")
    page.locator("#sentence").press("Enter")
    page.wait_for_selector(".draw-state:has-text('has not learned')")
    ready(page)
    assert "'zebra', 'b'" in page.locator(".draw-state").inner_text()
    drawing = known_artist.draw("a red zebra <b>", n=3)
    small = [pixels_of(one) for one in page.locator(".draw-other img").all()]
    assert np.array_equal(small, drawing.pixels)
    page.locator(".draw-other").nth(2).press("Enter")
    assert np.array_equal(pixels_of(page.locator(".draw-image")), drawing.pixels[2])
    page.locator(".draw-cell[tabindex='0']").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    page.wait_for_selector("h2:has-text('row 3, column 1')")
    assert page.locator(".draw-candidate").count() == 8
    page.get_by_role("tab", name="Model").click()
    ready(page)
    assert page.locator(".draw-cell").count() == 0


def test_other_models_have_no_such_tab(page):
    visit(page, model="writer", tab="draw")
    assert "Draw" not in page.get_by_role("tab").all_inner_texts()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_axe_finds_nothing_serious_and_nothing_is_cut_off(new_page, artist, theme, width):
    viewport = {"width": width, "height": 740}
    # Axe is put into the page from outside, which its policy forbids to everybody else.
    page = new_page(artist.url, color_scheme=theme, viewport=viewport, bypass_csp=True)
    visit(page, model="draw", text=CAPTION)
    choose(page, 8, 8)
    assert serious(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width


@pytest.fixture(scope="module")
def known_artist(run):
    return limelight.load(run("draw"))
