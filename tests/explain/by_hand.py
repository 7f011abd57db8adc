"""The forward pass once more, in plain NumPy from a state dict, with a name for every value.

It shares nothing with the package but the names of weights and values: what `explain` shows is
compared with this.
"""

import math
from itertools import pairwise

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x / (1 + np.exp(-x))


ACTIVATE = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": gelu,
    "gelu-tanh": gelu_tanh,
    "silu": silu,
    "swiglu": silu,
}


def waves(length, width):
    table = np.zeros((length, width))
    for pos in range(length):
        for i in range(0, width, 2):
            table[pos, i] = math.sin(pos / 10000 ** (i / width))
            table[pos, i + 1] = math.cos(pos / 10000 ** (i / width))
    return table


class ByHand:
    """All values of one pass over one text; `change` has what is done to a value, by its name."""

    def __init__(self, model, source, target, change=None, mask=True):
        self.change, self.mask = change or {}, mask
        self.w = {k: v.detach().double().numpy() for k, v in model.state_dict().items()}
        self.c = model.config
        self.values = {}
        memory = self.side("encoder", "source", source, None) if source else None
        top = self.side("decoder", "target", target, memory) if target else memory
        self.top = top
        self.values["logits"] = self.classify(top)

    def put(self, name, value):
        self.values[name] = self.change[name](value) if name in self.change else value
        return self.values[name]

    def linear(self, x, path):
        y = x @ self.w[f"{path}.weight"].T
        return y + self.w[f"{path}.bias"] if f"{path}.bias" in self.w else y

    def norm(self, x, path):
        if self.c.norm == "none":
            return x
        gain, eps = self.w[f"{path}.weight"], self.c.norm_eps
        if self.c.norm == "rms":
            return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * gain
        mean, var = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
        return (x - mean) / np.sqrt(var + eps) * gain + self.w[f"{path}.bias"]

    def side(self, side, embedding, ids, memory):
        c, put = self.c, self.values.__setitem__
        x = self.w[f"{embedding}.tokens.weight"][list(ids)]
        put(f"{side}.embedding", x)
        if {"auto": c.family == "encoder-decoder", "on": True, "off": False}[c.embedding_scale]:
            x = x * math.sqrt(c.d_model)
        if c.positions == "sinusoidal":
            put(f"{side}.positions", waves(len(ids), c.d_model))
        elif c.positions == "learned":
            put(f"{side}.positions", self.w[f"{embedding}.positions.weight"][: len(ids)])
        if c.positions in ("sinusoidal", "learned"):
            x = x + self.values[f"{side}.positions"]
        if c.family == "encoder-only":
            segments = np.repeat(self.w[f"{embedding}.segments.weight"][:1], len(ids), axis=0)
            put(f"{side}.segments", segments)
            x = self.norm(x + segments, f"{embedding}.norm")
        put(f"{side}.input", x)
        causal = side == "decoder" and self.mask
        for n in range(self.layers(side)):
            path, name = f"{side}.layers.{n}", f"{side}.{n}"
            x = self.sublayer(x, f"{name}.self", f"{path}.self", None, causal)
            if memory is not None:
                x = self.sublayer(x, f"{name}.cross", f"{path}.cross", memory, False)
            x = self.sublayer(x, f"{name}.feed_forward", f"{path}.feed_forward", None, False)
        if c.norm_order == "pre":
            x = self.norm(x, f"{side}.norm")
        put(f"{side}.output", x)
        return x

    def sublayer(self, x, name, path, memory, causal):
        put, post = self.put, self.c.norm_order == "post"
        read = x if post else put(f"{name}.norm", self.norm(x, f"{path}_residual.norm"))
        if name.endswith("feed_forward"):
            y = self.feed_forward(read, name, path)
        elif f"{path}_cell.gate.weight" in self.w:
            y = self.cell(read, name, f"{path}_cell")
        else:
            y = self.attention(read, name, f"{path}_attention", memory, causal)
        total = put(f"{name}.add", x + y if self.c.residual else y)
        return put(f"{name}.norm", self.norm(total, f"{path}_residual.norm")) if post else total

    def layers(self, side):
        return (self.c.decoder_layers if side == "decoder" else 0) or self.c.layers

    def unit(self, x, path):
        if not self.c.qk_norm:
            return x
        size = np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.c.norm_eps)
        return x / size * self.w[f"{path}_norm.weight"]

    def heads(self, x):
        return x.reshape(len(x), -1, self.c.d_head).transpose(1, 0, 2)

    def turn(self, x):
        out = np.zeros_like(x)
        for pos in range(x.shape[1]):
            for i in range(0, self.c.d_head, 2):
                angle = pos / self.c.rotary_base ** (i / self.c.d_head)
                a, b = x[:, pos, i], x[:, pos, i + 1]
                out[:, pos, i] = a * math.cos(angle) - b * math.sin(angle)
                out[:, pos, i + 1] = a * math.sin(angle) + b * math.cos(angle)
        return out

    def attention(self, x, name, path, memory, causal):
        put, asked = self.put, x if memory is None else memory
        flat = {
            p: self.linear(x if p == "query" else asked, f"{path}.{p}")
            for p in ("query", "key", "value")
        }
        for part, value in flat.items():
            put(f"{name}.{part}", value)
        q, k, v = (self.heads(flat[p]) for p in ("query", "key", "value"))
        q, k = self.unit(q, f"{path}.query"), self.unit(k, f"{path}.key")
        if self.c.positions == "rotary" and memory is None:
            q, k = self.turn(q), self.turn(k)
        for step, value in zip("qkv", (q, k, v), strict=True):
            put(f"{name}.{step}", value)
        group = len(q) // len(k)
        k, v = k.repeat(group, axis=0), v.repeat(group, axis=0)
        scores = np.einsum("hqd,hkd->hqk", q, k)
        scaled = scores / math.sqrt(self.c.d_head) if self.c.scaling else scores
        masked = scaled.copy()
        if causal:
            for i in range(len(x)):
                masked[:, i, i + 1 :] = -np.inf
        put(f"{name}.scores", scores)
        put(f"{name}.scaled", scaled)
        weights = put(f"{name}.weights", softmax(put(f"{name}.masked", masked)))
        mixed = put(f"{name}.mixed", np.einsum("hqk,hkd->hqd", weights, v))
        concat = put(f"{name}.concat", mixed.transpose(1, 0, 2).reshape(len(x), -1))
        # For each head, word and word looked at: what it passes on; and all together.
        each = np.einsum("hqk,hkd->hqkd", weights, v)
        put(f"{name}.contributions", np.concatenate([each, mixed[:, :, None]], axis=2))
        return put(f"{name}.output", self.linear(concat, f"{path}.output"))

    def cell(self, x, name, path):
        put, c, states = self.values.__setitem__, 0.0, []
        gate = 1 / (1 + np.exp(-self.linear(x, f"{path}.gate")))
        value = self.linear(x, f"{path}.value")
        for f, v in zip(gate, value, strict=True):
            c = f * c + (1 - f) * v
            states.append(c)
        put(f"{name}.gate", gate)
        put(f"{name}.value", value)
        put(f"{name}.state", np.stack(states))
        return self.put(f"{name}.output", np.maximum(states, 0))

    def feed_forward(self, x, name, path):
        put = self.values.__setitem__
        inner = self.linear(x, f"{path}.inner")
        active = ACTIVATE[self.c.activation](inner)
        if self.c.activation == "swiglu":
            gate = self.linear(x, f"{path}.gate")
            put(f"{name}.gate", gate)
            active = silu(gate) * inner
        put(f"{name}.inner", inner)
        put(f"{name}.active", active)
        return self.put(f"{name}.output", self.linear(active, f"{path}.outer"))

    def classify(self, x):
        if self.c.family != "encoder-only":
            return self.linear(x, "classifier")
        if self.c.classes:
            inner = np.tanh(self.linear(x[0], "text_head.inner"))
            return self.linear(inner, "text_head.classifier")
        if not self.c.masked_head:  # a sentence encoder ends in its states
            return x
        inner = ACTIVATE[self.c.activation](self.linear(x, "masked_head.inner"))
        return self.linear(self.norm(inner, "masked_head.norm"), "masked_head.classifier")

    def states(self, side):
        """Names of the states through the layers."""
        last = "norm" if self.c.norm_order == "post" else "add"
        between = [f"{side}.{n}.feed_forward.{last}" for n in range(self.layers(side))]
        return [f"{side}.input", *between, *([f"{side}.output"] if last == "add" else [])]

    def lengths(self, side):
        return np.stack([np.linalg.norm(self.values[s], axis=-1) for s in self.states(side)])

    def turns(self, side):
        states = [self.values[s] for s in self.states(side)]
        return np.stack(
            [
                (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
                for a, b in pairwise(states)
            ]
        )
