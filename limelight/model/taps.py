"""Taps: every value of the forward pass has a name, and a recorder collects them.

    with Recorder(model, ["encoder.0.self.*", "logits"]) as recorder:
        recorder.model(source, target)
    recorder["encoder.0.self.weights"]

The models know nothing of this. A recorder hangs hooks on the very modules that answer, switches
attention to its explicit path, and leaves everything as it was. The names are part of the
interface. `dataflow` lists them with how each value is made from others, for the model that is
there: post-norm or pre-norm, what kind of positions, gated or not. A value can be replaced as well
as recorded: `edits` has functions for it, by name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any, NamedTuple, Self

from torch import Tensor, nn

from limelight.errors import UserError, unknown_name
from limelight.model.attention import Attention, explicit_attention
from limelight.model.config import AnyConfig, ModelConfig, RecurrentConfig

_STATES, _SCORES = ("word", "dim"), ("head", "query", "key")  # axes


class _Tap(NamedTuple):
    module: str  # where the value appears: a path in the model
    at: str  # the module's input, its output, or a step inside an attention's equation
    op: str
    sources: tuple[str, ...]  # names of taps
    axes: tuple[str, ...] = _STATES  # of one text


_Named = Iterator[tuple[str, _Tap]]
Edits = Mapping[str, Sequence[Callable[[Tensor], Tensor]]]  # applied to a tap's value in order


def taps(model: nn.Module) -> dict[str, _Tap]:
    """Everything that can be watched in this model, by name, in the order of computation."""
    config = getattr(model, "config", None)
    if not isinstance(config, ModelConfig | RecurrentConfig):
        raise UserError(f"{type(model).__name__} is not one of Limelight's models: it has no taps")
    return dataflow(config)


@lru_cache(maxsize=16)
def dataflow(config: AnyConfig) -> dict[str, _Tap]:
    """The forward pass of a model as a graph of named values."""
    if isinstance(config, RecurrentConfig):
        return dict(_recurrent_taps(config))
    found = {name: tap for side in sides(config) for name, tap in _side_taps(config, side)}
    last = f"{sides(config)[-1]}.output"
    head = "classifier"
    if config.family == "encoder-only":
        head = "text_head" if config.classes else "masked_head"
    if head == "masked_head" and not config.masked_head:
        return found
    axes = ("class",) if config.classes else ("word", "token")
    return found | {"logits": _Tap(head, "output", "classify", (last,), axes)}


def sides(config: AnyConfig) -> tuple[str, ...]:
    """The stacks that this family has."""
    family = config.family.removeprefix("recurrent-")
    return tuple(family.removesuffix("-only").split("-"))


def depth(config: AnyConfig, side: str) -> int:
    """The number of layers on this side."""
    if isinstance(config, ModelConfig) and side == "decoder":
        return config.num_decoder_layers
    return config.layers


def _parts_of(config: ModelConfig, side: str) -> tuple[str, ...]:
    """The sub-layers of a layer of Figure 1, in order."""
    crossing = side == "decoder" and config.family == "encoder-decoder"
    return ("self", "cross", "feed_forward") if crossing else ("self", "feed_forward")


def attends(config: ModelConfig, side: str, part: str) -> bool:
    """Whether a sub-layer is attention: not the feed-forward network, nor a recurrent cell."""
    recurrent = side == "decoder" and part == "self" and config.decoder_cell == "ssru"
    return part != "feed_forward" and not recurrent


def _side_taps(config: ModelConfig, side: str) -> _Named:
    embedding = "source" if side == "encoder" else "target"
    added = {"embedding": ("tokens", "look up")}
    if config.positions in ("sinusoidal", "learned"):
        added["positions"] = ("positions", config.positions)
    if config.family == "encoder-only":
        added["segments"] = ("segments", "look up")
    for name, (module, op) in added.items():
        yield f"{side}.{name}", _Tap(f"{embedding}.{module}", "output", op, ())
    state = f"{side}.input"
    yield state, _Tap(embedding, "output", "add", tuple(f"{side}.{name}" for name in added))
    for layer in range(depth(config, side)):
        for part in _parts_of(config, side):
            name, path = f"{side}.{layer}.{part}", f"{side}.layers.{layer}.{part}"
            yield from _sublayer_taps(config, name, path, state)
            state = f"{name}.{'norm' if config.norm_order == 'post' else 'add'}"
    op = "norm" if config.norm_order == "pre" and config.norm != "none" else "copy"
    yield f"{side}.output", _Tap(side, "output", op, (state,))


def _sublayer_taps(config: ModelConfig, name: str, path: str, state: str) -> _Named:
    side, _, part = name.split(".")
    inner = _feed_forward_taps if part == "feed_forward" else _cell_taps
    if attends(config, side, part):
        inner = _attention_taps
    added = (state, f"{name}.output") if config.residual else (f"{name}.output",)
    add = _Tap(f"{path}_residual", "output", "add" if config.residual else "copy", added)
    op = "copy" if config.norm == "none" else "norm"
    norm = _Tap(f"{path}_residual.norm", "output", op, (state,))
    if config.norm_order == "pre":
        yield f"{name}.norm", norm
        yield from inner(config, name, path, f"{name}.norm")
        yield f"{name}.add", add
    else:
        yield from inner(config, name, path, state)
        yield f"{name}.add", add._replace(module=norm.module, at="input")
        yield f"{name}.norm", norm._replace(sources=(f"{name}.add",))


def _attention_taps(config: ModelConfig, name: str, path: str, read: str) -> _Named:
    module, cross = f"{path}_attention", name.endswith("cross")
    memory = "encoder.output" if cross else read
    split = "split, normalise" if config.qk_norm else "split"
    split += " and turn" if config.positions == "rotary" and not cross else ""
    queries, keys = ("head", "query", "dim"), ("head", "key", "dim")
    for part in ("query", "key", "value"):
        source = read if part == "query" else memory
        yield f"{name}.{part}", _Tap(f"{module}.{part}", "output", "linear", (source,))
    steps = (
        ("q", split, ("query",), queries),
        ("k", split, ("key",), keys),
        ("v", "split", ("value",), keys),
        ("scores", "q k^T", ("q", "k"), _SCORES),
        ("scaled", "/ sqrt(d_k)" if config.scaling else "copy", ("scores",), _SCORES),
        ("masked", "mask", ("scaled",), _SCORES),
        ("weights", "softmax", ("masked",), _SCORES),
        ("mixed", "weights v", ("weights", "v"), queries),
    )
    for step, op, sources, axes in steps:
        made_of = tuple(f"{name}.{source}" for source in sources)
        yield f"{name}.{step}", _Tap(module, step, op, made_of, axes)
    yield f"{name}.concat", _Tap(f"{module}.output", "input", "side by side", (f"{name}.mixed",))
    yield f"{name}.output", _Tap(f"{module}.output", "output", "linear", (f"{name}.concat",))


def _feed_forward_taps(config: ModelConfig, name: str, path: str, read: str) -> _Named:
    neurons = ("word", "neuron")
    widened = ("inner", "gate") if config.activation == "swiglu" else ("inner",)
    for part in reversed(widened):
        yield f"{name}.{part}", _Tap(f"{path}.{part}", "output", "linear", (read,), neurons)
    made_of = tuple(f"{name}.{part}" for part in widened)
    yield f"{name}.active", _Tap(f"{path}.outer", "input", config.activation, made_of, neurons)
    yield f"{name}.output", _Tap(f"{path}.outer", "output", "linear", (f"{name}.active",))


def _cell_taps(config: ModelConfig, name: str, path: str, read: str) -> _Named:
    module, made_of = f"{path}_cell", (f"{name}.gate", f"{name}.value")
    yield f"{name}.gate", _Tap(f"{module}.sigmoid", "output", "sigmoid of linear", (read,))
    yield f"{name}.value", _Tap(f"{module}.value", "output", "linear", (read,))
    yield f"{name}.state", _Tap(f"{module}.relu", "input", config.decoder_cell, made_of)
    yield f"{name}.output", _Tap(f"{module}.relu", "output", "relu", (f"{name}.state",))


def _recurrent_taps(config: RecurrentConfig) -> _Named:
    seq2seq = config.family == "recurrent-encoder-decoder"
    if seq2seq:
        yield "encoder.embedding", _Tap("source", "output", "look up", ())
        yield "encoder.output", _Tap("encoder", "output", config.cell, ("encoder.embedding",))
    yield "decoder.embedding", _Tap("target", "output", "look up", ())
    memory = ("encoder.output",) if seq2seq else ()
    states = "decoder.states"
    yield states, _Tap("decoder", "output", config.cell, ("decoder.embedding", *memory))
    if seq2seq and config.attention:
        name, axes = "decoder.cross", ("query", "key")
        yield f"{name}.masked", _Tap("attention.softmax", "input", "mask", (states, *memory), axes)
        masked = (f"{name}.masked",)
        yield f"{name}.weights", _Tap("attention.softmax", "output", "softmax", masked, axes)
        sources = (states, f"{name}.weights", *memory)
        states = f"{name}.output"
        yield states, _Tap("attention", "output", "linear and tanh", sources)
    yield "logits", _Tap("classifier", "output", "classify", (states,), ("word", "token"))


class Recorder:
    """Collects the taps that match `names` (exact, or with `*`) while it is open.

    It records passes through `recorder.model`, the eager model underneath whatever torch.compile or
    a distributed wrapper put around it. A later pass replaces the values of an earlier one. All
    attention is computed explicitly, watched or not, so that a value does not depend on what else
    is recorded. `keep` says what is kept of a value, so that a part of it need not hold all of it
    in memory. `edits` replace values: the pass continues with what they return, which is recorded.
    """

    def __init__(
        self,
        model: nn.Module,
        names: str | Iterable[str] = "*",
        keep: Callable[[str, Tensor], Tensor] = lambda _, value: value,
        edits: Edits | None = None,
    ) -> None:
        self.model, self.keep, self.edits = _eager(model), keep, edits or {}
        known = taps(self.model)
        self.watched = {name: known[name] for name in matching(names, known)}
        self.hooked = self.watched | {name: known[name] for name in self.edits}
        paths = {path for path, _ in self.model.named_modules()}
        if hidden := [name for name, tap in self.hooked.items() if tap.module not in paths]:
            raise UserError(
                f"the tap {hidden[0]!r} cannot be reached: a part of the model is wrapped; compile "
                "parts with `part.compile()`, which leaves them in place, not `torch.compile(part)`"
            )
        self.values: dict[str, Tensor] = {}
        self._undo: list[Callable[[], Any]] = []

    def __getitem__(self, name: str) -> Tensor:
        if name in self.values:
            return self.values[name]
        known = taps(self.model)
        if name not in known:
            raise unknown_name("tap", name, known)
        why = "no pass went through it" if name in self.watched else "it was filtered out"
        raise UserError(f"the tap {name!r} was not recorded: {why}")

    def __enter__(self) -> Self:
        for module in self.model.modules():
            if isinstance(module, Attention) and isinstance(module.attend, partial):
                raise UserError("this model is being recorded already: one recorder at a time")
        self.values.clear()
        name_at = {(tap.module, tap.at): name for name, tap in self.hooked.items()}
        for path, module in self.model.named_modules():
            if module._compiled_call_impl:  # hooks never fire in compiled code
                self._change(module, "_compiled_call_impl", None)
            if isinstance(module, Attention):
                steps = {at: name for (owner, at), name in name_at.items() if owner == path}
                watched = partial(explicit_attention, watch=self._watch(steps))
                self._change(module, "attend", watched)
            if name := name_at.get((path, "input")):
                hook = module.register_forward_pre_hook(partial(self._keep_input, name))
                self._undo.append(hook.remove)
            if name := name_at.get((path, "output")):
                after = module.register_forward_hook(partial(self._keep_output, name))
                self._undo.append(after.remove)
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            self._undo.pop()()

    def _change(self, module: nn.Module, attribute: str, value: object) -> None:
        self._undo.append(partial(setattr, module, attribute, getattr(module, attribute)))
        setattr(module, attribute, value)

    def _keep_input(
        self, name: str, _: nn.Module, inputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        return self._pass(name, inputs[0]), *inputs[1:]

    def _keep_output(self, name: str, _: nn.Module, __: object, output: Any) -> Any:
        if isinstance(output, tuple):
            return self._pass(name, output[0]), *output[1:]
        return self._pass(name, output)

    def _watch(self, names: dict[str, str]) -> Callable[[str, Tensor], Tensor]:
        return lambda step, value: self._pass(names[step], value) if step in names else value

    def _pass(self, name: str, value: Tensor) -> Tensor:
        for edit in self.edits.get(name, ()):
            value = edit(value)
        if name in self.watched:
            # The caller may write over the logits.
            self.values[name] = self.keep(name, value.clone() if name == "logits" else value)
        return value


def _eager(model: nn.Module) -> nn.Module:
    """The module underneath torch.compile's wrapper, DistributedDataParallel's, or both."""
    while (inner := model._modules.get("_orig_mod", model._modules.get("module"))) is not None:
        model = inner
    return model


def matching(patterns: str | Iterable[str], known: Iterable[str]) -> list[str]:
    """The known names that any of the patterns fits; a pattern that fits none is rejected."""
    known, patterns = list(known), [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise unknown_name("tap", pattern, known)
    return [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]
