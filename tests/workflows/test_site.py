"""A static site: complete, linked, and made of files alone."""

import re

import pytest

from limelight.errors import UserError
from limelight.workflows import site


def test_every_walk_is_linked(tmp_path, monkeypatch):
    monkeypatch.setitem(site._TEXTS, "blanks", ("The cat ___.", "<b>___</b>"))
    monkeypatch.setattr(site, "as_html", lambda trace, name: f"{name}: {trace.text}")
    said = []
    files = site.write_site(tmp_path / "site", ["fill"], said.append)
    index = (tmp_path / "site" / "index.html").read_text()
    assert re.findall(r'href="([^"]+)"', index) == ["fill-1.html", "fill-2.html"]
    assert {path.name for path in files} == {"fill-1.html", "fill-2.html", "index.html"}
    assert "<b>" not in index
    assert "http" not in index.replace("http-equiv", "")
    assert said == ["fill: The cat ___.", "fill: <b>___</b>"]
    assert (tmp_path / "site" / "fill-1.html").read_text() == "fill: The cat ___."


def test_a_model_without_a_walk_is_refused(tmp_path):
    with pytest.raises(UserError, match="draw has no walk for a site: choose a Transformer"):
        site.write_site(tmp_path, ["draw"])
