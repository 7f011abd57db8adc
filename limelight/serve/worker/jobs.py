"""What a model is asked for, as the worker works on it.

A job is a few texts to be written, token by token or by a beam, and then perhaps something more to
be worked out; or it is only the latter. A text asks for one stretch after the other (`request`),
and is told what came (`take`).
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import torch

from limelight.data.tokenizer import Tokenizer
from limelight.decode.alternatives import alternatives
from limelight.decode.beam import Tree
from limelight.decode.config import DecodeConfig
from limelight.decode.detokenizer import IncrementalDetokenizer
from limelight.decode.generate import NO_BEAM, TokenEvent, finalize
from limelight.decode.request import Hypothesis, Request
from limelight.errors import UserError
from limelight.explain.traced_text import TooLongError
from limelight.loading import LoadedModel
from limelight.model.taps import Recorder, taps
from limelight.serve.ipc import Message
from limelight.serve.worker.trace_cache import (
    ExpiredError,
    TraceCache,
    Work,
    next_scores,
    teacher,
    vocabulary,
)
from limelight.tasks.chat import Conversation
from limelight.tasks.classify import classify
from limelight.tasks.embed import embed
from limelight.tasks.fill import fill
from limelight.tasks.score import score
from limelight.tasks.translate import (
    Constraints,
    choices_along,
    longest_source,
    request_for,
    requests_for,
    translation_of,
    widen_beam,
    with_end,
)
from limelight.tasks.write import Continuation, encode_prompt, refuse_beam

_BY_PARTS = ", or ask /api/translate, which takes a long text in parts"


class _SequenceJob(Protocol):
    """One text of a job."""

    config: DecodeConfig

    def request(self) -> Request | None:
        """What to ask the model for next; None when the text is done."""

    def take(self, event: TokenEvent) -> str:
        """A token has come: the text that is certain now."""

    def finish(self) -> str:
        """What was held back until now."""

    @property
    def enough(self) -> bool:
        """Whether to stop before the model does."""


@dataclass
class Job:
    """What one request of a client asks for."""

    texts: list[Any] = field(default_factory=list)
    stream: bool = False  # tell every piece as it comes
    logprobs: bool = False  # and every token's log-probability
    nbest: int = 1
    tree: bool = False  # of the beam
    result: Callable[["Job"], Work] | None = None  # what to make of the texts
    trees: list[Tree] = field(default_factory=list)
    left: int = 0  # texts that are not done


class _CompletionSequence:
    """A text that goes on, for models that learned from texts."""

    def __init__(self, text: Continuation, top: int) -> None:
        self.text, self.config, self.top = text, text.config, top
        self.read = len(text.tokens)
        self.tokens: list[TokenEvent] = []
        self.pieces: list[str] = []

    def request(self) -> Request | None:
        """The next stretch."""
        request = self.text.request()
        return None if request is None else replace(request, top=self.top)

    def take(self, event: TokenEvent) -> str:
        """One more token."""
        self.tokens.append(event)
        self.pieces.append(self.text.add(event.token))
        return self.pieces[-1]

    def finish(self) -> str:
        """The rest."""
        self.pieces.append(self.text.stream.finish())
        return self.pieces[-1]

    @property
    def enough(self) -> bool:
        """A stop string has come."""
        return self.text.stream.stopped


class _Seq2SeqSequence:
    """A text that answers another, for models that learned from pairs."""

    def __init__(
        self, loaded: LoadedModel, request: Request, config: DecodeConfig, stops: Iterable[str]
    ) -> None:
        self.config = config
        self.read = len(request.source) or len(request.prompt)
        self.waiting: Request | None = request
        self.stream = IncrementalDetokenizer(loaded.tokenizer, list(stops))
        self.tidy = _WhitespaceNormalizer()
        self.tokens: list[TokenEvent] = []
        self.pieces: list[str] = []

    def request(self) -> Request | None:
        """All of it at once."""
        request, self.waiting = self.waiting, None
        return request

    def take(self, event: TokenEvent) -> str:
        """One more token."""
        self.tokens.append(event)
        self.pieces.append(self.tidy.feed(self.stream.feed(event.token)))
        return self.pieces[-1]

    def finish(self) -> str:
        """The rest."""
        self.pieces.append(self.tidy.feed(self.stream.finish()))
        return self.pieces[-1]

    @property
    def enough(self) -> bool:
        """A stop string has come."""
        return self.stream.stopped


class _TranslationPart:
    """A text of which only the whole is of interest: a part of a translation."""

    def __init__(self, loaded: LoadedModel, request: Request, config: DecodeConfig) -> None:
        self.config, self.asked, self.end = config, request, loaded.tokenizer.end
        self.waiting: Request | None = request
        self.tokens: list[TokenEvent] = []
        self.found: list[Hypothesis] = []
        self.enough = False

    def request(self) -> Request | None:
        """All of it at once."""
        request, self.waiting = self.waiting, None
        return request

    def take(self, event: TokenEvent) -> str:
        """One more token."""
        self.tokens.append(event)
        return ""

    def finish(self) -> str:
        """What was written is what was found."""
        if not self.found:
            tokens = [event.token for event in self.tokens]
            self.found = [finalize(tokens, [event.logprob for event in self.tokens], self.end)]
        return ""


class _WhitespaceNormalizer:
    """Words with one space between them, as they come: `" ".join(text.split())`, in pieces."""

    def __init__(self) -> None:
        self.begun = self.space = False

    def feed(self, piece: str) -> str:
        """The piece; a space at its end is kept back, as nothing may follow."""
        words = re.sub(r"\s+", " ", piece)
        shown = words.strip(" ")
        if not shown:
            self.space = self.space or bool(words)
            return ""
        space = self.begun and (self.space or words.startswith(" "))
        self.begun, self.space = True, words.endswith(" ")
        return f" {shown}" if space else shown


def job_for(loaded: LoadedModel, album: TraceCache, message: Message, most: int) -> Job:
    """What a message asks for; what it cannot have is a `UserError`."""
    if message["do"] == "trace":
        return Job(result=lambda _: album.look(message))
    job = _HANDLERS[message["do"]](loaded, message)
    if len(job.texts) > most:
        raise UserError(
            f"the text is too long: it would be answered in {len(job.texts)} parts, "
            f"and {most} are allowed"
        )
    job.left = len(job.texts)
    return job


def _settings_of(loaded: LoadedModel, message: Message) -> DecodeConfig:
    """How to write: the run's own settings, with those that the request gives."""
    given = {key: value for key, value in message.get("settings", {}).items() if value is not None}
    return loaded.settings(**given)


