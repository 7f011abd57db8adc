"""Results as tables: on a terminal, in Markdown, and on a page that holds its figure."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

# What Markdown would take for markup in a text of any origin; within a word, "_" stays itself.
_MARKUP = re.compile(r"[\\`*<|\[\]]|&(?=[#\w])|(?<!\w)_|_(?!\w)")


def new_table(header: Sequence[str], sides: str, wrap: bool = True) -> Table:
    """An empty table; for each column "l" for texts, which stand left, or "r" for numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, side in zip(header, sides, strict=True):
        right = side == "r"
        table.add_column(Text(name), justify="right" if right else "left", no_wrap=right > wrap)
    return table


def print_table(
    console: Console, header: Sequence[str], rows: Iterable[Sequence[str]], wrap: bool = True
) -> None:
    """Print names in the first column and numbers in the others; a total stands out."""
    table = new_table(header, "l" + "r" * (len(header) - 1), wrap)
    for row in rows:
        table.add_row(*map(Text, row), style="bold" if row[0] == "total" else None)
    console.print(table)


def plain(text: str) -> str:
    """A text for Markdown that is shown as it is."""
    return _MARKUP.sub(r"\\\g<0>", text)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, of plain texts."""
    lines = [map(plain, header), ["---"] * len(header), *(map(plain, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(markdown: str, svg: str) -> str:
    """Markdown that begins with a heading as an HTML file; its image becomes this figure."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    title = body[body.index(">") + 1 : body.index("</h1>")]
    figure = svg[svg.index("<svg") :]
    empty = Template(Path(__file__).with_name("page.html").read_text("utf-8"))
    return empty.substitute(title=title, body=re.sub("<p><img.*></p>", lambda _: figure, body))
