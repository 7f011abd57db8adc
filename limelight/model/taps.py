"""Watching a model think: every value of the forward pass has a name, and a recorder collects them.

    with Recorder(model, ["encoder.0.self.*", "logits"]) as recorder:
        recorder.model(source, target)
    recorder["encoder.0.self.weights"]

The models know nothing of this. A recorder hangs hooks on the very modules that answer, asks
attention for its explicit path, and leaves everything as it was. The names are part of the
interface.
"""

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

from torch import Tensor, nn

from limelight.errors import UserError, unknown_name
from limelight.model.attention import Attention, explicit_attention
from limelight.model.config import ModelConfig, RecurrentConfig

_INSIDE_ATTENTION = ("q", "k", "v", "scores", "scaled", "masked", "weights", "mixed")


class TapLocation(NamedTuple):
    """Where a tap sits: a module's input, its output, or a step inside an attention's equation."""

    module: str
    what: str


def taps(model: nn.Module) -> dict[str, TapLocation]:
    """The names of everything that can be watched in this model, in the order of happening."""
    config = getattr(model, "config", None)
    if isinstance(config, RecurrentConfig):
        return dict(_recurrent_taps(config))
    if isinstance(config, ModelConfig):
        return dict(_transformer_taps(config))
    raise UserError(f"{type(model).__name__} is not one of Limelight's models: it has no taps")


def _transformer_taps(config: ModelConfig) -> Iterator[tuple[str, TapLocation]]:
    """The two sides, as far as the family has them, and the scores."""
    if config.family != "decoder-only":
        yield from _side_taps(config, "encoder", "source", cross=False)
    if config.family != "encoder-only":
        yield from _side_taps(config, "decoder", "target", config.family == "encoder-decoder")
    heads = {"encoder-only": "text_head" if config.classes else "masked_head"}
    yield "logits", TapLocation(heads.get(config.family, "classifier"), "output")


def _side_taps(
    config: ModelConfig, side: str, embedding: str, cross: bool
) -> Iterator[tuple[str, TapLocation]]:
    """An encoder's or a decoder's: embedding, positions, layers, output."""
    yield f"{side}.embedding", TapLocation(f"{embedding}.tokens", "output")
    if config.positions != "rotary":
        yield f"{side}.positions", TapLocation(f"{embedding}.positions", "output")
    if config.family == "encoder-only":
        yield f"{side}.segments", TapLocation(f"{embedding}.segments", "output")
    yield f"{side}.input", TapLocation(embedding, "output")
    for i in range(config.layers):
        path = f"{side}.layers.{i}"
        yield from _attention_taps(config, f"{side}.{i}.self", path, "self")
        if cross:
            yield from _attention_taps(config, f"{side}.{i}.cross", path, "cross")
        yield from _feed_forward_taps(config, f"{side}.{i}.feed_forward", path)
    yield f"{side}.output", TapLocation(side, "output")


def _attention_taps(
    config: ModelConfig, name: str, layer: str, use: str
) -> Iterator[tuple[str, TapLocation]]:
    """From the three linear layers through equation 1 to the output layer, and add & norm."""
    path = f"{layer}.{use}_attention"
    inner = [
        (f"{name}.{part}", TapLocation(f"{path}.{part}", "output"))
        for part in ("query", "key", "value")
    ]
    inner += [(f"{name}.{step}", TapLocation(path, step)) for step in _INSIDE_ATTENTION]
    inner += [(f"{name}.concat", TapLocation(f"{path}.output", "input"))]
    inner += [(f"{name}.output", TapLocation(f"{path}.output", "output"))]
    yield from _with_residual(config, name, f"{layer}.{use}_residual", inner)


def _feed_forward_taps(
    config: ModelConfig, name: str, layer: str
) -> Iterator[tuple[str, TapLocation]]:
    """Before and after the activation, the output, and add & norm."""
    path = f"{layer}.feed_forward"
    inner = [(f"{name}.inner", TapLocation(f"{path}.inner", "output"))]
    if config.activation == "swiglu":
        inner.insert(0, (f"{name}.gate", TapLocation(f"{path}.gate", "output")))
    inner += [(f"{name}.active", TapLocation(f"{path}.outer", "input"))]
    inner += [(f"{name}.output", TapLocation(f"{path}.outer", "output"))]
    yield from _with_residual(config, name, f"{layer}.feed_forward_residual", inner)