def complete(loaded: LoadedModel, message: Message) -> Job:
    """Go on with each prompt; a model that learned from pairs answers it."""
    config, texts = _settings_of(loaded, message), list[Any]()
    stops, top = message["stop"], message["top"]
    for prompt in message["prompts"]:
        if "write" not in loaded.tasks:
            loaded.require("translate")
            _check_fits(loaded, prompt, message["tag"], "prompt", _BY_PARTS)
        for i in range(message["n"]):
            own = replace(config, seed=config.seed + i)
            if "write" in loaded.tasks:
                loaded.refuse_tag(message["tag"])
                refuse_beam(message.get("settings", {}).get("beam"))
                texts.append(_CompletionSequence(Continuation(loaded, prompt, own, stops), top))
            else:
                source = Conversation(loaded, own, message["tag"]).source([prompt])
                texts.append(_answer_for(loaded, source, own, stops, top))
    return Job(texts, message["stream"], message["logprobs"], result=_texts_payload(loaded))


def chat(loaded: LoadedModel, message: Message) -> Job:
    """The next turn of a conversation."""
    config = _settings_of(loaded, message)
    conversation = Conversation(loaded, config, message["tag"])
    turns = [" ".join(turn.split()) for turn in message["turns"]]
    _check_fits(loaded, turns[-1], message["tag"], "last turn")
    source = conversation.source(turns)
    texts = []
    for i in range(message["n"]):
        own = replace(config, seed=config.seed + i)
        texts.append(_answer_for(loaded, source, own, message["stop"], message["top"]))
    return Job(list(texts), message["stream"], message["logprobs"], result=_texts_payload(loaded))


