"""All families again, in NumPy and double precision, sharing no code with the package.

Written from the papers, one sentence and one head at a time, as slowly and plainly as possible.
"""

from math import erf, sqrt

import numpy as np

Weights = dict[str, np.ndarray]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


ACTIVATION = {
    "relu": lambda x: np.where(x > 0, x, 0.0),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(erf)(x / sqrt(2))),
    "gelu-tanh": lambda x: 0.5 * x * (1 + np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "swiglu": lambda x: x / (1 + np.exp(-x)),
}


class Reference:
    """One model's weights, and the equations that use them."""

    def __init__(self, config, weights: Weights, training: bool = False) -> None:
        self.config, self.weights = config, weights
        self.causal = config.mask or not training

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        eps = self.config.norm_eps
        if self.config.norm == "none":
            return x
        rows = []
        for row in x:
            if self.config.norm == "rms":
                rows.append(row / sqrt((row**2).mean() + eps) * self.weights[f"{name}.weight"])
            else:
                unit = (row - row.mean()) / sqrt(((row - row.mean()) ** 2).mean() + eps)
                rows.append(unit * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"])
        return np.stack(rows)

    def embed(self, name: str, ids, scale: float, segments=None) -> np.ndarray:
        d = self.config.d_model
        rows = []
        for place, token in enumerate(ids):
            row = self.weights[f"{name}.tokens.weight"][token] * scale
            if self.config.positions == "learned":
                row = row + self.weights[f"{name}.positions.weight"][place]
            if self.config.positions == "sinusoidal":
                wave = [place / 10000 ** ((j - j % 2) / d) for j in range(d)]
                row = row + [np.cos(w) if j % 2 else np.sin(w) for j, w in enumerate(wave)]
            if segments is not None:
                row = row + self.weights[f"{name}.segments.weight"][segments[place]]
            rows.append(row)
        x = np.stack(rows)
        return self.norm(f"{name}.norm", x) if f"{name}.norm.weight" in self.weights else x

    def turn(self, x: np.ndarray, place: int) -> np.ndarray:
        """Rotary: each pair is a complex number, multiplied by e^(i angle)."""
        width = len(x)
        z = x[0::2] + 1j * x[1::2]
        speeds = [self.speed(i / width) for i in range(0, width, 2)]
        z = z * np.exp(1j * place * np.array(speeds))
        return np.stack([z.real, z.imag], axis=1).reshape(width)

    def speed(self, share: float) -> float:
        """The angle from one position to the next, slowed as Llama 3 does or all alike."""
        c = self.config
        speed = c.rotary_base**-share
        if c.rotary_scaling == "none":
            return speed
        slow = speed / c.rotary_factor
        wavelength = 2 * np.pi / speed
        if c.rotary_scaling == "linear" or wavelength > c.rotary_length / c.rotary_low:
            return slow
        if wavelength < c.rotary_length / c.rotary_high:
            return speed
        smooth = c.rotary_length / wavelength - c.rotary_low
        smooth /= c.rotary_high - c.rotary_low
        return (1 - smooth) * slow + smooth * speed

    def unit(self, name: str, x: np.ndarray) -> np.ndarray:
        """QK-norm of one head of one token."""
        if not self.config.qk_norm:
            return x
        return x / sqrt((x**2).mean() + self.config.norm_eps) * self.weights[f"{name}_norm.weight"]

    def attention(self, name: str, x: np.ndarray, others: np.ndarray, causal: bool) -> np.ndarray:
        config = self.config
        size, group = (
            config.head_dim or config.d_model // config.heads,
            config.heads // (config.kv_heads or config.heads),
        )
        q, k, v = (
            self.linear(f"{name}.{part}", source)
            for part, source in (("query", x), ("key", others), ("value", others))
        )
        rotary = config.positions == "rotary" and "self" in name
        out = np.zeros((len(x), config.heads * size))
        for head in range(config.heads):
            mine = slice(head * size, (head + 1) * size)
            theirs = slice(head // group * size, (head // group + 1) * size)
            for i in range(len(x)):
                seen = range(i + 1) if causal else range(len(others))
                scores = []
                for j in seen:
                    a = self.unit(f"{name}.query", q[i, mine])
                    b = self.unit(f"{name}.key", k[j, theirs])
                    if rotary:
                        a, b = self.turn(a, i), self.turn(b, j)
                    scores.append(a @ b / (sqrt(size) if config.scaling else 1))
                shares = softmax(np.array(scores))
                out[i, mine] = sum(s * v[j, theirs] for s, j in zip(shares, seen, strict=True))
        return self.linear(f"{name}.output", out)

    def cell(self, name: str, x: np.ndarray) -> np.ndarray:
        """The SSRU, token by token."""
        state, out = np.zeros(x.shape[1]), []
        for row in x:
            keep = sigmoid(self.linear(f"{name}.gate", row))
            state = keep * state + (1 - keep) * self.linear(f"{name}.value", row)
            out.append(np.where(state > 0, state, 0.0))
        return np.stack(out)

    def feed_forward(self, name: str, x: np.ndarray) -> np.ndarray:
        active = ACTIVATION[self.config.activation]
        if self.config.activation == "swiglu":
            inner = active(self.linear(f"{name}.gate", x)) * self.linear(f"{name}.inner", x)
        else:
            inner = active(self.linear(f"{name}.inner", x))
        return self.linear(f"{name}.outer", inner)

    def sublayer(self, name: str, x: np.ndarray, function) -> np.ndarray:
        kept = x if self.config.residual else 0
        if self.config.norm_order == "post":
            return self.norm(f"{name}.norm", kept + function(x))
        return kept + function(self.norm(f"{name}.norm", x))

    def stack(self, side: str, x: np.ndarray, causal: bool, memory=None) -> np.ndarray:
        deep = side == "decoder" and self.config.decoder_layers
        for i in range(deep or self.config.layers):
            layer = f"{side}.layers.{i}"
            x = self.sublayer(
                f"{layer}.self_residual",
                x,
                lambda x, n=layer: (
                    self.cell(f"{n}.self_cell", x)
                    if f"{n}.self_cell.gate.weight" in self.weights
                    else self.attention(f"{n}.self_attention", x, x, causal)
                ),
            )
            if memory is not None:
                for_cross = f"{layer}.cross_attention"
                x = self.sublayer(
                    f"{layer}.cross_residual",
                    x,
                    lambda x, n=for_cross: self.attention(n, x, memory, False),
                )
            for_ff = f"{layer}.feed_forward"
            x = self.sublayer(f"{for_ff}_residual", x, lambda x, n=for_ff: self.feed_forward(n, x))
        return self.norm(f"{side}.norm", x) if self.config.norm_order == "pre" else x

    @property
    def scale(self) -> float:
        said = self.config.embedding_scale
        usual = self.config.family == "encoder-decoder"
        return sqrt(self.config.d_model) if said == "on" or (said == "auto" and usual) else 1

    def encoder_decoder(self, source, target) -> np.ndarray:
        scale = self.scale
        memory = self.stack("encoder", self.embed("source", source, scale), causal=False)
        states = self.stack("decoder", self.embed("target", target, scale), self.causal, memory)
        return self.linear("classifier", states)

    def decoder_only(self, ids) -> np.ndarray:
        states = self.stack("decoder", self.embed("target", ids, self.scale), self.causal)
        return self.linear("classifier", states)

    def encoder_only(self, ids, segments) -> np.ndarray:
        x = self.embed("source", ids, self.scale, segments)
        states = self.stack("encoder", x, causal=False)
        inner = ACTIVATION[self.config.activation](self.linear("masked_head.inner", states))
        return self.linear("masked_head.classifier", self.norm("masked_head.norm", inner))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


class RecurrentReference:
    """The recurrent families, one row and one token at a time."""

    def __init__(self, config, weights: Weights) -> None:
        self.config, self.weights = config, weights

    def cell(self, name: str, x: np.ndarray, state: tuple) -> tuple:
        """One step of one layer in one direction: the new (h,) or (h, c)."""
        inside, carried = (
            self.weights[f"{side}"] @ value + self.weights[f"{bias}"]
            for side, bias, value in (
                (name.format("weight_ih"), name.format("bias_ih"), x),
                (name.format("weight_hh"), name.format("bias_hh"), state[0]),
            )
        )
        if self.config.cell == "rnn":
            return (np.tanh(inside + carried),)
        if self.config.cell == "lstm":
            i, f, g, o = np.split(inside + carried, 4)
            c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
            return sigmoid(o) * np.tanh(c), c
        (r, z, n), (cr, cz, cn) = np.split(inside, 3), np.split(carried, 3)
        reset, keep = sigmoid(r + cr), sigmoid(z + cz)
        return ((1 - keep) * np.tanh(n + reset * cn) + keep * state[0],)

    def read(self, name: str, xs: list, states: list | None, both_ways: bool) -> tuple[list, list]:
        """All layers over all tokens: the top states, and what each layer ends with."""
        size = self.config.d_model // 2 if both_ways else self.config.d_model
        parts = 2 if self.config.cell == "lstm" else 1
        ends = []
        for layer in range(self.config.layers):
            columns, last = [], []
            for direction in ("", "_reverse") if both_ways else ("",):
                cell = f"{name}.cell.{{}}_l{layer}{direction}"
                state = states[layer] if states else (np.zeros(size),) * parts
                column = []
                for x in reversed(xs) if direction else xs:
                    state = self.cell(cell, x, state)
                    column.append(state[0])
                columns.append(column[::-1] if direction else column)
                last.append(state)
            xs = [np.concatenate(row) for row in zip(*columns, strict=True)]
            ends.append(tuple(np.concatenate(pair) for pair in zip(*last, strict=True)))
        return xs, ends

    def embed(self, name: str, ids) -> list:
        return [self.weights[f"{name}.weight"][i] * sqrt(self.config.d_model) for i in ids]

    def attend(self, x: np.ndarray, memory: list) -> np.ndarray:
        w = {name: self.weights[f"attention.{name}"] for name in ("key.weight", "score.weight")}
        q = self.weights["attention.query.weight"] @ x + self.weights["attention.query.bias"]
        scores = [w["score.weight"][0] @ np.tanh(q + w["key.weight"] @ m) for m in memory]
        shares = softmax(np.array(scores))
        mixed = sum(s * m for s, m in zip(shares, memory, strict=True))
        output = self.weights["attention.output.weight"] @ np.concatenate([x, mixed])
        return np.tanh(output + self.weights["attention.output.bias"])

    def classify(self, states: list) -> np.ndarray:
        return (
            np.stack(states) @ self.weights["classifier.weight"].T + self.weights["classifier.bias"]
        )

    def recurrent_encoder_decoder(self, source, target) -> np.ndarray:
        memory, ends = self.read("encoder", self.embed("source", source), None, both_ways=True)
        states, _ = self.read("decoder", self.embed("target", target), ends, both_ways=False)
        if self.config.attention:
            states = [self.attend(x, memory) for x in states]
        return self.classify(states)

    def recurrent_decoder_only(self, ids) -> np.ndarray:
        return self.classify(self.read("decoder", self.embed("target", ids), None, False)[0])
