"""Two plain pages beside the page itself: what is running, and what can be asked.

They have no scripts, and load nothing from anywhere.
"""

from html import escape
from typing import Any

from limelight.serve.model_registry import ModelRegistry

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 3rem auto; padding: 0 1rem;
       color: #222; background: #fff }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
code { background: #f2f2f2; padding: .1rem .3rem }
td, th { text-align: left; padding: .2rem 1rem .2rem 0; vertical-align: top }
"""


def _page(title: str, body: str) -> str:
    """A page of ours."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def landing(house: ModelRegistry) -> str:
    """What is running."""
    rows = []
    for desk in house.desks.values():
        facts = desk.facts or {}
        can = ", ".join(facts.get("abilities", ()))
        state = "ready" if desk.ready else "not ready"
        cells = [desk.name, state, facts.get("about", ""), can]
        rows.append("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>")
    return _page(
        "Limelight",
        "<h1>Limelight</h1>\n<p>These models are running. "
        '<a href="/">Look at them at work</a>, or let programs ask.</p>\n'
        "<table><tr><th>name</th><th>state</th><th>what it is</th><th>what it can</th></tr>\n"
        + "\n".join(rows)
        + '\n</table>\n<p><a href="/docs">What can be asked</a> · '
        '<a href="/openapi.json">the same for programs</a> · <a href="/metrics">metrics</a></p>',
    )


def reference(schema: dict[str, Any]) -> str:
    """What can be asked, from the schema itself."""
    parts = [
        "<h1>What can be asked</h1>\n<p>Exactly: <a href='/openapi.json'>openapi.json</a>. "
        "An error is always <code>{error: {code, message, hint}}</code>.</p>"
    ]
    for path, methods in schema["paths"].items():
        for method, told in methods.items():
            words = told.get("description") or told.get("summary", "")
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(words)}</p>{_fields_of(schema, told)}")
    return _page("What can be asked of Limelight", "\n".join(parts))


def _fields_of(schema: dict[str, Any], told: dict[str, Any]) -> str:
    """The fields of a request, a row each."""
    content = told.get("requestBody", {}).get("content", {}).get("application/json", {})
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    if not name:
        return ""
    shape = schema["components"]["schemas"][name]
    rows = []
    for field, facts in shape["properties"].items():
        must = "required" if field in shape.get("required", ()) else ""
        words = facts.get("description", "")
        rows.append(
            f"<tr><td><code>{escape(field)}</code></td><td>{must}</td><td>{escape(words)}</td></tr>"
        )
    return "<table>" + "".join(rows) + "</table>"