def _check_fits(loaded: LoadedModel, text: str, tag: str, name: str, hint: str = "") -> None:
    """Older turns may be forgotten, but an answer to half of what was asked would mislead."""
    count = len(loaded.tokenizer.encode(text))
    longest = longest_source(loaded) - len(loaded.tag(tag))
    if count > longest:
        raise TooLongError(
            f"the {name} comes to {count} tokens, and the model reads {longest}: shorten it{hint}"
        )


def _answer_for(
    loaded: LoadedModel, source: list[int], config: DecodeConfig, stops: list[str], top: int
) -> _Seq2SeqSequence:
    """A text that answers these tokens."""
    if top and searches(config):
        raise UserError(
            f"a beam of {config.beam} cannot tell what else was likely: "
            "set beam to 1, or a temperature"
        )
    request = replace(request_for(loaded, source, config), top=top)
    return _Seq2SeqSequence(loaded, request, config, stops)


def searches(config: DecodeConfig, nbest: int = 1) -> bool:
    """Whether this is written by a beam, and not token by token."""
    return not config.temperature and (config.beam > 1 or nbest > 1)


def _texts_payload(loaded: LoadedModel) -> Callable[[Job], Work]:
    """What was written, and how."""

    def result(job: Job) -> Work:
        yield from ()
        return {"texts": [_text_payload(loaded, text, job.logprobs) for text in job.texts]}

    return result


def _text_payload(
    loaded: LoadedModel, text: _CompletionSequence | _Seq2SeqSequence, logprobs: bool
) -> Message:
    """All about one text. An end token is no token of the text."""
    end = loaded.tokenizer.end
    tokens = [event for event in text.tokens if event.token != end]
    return {
        "text": "".join(text.pieces),
        "ended": text.enough or len(tokens) < len(text.tokens),
        "read": text.read,
        "written": len(tokens),
        "tokens": [token_payload(loaded, event) for event in tokens] if logprobs else [],
    }


def token_payload(loaded: LoadedModel, event: TokenEvent) -> Message:
    """A token, its log-probability, and the likeliest ones in its place."""
    top = [_piece_payload(loaded, token, logprob) for token, logprob in event.top]
    return {**_piece_payload(loaded, event.token, event.logprob), "top": top}


def _piece_payload(loaded: LoadedModel, token: int, logprob: float) -> Message:
    """A token as text and as bytes, which may be half a character."""
    piece = loaded.tokenizer.pieces([token])[0]
    return {
        "token": piece,
        "bytes": list(loaded.tokenizer.token_bytes(token)),
        "logprob": _finite(logprob),
    }


