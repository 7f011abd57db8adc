"""Pictures for captions, a patch for each in turn; and one patch of a picture, inspected."""

from dataclasses import asdict
from typing import Any

from torch import Tensor

from limelight.loading import LoadedModel
from limelight.serve.ipc import Message
from limelight.serve.worker.trace_cache import Work

_AT_ONCE = 16  # pictures: more would keep other jobs waiting


class PictureQueue:
    """Drawings of one model: one block of pictures at a time, so that memory is bounded."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded, self.busy = loaded, False

    def draw(self, message: Message) -> Work:
        drawer, config = self.loaded.drawer(), self.loaded.settings(**message["settings"])
        prompt, n, best_of = message["prompt"], message["n"], message["best_of"]
        steps = drawer.draw_in_steps(prompt, n, best_of, config, message["given"], _AT_ONCE)
        made: Any = Tensor()
        while isinstance(made, Tensor):  # until it is the drawing
            while self.busy:
                yield None
            self.busy = True
            try:
                for made in steps:
                    if not isinstance(made, Tensor) or made.size(1) == drawer.images.tokens:
                        break
                    shown = drawer.base64_pngs(made) if message["stream"] else ()
                    yield {"patches": made.size(1), "pictures": shown} if shown else None
            finally:
                self.busy = False
            yield None  # others have their block
        names = ("b64_json", "tokens", "seed", "score")
        found = zip(made.base64_pngs, made.tokens, made.seeds, made.scores, strict=True)
        pictures = [dict(zip(names, one, strict=True)) for one in found]
        return {"pictures": pictures, "notes": [made.note] if made.note else []}


def inspect_patch(loaded: LoadedModel, message: Message) -> Message:
    """The candidates for a patch, and what the model attended to when it was chosen."""
    config, names = loaded.settings(**message["settings"]), ("token", "probability", "b64_json")
    prompt, tokens, patch = message["prompt"], message["patches"], message["patch"]
    view = loaded.drawer().inspect(prompt, tokens, patch, message["count"], config)
    found = zip(view.tokens, view.probabilities, view.base64_pngs, strict=True)
    candidates = [dict(zip(names, one, strict=True)) for one in found]
    attention = [asdict(layer) for layer in view.attention]
    return {
        "candidates": candidates,
        "words": view.words,
        "attention": attention,
        "maps": view.maps,
    }
