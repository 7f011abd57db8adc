"""What mkdocs needs to be told to make a site of these pages; see mkdocs.yml.

The pages are written for GitHub, where a link may lead to any file of the repository. On the site,
README.md is the front page, docs/README.md the table of contents and the order of the guides, and
each module of the package has a page. Links to other files lead to the repository.
"""

import ast
import re
import subprocess
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "limelight"
MOVED = {  # files of the repository that have another name on the site
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "docs/hundred_lines.py": "hundred_lines.md",
}
CAME_FROM = {page: file for file, page in MOVED.items()}
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.M | re.S)
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^]]*\])*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Find the repository, and take the order of the pages from the table of contents."""
    config.extra["repository"] = config.extra.get("repository") or repository()
    if config.extra["repository"]:
        icon = "fontawesome/brands/git-alt"
        config.extra["social"] = [{"icon": icon, "link": config.extra["repository"]}]
    config.nav = [{"Limelight": ["index.md", "contents.md"]}, *guides(), {"API": api_pages()}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are no files of docs/."""
    files.remove(files.src_uris["README.md"])
    made = {page: read(file) for page, file in CAME_FROM.items()}
    made |= {page_of(path): api_page(path, config) for path in modules()}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn what is written for GitHub into what mkdocs knows, outside of blocks of code."""
    file = CAME_FROM.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    parts = FENCE.split(markdown)
    parts[::2] = [
        LINK.sub(lambda link: link_on_site(link, file, config), text) for text in parts[::2]
    ]
    # A second word behind the backticks says which machine a block needs; mkdocs has no such thing.
    parts[1::2] = [re.sub(r"\A( *```\w+) \w+$", r"\1", text, flags=re.M) for text in parts[1::2]]
    return "".join(parts)


def link_on_site(link: re.Match[str], file: str, config: MkDocsConfig) -> str:
    """A link of a file, as it is on the site; without a known repository, only its words."""
    image, words, target = link.groups()
    words = LINK.sub(lambda inner: link_on_site(inner, file, config), words)
    path, hash_sign, anchor = target.partition("#")
    if not path or re.match(r"\w+:", target):
        return f"{image}[{words}]({target})"
    there = normpath(f"{dirname(file)}/{path}").lstrip("/")
    if there in MOVED or (there.startswith("docs/") and not there.endswith(".py")):
        page = MOVED.get(there, there.removeprefix("docs/"))
        here = MOVED.get(file, file.removeprefix("docs/"))
        return f"{image}[{words}]({relpath(page, dirname(here) or '.')}{hash_sign}{anchor})"
    if not (ROOT / there).exists():
        return f"{image}[{words}]({target})"  # which mkdocs complains about
    url = source_url(there, config)
    return f"{image}[{words}]({url}{hash_sign}{anchor})" if url else words


def source_url(path: str, config: MkDocsConfig) -> str:
    """Where the repository shows a file or a folder, on its main branch whatever its name."""
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    where = config.extra["repository"]
    return f"{where}/{kind}/HEAD/{path}" if where else ""


def repository() -> str:
    """The address of git's `origin`, if browsers can go there."""
    command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    try:
        origin = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:  # no git
        return ""
    found = re.fullmatch(r"(?:https://(?:[^@/]*@)?|(?:ssh://)?git@)([^/:]+)[/:](.+)", origin)
    return f"https://{found[1]}/{found[2].removesuffix('.git')}" if found else ""


def guides() -> list[dict[str, list[Any]]]:
    """The guides under the headings of the table of contents, each once."""
    sections: list[dict[str, list[Any]]] = []
    seen = set()
    for line in read("docs/README.md").splitlines():
        if line.startswith("## "):
            sections.append({line.removeprefix("## "): []})
        for _, _, target in LINK.findall(line):
            page = MOVED.get(f"docs/{target}", target)
            if page.endswith(".md") and not page.startswith("..") and page not in seen:
                seen.add(page)
                (pages,) = sections[-1].values()
                pages.append(page)
    return sections


def modules() -> list[Path]:
    """The package itself and every module that is not private, parents before their children."""
    found = [path.relative_to(ROOT) for path in PACKAGE.rglob("*.py")]
    public = [path for path in found if not re.search(r"/_(?!_init__\.py)", path.as_posix())]
    return sorted(public, key=dotted)


def dotted(path: Path) -> str:
    """The name under which a module is imported."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def page_of(path: Path) -> str:
    """The page of a module."""
    inside = path.relative_to(PACKAGE.name).with_suffix(".md").as_posix()
    return f"api/{inside}".replace("__init__", "index")


def api_pages() -> list[Any]:
    """The pages of the modules, as the folders are."""
    pages: list[Any] = []
    inside = {(): pages}
    for path in modules():
        folder = path.parts[1:-1]
        if path.name == "__init__.py" and folder:
            inside[folder] = []
            inside[folder[:-1]].append({folder[-1]: inside[folder]})
        inside[folder].append(page_of(path))
    return pages


def api_page(path: Path, config: MkDocsConfig) -> str:
    """What mkdocstrings is asked to write about a module, with its place and its parts."""
    name, url = dotted(path), source_url(path.as_posix(), config)
    place = f"[`{path.as_posix()}`]({url})" if url else f"`{path.as_posix()}`"
    parts = [
        f"| [{dotted(part)}]({relpath(page_of(part), dirname(page_of(path)))}) | {about(part)} |"
        for part in modules()
        if dotted(part).rpartition(".")[0] == name
    ]
    table = ["", "| module | |", "|---|---|", *parts] if parts else []
    short = name.rpartition(".")[2]
    head = f"---\ntitle: {short}\nsearch:\n  boost: 0.3\n---"  # whoever searches finds guides first
    return "\n".join([head, f"::: {name}", "", place, *table, ""])


def about(path: Path) -> str:
    """The first paragraph of a module's docstring, for a cell of a table."""
    text = ast.get_docstring(ast.parse(read(path.as_posix()))) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def read(file: str) -> str:
    """A file of the repository; a program becomes a page with its code."""
    text = (ROOT / file).read_text("utf-8")
    if not file.endswith(".py"):
        return text
    return f"# {Path(file).name}\n\n```python\n{text}```\n" if file in MOVED else text