def _translate(loaded: LoadedModel, message: Message) -> Job:
    """A text's translations, and what was asked for besides."""
    loaded.require("translate")
    config = widen_beam(_settings_of(loaded, message), message["nbest"])
    include, exclude = tuple(message["include"]), tuple(message["exclude"])
    wishes = Constraints(message["tag"], message["prefix"], include, exclude)
    requests = requests_for(loaded, message["text"], config, wishes)
    loaded.tag(wishes.tag)
    if include and not searches(config):
        raise UserError(NO_BEAM)
    wanted = [name for name in ("alternatives", "alignment", "tree") if message[name]]
    if wanted and len(requests) != 1:
        raise UserError(f"{wanted[0]} can be told of a text that the model reads at once")
    if "tree" in wanted and not searches(config, message["nbest"]):
        raise UserError("there is no tree without a beam: set beam to 2 or more")
    if "alignment" in wanted and not any(n.endswith("cross.weights") for n in taps(loaded.model)):
        raise UserError("this model has no attention from a translation to its source")

    def result(job: Job) -> Work:
        found = [part.found for part in job.texts]
        told = translation_of(loaded, message["text"], found, wishes)
        if told.problem:
            raise UserError(told.problem)
        answer: Message = {"text": told.text, "parts": told.parts}
        answer["outputs"] = [asdict(output) for output in told.outputs]
        if message["alternatives"]:
            answer["alternatives"] = places = []
            part, count = job.texts[0], message["alternatives"]
            written = with_end(loaded, part.found[0])
            for place in choices_along(loaded, part.asked, written, count):
                places.append([asdict(choice) for choice in place])
                yield
        if message["alignment"]:
            answer["alignment"] = _alignment(loaded, job.texts[0].asked, job.texts[0].found[0])
            yield
        if message["tree"]:
            answer["tree"] = _tree_payload(loaded, job.trees[0])
        return answer

    parts = [_TranslationPart(loaded, request, config) for request in requests]
    return Job(list(parts), nbest=message["nbest"], tree=message["tree"], result=result)


def _tree_payload(loaded: LoadedModel, tree: Tree) -> list[list[Message]]:
    """A search as it went, with the pieces of its tokens."""
    return [
        [
            {**asdict(node), "piece": loaded.tokenizer.pieces([node.token])[0]}
            | {"logprob": _finite(node.logprob), "score": _finite(node.score)}
            for node in step
        ]
        for step in tree
    ]


def _finite(value: float) -> float:
    """JSON has no infinity; what is impossible is told as very unlikely."""
    return value if math.isfinite(value) else -1e9


def _alignment(loaded: LoadedModel, request: Request, written: Hypothesis) -> Message:
    """How much each token of a translation looked at each of the source: the mean of all heads.

    The tokens of a prefix come first: they were given, and looked all the same.
    """
    device = next(loaded.model.parameters()).device
    source = torch.tensor([list(request.source)], device=device)
    target = torch.tensor([[*request.prompt, *written.tokens]], device=device)
    with torch.inference_mode(), Recorder(loaded.model, ["*cross.weights"]) as recorder:
        recorder.model(source, target)
        values = list(recorder.values.values())
        layers = [value[0] if value.dim() == 3 else value[0].mean(dim=0) for value in values]
        weights = torch.stack(layers).mean(dim=0)  # T S
    pieces = loaded.tokenizer.pieces
    return {
        "source": pieces(request.source),
        "target": pieces(target[0, 1:].tolist()),
        "weights": [[round(w, 5) for w in row] for row in weights[:-1].tolist()],
    }


def _following(tokenizer: Tokenizer, tokens: list[int], spaced: bool) -> str:
    """What tokens add to a text, which may have the space before them already."""
    text = tokenizer.decode(tokens)
    return text.removeprefix(" ") if spaced else text


