"""Looking inside the model, for a worker: one text at a time, between the tokens of everybody else.

What a trace is made of is what the client sent: a text and how to write. The same goes in again and
the same comes out, so nothing has to be kept, and a worker that died and came back knows as much as
before. What was looked at last is kept all the same, as far as there is room: a person who looks at
one thing will look at the next.
"""

import hashlib
import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from typing import Any

import torch

from limelight.data.corpora import TOYS
from limelight.decode.config import DecodeConfig
from limelight.decode.constraints import without_space
from limelight.errors import UserError
from limelight.explain.explanation import Explanation
from limelight.explain.focus import focus_on
from limelight.explain.render import serialize
from limelight.explain.render.serialize import Blob, clean
from limelight.explain.stages import stop_at
from limelight.explain.tokens import pieces_of
from limelight.explain.traced_text import (
    TooLongError,
    TracedText,
    given_passage,
    passage_in_steps,
    request_of,
)
from limelight.loading import LoadedModel
from limelight.serve.ipc import Message
from limelight.tasks.fill import BLANK
from limelight.tasks.write import encode_prompt

Work = Generator[None, None, Message]  # something that lets others have their turn in between

_ROOM = 2**27  # bytes of values that are kept: all of the paper's base model on 64 tokens
_PASSAGES = 256  # texts whose continuation is remembered
LARGEST = 2**24  # bytes of numbers in one answer
_IMPOSSIBLE = -1e9  # as a score: infinity is no number for a page to calculate with
_BYTES = {"f32": 4, "f16": 2, "u8": 1}


class ExpiredError(UserError):
    """The model is not the one any more that was looked into."""


class TraceCache:
    """Traces of one model: made on demand, one at a time, the last ones kept."""

    def __init__(self, loaded: LoadedModel, longest: int, room: int = _ROOM) -> None:
        self.loaded, self.longest, self.room = loaded, longest, room
        self.passages: OrderedDict[str, TracedText] = OrderedDict()
        self.traces: OrderedDict[str, Explanation] = OrderedDict()
        self.busy = False  # a text is being read or written: its states take memory

    def look(self, message: Message) -> Work:
        """Anything that can be asked of a trace."""
        began = time.perf_counter()
        key = json.dumps([message["text"], message["target"], message["tag"], message["settings"]])
        while self.busy:
            yield
        self.busy = True
        try:
            passage = self.passages.get(key) or (yield from self.read(message))
            self.remember(key, passage)
            trace = self.traced(key, message, passage)
            told = _fingerprint(self.loaded, passage)
            if message["print"] not in ("", told):
                raise ExpiredError("the model has changed since this was traced")
            answer = _TRACE_VIEWS[message["what"]](trace, message)
        finally:
            self.busy = False
        return {**answer, "print": told, "seconds": time.perf_counter() - began}

    def read(self, message: Message) -> Generator[None, None, TracedText]:
        """The text, and what the model writes after it, a token at a time."""
        loaded, text, target = self.loaded, message["text"], message["target"]
        for side in (text, target or ""):
            self.check(len(loaded.tokenizer.encode(side)))
        config = _config_of(loaded, message["settings"], self.longest)
        found = yield from passage_in_steps(loaded, text, target, config, message["tag"])
        self.check(max(len(found.source), len(found.target)))
        return found

    def check(self, count: int) -> None:
        """The numbers of a trace grow with the square of its tokens."""
        if count > self.longest:
            raise TooLongError(
                f"the text comes to {count} tokens, and {self.longest} can be looked at: shorten it"
            )

    def remember(self, key: str, passage: TracedText) -> None:
        """Keep what was written: to write it again would take longest."""
        self.passages[key] = passage
        self.passages.move_to_end(key)
        while len(self.passages) > _PASSAGES:
            self.passages.popitem(last=False)

    def traced(self, key: str, message: Message, passage: TracedText) -> Explanation:
        """The trace, as it was kept or made again; others make room for it."""
        if key not in self.traces:
            config = _config_of(self.loaded, message["settings"], self.longest)
            smoothing = self.loaded.recipe.train.label_smoothing
            self.traces[key] = Explanation(
                *(self.loaded, message["text"], passage, config, "*", smoothing, self.room)
            )
        self.traces.move_to_end(key)
        while len(self.traces) > 1 and sum(t.size for t in self.traces.values()) > self.room:
            self.traces.popitem(last=False)
        return self.traces[key]


def _config_of(loaded: LoadedModel, settings: dict[str, Any], longest: int) -> DecodeConfig:
    """How to write; never more than can be looked at."""
    found = loaded.settings(**settings)
    most = min(found.max_tokens, longest) if found.max_tokens or loaded.kind == "texts" else longest
    return loaded.settings(**{**settings, "max_tokens": most})


