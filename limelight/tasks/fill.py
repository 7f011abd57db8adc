"""Fill in the blanks: what could stand here, given all that stands around it?"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from limelight.data.tokenizer import valid_unicode
from limelight.decode.constraints import has_leading_space_tokens
from limelight.errors import UserError, check_count
from limelight.tasks.text_model import TextModel, in_batches

BLANK = "___"
HIDDEN = 0.15  # of all tokens, to see how well blanks are filled in


@dataclass(frozen=True)
class FillCandidate:
    """A token for a blank."""

    text: str
    probability: float


@dataclass(frozen=True)
class FilledText:
    """A text with its blanks filled in, and for each blank what could stand there."""

    text: str
    blanks: tuple[tuple[FillCandidate, ...], ...]


def fill(trained: TextModel, text: str, count: int = 5) -> FilledText:
    """The text with the most likely token in each blank; blanks are filled independently."""
    trained.require("fill")
    check_count("count", count, 1000)
    text = valid_unicode(text)
    tokens = mask_blanks(trained, text)
    masked = [i for i, token in enumerate(tokens) if token == trained.tokenizer.mask]
    if not masked:
        raise UserError(f"there is no blank in the text: write {BLANK} where a word is missing")
    if len(tokens) > trained.max_len:
        raise UserError(
            f"the text has {len(tokens)} tokens, and the model reads {trained.max_len}: shorten it"
        )
    with torch.inference_mode():
        scores = trained.model(torch.tensor([tokens], device=trained.device))[0, masked]
        text_ids = torch.tensor(trained.tokenizer.text_ids, device=scores.device)
        words = scores[:, text_ids]  # no blank is a special token
        probabilities, best = words.softmax(dim=-1).topk(min(count, words.size(-1)), dim=-1)
        found = text_ids[best]
    for i, token in zip(masked, found[:, 0].tolist(), strict=True):
        tokens[i] = token
    blanks = tuple(
        tuple(
            FillCandidate(piece.strip() or piece, probability)
            for piece, probability in zip(trained.tokenizer.pieces(row), its, strict=True)
        )
        for row, its in zip(found.tolist(), probabilities.tolist(), strict=True)
    )
    if trained.tokenizer.uncased:  # it did not read capitals and spaces, so they stay as given
        fillings = (candidates[0].text for candidates in blanks)
        return FilledText("".join(part + next(fillings, "") for part in text.split(BLANK)), blanks)
    return FilledText(trained.tokenizer.decode(tokens).strip(), blanks)


def mask_blanks(trained: TextModel, text: str) -> list[int]:
    """Tokens with a mask for each blank. The space before it belongs to the missing word."""
    tokenizer = trained.tokenizer
    *before, last = text.split(BLANK)
    if has_leading_space_tokens(tokenizer):
        before = [piece.rstrip(" ") for piece in before]
    tokens = [tokenizer.start]
    for piece in before:
        tokens += [*tokenizer.encode(piece), tokenizer.mask]
    return [*tokens, *tokenizer.encode(last), tokenizer.end]


def ranks_of_hidden(trained: TextModel, texts: Sequence[str], seed: int = 1) -> list[list[int]]:
    """Hide some tokens of every text: how many others the model finds more likely than each.

    0 is right. A text that is longer than the model reads is read in stretches.
    """
    trained.require("fill")
    tokenizer, draw = trained.tokenizer, torch.Generator().manual_seed(seed)
    stretches, owners, hidden = [], [], []
    length = trained.max_len - 1
    for owner, text in enumerate(texts):
        read = tokenizer.encode(text)
        for begin in range(0, len(read), length):
            stretch = read[begin : begin + length]
            stretches.append([tokenizer.start, *stretch])
            owners.append(owner)
            hidden.append((torch.rand(len(stretch), generator=draw) < HIDDEN).nonzero()[:, 0] + 1)
    found: list[list[int]] = [[] for _ in texts]
    for batch, tokens, real in in_batches(trained, stretches):
        for row, i in enumerate(batch):
            tokens[row, hidden[i].to(tokens.device)] = tokenizer.mask
        with torch.inference_mode():
            states = trained.model.encode(tokens, real=real)
            for row, i in enumerate(batch):
                scores = trained.model.masked_head(states[row, hidden[i].to(tokens.device)])
                right = torch.tensor(stretches[i])[hidden[i]].to(scores.device)
                ranks = (scores > scores.gather(1, right[:, None])).sum(dim=1)
                found[owners[i]] += ranks.tolist()
    return found