def _suggest(loaded: LoadedModel, message: Message) -> Job:
    """The likeliest next tokens, each with its likeliest continuation."""
    loaded.require("write")

    def result(_: Job) -> Work:
        yield from ()
        limit = min(message["tokens"], max(1, loaded.max_len // 2))
        read, spaced = encode_prompt(loaded, message["text"])
        request = Request(
            read[-max(1, loaded.max_len - limit) :], limit, needs_leading_space=spaced
        )
        tokenizer = loaded.tokenizer
        with torch.inference_mode():
            count = message["count"]
            (found,) = alternatives(loaded.engine.model, request, [], [0], count, tokenizer)
        return {
            "suggestions": [
                {
                    "text": _following(tokenizer, [choice.token, *choice.rest.tokens], spaced),
                    "probability": math.exp(choice.logprob),
                }
                for choice in found
            ]
        }

    return Job(result=result)


def _fill_in(loaded: LoadedModel, message: Message) -> Job:
    """A text with its blanks filled in."""
    loaded.require("fill")
    return _sync_job(lambda: asdict(fill(loaded, message["text"], message["count"])))


def _classify_all(loaded: LoadedModel, message: Message) -> Job:
    """The classes of texts."""
    loaded.require("classify")
    return _sync_job(lambda: {"classes": list(classify(loaded, message["texts"]))})


def _embed_all(loaded: LoadedModel, message: Message) -> Job:
    """The vectors of texts, how many tokens of them were read, and how many found no room."""
    loaded.require("embed")
    room = loaded.max_len - 2  # there is something before a text and behind it
    lengths = list(map(len, loaded.tokenizer.encode_many(message["texts"])))
    read = sum(min(length, room) for length in lengths)
    told = {"read": read, "left_out": sum(lengths) - read}
    return _sync_job(lambda: {"vectors": list(embed(loaded, message["texts"])), **told})


def _score_all(loaded: LoadedModel, message: Message) -> Job:
    """How likely texts are."""
    loaded.require("score")

    def work() -> Message:
        told = []
        for scored in score(loaded, map(tuple, message["texts"]), message["tag"]):
            facts = {"total": scored.total, "tokens": scored.tokens, "logprobs": scored.logprobs}
            told.append({"problem": scored.problem} if scored.problem else facts)
        return {"scores": told}

    return _sync_job(work)


def _neighbours(loaded: LoadedModel, message: Message) -> Job:
    """The tokens whose vectors are most like those of a text's tokens."""

    def work() -> Message:
        tokenizer = loaded.tokenizer
        word = message["text"]  # words have the space before them in their tokens, mostly
        tokens = min(tokenizer.encode(f" {word}"), tokenizer.encode(word), key=len)[:16]
        table = _embedding_of(loaded)[: len(tokenizer)]
        unit = torch.nn.functional.normalize(table.float(), dim=1)
        alike = unit[tokens] @ unit.T  # T V
        alike[:, : tokenizer.first_text_id] = -1  # special tokens are nobody's neighbours
        best = alike.topk(min(message["count"] + 1, len(tokenizer)), dim=1)
        told = []
        for token, near, values in zip(
            tokens, best.indices.tolist(), best.values.tolist(), strict=True
        ):
            others = [(i, value) for i, value in zip(near, values, strict=True) if i != token]
            told.append(
                {
                    "piece": tokenizer.pieces([token])[0],
                    "neighbours": [
                        {"piece": tokenizer.pieces([i])[0], "cosine": value}
                        for i, value in others[: message["count"]]
                    ],
                }
            )
        return {"tokens": told}

    return _sync_job(work)


def _embedding_of(loaded: LoadedModel) -> torch.Tensor:
    """The table of vectors that a model reads its input with."""
    side = getattr(loaded.model, "source", None) or loaded.model.target
    table: torch.Tensor = getattr(side, "tokens", side).weight.detach()
    return table


def _sync_job(work: Callable[[], Message]) -> Job:
    """A job that is done in one go."""

    def result(_: Job) -> Work:
        yield from ()
        with torch.inference_mode():
            return work()

    return Job(result=result)


def code_of(error: UserError) -> str:
    """What a client is told is wrong, in a word."""
    if isinstance(error, ExpiredError):
        return "trace_expired"
    return "too_long" if isinstance(error, TooLongError) else "invalid_request"


_HANDLERS: dict[str, Callable[[LoadedModel, Message], Job]] = {
    "complete": complete,
    "chat": chat,
    "translate": _translate,
    "suggest": _suggest,
    "fill": _fill_in,
    "classify": _classify_all,
    "embed": _embed_all,
    "score": _score_all,
    "neighbours": _neighbours,
    "teacher": lambda loaded, message: _sync_job(lambda: teacher(loaded, message)),
    "next": lambda loaded, message: _sync_job(lambda: next_scores(loaded, message["text"])),
    "vocabulary": lambda loaded, _: _sync_job(lambda: vocabulary(loaded)),
}
