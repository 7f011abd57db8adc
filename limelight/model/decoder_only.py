"""GPT: the decoder alone, with nothing to look at but what it has written itself."""

import math

import torch
from torch import Tensor, nn

from limelight.model.attention import attention_mask
from limelight.model.config import ModelConfig
from limelight.model.kv_cache import KVCache
from limelight.model.positions import positions_of
from limelight.model.stack import Classifier, Embedding, Stack, initialise, last_real


class DecoderOnly(nn.Module):
    """Tokens in, logits for every next token out."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.target = Embedding(config, config.vocab)
        self.decoder = Stack(config)
        self.classifier = Classifier(config.vocab, config.d_model, bias=False)
        self.initialise()

    def initialise(self) -> None:
        """As in GPT-2's paper: 0.02, and less where 2N sub-layers add onto one running sum.

        OpenAI's code has 0.01 for the positions; that difference has not mattered to anybody.
        """

        def draw(name: str, matrix: Tensor) -> Tensor:
            adds = name.endswith(("attention.output.weight", "feed_forward.outer.weight"))
            sums = 2 * self.config.layers if adds else 1
            return nn.init.normal_(matrix, std=0.02 / math.sqrt(sums))

        self.tie()
        initialise(self, draw)

    def tie(self) -> None:
        if self.config.tying == "all":
            self.classifier.weight = self.target.tokens.weight

    def decode(self, tokens: Tensor, real: Tensor | None = None) -> Tensor:
        """States, B T D: row t has read the tokens up to t.

        `real` (B T) is False at padding; the causal mask hides padding on the right without it.
        """
        positions = positions_of(tokens, real)
        causal = self.config.mask or not self.training  # nobody can read what is not yet written
        mask = None if real is None else attention_mask(real, causal)
        x = self.target(tokens, positions)
        return self.decoder(x, positions, mask, causal and mask is None)

    def forward(self, tokens: Tensor, real: Tensor | None = None) -> Tensor:
        """Logits, B T V: row t is for the token that follows tokens[:, t]."""
        return self.classifier(self.decode(tokens, real))

    def start(self, rows: int, max_len: int | None = None) -> KVCache:
        table = self.target.tokens.weight
        return KVCache(self.config, rows, max_len or self.config.max_len, like=table)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: KVCache, real: Tensor | None = None) -> Tensor:
        """Read the next tokens (B T, padded on the right); logits of the one that follows, B V."""
        state.begin(tokens.size(1))
        states = self.decoder.step(self.target(tokens, state.positions), state)
        return self.classifier(last_real(states, state.commit(real)))
