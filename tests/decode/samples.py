"""Tiny models with random weights, and a tokenizer of single letters for them."""

import random
from itertools import groupby, product

import torch

from limelight.data.tokenizer import Tokenizer
from limelight.decode.accel.cuda.device_beam import DeviceBeamSearch
from limelight.decode.beam import BeamSearch
from limelight.decode.request import Request
from limelight.model import build, model_config

PAD, START, END = 0, 1, 2
FAMILIES = (
    "encoder-decoder",
    "decoder-only",
    "recurrent-encoder-decoder",
    "recurrent-decoder-only",
)


class Letters:
    """As much of a tokenizer as search needs: tokens 0 to 2 are special, 3 is a, 4 is b, ..."""

    pad, start, end, first_text_id = PAD, START, END, 3
    special_ids, ends = frozenset((PAD, START, END)), frozenset((END,))

    def __init__(self, vocab):
        self.vocab = vocab

    def __len__(self):
        return self.vocab

    def is_text(self, i):
        return i >= 3

    @property
    def text_ids(self):
        return [*range(3, self.vocab)]

    def token_bytes(self, i):
        return bytes([ord("a") + i - 3]) if i >= 3 else b""

    def decode(self, ids):
        return b"".join(map(self.token_bytes, ids)).decode()

    def encode(self, text):
        return [ord(letter) - ord("a") + 3 for letter in text if letter != " "]


def tiny(family, seed, vocab=4, d_model=8, sharp=3.0, dtype=torch.float64, **settings):
    """A model that is sure enough of itself for its choices to differ from chance."""
    torch.manual_seed(seed)
    if not family.startswith("recurrent"):
        settings = {"heads": 2, "d_ff": 16, **settings}
    config = model_config(
        family=family, vocab=vocab, layers=1, d_model=d_model, dropout=0.0, max_len=64, **settings
    )
    model = build(config).to(dtype).eval()
    with torch.no_grad():
        model.classifier.weight.mul_(sharp)
    return model


def beam_search(model, requests, config, tokenizer, nbest=1):
    """For each request the best texts that were found, the best first."""
    return BeamSearch(model, requests, config, tokenizer, nbest).run()


class Ranking:
    """A model that chooses tokens and searches beams itself, as one on a GPU does."""

    def __init__(self, model):
        self.model, self.config = model, model.config
        self.start, self.step, self.parameters = model.start, model.step, model.parameters

    def step_greedy(self, tokens, state, most=1):
        best = self.model.step(tokens[:, None], state).log_softmax(dim=-1).max(dim=1)
        return torch.stack([best.indices.to(best.values.dtype), best.values])[None], best.indices

    def step_beams(self, beams, state):
        logprobs = self.model.step(beams.newest.view(-1, 1), state).log_softmax(dim=-1)
        state.select(beams.extend(*logprobs.topk(min(8, logprobs.size(1)), dim=1)))
        return beams

    def new_beam_search(self, requests, config, tokenizer, nbest):
        return DeviceBeamSearch(self, requests, config, tokenizer, nbest)


def requests_for(model, count, limit, seed=0, **settings):
    """Random sources and prompts of different lengths."""
    dice = random.Random(seed)
    vocab = model.config.vocab

    def text(longest):
        return [dice.randrange(3, vocab) for _ in range(dice.randint(1, longest))]

    two_sided = "encoder" in model.config.family
    return [
        Request(
            prompt=[START] if two_sided else [START, *text(5)],
            limit=limit,
            source=[*text(6), END] if two_sided else (),
            seed=seed * 1000 + i,
            **settings,
        )
        for i in range(count)
    ]


@torch.no_grad()
def logprobs_of(model, request, tokens):
    """The log-probability of each of these tokens, in one pass and without any cache."""
    read = torch.tensor([[*request.prompt, *tokens]])
    given = (torch.tensor([request.source]), read) if request.source else (read,)
    scores = model(*given).log_softmax(dim=-1)[0]
    begun = len(request.prompt)
    return [scores[begun + i - 1, token].item() for i, token in enumerate(tokens)]


def total_logprobs(model, request, texts):
    """The log-probability of each of these texts, by text; those of one length in one pass."""
    found, begun = {}, len(request.prompt)
    for _, same in groupby(sorted(texts, key=len), key=len):
        some = list(same)
        read = torch.tensor([[*request.prompt, *text] for text in some])
        given = (torch.tensor([request.source] * len(some)), read) if request.source else (read,)
        scores = model(*given).log_softmax(dim=-1)[:, begun - 1 : -1]
        totals = scores.gather(2, read[:, begun:, None]).sum(dim=(1, 2))
        found |= dict(zip(some, totals.tolist(), strict=True))
    return found


def all_texts(vocab, limit):
    """Every text there is: those that end, and those that are cut at the limit."""
    others = [token for token in range(vocab) if token != END]
    for length in range(limit):
        for text in product(others, repeat=length):
            yield (*text, END)
    yield from product(others, repeat=limit)


def learned_tokenizer():
    words = ["the cat sat on the mat", "a dog ran", "der Hund läuft über die Straße 🍌"]
    return Tokenizer.train("bpe", words * 3, 300)
