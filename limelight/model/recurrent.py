"""What the paper replaced: networks that read one token after another and carry a state along.

They are here to be compared with. They speak the same language as the Transformers (`encode`,
`decode`, `start`, `step`, `select`), so that training, decoding and evaluation need not know.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from limelight.model.attention import Mask, attention_mask
from limelight.model.config import RecurrentConfig
from limelight.model.kv_cache import padded, with_rows
from limelight.model.stack import Classifier, initialise, last_real

_CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
_Hidden = tuple[Tensor, ...]  # what a cell carries along, each N B D: (h,), or (h, c) for an LSTM


class _EncoderOutput(NamedTuple):
    states: Tensor  # B S D: after each token
    hidden: _Hidden  # after the last


@dataclass
class RecurrentState:
    """The state of a recurrent decoder: a few vectors per row, however much it has read."""

    hidden: _Hidden
    memory: Tensor | None = None  # B S D
    keys: Tensor | None = None  # B S D: the memory as additive attention compares it, computed once
    mask: Tensor | None = None  # B 1 S

    def select(self, rows: Tensor) -> None:
        self.hidden = tuple(h[:, rows] for h in self.hidden)
        for name in ("memory", "keys", "mask"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value[rows])

    def insert_rows(self, other: "RecurrentState", indices: Tensor) -> None:
        more = max(0, max(indices.tolist(), default=-1) + 1 - self.hidden[0].size(1))
        hidden = tuple(padded(h, 1, more) for h in self.hidden)
        for mine, new in zip(hidden, other.hidden, strict=True):
            mine[:, indices] = new
        self.hidden = hidden
        if self.memory is None or other.memory is None:
            return
        length = max(self.memory.size(1), other.memory.size(1))
        mask = with_rows(self.seen(), other.seen(), indices, more, length)
        self.mask = None if mask.all() else mask.mT
        for name in ("memory", "keys"):
            old, new = getattr(self, name), getattr(other, name)
            setattr(self, name, with_rows(old, new, indices, more, length))

    def seen(self) -> Tensor:
        if self.mask is not None:
            return self.mask.mT
        return torch.ones_like(cast(Tensor, self.memory)[..., :1], dtype=torch.bool)


class RecurrentStack(nn.Module):
    """Layers of recurrent cells over a padded batch; padding leaves no trace in the state."""

    def __init__(self, config: RecurrentConfig, both_ways: bool = False) -> None:
        super().__init__()
        self.cell = _CELLS[config.cell](
            config.d_model,
            config.d_model // 2 if both_ways else config.d_model,
            num_layers=config.layers,
            dropout=config.dropout if config.layers > 1 else 0.0,
            batch_first=True,
            bidirectional=both_ways,
        )

    def forward(
        self, x: Tensor, hidden: _Hidden | None = None, real: Mask = None
    ) -> tuple[Tensor, _Hidden]:
        """The state after each token, B T D, and what is carried on after each row's last."""
        carried = hidden[0] if hidden is not None and len(hidden) == 1 else hidden
        if real is None:
            states, carried = self.cell(x, carried)
        else:
            states, carried = self.read_padded(x, carried, real)
        carried = carried if isinstance(carried, tuple) else (carried,)
        if real is not None:  # a row with nothing real in it stays where it was
            before = hidden or tuple(torch.zeros_like(h) for h in carried)
            some = real.any(dim=1)[:, None]
            both = zip(carried, before, strict=True)
            carried = tuple(torch.where(some, new, old) for new, old in both)
        if self.cell.bidirectional:  # 2N B D/2 -> N B D: both states of a layer side by side
            carried = tuple(torch.cat([h[0::2], h[1::2]], dim=-1) for h in carried)
        return states, carried

    def read_padded(self, x: Tensor, carried: Any, real: Tensor) -> tuple[Tensor, Any]:
        """Bring the real tokens to the front, let torch pack them, and put the states back."""
        front = real.int().argsort(dim=1, descending=True, stable=True)
        lengths = real.sum(dim=1).clamp(min=1).cpu()
        x = x.gather(1, front[..., None].expand_as(x))
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        packed_states, carried = self.cell(packed, carried)
        states, _ = pad_packed_sequence(packed_states, True, total_length=x.size(1))
        return states.gather(1, front.argsort(dim=1)[..., None].expand_as(states)), carried

    def initialise(self) -> None:
        """As torch does it, but an LSTM begins by remembering: its forget gates start at bias 1."""
        self.cell.reset_parameters()
        if isinstance(self.cell, nn.LSTM):
            size = self.cell.hidden_size
            for name, bias in self.cell.named_parameters():
                if name.startswith("bias"):
                    nn.init.constant_(bias[size : 2 * size], 1.0 if "_ih_" in name else 0.0)


