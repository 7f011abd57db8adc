"""BERT: the encoder alone, which sees both ways, with a head for each thing people ask of it."""

import torch
from torch import Tensor, nn

from limelight.model.attention import Mask, attention_mask
from limelight.model.config import ModelConfig
from limelight.model.layers import ACTIVATIONS, make_norm
from limelight.model.positions import positions_of
from limelight.model.stack import Classifier, Embedding, Stack, initialise


class MaskedLMHead(nn.Module):
    """Which token was here? One more layer, then logits for the vocabulary."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activate = ACTIVATIONS[config.activation]
        self.inner = nn.Linear(config.d_model, config.d_model)
        self.norm = make_norm(config)
        self.classifier = Classifier(config.vocab, config.d_model, bias=True)

    def prepare(self, states: Tensor) -> Tensor:
        return self.norm(self.activate(self.inner(states)))

    def forward(self, states: Tensor) -> Tensor:
        return self.classifier(self.prepare(states))


class ClassificationHead(nn.Module):
    """What is this text, or this pair? Decided from the first token's state alone."""

    def __init__(self, config: ModelConfig, classes: int) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.d_model, classes)

    def forward(self, first: Tensor) -> Tensor:
        return self.classifier(self.dropout(torch.tanh(self.inner(first))))


class EncoderOnly(nn.Module):
    """Tokens in, a state for every token out, and the head that the model is trained for.

    A pre-trained model fills in masked tokens, and with `sentence_pairs` decides whether two
    sentences belong together. With `classes` it is a classifier of texts; without any head it
    gives its states, to embed texts.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        # The segments are the two sentences of a pair.
        self.source = Embedding(config, config.vocab, segments=2, norm=True)
        self.encoder = Stack(config)
        if config.classes:
            self.text_head = ClassificationHead(config, config.classes)
        elif config.masked_head:
            self.masked_head = MaskedLMHead(config)
        if config.sentence_pairs:
            self.pair_head = ClassificationHead(config, 2)
        self.initialise()

    def initialise(self) -> None:
        """As in BERT: a normal distribution of 0.02, cut at two deviations; zero for biases."""
        self.tie()
        initialise(self, lambda _, matrix: nn.init.trunc_normal_(matrix, 0, 0.02, -0.04, 0.04))

    def tie(self) -> None:
        fills = self.config.masked_head and not self.config.classes
        if self.config.tying == "all" and fills:
            self.masked_head.classifier.weight = self.source.tokens.weight

    def encode(self, tokens: Tensor, segments: Tensor | None = None, real: Mask = None) -> Tensor:
        """States, B S D. `segments` is 1 in the second sentence; `real` is False at padding."""
        positions = positions_of(tokens, real)
        mask = None if real is None else attention_mask(real)
        return self.encoder(self.source(tokens, positions, segments), positions, mask)

    def forward(self, tokens: Tensor, segments: Tensor | None = None, real: Mask = None) -> Tensor:
        """Logits: B classes for a classifier, else B S V for the token at each position."""
        states = self.encode(tokens, segments, real)
        if self.config.classes:
            return self.classify(states, real)
        return self.masked_head(states) if self.config.masked_head else states

    def classify(self, states: Tensor, real: Mask = None) -> Tensor:
        return self.text_head(_first_real(states, real))

    def next_sentence(self, states: Tensor, real: Mask = None) -> Tensor:
        """Logits for "the second sentence follows the first" and "it does not", B 2."""
        return self.pair_head(_first_real(states, real))

    def pool(self, states: Tensor, real: Mask = None) -> Tensor:
        """One vector for the text, B D: the mean of its real tokens."""
        if real is None:
            return states.mean(dim=1)
        kept = states.masked_fill(~real[..., None], 0)
        return kept.sum(dim=1) / real.sum(dim=1, keepdim=True).clamp(min=1)


def _first_real(states: Tensor, real: Mask) -> Tensor:
    rows = torch.arange(states.size(0), device=states.device)
    return states[:, 0] if real is None else states[rows, real.int().argmax(dim=1)]
