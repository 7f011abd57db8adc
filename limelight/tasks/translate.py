"""Translate: a text in, its translation out; or a summary, an answer, whatever pairs teach."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from limelight.data.tokenizer import Tokenizer, valid_unicode
from limelight.decode.alternatives import Alternative, alternatives, top_tokens_at
from limelight.decode.config import DecodeConfig
from limelight.decode.constraints import (
    as_phrases,
    capitalized,
    encode_prefix,
    prompt_text_tokens,
)
from limelight.decode.generate import NO_BEAM
from limelight.decode.request import LARGEST_LIMIT, Hypothesis, Request
from limelight.errors import UserError, check_count
from limelight.tasks.glossary import Glossary, read_glossary
from limelight.tasks.sentence_split import in_parts
from limelight.tasks.text_model import TextModel, engine_of

_HALF = "\ufffd"  # where a text ends within a character
TOGETHER = 8  # positions whose alternatives are computed together


@dataclass(frozen=True)
class InvalidLine:
    """A line that is not valid text."""

    why: str


@dataclass(frozen=True)
class TranslationOutput:
    """One hypothesis of a translation: its text and tokens, and how likely they are."""

    text: str
    score: float  # what a beam ranks by: log_probability over the length penalty; without, the same
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()  # of each token, and of the end if it came
    log_probability: float = 0.0  # the sum of `logprobs`, whatever the search


@dataclass(frozen=True)
class Translation:
    """The translations of one text, the best first, or the problem with it."""

    source: str
    outputs: tuple[TranslationOutput, ...] = ()
    parts: int = 1  # into which it was split, being too long for the model
    problem: str = ""
    missing_terms: tuple[str, ...] = ()  # translations of the glossary that could not be used

    @property
    def text(self) -> str:
        return self.outputs[0].text if self.outputs else ""


@dataclass(frozen=True)
class Constraints:
    """What a translation must begin with, include and exclude, and how it translates terms."""

    tag: str = ""  # selects one of several tasks that the model was trained on
    prefix: str = ""  # how it begins
    include: tuple[str, ...] = ()  # texts that must appear, letter by letter
    exclude: tuple[str, ...] = ()  # texts that must not
    glossary: Any = field(default_factory=Glossary)  # or {term: translation}, or a file of them

    def __post_init__(self) -> None:
        valid_unicode(self.prefix)
        for name in ("include", "exclude"):
            object.__setattr__(self, name, as_phrases(getattr(self, name), name))
        if not isinstance(self.glossary, Glossary):
            read = read_glossary if isinstance(self.glossary, str | Path) else Glossary
            object.__setattr__(self, "glossary", read(self.glossary))
        for banned in self.exclude:
            if banned in self.prefix:
                raise UserError(f"{banned!r} cannot be excluded: the prefix {self.prefix!r} has it")
            wishes = (*self.include, *self.glossary.terms.values())
            if wanted := [word for word in wishes if banned in word]:
                raise UserError(f"{wanted[0]!r} cannot be included, and {banned!r} excluded")


NO_CONSTRAINTS = Constraints()


def translate(
    trained: TextModel,
    texts: Iterable[str | InvalidLine],
    config: DecodeConfig | None = None,
    nbest: int = 1,
    constraints: Constraints = NO_CONSTRAINTS,
    logprobs: bool = True,
) -> Iterator[Translation]:
    """The translations of texts, in order; a problem with one does not stop the others.

    Without `logprobs`, tokens may come without their log-probabilities, which saves some time.
    """
    trained.require("translate")
    config = widen_beam(config or trained.decode, nbest)
    if not isinstance(constraints, Constraints):
        raise UserError(f"constraints={constraints!r:.80} must be Constraints(prefix='...', ...)")
    trained.tag(constraints.tag)
    request_for(trained, [], config, constraints)  # rejects a prefix that is too long
    check_glossary(constraints, config)
    if isinstance(texts, str):
        raise UserError(f"texts={texts!r:.80} is not a list of texts: write [{texts!r:.80}]")
    jobs = (_job_for(trained, text, config, constraints) for text in texts)
    for text, found in engine_of(trained).generate_stream(jobs, config, nbest, logprobs):
        if isinstance(text, Translation):
            yield text
        else:
            yield translation_of(trained, text, found, constraints)


def translation_of(
    trained: TextModel, text: str, found: list[list[Hypothesis]], constraints: Constraints
) -> Translation:
    """Join what was found for the parts of a text."""
    outputs = tuple(_join(trained, way, constraints.prefix) for way in zip(*found, strict=False))
    best = outputs[0].text if outputs else None
    missing = [w for w in constraints.include if best is not None and w.strip() not in best]
    problem = f"no translation with {missing[0]!r} was found" if missing else ""
    lost = _without(best, constraints.glossary.targets(text)) if best else ()
    return Translation(text, outputs, max(1, len(found)), problem, lost)


def _without(text: str, terms: Iterable[str]) -> tuple[str, ...]:
    """The terms that a text has not; one may begin it with a capital."""
    return tuple(t for t in terms if t not in text and not text.startswith(capitalized(t)))


def widen_beam(config: DecodeConfig, nbest: int) -> DecodeConfig:
    """The settings, with a beam of at least `nbest`."""
    check_count("nbest", nbest, 1000)
    if nbest > 1 and config.temperature:
        raise UserError(
            f"nbest={nbest} needs a beam, but with temperature={config.temperature} every token is "
            "sampled: set temperature to 0, or ask again with another seed"
        )
    if nbest > config.beam and config.beam_groups > 1:
        raise UserError(
            f"nbest={nbest} of a beam of {config.beam} in {config.beam_groups} groups: "
            "widen the beam"
        )
    return replace(config, beam=nbest) if nbest > config.beam else config


def check_glossary(constraints: Constraints, config: DecodeConfig) -> None:
    """Reject a glossary where no phrases can be required."""
    if constraints.glossary.terms and (config.temperature or config.beam == 1):
        raise UserError(f"a glossary: {NO_BEAM}")
    if constraints.glossary.terms and config.engine == "ctranslate2":
        raise UserError("engine='ctranslate2' does not know a glossary: set engine to 'auto'")


def _job_for(
    trained: TextModel, text: str | InvalidLine, config: DecodeConfig, constraints: Constraints
) -> tuple[str | Translation, list[Request]]:
    if isinstance(text, InvalidLine):
        return Translation("", problem=text.why), []
    text = valid_unicode(text)
    try:
        return text, requests_for(trained, text, config, constraints)
    except UserError as error:
        return Translation(text, problem=str(error)), []


def requests_for(
    trained: TextModel, text: str, config: DecodeConfig, constraints: Constraints
) -> list[Request]:
    """The requests for a text: none if it is empty, one for each part if it is long."""
    if not text.strip():
        return []
    tag, encode = trained.tag(constraints.tag), cache(trained.tokenizer.source.encode)
    given = len(encode_prefix(trained.tokenizer, constraints.prefix)[0])
    longest = max(1, longest_source(trained, config, given) - len(tag))
    parts = in_parts(text, lambda part: len(encode(part)), longest)
    if len(parts) > 1 and constraints.include:
        raise UserError(
            f"this text is too long for the model and is translated in {len(parts)} parts, so "
            "words cannot be required"
        )
    each = [constraints, *[replace(constraints, prefix="")] * (len(parts) - 1)]
    return [
        _with_terms(request_for(trained, [*tag, *encode(part)], config, own), part, own)
        for part, own in zip(parts, each, strict=True)
    ]


def _with_terms(request: Request, text: str, constraints: Constraints) -> Request:
    terms = constraints.glossary.targets(text)
    begins = terms if text.lstrip()[:1].isupper() else ()
    return replace(request, include=(*request.include, *terms), capitalizable=begins)


def longest_source(trained: TextModel, config: DecodeConfig | None = None, given: int = 0) -> int:
    """Tokens of a source, at most: an encoder reads an end token too, a GPT its own answer.

    A GPT keeps as much of its context free as answers had in its training data, relative to their
    sources: a summary needs less than a translation. Half at most, since no more is known of a
    source than its length; less if the settings allow no such answer, but always a `given` prefix.
    """
    if trained.family == "encoder-decoder":
        return trained.max_len - 1
    answer = math.ceil(trained.answer_share * trained.max_len)  # the end token included
    most = (config or trained.decode).max_tokens
    answer = max(given + 1, min(answer, most + 1) if most else answer)
    return max(1, trained.max_len - 1 - answer)


def request_for(
    trained: TextModel,
    source: list[int],
    config: DecodeConfig,
    constraints: Constraints = NO_CONSTRAINTS,
) -> Request:
    """For an encoder the source is its own input; a GPT reads it in the prompt."""
    tokenizer = trained.tokenizer
    begun, spaced = encode_prefix(tokenizer, constraints.prefix)
    two_sided = trained.family == "encoder-decoder"
    prompt = [tokenizer.start, *begun]
    if not two_sided:
        prompt = [tokenizer.start, *source, tokenizer.separator, *begun]
    if (count := max(len(prompt), len(source))) >= trained.max_len:  # another one follows
        raise UserError(
            f"{count} tokens are too many: the model reads fewer than {trained.max_len}"
        )
    most = min(config.max_tokens or LARGEST_LIMIT, len(source) + config.max_extra_tokens)
    return Request(
        prompt=prompt,
        limit=max(1, min(most, trained.max_len - len(prompt), LARGEST_LIMIT)),
        source=[*source, tokenizer.source.end] if two_sided else (),
        seed=config.seed,
        include=constraints.include,
        exclude=constraints.exclude,
        needs_leading_space=spaced,
    )


def _join(trained: TextModel, parts: Sequence[Hypothesis], prefix: str) -> TranslationOutput:
    tokenizer, logprobs = trained.tokenizer, [x for part in parts for x in part.logprobs]
    given = [encode_prefix(tokenizer, prefix)[0], *([] for _ in parts[1:])]
    texts = [tokenizer.decode([*g, *part.tokens]) for g, part in zip(given, parts, strict=True)]
    return TranslationOutput(
        text=" ".join(filter(None, map(str.strip, texts))),
        score=sum(part.score for part in parts),
        tokens=tuple(tokenizer.pieces(token for part in parts for token in part.tokens)),
        logprobs=tuple(logprobs),
        log_probability=sum(part.total for part in parts),
    )


class TokenProbability(NamedTuple):
    """A piece that could have come at some position of a translation."""

    piece: str
    probability: float


@dataclass(frozen=True)
class AlternativeChoice:
    """A piece that could have come, and the translation that it would have led to."""

    piece: str
    probability: float
    text: str  # the translation, had this been chosen
    begin: str  # up to this piece and a full character: as a prefix it makes the choice


def alternative_choices(
    trained: TextModel,
    text: str,
    config: DecodeConfig | None = None,
    count: int = 3,
    constraints: Constraints = NO_CONSTRAINTS,
) -> Iterator[list[AlternativeChoice]]:
    """For every token of a translation, and for its end: the alternatives and their texts."""
    request, written = _translate_single(trained, text, config or trained.decode, constraints)
    return choices_along(trained, request, written, count)


def alternative_tokens(
    trained: TextModel,
    text: str,
    config: DecodeConfig | None = None,
    count: int = 3,
    constraints: Constraints = NO_CONSTRAINTS,
) -> Iterator[list[TokenProbability]]:
    """For every token and the end: the alternatives alone, in a fraction of the time."""
    request, written = _translate_single(trained, text, config or trained.decode, constraints)
    tokenizer, model = trained.tokenizer, engine_of(trained).model
    for some in _position_groups(written):
        for found in top_tokens_at(model, request, written, some, count, tokenizer):
            pieces = tokenizer.pieces(token for token, _ in found)
            probabilities = (math.exp(logprob) for _, logprob in found)
            yield [TokenProbability(*pair) for pair in zip(pieces, probabilities, strict=True)]


def _translate_single(
    trained: TextModel, text: str, config: DecodeConfig, constraints: Constraints
) -> tuple[Request, list[int]]:
    trained.require("translate")
    requests = requests_for(trained, text, config, constraints)
    if len(requests) != 1:
        raise UserError("alternatives are for a text that the model can read at once")
    ((written, *_),) = engine_of(trained).generate(requests, config)
    return requests[0], with_end(trained, written)


def with_end(trained: TextModel, written: Hypothesis) -> list[int]:
    """All tokens of a hypothesis, the end token included."""
    return [*written.tokens, trained.tokenizer.end] if written.ended else written.tokens


def _position_groups(written: list[int]) -> Iterator[range]:
    every = range(len(written))
    return (every[first : first + TOGETHER] for first in every[::TOGETHER])


def choices_along(
    trained: TextModel, request: Request, written: list[int], count: int
) -> Iterator[list[AlternativeChoice]]:
    """For every token of a text that was written already: the alternatives and their texts."""
    tokenizer, model = trained.tokenizer, engine_of(trained).model
    given = prompt_text_tokens(request.prompt, tokenizer)
    for some in _position_groups(written):
        found = alternatives(model, request, written, some, count, tokenizer)
        for position, choices in zip(some, found, strict=True):
            before = [*given, *written[:position]]
            yield [_choice_of(tokenizer, before, choice) for choice in choices]


def _choice_of(tokenizer: Tokenizer, before: list[int], choice: Alternative) -> AlternativeChoice:
    tokens = [*before, choice.token, *choice.rest.tokens]
    text = tokenizer.decode(tokens)
    begins = (tokenizer.decode(tokens[:end]) for end in range(len(before) + 1, len(tokens) + 1))
    begin = next((some for some in begins if not some.endswith(_HALF)), text)
    piece = tokenizer.pieces([choice.token])[0]
    return AlternativeChoice(piece, math.exp(choice.logprob), text.strip(), begin)
