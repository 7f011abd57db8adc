"""The paper's model (Figure 1): an encoder reads the source, a decoder writes the target."""

import torch
from torch import Tensor, nn

from limelight.model.attention import Mask, attention_mask
from limelight.model.config import ModelConfig
from limelight.model.kv_cache import KVCache
from limelight.model.positions import positions_of
from limelight.model.stack import Classifier, Embedding, Stack, initialise, last_real


class EncoderDecoder(nn.Module):
    """Source and target tokens in, logits for every next target token out.

    `source_real` and `target_real` (B S, B T) are False at padding. They may be left out when there
    is none; so may `target_real` for padding on the right, which the look-ahead mask hides anyway.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.source = Embedding(config, config.num_source_tokens)
        self.target = Embedding(config, config.vocab)
        self.encoder = Stack(config)
        self.decoder = Stack(config, cross=True)
        # The paper is silent on a bias here; Marian's published translators have one.
        self.classifier = Classifier(config.vocab, config.d_model, bias=True)
        self.initialise()

    def initialise(self) -> None:
        """As in the paper's code: Glorot for matrices, d_model^-0.5 for tables, zero for biases.

        The table of tokens is small because sqrt(d_model) multiplies it when it is read.
        """

        def draw(name: str, matrix: Tensor) -> Tensor:
            if name.endswith(("tokens.weight", "positions.weight", "classifier.weight")):
                return nn.init.normal_(matrix, std=self.config.d_model**-0.5)
            return nn.init.xavier_uniform_(matrix)

        self.tie()
        initialise(self, draw)

    def tie(self) -> None:
        """One table for both embeddings and the classifier (section 3.4), or for the last two.

        Moving off the meta device and loading with assign=True untie them: tie again.
        """
        if self.config.tying != "none":
            self.classifier.weight = self.target.tokens.weight
        if self.config.tying == "all":
            self.source.tokens.weight = self.target.tokens.weight

    def encode(self, source: Tensor, source_real: Mask = None) -> Tensor:
        """The memory, B S D: one vector per source token, not one for the sentence."""
        positions = positions_of(source, source_real)
        mask = None if source_real is None else attention_mask(source_real)
        return self.encoder(self.source(source, positions), positions, mask)

    def decode(
        self, target: Tensor, memory: Tensor, source_real: Mask = None, target_real: Mask = None
    ) -> Tensor:
        """States, B T D: row t has read the target up to t, and all of the memory."""
        positions = positions_of(target, target_real)
        causal = self.config.mask or not self.training  # nobody can read what is not yet written
        mask = None if target_real is None else attention_mask(target_real, causal)
        memory_mask = None if source_real is None else attention_mask(source_real)
        x = self.target(target, positions)
        return self.decoder(x, positions, mask, causal and mask is None, memory, memory_mask)

    def forward(
        self, source: Tensor, target: Tensor, source_real: Mask = None, target_real: Mask = None
    ) -> Tensor:
        """Logits, B T V: row t is for the token that follows target[:, t]."""
        memory = self.encode(source, source_real)
        return self.classifier(self.decode(target, memory, source_real, target_real))

    @torch.no_grad()
    def start(
        self, source: Tensor, source_real: Mask = None, max_len: int | None = None
    ) -> KVCache:
        """The state for `step`: the source is read once, its keys and values are kept."""
        memory = self.encode(source, source_real)
        cache = KVCache(self.config, source.size(0), max_len or self.config.max_len, like=memory)
        cache.memory = self.decoder.keys_values(memory)
        cache.memory_mask = None if source_real is None else attention_mask(source_real)
        return cache

    @torch.no_grad()
    def step(self, tokens: Tensor, state: KVCache, real: Mask = None) -> Tensor:
        """Read the next tokens (B T, padded on the right); logits of the one that follows, B V."""
        state.begin(tokens.size(1))
        states = self.decoder.step(self.target(tokens, state.positions), state)
        return self.classifier(last_real(states, state.commit(real)))