def _with_residual(
    config: ModelConfig, name: str, path: str, inner: list[tuple[str, TapLocation]]
) -> Iterator[tuple[str, TapLocation]]:
    """Add & norm come after the sub-layer in post-norm; in pre-norm the norm comes before it."""
    norm = (f"{name}.norm", TapLocation(f"{path}.norm", "output"))
    if config.norm_order == "post":
        yield from [*inner, (f"{name}.add", TapLocation(f"{path}.norm", "input")), norm]
    else:
        yield from [norm, *inner, (f"{name}.add", TapLocation(path, "output"))]


def _recurrent_taps(config: RecurrentConfig) -> Iterator[tuple[str, TapLocation]]:
    """The states of the cells, and attention where there is one."""
    seq2seq = config.family == "recurrent-encoder-decoder"
    if seq2seq:
        yield "encoder.embedding", TapLocation("source", "output")
        yield "encoder.output", TapLocation("encoder", "output")
    yield "decoder.embedding", TapLocation("target", "output")
    yield "decoder.states", TapLocation("decoder", "output")
    if seq2seq and config.attention:
        yield "decoder.cross.masked", TapLocation("attention.softmax", "input")
        yield "decoder.cross.weights", TapLocation("attention.softmax", "output")
        yield "decoder.cross.output", TapLocation("attention", "output")
    yield "logits", TapLocation("classifier", "output")


class Recorder:
    """Collects the taps that match `names` (exact, or with `*`) while it is open.

    It records passes through `recorder.model`, the eager model underneath whatever torch.compile or
    a distributed wrapper put around it. A later pass replaces the values of an earlier one. All
    attention goes the explicit way, watched or not, so that a value does not depend on what else
    was asked for. `keep` says what is kept of a value, so that a part of it need not hold the whole
    in memory.
    """

    def __init__(
        self,
        model: nn.Module,
        names: str | Iterable[str] = "*",
        keep: Callable[[str, Tensor], Tensor] = lambda _, value: value,
    ) -> None:
        self.model, self.keep = _eager(model), keep
        known = taps(self.model)
        wanted = [names] if isinstance(names, str) else names
        self.places = {name: known[name] for name in matching(wanted, known)}
        paths = {path for path, _ in self.model.named_modules()}
        if hidden := [name for name, place in self.places.items() if place.module not in paths]:
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
        why = "no pass went through it" if name in self.places else "it was filtered out"
        raise UserError(f"the tap {name!r} was not recorded: {why}")

    def __enter__(self) -> Self:
        for module in self.model.modules():
            if isinstance(module, Attention) and isinstance(module.attend, partial):
                raise UserError("this model is being recorded already: one recorder at a time")
        self.values.clear()
        name_at = {place: name for name, place in self.places.items()}
        for path, module in self.model.named_modules():
            self._change(module, "_compiled_call_impl", None)  # hooks never fire in compiled code
            if isinstance(module, Attention):
                steps = {
                    s: name
                    for s in _INSIDE_ATTENTION
                    if (name := name_at.get(TapLocation(path, s)))
                }
                self._change(
                    module, "attend", partial(explicit_attention, watch=self._watch(steps))
                )
            if name := name_at.get(TapLocation(path, "input")):
                hook = module.register_forward_pre_hook(partial(self._keep_input, name))
                self._undo.append(hook.remove)
            if name := name_at.get(TapLocation(path, "output")):
                after = module.register_forward_hook(partial(self._keep_output, name))
                self._undo.append(after.remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        while self._undo:
            self._undo.pop()()

    def _change(self, module: nn.Module, attribute: str, value: object) -> None:
        self._undo.append(partial(setattr, module, attribute, getattr(module, attribute)))
        setattr(module, attribute, value)

    def _keep_input(self, name: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.values[name] = self.keep(name, inputs[0])

    def _keep_output(
        self, name: str, _: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]
    ) -> None:
        value = output[0] if isinstance(output, tuple) else output
        if name == "logits":
            value = value.clone()  # whoever asked for them may write over them
        self.values[name] = self.keep(name, value)

    def _watch(self, names: dict[str, str]) -> Callable[[str, Tensor], Tensor]:
        def watch(step: str, value: Tensor) -> Tensor:
            if step in names:
                self.values[names[step]] = self.keep(names[step], value)
            return value

        return watch


def _eager(model: nn.Module) -> nn.Module:
    """The module underneath torch.compile's wrapper, DistributedDataParallel's, or both."""
    while (inner := model._modules.get("_orig_mod", model._modules.get("module"))) is not None:
        model = inner
    return model


def matching(patterns: Iterable[str], known: Iterable[str]) -> list[str]:
    """The known names that any of the patterns fits; a pattern that fits none is a mistake."""
    known, patterns = list(known), list(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise unknown_name("tap", pattern, known)
    return [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]
