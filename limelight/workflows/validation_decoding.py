"""What a model answers while it learns: a few samples for people, and how many are right."""

from dataclasses import replace

from torch import nn

from limelight.data.config import DataConfig, tags_of
from limelight.data.corpora import corpora_for_split, read_split
from limelight.data.datasets import Rows
from limelight.data.readers import LineStats
from limelight.data.token_store import TokenStore
from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.decode.generate import write
from limelight.evaluate.bleu import score_translations
from limelight.recipe import Recipe
from limelight.tasks.text_model import TextModel
from limelight.tasks.translate import request_for, translate

_ANSWERED_AT_ONCE = 100  # sources, to know how many come out right


def sample(tokenizer: Tokenizer, store: TokenStore, longest: int, model: nn.Module) -> list[str]:
    """What the model makes of the first few validation sources."""
    rows = range(min(3, len(store)))
    room = longest // 2 - 1  # a language model writes its answer behind the source
    sources = [store.columns[0][i].tolist()[:room] for i in rows]
    limit = min(longest - 1, 2 * max(map(len, sources)) + 10)
    written = _greedy_decode(model, tokenizer, sources, limit)
    shown = [
        (tokenizer.decode(s), tokenizer.decode(w)) for s, w in zip(sources, written, strict=True)
    ]
    return [f"{source!r:.100} -> {answered!r:.100}" for source, answered in shown]


def _greedy_decode(
    model: nn.Module, tokenizer: Tokenizer, sources: list[list[int]], limit: int
) -> list[list[int]]:
    """What a model answers to each source, the likeliest token at every step."""
    trained = TextModel(model, tokenizer)
    config = DecodeConfig(beam=1, max_tokens=limit, max_extra_tokens=limit)
    requests = [request_for(trained, source, config) for source in sources]
    return [text.tokens for text in write(trained.model, requests, config, tokenizer)]


def exact_match(
    tokenizer: Tokenizer, store: TokenStore, rows: Rows, longest: int, model: nn.Module
) -> dict[str, float]:
    """The share of these sources whose answer is right in every token."""
    right = 0
    for begin in range(0, len(rows), _ANSWERED_AT_ONCE):
        part = rows[begin : begin + _ANSWERED_AT_ONCE]
        sources, targets = ([column[i].tolist() for i in part] for column in store.columns)
        limit = min(longest - 1, 2 * max(map(len, targets)))
        written = _greedy_decode(model, tokenizer, sources, limit)
        right += sum(a == b for a, b in zip(written, targets, strict=True))
    return {"exact": right / len(rows)}


def validation_bleu(
    recipe: Recipe, data: DataConfig, tokenizer: Tokenizer, model: nn.Module
) -> dict[str, float]:
    """BLEU and chrF of what the model makes of the validation sources, a token at a time."""
    outputs: list[str] = []
    references: list[str] = []
    for part in corpora_for_split(data, "valid"):
        sources, targets = zip(*read_split(part, "valid", LineStats()), strict=True)
        quick = replace(recipe.decode, beam=1, beam_groups=1)
        trained = TextModel(model, tokenizer, quick, data.kind, tags=tags_of(part))
        outputs += [done.text for done in translate(trained, sources)]
        references += targets
    scores = score_translations(outputs, references)
    return {score.name.lower(): score.score for score in scores if score.better == "higher"}
