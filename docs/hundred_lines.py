"""The Transformer of "Attention Is All You Need" in one file.

    .venv/bin/python docs/hundred_lines.py      trains it to write digits backwards in half a minute

The same weights give the same numbers here and in the package: a test holds it so. Shapes: B batch,
T target or query positions, S source or key positions, D d_model, H heads, K = D / H, V vocabulary.
"""

import math

import torch
from torch import nn


class Attention(nn.Module):
    """Equation 1, in H heads. Queries come from x, keys and values from x or from the encoder."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.value, self.output = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x, memory, mask):
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # B T D -> B H T K
            for y in (self.query(x), self.key(memory), self.value(memory))
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # B H T S
        weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)  # each row sums to 1
        return self.output((weights @ v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """D -> d_ff -> D, at every position alike."""

    def __init__(self, d_model, d_ff):
        super().__init__()
        self.inner, self.outer = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.outer(self.inner(x).relu())


class Residual(nn.Module):
    """Add & norm around a sub-layer."""

    def __init__(self, d_model, dropout):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(d_model), nn.Dropout(dropout)

    def forward(self, x, sublayer):
        return self.norm(x + self.dropout(sublayer(x)))


class Layer(nn.Module):
    """Figure 1: the left column, or with memory the right one."""

    def __init__(self, d_model, heads, d_ff, dropout, cross):
        super().__init__()
        self.self_attention = Attention(d_model, heads)
        self.self_residual = Residual(d_model, dropout)
        if cross:
            self.cross_attention = Attention(d_model, heads)
            self.cross_residual = Residual(d_model, dropout)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.feed_forward_residual = Residual(d_model, dropout)

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self.self_residual(x, lambda x: self.self_attention(x, x, mask))
        if memory is not None:
            x = self.cross_residual(x, lambda x: self.cross_attention(x, memory, memory_mask))
        return self.feed_forward_residual(x, self.feed_forward)


class Transformer(nn.Module):
    """Source and target tokens in, a score for every next target token out."""

    def __init__(self, vocab, layers=6, d_model=512, heads=8, d_ff=2048, dropout=0.1):
        super().__init__()
        sizes = (d_model, heads, d_ff, dropout)
        self.tokens = nn.Embedding(vocab, d_model)  # one table for source, target and classifier
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.ModuleList(Layer(*sizes, cross=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(*sizes, cross=True) for _ in range(layers))
        self.bias = nn.Parameter(torch.zeros(vocab))
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
        nn.init.normal_(self.tokens.weight, std=d_model**-0.5)

    def embed(self, tokens):
        d_model = self.tokens.embedding_dim
        place = torch.arange(tokens.size(1), dtype=self.bias.dtype)[:, None]
        angle = place / 10000 ** (torch.arange(0, d_model, 2, dtype=self.bias.dtype) / d_model)
        waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)  # T D
        return self.dropout(self.tokens(tokens) * math.sqrt(d_model) + waves)

    def forward(self, source, target, source_real):
        seen = source_real[:, None, None, :]  # padding is never looked at
        past = torch.ones(target.size(1), target.size(1), dtype=torch.bool).tril()  # nor the future
        memory, x = self.embed(source), self.embed(target)
        for layer in self.encoder:
            memory = layer(memory, seen)
        for layer in self.decoder:
            x = layer(x, past, memory, seen)
        return x @ self.tokens.weight.T + self.bias  # B T V

    @torch.no_grad()
    def write(self, source, source_real, start, length):
        """Greedy: the likeliest next token becomes input, again and again."""
        target = torch.full((len(source), 1), start)
        for _ in range(length):
            best = self.eval()(source, target, source_real)[:, -1].argmax(dim=-1)
            target = torch.cat([target, best[:, None]], dim=1)
        return target[:, 1:]


PAD, START, END = 10, 11, 12  # behind the digits 0 to 9


def batch(rows, longest=8):
    """Rows of random digits, and the same backwards, padded on the right."""
    source, target = torch.full((rows, longest), PAD), torch.full((rows, longest + 2), PAD)
    for s, t in zip(source, target, strict=True):
        n = int(torch.randint(1, longest + 1, ()))
        s[:n] = torch.randint(10, (n,))
        t[: n + 2] = torch.tensor([START, *s[:n].flip(0), END])
    return source, target


def train(steps=1500, warmup=400, d_model=64):
    """Teacher forcing: read the target up to t, be asked for t + 1, at all positions at once."""
    model = Transformer(13, layers=2, d_model=d_model, heads=4, d_ff=128, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    wrong = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
    for step in range(1, steps + 1):
        rate = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)  # section 5.3
        optimizer.param_groups[0]["lr"] = rate
        source, target = batch(64)
        logits = model.train()(source, target[:, :-1], source != PAD)
        loss = wrong(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}  loss {loss:.3f}")
    return model


def main():
    """Train, then show some answers and count the right ones."""
    torch.manual_seed(1)
    model = train()
    source, target = batch(1000)
    written = model.write(source, source != PAD, START, target.size(1) - 1)
    for s, w in zip(source[:4].tolist(), written[:4].tolist(), strict=True):
        print(*s[: [*s, PAD].index(PAD)], "->", *w[: [*w, END].index(END)])
    right = (written == target[:, 1:]) | (target[:, 1:] == PAD)
    print(f"{right.all(dim=1).sum()} of 1000 new rows written backwards without a mistake")


if __name__ == "__main__":
    main()
