"""What no file of the page may hold, and what a strict policy would refuse anyway."""

import re
from importlib.resources import files

import pytest

FOLDER = files("limelight.web")
FILES = sorted(
    path.relative_to(FOLDER).as_posix()
    for kind in ("js", "css", "html")
    for path in FOLDER.rglob(f"*.{kind}")
)
FORBIDDEN = {
    "an attribute that runs code": r"""\son[a-z]+\s*=\s*["']|setAttribute\(\s*["']on""",
    "a style in markup": r"""\sstyle\s*=\s*["']|setAttribute\(\s*["']style|cssText""",
    "code out of a string": r"""set(?:Timeout|Interval)\(\s*["'`]|javascript:|\bWorker\(""",
    "another host": r"""(?:src|href)=["'](?:https?:)?//|url\(\s*["']?(?:https?:)?//|@import""",
    "something that outlives the page": r"""document\.cookie|indexedDB|serviceWorker""",
}


def without_comments(text, name):
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r"(?m)^\s*//.*$", "", text) if name.endswith(".js") else text


@pytest.mark.parametrize("name", FILES)
def test_no_file_holds_what_is_forbidden(name):
    text = without_comments((FOLDER / name).read_text(), name)
    found = {what: re.findall(pattern, text) for what, pattern in FORBIDDEN.items()}
    assert not {what: hits for what, hits in found.items() if hits}


@pytest.mark.parametrize(
    "line",
    ["<a onclick='x()'>", 'node.setAttribute("onload", f)', '<p style="color:red">',
     "setTimeout('x')", '<script src="//evil.example/x.js">', "@import 'x.css'", "background: url(http://evil/x.png)",
     "document.cookie", "node.style.cssText = x"],
)  # fmt: skip
def test_each_of_them_would_be_found(line):
    assert any(re.search(pattern, line) for pattern in FORBIDDEN.values())
