"""The tokens that go through the model: the text, and what it generates in its fast way."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import torch

from limelight.decode.beam import BeamSearch, Tree
from limelight.decode.config import DecodeConfig
from limelight.decode.constraints import has_leading_space_tokens
from limelight.decode.generate import GenerationBatch, TokenEvent
from limelight.decode.request import Hypothesis, Request, StepModel, finalize
from limelight.errors import UserError, unknown_name
from limelight.tasks.fill import BLANK, mask_blanks
from limelight.tasks.text_model import TextModel, add_special_tokens
from limelight.tasks.translate import request_for
from limelight.tasks.write import DEFAULT_MAX_TOKENS, encode_prompt

_DEFAULT_TOKENS = 16  # of a continuation: enough to look at
_Found = TypeVar("_Found")
_Mode = Literal["read", "given", "greedy", "beam", "drawn", "damaged"]


class TooLongError(UserError):
    """A text has more tokens than the model can read."""


@dataclass(frozen=True)
class TracedText:
    """Tokens for one pass: row t of the decoder reads `target[t]` and predicts `answers[t]`."""

    source: Sequence[int] = ()  # input of the encoder
    target: Sequence[int] = ()  # input of the decoder
    answers: Sequence[int] = ()
    given: int = 0  # how many of the answers belong to the prompt
    mode: _Mode = "read"  # where the other answers come from; "drawn" is sampled
    logprobs: Sequence[float] = ()  # of the generated answers, as decoding found them
    ended: bool = False  # with an end token
    tree: Tree = field(default_factory=list)  # of a beam search
    seed: int = 1  # of sampling
    limit: int = 0  # on generated tokens
    needs_leading_space: bool = False  # of the first generated token
    labels: Sequence[int] = ()  # of an encoder: the true token of each blank, or the class

    def inputs(self, device: torch.device) -> list[torch.Tensor]:
        """A batch of one for each stack that reads tokens."""
        given = [side for side in (self.source, self.target) if len(side)]
        return [torch.tensor([list(side)], device=device) for side in given]


def run_through(steps: Generator[None, None, _Found]) -> _Found:
    """The result of work that is done in steps."""
    with torch.inference_mode():
        while True:
            try:
                next(steps)
            except StopIteration as done:
                found: _Found = done.value
                return found


def traced_text_in_steps(
    trained: TextModel,
    text: str,
    target: str | None,
    config: DecodeConfig,
    tag: str = "",
    model_for: Callable[[Request], StepModel] | None = None,
) -> Generator[None, None, TracedText]:
    """Encode the text as the family reads it, and generate what follows, or use `target`.

    One token per `next()`, so that a server can interleave requests. `model_for` chooses what
    generates, if not the model in its fast way.
    """
    if trained.ensemble:
        raise UserError("an ensemble is several models: load one of them to explain it")
    added = getattr(trained.model.config, "extended", {})
    for setting in added.keys() - {"activation"}:
        raise UserError(
            f"explain recomputes every value, and does not know {setting}={added[setting]!r}, "
            "which an extension added"
        )
    if trained.family == "encoder-only":
        trained.refuse_tag(tag)
        plain = "fill" not in trained.tasks
        tokens = add_special_tokens(trained, text) if plain else mask_blanks(trained, text)
        _check_length(len(tokens), trained.max_len)
        return TracedText(source=tokens, labels=_labels(trained, text, target))
    request = request_of(trained, text, config, tag)
    if target is not None:
        return text_with_target(trained, request, target)
    try:
        model = trained.engine.model if model_for is None else model_for(request)
        return (yield from _generate(trained, model, request, config))
    except UserError:
        if not _is_damaged(trained, request):
            raise
        # No token can be chosen among NaN logits; the trace shows where they first appear.
        prompt = list(request.prompt)
        return TracedText(request.source, prompt, prompt[1:], len(prompt) - 1, "damaged")


def text_with_target(trained: TextModel, request: Request, target: str) -> TracedText:
    """As in training: the text that follows is given."""
    wanted = trained.tokenizer.encode(f" {target}" if request.needs_leading_space else target)
    found = _traced_text(request, Hypothesis(wanted, [], True, 0.0), "given", trained.tokenizer.end)
    _check_length(len(found.target), trained.max_len)
    return found


def _labels(trained: TextModel, text: str, target: str | None) -> list[int]:
    """For the loss of an encoder: the class, or a token for each blank."""
    if target is None:
        return []
    if trained.classes:
        if target not in trained.classes:
            raise unknown_name("class", target, trained.classes)
        return [trained.classes.index(target)]
    before, words = text.split(BLANK)[:-1], target.split()
    spaces = has_leading_space_tokens(trained.tokenizer)
    both = zip(before, words, strict=False)
    found = [trained.tokenizer.encode(f" {w}" if spaces and b[-1:] == " " else w) for b, w in both]
    if not before or len(before) != len(words) or any(len(tokens) != 1 for tokens in found):
        blanks = f"for each {BLANK} of the text, which has {len(before)}"
        raise UserError(f"the target {target!r:.80} must have one word of one token {blanks}")
    return [token for (token,) in found]


def request_of(trained: TextModel, text: str, config: DecodeConfig, tag: str) -> Request:
    """The request that `translate`, `chat` or `write` would make for this text."""
    tokenizer = trained.tokenizer
    if trained.kind == "texts":
        trained.refuse_tag(tag)
        prompt, spaced = encode_prompt(trained, text)
        _check_length(len(prompt) + 1, trained.max_len)  # one more is generated
        most = config.max_tokens or DEFAULT_MAX_TOKENS
        limit = max(1, min(most, trained.max_len - len(prompt)))
        return Request(prompt, limit, seed=config.seed, needs_leading_space=spaced)
    if not text.strip():
        raise UserError("there is nothing to explain in an empty text: give a sentence")
    source = [*trained.tag(tag), *tokenizer.encode(text)]
    # A language model also reads a start and a separator, and generates at least one more.
    added = 1 if trained.family == "encoder-decoder" else 3
    _check_length(len(source) + added, trained.max_len)
    return request_for(trained, source, config)


def _check_length(count: int, longest: int) -> None:
    if count > longest:
        there = f"the text comes to {count} tokens"
        raise TooLongError(f"{there}, and the model has room for {longest}: shorten it")


def _generate(
    trained: TextModel, model: StepModel, request: Request, config: DecodeConfig
) -> Generator[None, None, TracedText]:
    tokenizer = trained.tokenizer
    if not config.temperature and config.beam > 1 and trained.kind != "texts":
        search = BeamSearch(model, [request], config, tokenizer, keep_trees=True)
        while search.step():
            yield
        (best,) = search.best_of(0)
        return replace(_traced_text(request, best, "beam", tokenizer.end), tree=search.trees[0])
    events: list[TokenEvent] = []
    most = config.max_tokens or _DEFAULT_TOKENS if trained.kind == "texts" else 0
    batch = GenerationBatch(model, [request], replace(config, beam=1, beam_groups=1), tokenizer)
    while batch.active:
        events += batch.step()
        if len(events) == most:
            batch.stop(0)
        yield
    found = finalize([e.token for e in events], [e.logprob for e in events], tokenizer.end)
    return _traced_text(request, found, "drawn" if config.temperature else "greedy", tokenizer.end)


def _traced_text(request: Request, found: Hypothesis, mode: _Mode, end: int) -> TracedText:
    tokens = [*request.prompt, *found.tokens, *([end] if found.ended else [])]
    text = TracedText(request.source, tokens[:-1], tokens[1:], len(request.prompt) - 1, mode)
    spaced = request.needs_leading_space
    text = replace(text, seed=request.seed, limit=request.limit, needs_leading_space=spaced)
    return replace(text, logprobs=found.logprobs, ended=found.ended)


def _is_damaged(trained: TextModel, request: Request) -> bool:
    """Whether a weight of the model, or a logit for this request, is NaN or infinite."""
    if not all(torch.isfinite(weight).all() for weight in trained.model.parameters()):
        return True
    with torch.inference_mode():
        inputs = TracedText(request.source, request.prompt).inputs(trained.device)
        logits = trained.model(*inputs)
    return not bool(torch.isfinite(logits).all())
