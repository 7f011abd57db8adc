"""The page as one file: modules joined into one script, with styles and data inline.

Browsers load no modules from disk, so an exported file has one inline script. Joining works line by
line because the modules follow rules: imports are single lines that name each import, exports are
declarations, and no two modules declare the same name at the top level.
"""

import base64
import hashlib
import json
import posixpath
import re
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import Any

_ENTRY = "js/file.js"
_STYLES = ("css/app.css", "css/charts.css", "css/explain.css", "css/tabs.css", "css/bench.css")
_IMPORT = re.compile(r'import \{ ([\w$]+(?:, [\w$]+)*) \} from "(\.{1,2}/[\w./-]+\.js)";')
_DECLARED = re.compile(
    r"^(?P<export>export )?(?:async )?(?:function\*?|class|const|let) (?P<name>[\w$]+)",
    re.MULTILINE,
)

_COMMENT = re.compile(r"^ *(?:/\*\*.*?\*/|// [^\n]*)\n", re.MULTILINE | re.DOTALL)
_ODD_EXPORT = re.compile(r"^export (?!(?:async )?(?:function|class|const|let)\b).*$", re.MULTILINE)


class RuleError(Exception):
    """A module breaks the rules for joining: a bug in the page, never a user's mistake."""


def source_of(name: str) -> str:
    """The text of a file of the page."""
    return files("limelight.web").joinpath(name).read_text("utf-8")


def joined(entry: str = _ENTRY) -> str:
    """The entry module and all that it imports, as one script, in the order of dependency."""
    bodies, known = [], dict[str, str]()
    for name in _in_order(entry, (), {}):
        source = source_of(name)
        imported = imports(name, source)
        body = "\n".join(line for line in source.splitlines() if line not in imported)
        if odd := _ODD_EXPORT.search(body):
            raise RuleError(f"{name}: an export is a declaration, not {odd[0]}")
        for found in _DECLARED.finditer(body):
            other = known.setdefault(found["name"], name)
            if other != name:
                raise RuleError(f"{found['name']} is at the top of both {other} and {name}")
        body = _COMMENT.sub("", re.sub(r"^export ", "", body, flags=re.MULTILINE))
        bodies.append(f"// {name}\n{body.strip()}")
    script = "\n\n".join(bodies) + "\n"
    if "</script" in script.lower() or "<!--" in script:
        raise RuleError("a script in a page must not hold the end of a script")
    return script


def _in_order(name: str, above: tuple[str, ...], seen: dict[str, None]) -> Iterator[str]:
    """Depth first: a module comes after the modules that it imports."""
    if name in above:
        raise RuleError(f"modules import each other in a circle: {' > '.join((*above, name))}")
    if name in seen:
        return
    for path in imports(name, source_of(name)).values():
        yield from _in_order(path, (*above, name), seen)
    if name not in seen:
        seen[name] = None
        yield name


def imports(name: str, source: str) -> dict[str, str]:
    """The import lines of a module, each with the path of the imported module."""
    found = {}
    for line in source.splitlines():
        if not re.match(r"import\b|.*\bimport\(", line):
            continue
        match = _IMPORT.fullmatch(line)
        if match is None:
            raise RuleError(f'{name}: an import is import {{ a, b }} from "./x.js"; not {line}')
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[2]))
        offered = {d["name"] for d in _DECLARED.finditer(source_of(path)) if d["export"]}
        if missing := [wanted for wanted in match[1].split(", ") if wanted not in offered]:
            raise RuleError(f"{name} imports {missing[0]} from {path}, which does not export it")
        found[line] = path
    return found


def catalogues() -> dict[str, dict[str, str]]:
    """The page's words in other languages, by the code of the language."""
    found = (entry for entry in files("limelight.web").joinpath("texts").iterdir())
    each = sorted((entry for entry in found if entry.name.endswith(".json")), key=lambda e: e.name)
    return {e.name.removesuffix(".json"): json.loads(e.read_text("utf-8")) for e in each}


def styles() -> str:
    """All style sheets as one."""
    return "\n".join(source_of(name) for name in _STYLES)


def single_file(title: str, data: dict[str, Any], plain: str) -> str:
    """The page with its data; `plain` is the HTML shown where scripts are off."""
    script, style = joined(), styles()
    policy = (
        f"default-src 'none'; script-src {_hashed(script)}; style-src {_hashed(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    held = json.dumps(
        data | {"texts": catalogues()}, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en" data-theme="light">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>",
            f"<noscript>{plain}</noscript>",
            f'<script type="application/json" id="held">{_in_script(held)}</script>',
            f'<script type="module">{script}</script>\n</body>\n</html>\n',
        ]
    )


def _hashed(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _in_script(data: str) -> str:
    """JSON that cannot close the element that contains it."""
    return data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