class AdditiveAttention(nn.Module):
    """Bahdanau's score, v . tanh(W q + U k), where the Transformer has q . k.

    Like Luong's it is placed behind the recurrence rather than inside it, so that training can read
    all target tokens in one call of the cell.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.score = nn.Linear(d_model, 1, bias=False)
        self.softmax = nn.Softmax(dim=-1)
        self.output = nn.Linear(2 * d_model, d_model)

    def forward(self, x: Tensor, memory: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        compared = torch.tanh(self.query(x)[:, :, None] + keys[:, None])  # B T S D
        scores = self.score(compared).squeeze(-1)  # B T S
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        mixed = self.softmax(scores) @ memory  # B T D
        return torch.tanh(self.output(torch.cat([x, mixed], dim=-1)))


class RecurrentEncoderDecoder(nn.Module):
    """Sequence to sequence: an encoder reads both ways, a decoder starts from its last state.

    Without attention that state is all the decoder ever knows of the source, however long it was.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.source = nn.Embedding(config.vocab, config.d_model)
        self.target = nn.Embedding(config.vocab, config.d_model)
        self.encoder = RecurrentStack(config, both_ways=True)
        self.decoder = RecurrentStack(config)
        self.attention = AdditiveAttention(config.d_model) if config.attention else None
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = Classifier(config.vocab, config.d_model, bias=True)
        self.initialise()

    def initialise(self) -> None:
        """Outside the cells as in the Transformer, so that a comparison compares something else."""
        self.tie()
        initialise(self, _draw)
        self.encoder.initialise()
        self.decoder.initialise()

    def tie(self) -> None:
        if self.config.tied:
            self.source.weight = self.classifier.weight = self.target.weight

    def encode(self, source: Tensor, source_real: Mask = None) -> _EncoderOutput:
        x = _embed(self.source, source, self.dropout)
        return _EncoderOutput(*self.encoder(x, None, source_real))

    def decode(
        self,
        target: Tensor,
        memory: _EncoderOutput,
        source_real: Mask = None,
        target_real: Mask = None,
    ) -> Tensor:
        return self.read(target, self.remember(memory, source_real), target_real)

    def forward(
        self, source: Tensor, target: Tensor, source_real: Mask = None, target_real: Mask = None
    ) -> Tensor:
        memory = self.encode(source, source_real)
        return self.classifier(self.decode(target, memory, source_real, target_real))

    @torch.no_grad()
    def start(
        self, source: Tensor, source_real: Mask = None, max_len: int | None = None
    ) -> RecurrentState:
        """The state for `step`; it does not grow, so `max_len` changes nothing."""
        return self.remember(self.encode(source, source_real), source_real)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: RecurrentState, real: Mask = None) -> Tensor:
        count = _count_real(tokens, real)
        return self.classifier(last_real(self.read(tokens, state, real), count))

    def remember(self, memory: _EncoderOutput, source_real: Mask) -> RecurrentState:
        """The decoder's first state: the encoder's last one, and with attention all the others."""
        if self.attention is None:
            return RecurrentState(memory.hidden)
        mask = None if source_real is None else attention_mask(source_real)[:, 0]
        keys = self.attention.key(memory.states)
        return RecurrentState(memory.hidden, memory.states, keys, mask)

    def read(self, tokens: Tensor, state: RecurrentState, real: Mask) -> Tensor:
        """Read the tokens and advance the state; B T D."""
        x = _embed(self.target, tokens, self.dropout)
        x, state.hidden = self.decoder(x, state.hidden, real)
        if self.attention is not None:
            x = self.attention(x, state.memory, state.keys, state.mask)
        return self.dropout(x)


class RecurrentDecoderOnly(nn.Module):
    """A recurrent language model: tokens in, a score for every next token out."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.target = nn.Embedding(config.vocab, config.d_model)
        self.decoder = RecurrentStack(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = Classifier(config.vocab, config.d_model, bias=True)
        self.initialise()

    def initialise(self) -> None:
        self.tie()
        initialise(self, _draw)
        self.decoder.initialise()

    def tie(self) -> None:
        if self.config.tied:
            self.classifier.weight = self.target.weight

    def decode(self, tokens: Tensor, real: Mask = None) -> Tensor:
        states, _ = self.decoder(_embed(self.target, tokens, self.dropout), None, real)
        return self.dropout(states)

    def forward(self, tokens: Tensor, real: Mask = None) -> Tensor:
        return self.classifier(self.decode(tokens, real))

    def start(self, rows: int, max_len: int | None = None) -> RecurrentState:
        nothing = self.target.weight.new_zeros(self.config.layers, rows, self.config.d_model)
        return RecurrentState((nothing, nothing) if self.config.cell == "lstm" else (nothing,))

    @torch.no_grad()
    def step(self, tokens: Tensor, state: RecurrentState, real: Mask = None) -> Tensor:
        x = _embed(self.target, tokens, self.dropout)
        states, state.hidden = self.decoder(x, state.hidden, real)
        return self.classifier(self.dropout(last_real(states, _count_real(tokens, real))))


def _embed(table: nn.Embedding, tokens: Tensor, dropout: nn.Module) -> Tensor:
    """B T -> B T D, scaled by sqrt(d_model) as in the Transformer."""
    return dropout(table(tokens) * math.sqrt(table.embedding_dim))


def _count_real(tokens: Tensor, real: Mask) -> Tensor:
    return (torch.ones_like(tokens) if real is None else real).sum(dim=1)


def _draw(name: str, matrix: Tensor) -> Tensor:
    """d_model^-0.5 for the tables, because sqrt(d_model) multiplies them when they are read."""
    if name in ("source.weight", "target.weight", "classifier.weight"):
        return nn.init.normal_(matrix, std=matrix.size(1) ** -0.5)
    return nn.init.xavier_uniform_(matrix)
