"""Two plain pages without scripts: the served models, and the API reference."""

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
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def landing(registry: ModelRegistry) -> str:
    """/about: the served models."""
    rows = []
    for model in registry.models.values():
        tasks = ", ".join(model.facts.get("abilities", ()))
        state = f"ready on {', '.join(model.devices)}" if model.ready else "not ready"
        cells = [model.name, state, model.facts.get("about", ""), tasks]
        rows.append("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>")
    return _page(
        "Limelight",
        "<h1>Limelight</h1>\n<p>These models are running. "
        '<a href="/">Open the page</a>, or use the API.</p>\n'
        "<table><tr><th>name</th><th>state</th><th>about</th><th>tasks</th></tr>\n"
        + "\n".join(rows)
        + '\n</table>\n<p><a href="/docs">API reference</a> · '
        '<a href="/openapi.json">openapi.json</a> · <a href="/metrics">metrics</a></p>',
    )


def reference(schema: dict[str, Any]) -> str:
    """/docs: all routes and their fields, from the OpenAPI schema."""
    parts = [
        "<h1>API reference</h1>\n<p>Also as <a href='/openapi.json'>openapi.json</a>. "
        "An error is always <code>{error: {code, message, type, param, hint}}</code>.</p>"
    ]
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            text = ". ".join(filter(None, (route.get("summary"), route.get("description"))))
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(text)}</p>{_fields_of(schema, route)}")
    return _page("Limelight's API", "\n".join(parts))


def _fields_of(schema: dict[str, Any], route: dict[str, Any]) -> str:
    content = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    if not name:
        return ""
    shape = schema["components"]["schemas"][name]
    rows = []
    for field, facts in shape["properties"].items():
        required = "required" if field in shape.get("required", ()) else ""
        cells = [f"<code>{escape(field)}</code>", required, escape(facts.get("description", ""))]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "<table>" + "".join(rows) + "</table>"
