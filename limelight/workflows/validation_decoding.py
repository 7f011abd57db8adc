"""What a model generates during training: a few samples, and scores of its output."""

from dataclasses import replace
from itertools import zip_longest

from torch import nn

from limelight.data.config import tags_of
from limelight.data.corpora import corpora_for_split, read_split
from limelight.data.datasets import Rows
from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.decode.generate import write
from limelight.evaluate.bleu import score_translations
from limelight.tasks.text_model import TextModel
from limelight.tasks.translate import request_for, translate
from limelight.tasks.write import write as continue_text
from limelight.workflows.datasets import TokenizedData

_BATCH = 100  # sources decoded at a time
_PROMPT, _CONTINUED = 16, 64  # tokens of a text that is continued, and of what is written


def sample(tokenized: TokenizedData, rows: Rows, model: nn.Module) -> list[str]:
    """These validation sources, which fit the model, with its output."""
    tokenizer, column = tokenized.tokenizer, tokenized.stores["valid"].columns[0]
    sources = [column[i].tolist() for i in rows]
    limit = min(tokenized.recipe.model.max_len - 1, 2 * max(map(len, sources)) + 10)
    outputs = _greedy_decode(model, tokenizer, sources, limit)
    return [
        " -> ".join(_shorten(tokenizer.decode(tokens)) for tokens in (source, output))
        for source, output in zip(sources, outputs, strict=True)
    ]


def sample_text(tokenized: TokenizedData, model: nn.Module) -> list[str]:
    """The beginning of the validation text, and how the model goes on."""
    tokenizer, recipe = tokenized.tokenizer, tokenized.recipe
    begin = tokenizer.decode(tokenized.stores["valid"].columns[0][0][:_PROMPT].tolist())
    config = replace(recipe.decode, max_tokens=_CONTINUED, engine="auto")
    trained = TextModel(model, tokenizer, config, "texts")
    return [f"{_shorten(begin)} -> {_shorten(''.join(continue_text(trained, begin)))}"]


def _shorten(text: str) -> str:
    return repr(text) if len(text) <= 100 else f"{text[:100]!r}..."


def _greedy_decode(
    model: nn.Module, tokenizer: Tokenizer, sources: list[list[int]], limit: int
) -> list[list[int]]:
    trained = TextModel(model, tokenizer)
    config = DecodeConfig(beam=1, max_tokens=limit, max_extra_tokens=limit)
    requests = [request_for(trained, source, config) for source in sources]
    return [text.tokens for text in write(trained.model, requests, config, tokenizer)]


def exact_match(
    tokenized: TokenizedData, split: str, rows: Rows, model: nn.Module
) -> dict[str, float]:
    """The share of these sources whose output is right in every token."""
    correct, longest = 0, tokenized.recipe.model.max_len
    for begin in range(0, len(rows), _BATCH):
        part = rows[begin : begin + _BATCH]
        columns = tokenized.stores[split].columns
        sources, targets = ([column[i].tolist() for i in part] for column in columns)
        limit = min(longest - 1, 2 * max(map(len, targets)))
        outputs = _greedy_decode(model, tokenized.tokenizer, sources, limit)
        correct += sum(a == b for a, b in zip(outputs, targets, strict=True))
    return {"exact": correct / len(rows)}


def validation_bleu(tokenized: TokenizedData, model: nn.Module) -> dict[str, float]:
    """BLEU and chrF of the validation sources, decoded greedily."""
    data, outputs, examples = tokenized.data, list[str](), list[tuple[str, ...]]()
    greedy = replace(tokenized.recipe.decode, beam=1, beam_groups=1, engine="auto")
    for part in corpora_for_split(data, "valid"):
        read = list(read_split(part, "valid"))
        trained = TextModel(
            *(model, tokenized.tokenizer, greedy, data.kind),
            tags=tags_of(part),
            answer_share=tokenized.answer_share,
        )
        outputs += [done.text for done in translate(trained, [source for source, *_ in read])]
        examples += read
    _, *references = zip_longest(*examples, fillvalue="")
    scores = score_translations(outputs, references)
    return {score.name.lower(): score.score for score in scores if score.better == "higher"}
