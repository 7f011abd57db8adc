"""ONNX: an encoder, and a decoder's step with its KV cache, as two graphs for onnxruntime.

`encoder.onnx` reads a source and gives the keys and values of cross-attention. `decoder.onnx` reads
the next tokens and the keys and values so far, and gives logits, and the keys and values for the
next step; the first step gets empty ones. A model has those of the two that it needs.
"""

import copy
import logging
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from limelight.errors import UserError
from limelight.interop.certificate import Certificate, our_logits, sample_tokens, verdict
from limelight.interop.ctranslate2_export import keep_tokenizer
from limelight.loading import LoadedModel
from limelight.model.attention import Attention, KeysValues, attention_mask, explicit_attention
from limelight.model.positions import rotation

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_EXTERNAL = 2**30  # bytes: larger weights lie in a file of their own
_DYNAMIC: Any = torch.export.Dim.DYNAMIC
_ROWS = {0: _DYNAMIC, 1: _DYNAMIC}  # B T
_CACHE = {1: _DYNAMIC, 3: _DYNAMIC}  # L B G S K


class _Encoder(nn.Module):
    """A source becomes keys and values of each layer's cross-attention; or logits, without one."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        real = attention_mask.bool()
        if self.model.config.family == "encoder-only":
            return self.model(input_ids, real=real)
        pairs = self.model.decoder.keys_values(self.model.encode(input_ids, real))
        return tuple(torch.stack(side) for side in zip(*pairs, strict=True))


class _DecoderStep(nn.Module):
    """The next tokens become logits; keys and values grow by them."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, past_keys: Tensor, past_values: Tensor, *memory: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        model, read = self.model, past_keys.size(3)
        slots = torch.arange(read + input_ids.size(1), device=input_ids.device)
        positions = slots[read:]
        mask = (slots <= positions[:, None])[None, None]
        x = model.target(input_ids, positions)
        rope = rotation(positions, model.config, x.dtype) if model.decoder.rotary else None
        keys, values = list[Tensor](), list[Tensor]()

        def update(k: Tensor, v: Tensor) -> KeysValues:
            keys.append(torch.cat([past_keys[len(keys)], k], dim=2))
            values.append(torch.cat([past_values[len(values)], v], dim=2))
            return keys[-1], values[-1]

        seen = attention_mask(memory[2].bool()) if memory else None
        for i, layer in enumerate(model.decoder.layers):
            given = (memory[0][i], memory[1][i]) if memory else None
            x = layer(x, mask, False, rope, update, given, seen)
        logits = model.classifier(model.decoder.norm(x))
        return logits, torch.stack(keys), torch.stack(values)


def check_onnx(loaded: LoadedModel) -> None:
    """Every setting of a Transformer can be written; packages may be missing."""
    try:
        for name in _PACKAGES:
            version(name)
    except PackageNotFoundError as error:
        raise UserError(
            f"to write ONNX, {error.name} is needed: pip install 'limelight[onnx]'"
        ) from None


def write_onnx(loaded: LoadedModel, folder: Path) -> None:
    """The graphs, and the tokenizer."""
    model = copy.deepcopy(loaded.model)
    for part in model.modules():
        if isinstance(part, Attention):
            part.attend = explicit_attention
    config = model.config
    tokens, seen = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.long)
    two = config.family == "encoder-decoder"
    memory = ["memory_keys", "memory_values"] if two else []
    if config.family != "decoder-only":
        names, given = {"input_ids": _ROWS, "attention_mask": _ROWS}, (tokens, seen)
        _write(_Encoder(model), folder / "encoder.onnx", given, names, memory or ["logits"])
    if config.family != "encoder-only":
        shape = (config.num_decoder_layers, 2, config.num_kv_heads, 4, config.d_head)
        past: tuple[Tensor, ...] = (tokens, torch.zeros(shape), torch.zeros(shape))
        names = {"input_ids": _ROWS, "past_keys": _CACHE, "past_values": _CACHE}
        if two:
            source = torch.zeros(*shape[:3], 3, config.d_head)
            past = (*past, source, source.clone(), seen)  # one tensor twice would be one input
            names |= {**dict.fromkeys(memory, _CACHE), "attention_mask": _ROWS}
        outputs = ["logits", "keys", "values"]
        _write(_DecoderStep(model), folder / "decoder.onnx", past, names, outputs)
    keep_tokenizer(loaded, folder)


def _write(
    module: nn.Module, path: Path, given: Any, names: dict[str, Any], outputs: list[str]
) -> None:
    several = len(names) > 3  # the step of an encoder-decoder: `*memory` is one argument
    shapes = [*names.values()]
    dynamic = (*shapes[:3], tuple(shapes[3:])) if several else tuple(shapes)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter's own, about itself
        program: Any = torch.onnx.export(
            module.eval(),
            given,
            dynamo=True,
            verbose=False,
            input_names=[*names],
            output_names=outputs,
            dynamic_shapes=dynamic,
        )
    size = sum(p.nbytes for p in module.parameters())
    program.save(str(path), external_data=size > _EXTERNAL)


def compare_onnx(loaded: LoadedModel, folder: Path) -> Certificate:
    """onnxruntime reads the graphs; the decoder's tokens come in two parts, then one by one."""
    import onnxruntime

    config = loaded.model.config
    source, target = sample_tokens(config, loaded.tokenizer)

    def session(name: str) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        return onnxruntime.InferenceSession(folder / name, options, ["CPUExecutionProvider"])

    seen = torch.ones_like(source).numpy()
    read, memory = list[Any](), dict[str, Any]()
    if config.family != "decoder-only":
        given = {"input_ids": source.numpy(), "attention_mask": seen}
        read = session("encoder.onnx").run(None, given)
    if config.family == "encoder-decoder":
        memory = {"memory_keys": read[0], "memory_values": read[1], "attention_mask": seen}
    if config.family == "encoder-only":
        theirs = torch.from_numpy(read[0])
    else:
        theirs = _steps(session("decoder.onnx"), loaded, target, memory)
    ours = our_logits(loaded.model, source, target)
    versions = {name: version(name) for name in ("onnxruntime", "torch")}
    return verdict(ours, theirs, "onnxruntime", versions)


def _steps(step: Any, loaded: LoadedModel, target: Tensor, memory: dict[str, Any]) -> Tensor:
    config, parts = loaded.model.config, list[Tensor]()
    empty = (config.num_decoder_layers, len(target), config.num_kv_heads, 0, config.d_head)
    keys = values = torch.zeros(empty).numpy()
    count = target.size(1)
    sizes = [count - 4, 2, 1, 1] if count > 4 else [1] * count
    for tokens in torch.split(target, sizes, dim=1):
        given = {"input_ids": tokens.numpy(), "past_keys": keys, "past_values": values, **memory}
        logits, keys, values = step.run(None, given)
        parts.append(torch.from_numpy(logits))
    return torch.cat(parts, dim=1)
