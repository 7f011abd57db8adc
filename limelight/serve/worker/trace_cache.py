"""Traces of texts, computed between the tokens of other jobs.

A trace is a function of its request: a text and decoding settings. So nothing must be stored, and a
restarted worker has lost nothing. The most recent traces are cached all the same, within a budget,
as their reader is likely to ask for another part of them.
"""

import hashlib
import json
import math
import time
import tomllib
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import torch

from limelight.data.corpora import TOYS
from limelight.decode.config import DecodeConfig
from limelight.decode.constraints import without_space
from limelight.errors import UserError
from limelight.explain.comparison import answer_logprob, answer_of, head_effects
from limelight.explain.explanation import Explanation, changed
from limelight.explain.focus import focus_on
from limelight.explain.interventions import intervention_in_steps, parse
from limelight.explain.render import serialize
from limelight.explain.render.animation import as_svg
from limelight.explain.render.html import html_in_steps
from limelight.explain.render.serialize import clean
from limelight.explain.stages import stage_at
from limelight.explain.stages.learning import teacher_forcing
from limelight.explain.traced_text import (
    TooLongError,
    TracedText,
    request_of,
    text_with_target,
    traced_text_in_steps,
)
from limelight.loading import LoadedModel, load
from limelight.serve.ipc import Message
from limelight.tasks.text_model import networks_of, unchanged_since
from limelight.tasks.write import encode_prompt

# It yields to let other jobs have their turn; a message is sent at once, as a part of the answer.
Work = Generator[Message | None, None, Message]

_BUDGET = 2**27  # bytes of cached values: all of the paper's base model on 64 tokens
_CHECKPOINTS = 2**28  # bytes of cached checkpoints, and of one that can be loaded on demand
_PASSAGES = 256  # texts whose continuation is cached
LARGEST = 2**24  # bytes of numbers in one answer
_IMPOSSIBLE = -1e9  # as a logit: the page cannot calculate with infinity
_BYTES = {"f32": 4, "f16": 2, "u8": 1}
EXAMPLES = tomllib.loads(Path(__file__).with_name("examples.toml").read_text("utf-8"))


class ExpiredError(UserError):
    """The model is no longer the one that was traced."""


