"""`limelight site DIR`: a static site of walks through models, for any file server.

Every walk is one file that needs no service (`explain.render.html`); `index.html`, made from
`site.html`, links them.
"""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from string import Template
from urllib.parse import quote

from limelight.errors import UserError
from limelight.explain.comparison import answer_of
from limelight.explain.explanation import explain
from limelight.explain.render.html import as_html
from limelight.files import atomic_write
from limelight.loading import LoadedModel, load
from limelight.run.atomic import make_folder
from limelight.run.bundled_models import model_names, runs_by_name

_TEXTS = {  # by what a model was trained on; each shows something else
    "pairs": (
        "A man is sleeping in the park.",
        "The woman with the red hat is reading a book.",
        "The woman reads a book because she likes it.",
        "Where is the nearest train station?",
    ),
    "dialogues": ("Hi how are you", "What is your name?"),
    "texts": ("Once upon a time", "The old king looked at his three sons and said"),
    "blanks": ("The cat ___ on the mat.",),
}


def write_site(
    folder: Path, runs: Sequence[str], progress: Callable[[str], object] = lambda _: None
) -> list[Path]:
    """The files of the site; without runs, of the bundled models."""
    found = runs_by_name(runs or model_names())
    make_folder(folder)
    written, sections = [], []
    for name, run in found.items():
        model = load(run.path)
        texts = _texts_for(model)
        if not texts:
            if runs:
                raise UserError(f"{name} has no walk for a site: choose a Transformer for texts")
            continue
        links = []
        for number, text in enumerate(texts, 1):
            progress(f"{name}: {text}")
            trace = explain(model, text, tag=model.tags[0] if model.tags else "")
            path = folder / f"{name}-{number}.html"
            atomic_write(path, as_html(trace, name).encode())
            written.append(path)
            answer = escape(answer_of(trace))
            links.append(f'<a href="{quote(path.name)}">{escape(text)}<span>{answer}</span></a>')
        sections.append(f"<h2>{escape(name)}</h2>\n" + "\n".join(links))
    index = Template(Path(__file__).with_name("site.html").read_text("utf-8"))
    atomic_write(folder / "index.html", index.substitute(walks="\n".join(sections)).encode())
    return [*written, folder / "index.html"]


def _texts_for(model: LoadedModel) -> Sequence[str]:
    if model.family.startswith("recurrent") or "draw" in model.tasks:
        return ()
    if model.family == "encoder-only":
        return _TEXTS["blanks"] if "fill" in model.tasks else ()
    return _TEXTS.get(model.recipe.data.kind, ())
