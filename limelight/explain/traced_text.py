"""What goes through the model: the text as it reads it, and what it wrote in its fast way."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from limelight.decode.beam import BeamSearch, Tree
from limelight.decode.config import DecodeConfig
from limelight.decode.generate import GenerationBatch, TokenEvent, finalize
from limelight.decode.request import Hypothesis, Request
from limelight.errors import UserError
from limelight.tasks.fill import BLANK, mask_blanks
from limelight.tasks.text_model import TextModel, add_special_tokens
from limelight.tasks.translate import request_for
from limelight.tasks.write import DEFAULT_MAX_TOKENS, encode_prompt

_ENOUGH = 16  # tokens of a continuation, where nobody says how many: a page, not a book
_How = Literal["read", "given", "greedy", "beam", "drawn", "damaged"]


class TooLongError(UserError):
    """More tokens than there is room for."""


@dataclass(frozen=True)
class TracedText:
    """Tokens for one pass: the decoder's row t reads `target[t]`, and `answers[t]` follows."""

    source: Sequence[int] = ()  # what an encoder reads
    target: Sequence[int] = ()  # what a decoder reads
    answers: Sequence[int] = ()
    given: int = 0  # so many of the answers were there from the beginning, as a prompt
    mode: _How = "read"  # where the other answers come from
    logprobs: Sequence[float] = ()  # of these, as the fast way found them
    ended: bool = False  # by an end token
    tree: Tree = field(default_factory=list)  # of a beam
    seed: int = 1  # of what was drawn
    limit: int = 0  # on how much was written
    spaced: bool = False  # a space had to come first


def passage_for(
    trained: TextModel, text: str, target: str | None, config: DecodeConfig, tag: str = ""
) -> TracedText:
    """Read the text as the family reads it, and write what follows, unless `target` says it."""
    steps = passage_in_steps(trained, text, target, config, tag)
    with torch.inference_mode():
        while True:
            try:
                next(steps)
            except StopIteration as done:
                found: TracedText = done.value
                return found


def passage_in_steps(
    trained: TextModel, text: str, target: str | None, config: DecodeConfig, tag: str = ""
) -> Generator[None, None, TracedText]:
    """The same token by token, for those who have others to look after in between."""
    _refuse_what_cannot_be_walked(trained, target)
    if trained.family == "encoder-only":
        trained.refuse_tag(tag)
        plain = bool(trained.classes)
        tokens = add_special_tokens(trained, text) if plain else mask_blanks(trained, text, BLANK)
        _within(len(tokens), trained.max_len)
        return TracedText(source=tokens)
    request = request_of(trained, text, config, tag)
    if target is not None:
        return given_passage(trained, request, target)
    try:
        return (yield from _written(trained, request, config))
    except UserError:
        if not _damaged(trained, request):
            raise
        # Nothing can be chosen among scores that are no numbers; where they stop being is shown.
        prompt = list(request.prompt)
        return TracedText(request.source, prompt, prompt[1:], len(prompt) - 1, "damaged")


def given_passage(trained: TextModel, request: Request, target: str) -> TracedText:
    """As in training: what follows is known."""
    wanted = trained.tokenizer.encode(f" {target}" if request.needs_leading_space else target)
    found = _passage(request, Hypothesis(wanted, [], True, 0.0), "given", trained.tokenizer.end)
    _within(len(found.target), trained.max_len)
    return found


def _refuse_what_cannot_be_walked(trained: TextModel, target: str | None) -> None:
    """There is one model to look into, and it has attention."""
    kind = str(trained.model.config.family)
    if kind.startswith("recurrent"):
        raise UserError(
            f"this model is {kind}: it reads one token after another into a state, and has no "
            "attention layers to walk through; explain is for Transformers"
        )
    if trained.ensemble:
        raise UserError("an ensemble is several models: load one of them to explain it")
    if target is not None and trained.family == "encoder-only":
        raise UserError(f"--target is for models that write; for this one, put {BLANK} in the text")


def request_of(trained: TextModel, text: str, config: DecodeConfig, tag: str) -> Request:
    """What the model is asked, as `translate`, `chat` and `write` ask it."""
    tokenizer = trained.tokenizer
    if trained.kind == "texts":
        trained.refuse_tag(tag)
        read, spaced = encode_prompt(trained, text)
        _within(len(read) + 1, trained.max_len)  # one more is to be written
        most = config.max_tokens or DEFAULT_MAX_TOKENS
        limit = max(1, min(most, trained.max_len - len(read)))
        return Request(read, limit, seed=config.seed, needs_leading_space=spaced)
    if not text.strip():
        raise UserError("there is nothing to explain in an empty text: give a sentence")
    source = [*trained.tag(tag), *tokenizer.encode(text)]
    # A language model reads its start and a separator too, and writes one more at least.
    added = 1 if trained.family == "encoder-decoder" else 3
    _within(len(source) + added, trained.max_len)
    return request_for(trained, source, config)


def _within(count: int, longest: int) -> None:
    """Refuse more tokens than the model has room for."""
    if count > longest:
        raise TooLongError(
            f"the text comes to {count} tokens, and the model has room for {longest}: shorten it"
        )


def _written(
    trained: TextModel, request: Request, config: DecodeConfig
) -> Generator[None, None, TracedText]:
    """What the model writes, with the tree of the search if there is one."""
    model, tokenizer = trained.engine.model, trained.tokenizer
    if not config.temperature and config.beam > 1 and trained.kind != "texts":
        search = BeamSearch(model, [request], config, tokenizer, keep_trees=True)
        while search.step():
            yield
        (best,) = search.best_of(0)
        return replace(_passage(request, best, "beam", tokenizer.end), tree=search.trees[0])
    events: list[TokenEvent] = []
    most = config.max_tokens or _ENOUGH if trained.kind == "texts" else 0
    writing = GenerationBatch(model, [request], replace(config, beam=1, beam_groups=1), tokenizer)
    while writing.active:
        events += writing.step()
        if len(events) == most:
            writing.stop(0)
        yield
    found = finalize([e.token for e in events], [e.logprob for e in events], tokenizer.end)
    return _passage(request, found, "drawn" if config.temperature else "greedy", tokenizer.end)


def _passage(request: Request, found: Hypothesis, mode: _How, end: int) -> TracedText:
    """The prompt and what follows it, for one pass."""
    tokens = [*request.prompt, *found.tokens, *([end] if found.ended else [])]
    return TracedText(
        request.source,
        tokens[:-1],
        tokens[1:],
        len(request.prompt) - 1,
        mode,
        found.logprobs,
        found.ended,
        seed=request.seed,
        limit=request.limit,
        spaced=request.needs_leading_space,
    )


def _damaged(trained: TextModel, request: Request) -> bool:
    """Whether a weight of the model, or what it makes of the request, is no number (NaN)."""
    if not all(torch.isfinite(weight).all() for weight in trained.model.parameters()):
        return True
    device = next(trained.model.parameters()).device
    sides = [side for side in (request.source, request.prompt) if side]
    with torch.inference_mode():
        logits = trained.model(*(torch.tensor([side], device=device) for side in sides))
    return not bool(torch.isfinite(logits).all())