def _fingerprint(loaded: LoadedModel, passage: TracedText) -> str:
    """What must be the same for two traces to be of the same words by the same model."""
    facts = [loaded.step, list(passage.source), list(passage.target), list(passage.answers)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _told_manifest(trace: Explanation, _: Message) -> Message:
    """What is needed first."""
    return {"manifest": serialize.manifest(trace)}


def _told_tensor(trace: Explanation, message: Message) -> Message:
    """A value, one head of it, or some of its rows; its size is known before it is made."""
    name, head, kind = message["name"], message["head"], message["as"]
    rows = slice(*message["rows"]) if message["rows"] else None
    if (known := trace.summaries.get(name)) is not None:
        shape = list(known.shape)[1 if head is not None else 0 :]
        if rows is not None and len(shape) > 1:
            shape[-2] = len(range(*rows.indices(shape[-2])))
        if (size := math.prod(shape) * _BYTES[kind]) > LARGEST:
            raise TooLongError(
                f"{name} has {size:,} bytes, and {LARGEST:,} are told at a time: "
                "ask for one head, or for fewer rows"
            )
    return _told_blob(serialize.tensor(trace, name, head, rows, kind))


def _told_focus(trace: Explanation, message: Message) -> Message:
    """All of one head."""
    return _told_blob(serialize.attention_head(trace, message["at"], message["head"]))


def _told_thumbs(trace: Explanation, _: Message) -> Message:
    """Small pictures of all heads."""
    return _told_blob(serialize.thumbnails(trace))


def _told_logits(trace: Explanation, message: Message) -> Message:
    """All scores of one row."""
    return _told_blob(serialize.logits(trace, message["row"]))


def _told_token(trace: Explanation, message: Message) -> Message:
    """One word's way."""
    return _told_blob(serialize.token(trace, message["side"], message["row"]))


def _told_stop(trace: Explanation, message: Message) -> Message:
    """One station of the walk."""
    rows = message["source_row"], message["target_row"]
    view = focus_on(trace, message["layer"], message["head"], message["word"], rows)
    trace.prefetch(n for n in trace.names if _needed(n, view.layer, message["name"]))
    return {"stop": serialize.stop_facts(stop_at(trace, message["name"], view))}


def _needed(name: str, layer: int, stop: str) -> bool:
    """Whether a stop may look at this value: all of its layer, and what layers hand on.

    What was not kept is computed in one pass, and not in one for each.
    """
    at = name.partition(".")[2].partition(".")[0]
    if not at.isdigit() or int(at) == layer:
        return True
    if "follow".startswith(stop):  # it looks at the weights of all layers
        return name.endswith(".weights")
    return name.endswith(("feed_forward.norm", "feed_forward.add"))


def _told_blob(blob: Blob) -> Message:
    """Numbers as bytes, with their names and shapes."""
    return {"blob": blob.data, "kind": blob.kind, "parts": [list(part) for part in blob.parts]}


_TRACE_VIEWS: dict[str, Callable[[Explanation, Message], Message]] = {
    "manifest": _told_manifest,
    "tensor": _told_tensor,
    "focus": _told_focus,
    "thumbs": _told_thumbs,
    "logits": _told_logits,
    "token": _told_token,
    "stop": _told_stop,
}


def teacher(loaded: LoadedModel, message: Message) -> Message:
    """How surprised the model is at each token of a text, given all the true ones before it."""
    request = request_of(loaded, message["source"], loaded.decode, message["tag"])
    passage = given_passage(loaded, request, message["target"])
    device = next(loaded.model.parameters()).device
    sides = [side for side in (passage.source, passage.target) if len(side)]
    logits = loaded.model(*(torch.tensor([list(side)], device=device) for side in sides))[0]
    logprobs = logits[passage.given :].double().log_softmax(dim=-1).cpu()
    read, wanted = passage.target[passage.given :], passage.answers[passage.given :]
    likely, best = logprobs.max(dim=-1)
    losses = -logprobs.gather(1, torch.tensor(wanted)[:, None])[:, 0]
    share = loaded.recipe.train.label_smoothing
    mean, spread = losses.mean().item(), -logprobs.mean().item()
    return {
        "input": [clean(piece) for piece in pieces_of(loaded.tokenizer, read)],
        "target": [clean(piece) for piece in pieces_of(loaded.tokenizer, wanted)],
        "p_target": (-losses).exp().tolist(),
        "loss": losses.tolist(),
        "best": [clean(piece) for piece in pieces_of(loaded.tokenizer, best.tolist())],
        "p_best": likely.exp().tolist(),
        "mean": mean,
        "smoothing": share,
        "smoothed": (1 - share) * mean + share * spread,
    }


def next_scores(loaded: LoadedModel, text: str) -> Message:
    """The scores of all tokens that could come next, so that any temperature is exact."""
    loaded.require("write")
    read, spaced = encode_prompt(loaded, text)
    read = read[-max(1, loaded.max_len - 1) :]
    device = next(loaded.model.parameters()).device
    logits = loaded.model(torch.tensor([read], device=device))[0, -1].cpu()
    if spaced:
        logits[without_space(loaded.tokenizer)] = _IMPOSSIBLE
    return _told_blob(serialize.blob({"logits": logits}, "f32"))


def vocabulary(loaded: LoadedModel) -> Message:
    """Every token as a person can read it, in the order of their numbers."""
    ids = range(loaded.model.config.vocab)
    return {"pieces": [clean(piece) for piece in pieces_of(loaded.tokenizer, ids)]}


_SENTENCES = {
    "fill": (f"The cat {BLANK} on the mat.", f"How {BLANK} you?", f"Der Hund {BLANK} im Garten."),
    "classify": ("A warm and funny film.", "Ein schöner Film."),
    "write": ("Once upon a time", "the cat", "ROMEO:", "Es war einmal"),
    "translate": (
        "Hi how are you",
        "A man is sleeping in the park.",
        "Ein Mann schläft im Park.",
    ),
}


def example_for(loaded: LoadedModel) -> Message:
    """A text that this model can be shown with: the first of ours that it reads easily.

    That is one with few tokens for its length: its words are in the vocabulary. Two languages may
    share one, and then which of them is the source cannot be seen there; so the order counts too.
    """
    tag = loaded.tags[0] if loaded.tags else ""
    data = loaded.recipe.data
    if (data.corpora[0] if data.corpora else data).toy in TOYS:
        return {"text": "c a b", "tag": tag}
    can = next(name for name in _SENTENCES if name in loaded.tasks)
    encode = loaded.tokenizer.encode
    effort = {text: len(encode(text)) / len(text) for text in _SENTENCES[can]}
    easy = 1.3 * min(effort.values())
    return {"text": next(text for text in effort if effort[text] <= easy), "tag": tag}