class TraceCache:
    """Traces of one model: computed one at a time, the most recent cached."""

    def __init__(
        self, loaded: LoadedModel, longest: int, budget: int = _BUDGET, run: str = ""
    ) -> None:
        self.loaded, self.longest, self.budget, self.run = loaded, longest, budget, run
        self.checkpoints: OrderedDict[int, TraceCache] = OrderedDict()
        self.passages: OrderedDict[str, TracedText] = OrderedDict()
        self.traces: OrderedDict[str, Explanation] = OrderedDict()
        self.busy = False  # a text is being traced, which takes memory
        self.unchanged, self.changes = unchanged_since(loaded), 0  # of its networks

    def view(self, message: Message) -> Work:
        began = time.perf_counter()
        key = _key(message, message.get("change", ()))
        while self.busy:
            yield None
        self.busy = True
        try:
            if (step := message.get("step")) is not None:
                return (yield from self.at_step(step).view({**message, "step": None}))
            self.forget_if_changed()
            trace = yield from self.trace(key, message)
            fingerprint = _fingerprint(self.loaded, trace.traced_text, self.changes)
            if message["print"] not in ("", fingerprint):
                raise ExpiredError("the model has changed since this was traced")
            answer = _VIEWS[message["what"]](trace, message)
            if isinstance(answer, Generator):  # it takes seconds: other jobs have their turn
                answer = yield from answer
        finally:
            self.busy = False
        return {**answer, "print": fingerprint, "seconds": time.perf_counter() - began}

    def forget_if_changed(self) -> None:
        """Drop what was computed with other weights or hooks."""
        if not self.unchanged():
            self.traces.clear()
            self.passages.clear()
            self.unchanged = unchanged_since(self.loaded)
            self.changes += 1

    def at_step(self, step: int) -> "TraceCache":
        """Traces of a checkpoint of the run; `_CHECKPOINTS` bytes of them are cached."""
        if step not in self.checkpoints:
            weights = networks_of(self.loaded)[0].parameters()
            size = sum(p.numel() * p.element_size() for p in weights)
            if size > _CHECKPOINTS:
                raise UserError(
                    f"its {size:,} bytes of weights are too many to load another checkpoint here: "
                    f"use `limelight explain --step {step}`"
                )
            loaded = load(self.run, device="cpu", precision="auto", step=step)
            self.checkpoints[step] = TraceCache(loaded, self.longest, self.budget // 8)
            while len(self.checkpoints) > max(1, min(8, _CHECKPOINTS // size)):
                self.checkpoints.popitem(last=False)
        self.checkpoints.move_to_end(step)
        return self.checkpoints[step]

    def trace(self, key: str, message: Message) -> Generator[None, None, Explanation]:
        """The trace is the most recent one now; the oldest go, if all are too large."""
        if key not in self.traces:
            made = self.changed if message.get("change") else self.plain
            self.traces[key] = yield from made(key, message)
        self.traces.move_to_end(key)
        while len(self.traces) > 1 and sum(t.size for t in self.traces.values()) > self.budget:
            self.traces.popitem(last=False)
        return self.traces[key]

    def plain(self, key: str, message: Message) -> Generator[None, None, Explanation]:
        passage = self.passages.get(key) or (yield from self.read(message))
        self.passages[key] = passage  # generating it again would take longest
        self.passages.move_to_end(key)
        if len(self.passages) > _PASSAGES:
            self.passages.popitem(last=False)
        config = _config_of(self.loaded, message["settings"], self.longest)
        text, most = message["text"], self.budget
        return Explanation(self.loaded, text, passage, config, max_bytes=most)

    def read(self, message: Message) -> Generator[None, None, TracedText]:
        loaded, text, target = self.loaded, message["text"], message["target"]
        for side in (text, target or ""):
            self.check(len(loaded.tokenizer.encode(side)))
        config = _config_of(loaded, message["settings"], self.longest)
        found = yield from traced_text_in_steps(loaded, text, target, config, message["tag"])
        self.check_text(found)
        return found

    def check_text(self, found: TracedText) -> None:
        self.check(max(len(found.source), len(found.target)))

    def check(self, count: int) -> None:
        """A trace grows with the square of its tokens."""
        if count > self.longest:
            raise TooLongError(
                f"the text has {count} tokens, and {self.longest} can be traced: shorten it"
            )

    def changed(self, _: str, message: Message) -> Generator[None, None, Explanation]:
        """The trace of a changed model. Between two steps it is as before: others use it too."""
        before = yield from self.trace(_key(message), {**message, "change": ()})
        loaded, config = self.loaded, before.decode
        target, tag, changes = message["target"], message["tag"], parse(message["change"])
        made = yield from intervention_in_steps(
            loaded, changes, target, config, tag, self.check_text
        )
        found = yield from made.text_in_steps(loaded, before.text, target, config, tag)
        self.check_text(found)
        return changed(before, found, made, max_bytes=self.budget)


def _key(message: Message, change: Sequence[str] = ()) -> str:
    fields = [message[name] for name in ("text", "target", "tag", "settings")]
    return json.dumps([*fields, *change])


def _config_of(loaded: LoadedModel, settings: dict[str, Any], longest: int) -> DecodeConfig:
    """Decoding settings, for no more tokens than can be traced."""
    found = loaded.settings(**settings)
    most = min(found.max_tokens, longest) if found.max_tokens or loaded.kind == "texts" else longest
    return loaded.settings(**{**settings, "max_tokens": most})


def _fingerprint(loaded: LoadedModel, passage: TracedText, changes: int) -> str:
    """A restarted worker has the same, unless the model was changed in memory."""
    facts = [loaded.step, list(passage.source), list(passage.target), list(passage.answers)]
    facts += [changes] * bool(changes)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _tensor_view(trace: Explanation, message: Message) -> Message:
    """A value, or a head or rows of it; its size is checked before it is computed."""
    name, head, kind = message["name"], message["head"], message["as"]
    rows = slice(*message["rows"]) if message["rows"] else None
    if (known := trace.summaries.get(name)) is not None:
        shape = list(known.shape)[1 if head is not None else 0 :]
        if rows is not None and len(shape) > 1:
            shape[-2] = len(range(*rows.indices(shape[-2])))
        if (size := math.prod(shape) * _BYTES[kind]) > LARGEST:
            raise TooLongError(
                f"{name} has {size:,} bytes, and {LARGEST:,} are allowed: "
                "ask for one head, or for fewer rows"
            )
    return serialize.tensor(trace, name, head, rows, kind)._asdict()


def _stop_view(trace: Explanation, message: Message) -> Message:
    rows = message["source_row"], message["target_row"]
    view = focus_on(trace, message["layer"], message["head"], message["word"], rows)
    trace.prefetch(n for n in trace.names if _needed(n, view.layer, message["name"]))
    return {"stop": serialize.stage_data(stage_at(trace, message["name"], view))}


def _heads_view(trace: Explanation, _: Message) -> Generator[None, None, Message]:
    """What the answer loses without each head, in the order of the model."""
    found: list[list[Any]] = []
    for effects in head_effects(trace):
        found += [[tap.removesuffix(".weights"), head, effect] for tap, head, effect in effects]
        yield None
    before = answer_logprob(trace, trace.logits)
    return {"answer": answer_of(trace), "log_probability": before, "heads": found}


def _html_view(trace: Explanation, message: Message) -> Generator[None, None, Message]:
    saved = yield from html_in_steps(trace, message["called"])
    return {"html": saved.page, "holds": saved.holds}


def _needed(name: str, layer: int, stop: str) -> bool:
    """Whether a stage may read this value: those of its layer, and what layers pass on.

    Values that are not cached are then computed in one pass, not in one pass each.
    """
    at = name.partition(".")[2].partition(".")[0]
    if not at.isdigit() or int(at) == layer:
        return True
    if "follow".startswith(stop):  # it reads the weights of all layers
        return name.endswith(".weights")
    return name.endswith(("feed_forward.norm", "feed_forward.add"))


_VIEWS: dict[str, Callable[[Explanation, Message], Any]] = {
    "manifest": lambda trace, _: {"manifest": serialize.manifest(trace, trace.comparison)},
    "tensor": _tensor_view,
    "focus": lambda trace, m: serialize.attention_head(trace, m["at"], m["head"])._asdict(),
    "thumbs": lambda trace, _: serialize.thumbnails(trace)._asdict(),
    "logits": lambda trace, m: serialize.logits(trace, m["row"])._asdict(),
    "token": lambda trace, m: serialize.token(trace, m["side"], m["row"])._asdict(),
    "map": lambda trace, m: {"map": serialize.token_map(trace, m["side"])},
    "stop": _stop_view,
    "animation": lambda trace, m: {"svg": as_svg(trace, m["layer"], m["head"])},
    "heads": _heads_view,
    "html": _html_view,
}


def teacher(loaded: LoadedModel, message: Message) -> Message:
    """The loss at each token of a text, given all true tokens before it."""
    request = request_of(loaded, message["source"], loaded.decode, message["tag"])
    passage = text_with_target(loaded, request, message["target"])
    sides = [list(side) for side in (passage.source, passage.target) if len(side)]
    network = networks_of(loaded)[0]
    logits = network(*(torch.tensor([side], device=loaded.device) for side in sides))[0]
    read, wanted = passage.target[passage.given :], passage.answers[passage.given :]
    forced = teacher_forcing(logits[passage.given :], wanted, loaded.label_smoothing)
    return {
        "input": _pieces(loaded, read),
        "target": _pieces(loaded, wanted),
        "p_target": (-forced.losses).exp().tolist(),
        "loss": forced.losses.tolist(),
        "best": _pieces(loaded, forced.best.tolist()),
        "p_best": forced.best_logprobs.exp().tolist(),
        "mean": forced.losses.mean().item(),
        "smoothing": loaded.label_smoothing,
        "smoothed": forced.smoothed.mean().item(),
    }


def _pieces(loaded: LoadedModel, tokens: Sequence[int]) -> list[str]:
    return [clean(piece) for piece in loaded.tokenizer.pieces(tokens)]


def next_logits(loaded: LoadedModel, message: Message) -> Message:
    """Logits of the next token, from which a page can compute any temperature exactly."""
    read, spaced = encode_prompt(loaded, message["text"])
    read = read[-max(1, loaded.max_len - 1) :]
    logits = networks_of(loaded)[0](torch.tensor([read], device=loaded.device))[0, -1].cpu()
    if spaced:
        logits[without_space(loaded.tokenizer)] = _IMPOSSIBLE
    return serialize.blob({"logits": logits}, "f32")._asdict()


def vocabulary(loaded: LoadedModel, _: Message) -> Message:
    """Every token's readable piece, in the order of their ids."""
    return {"pieces": _pieces(loaded, range(loaded.config.vocab))}


def example_for(loaded: LoadedModel) -> Message:
    """A text to demonstrate the model with: the first example that it reads easily.

    That is one with few tokens for its length, as its words are in the vocabulary. A vocabulary may
    cover two languages, so the order matters too.
    """
    tag = loaded.tags[0] if loaded.tags else ""
    data = loaded.recipe.data
    if (data.corpora[0] if data.corpora else data).toy in TOYS:
        return {"text": "c a b", "tag": tag}
    languages = EXAMPLES["languages"].items()
    more = [{"name": name, "text": text} for name, text in languages if name in loaded.classes]
    if len(more) > 1:
        return {"text": more[0]["text"], "tag": tag, "more": more}
    can = next(name for name in EXAMPLES["begin"] if name in loaded.tasks)
    encode = loaded.tokenizer.encode
    effort = {text: len(encode(text)) / len(text) for text in EXAMPLES["begin"][can]}
    easy = 1.3 * min(effort.values())
    text = next(text for text in effort if effort[text] <= easy)
    more = [{"name": n, "text": t} for n, t in EXAMPLES["more"].get(text, {}).items()]
    return {
        "text": text,
        "tag": "ask" if can == "ask" and "ask" in loaded.tags else tag,
        "more": more,
    }
