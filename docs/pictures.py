"""Take the pictures of the page and of the terminal, as they are now.

    python docs/pictures.py             writes all of docs/pictures that it knows, and the preview
                                        of the page (limelight/web/preview.png); needs Chromium
    python docs/pictures.py loop mask   only these; `checkpoints` trains the toy `reverse` first

The bundled models compute them, on the CPU.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console

import limelight
from limelight.explain.focus import focus_on
from limelight.explain.render.terminal import show
from limelight.explain.stages import stage_at

FOLDER = Path(__file__).parent / "pictures"
PREVIEW = Path(limelight.__file__).parent / "web" / "preview.png"  # for those who share the page
TEXT, LAYER, HEAD = "The children have already eaten the cake.", 3, 1
COLUMNS = 84
LIMELIGHT = [sys.executable, "-m", "limelight"]
SELECTION = {"model": "en-de", "text": TEXT, "layer": LAYER, "head": HEAD}
STORY = {"text": None, "layer": None, "head": None}  # what the page chooses by itself
PAGES: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {  # selection and size of each picture
    "first-screen": (STORY, (1280, 640)),
    "preview": (STORY, (1280, 672)),
    "page": ({"tab": "explain", "stage": "cross", "all": 1}, (1280, 800)),
    "products": ({**STORY, "tab": "explain", "stage": "scores"}, (1280, 720)),
    "rotary": ({**STORY, "model": "writer", "tab": "explain", "stage": "positions"}, (1280, 720)),
    "mask": ({**STORY, "model": "writer", "tab": "explain", "stage": "mask"}, (1280, 720)),
    "phone": ({**STORY, "tab": "explain", "stage": "softmax"}, (390, 844)),
    "attention": ({**STORY, "tab": "attention"}, (1280, 900)),
    "what-if": ({**STORY, "tab": "what-if", "change": "decoder.2.cross@5=off"}, (1280, 860)),
    "answer": ({**STORY, "model": "helper"}, (1280, 640)),
    "loop": ({**STORY, "tab": "explain", "stage": "loop"}, (1280, 720)),
    "search": ({**STORY, "model": "fill", "tab": "search"}, (1280, 720)),
    "checkpoints": (
        {**STORY, "model": "run", "text": "a b c d e f", "tab": "explain", "stage": "cross"}
        | {"all": 1, "checkpoint": 200},
        (1280, 800),
    ),
}
BUTTONS = {"what-if": "Which head matters?"}  # pressed before the picture is taken
RUN = "train reverse --train.steps 500 --train.checkpoint-every 25 --train.keep-checkpoints 100"


def take_pages(browser: Browser, names: Iterable[str], run: Path) -> None:
    """Pictures of the page, from a service of its own."""
    models = ["en-de", "writer", "chat", "fill", "helper", "language"]
    if "checkpoints" in names:
        subprocess.run([*LIMELIGHT, *RUN.split(), "--run", run], check=True)
        models.append(str(run))
    with subprocess.Popen(
        [*LIMELIGHT, "serve", *models, "--port", "0", "--device", "cpu"],
        stderr=subprocess.PIPE,
        text=True,
    ) as service:
        try:
            events = (json.loads(line) for line in service.stderr or ())
            port = next(e for e in events if e["event"] == "listening")["port"]
            for name in names:
                selection, (width, height) = PAGES[name]
                size: Any = {"width": width, "height": height}
                page = browser.new_page(viewport=size, reduced_motion="reduce")
                chosen = {k: v for k, v in (SELECTION | selection).items() if v is not None}
                page.goto(f"http://127.0.0.1:{port}/#{urlencode(chosen)}")
                page.wait_for_selector("body[data-ready]", timeout=60_000)
                page.wait_for_selector(".matrix, canvas, svg, .search-result, mark")
                if name in BUTTONS:
                    page.get_by_role("button", name=BUTTONS[name]).click()
                    page.wait_for_selector(".ranked")
                page.screenshot(path=file_of(name), animations="disabled")
        finally:
            service.terminate()


def file_of(name: str) -> Path:
    """Where a picture belongs."""
    return PREVIEW if name == "preview" else FOLDER / f"{name}.png"


def take_terminal(browser: Browser) -> None:
    """A picture of what `limelight explain` prints."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, force_terminal=True, file=nowhere)
        shown = f'limelight explain en-de "{TEXT}" --stage cross --layer {LAYER} --head {HEAD}'
        console.print(f"[bold]$ {shown}[/bold]", highlight=False)
        trace = limelight.load("en-de", device="cpu").explain(TEXT)
        show(console, trace, [stage_at(trace, "cross", focus_on(trace, LAYER, HEAD, None))])
    drawn = console.export_svg(title="limelight")
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.S)  # from another host
    page = browser.new_page(viewport={"width": 1044, "height": 800})
    page.set_content(f"<style>body {{ margin: 0 }} svg {{ display: block }}</style>{drawn}")
    page.locator("svg").first.screenshot(path=FOLDER / "terminal.png")


def main(wanted: list[str]) -> None:
    """Those that are named, or all."""
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    wanted = wanted or [*PAGES, "terminal", "walk"]
    pages = [name for name in PAGES if name in wanted]
    with sync_playwright() as playwright, TemporaryDirectory() as place:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=root)
        if "terminal" in wanted:
            take_terminal(chromium)
        if pages:
            take_pages(chromium, pages, Path(place) / "run")
    if "walk" in wanted:
        film = [*LIMELIGHT, "explain", "en-de", "A man is sleeping in the park.", "--animate"]
        subprocess.run([*film, FOLDER / "walk.svg"], check=True)
    for path in (file_of(name) for name in wanted if name != "walk"):
        # 128 colours are enough, at a third of the size
        Image.open(path).convert("RGB").quantize(128, kmeans=1).save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
