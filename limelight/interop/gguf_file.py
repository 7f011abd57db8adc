"""GGUF, the files of llama.cpp and Ollama: metadata, a tokenizer, and tensors rounded in blocks.

The header is read here, with every count checked; package `gguf` computes float32 from the blocks.
In a file of the Llama architecture queries and keys are in pairs already, as ours are.
"""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from limelight.decode.config import DecodeConfig
from limelight.errors import UserError, unknown_name
from limelight.interop.binary import BinaryReader
from limelight.interop.coders import LLAMA3, Coder, JsonCoder
from limelight.interop.imported import ImportedModel, Origin, check_weights, hashes
from limelight.interop.sentencepiece import BPE, SentencePieceCoder, SentencePieceModel, to_bytes
from limelight.interop.tokenizers import ImportedTokenizer, SpecialTokens
from limelight.model import ModelConfig
from limelight.model.positions import rotary_frequencies

_MOST_KEYS, _MOST_TENSORS, _LONGEST_TEXT, _MOST_ITEMS = 10_000, 50_000, 2**24, 2**21
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_TEXT, _ARRAY = 8, 9
CONTROL = 3  # tokenizer.ggml.token_type, as in SentencePiece
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end_of_text|>")  # of a turn or a text


class _TensorInfo(NamedTuple):
    shape: tuple[int, ...]
    kind: int
    offset: int


class GgufFile:
    """Metadata and tensors of a file; a tensor is computed when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, BinaryReader(path)
        file = self.file
        if file.bytes(4) != b"GGUF":
            raise file.error("it does not begin with GGUF")
        if (version := file.number("I", 2**32 - 1, "version")) not in (2, 3):
            raise UserError(f"{path} has version {version} of GGUF: 2 and 3 can be read")
        tensors = file.number("Q", _MOST_TENSORS, "the number of its tensors")
        keys = file.number("Q", _MOST_KEYS, "the number of its metadata")
        self.metadata = {self._text(): self._value() for _ in range(keys)}
        self.tensors = {self._text(): self._info() for _ in range(tensors)}
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 2**16:
            raise file.error(f"its alignment is {alignment!r:.40}")
        self.start = -(-file.at // alignment) * alignment

    def _text(self) -> str:
        return self.file.text(self.file.number("Q", _LONGEST_TEXT, "the length of a text"))

    def _value(self) -> Any:
        kind = self.file.number("I", 12, "the type of a value")
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY:
            return self.file.numbers(_SCALARS[kind])[0]
        kind = self.file.number("I", 12, "the type of a value")
        count = self.file.number("Q", _MOST_ITEMS, "the length of a list")
        if kind == _ARRAY:
            raise self.file.error("a list contains lists")
        if kind == _TEXT:
            return [self._text() for _ in range(count)]
        return self.file.array(np.dtype(f"<{_SCALARS[kind]}"), count).tolist()

    def _info(self) -> _TensorInfo:
        dimensions = self.file.number("I", 4, "the number of a tensor's dimensions")
        shape = self.file.numbers(f"{dimensions}Q")[::-1]  # the fastest first
        return _TensorInfo(shape, *self.file.numbers("IQ"))

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self.tensors:
            raise UserError(f"{self.path} has no tensor {name}")
        return self.tensors[name].shape

    def tensor(self, name: str) -> Tensor:
        """A tensor in float32."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize

        shape, kind, offset = self.tensors[name]
        try:
            quantization = GGMLQuantizationType(kind)
            block, size = GGML_QUANT_SIZES[quantization]
        except (ValueError, KeyError) as error:
            raise self.file.error(f"{name:.80} has the unknown type {kind}") from error
        if not shape or min(shape) < 1 or shape[-1] % block:
            raise self.file.error(f"{name:.80} has the shape {shape!s:.80}")
        self.file.at = 0
        self.file.skip(self.start)
        self.file.skip(offset)
        rows = self.file.array("u1", *shape[:-1], shape[-1] // block * size)
        try:
            values = dequantize(rows, quantization)
        except NotImplementedError as error:
            raise UserError(
                f"{self.path}: package gguf cannot read tensors of type {quantization.name}"
            ) from error
        return torch.from_numpy(np.array(values, dtype=np.float32).reshape(shape))


_LAYER = {
    "attn_norm": "self_residual.norm",
    "attn_q": "self_attention.query",
    "attn_k": "self_attention.key",
    "attn_v": "self_attention.value",
    "attn_output": "self_attention.output",
    "ffn_norm": "feed_forward_residual.norm",
    "ffn_gate": "feed_forward.gate",
    "ffn_up": "feed_forward.inner",
    "ffn_down": "feed_forward.outer",
}
_TOP = {"token_embd": "target.tokens", "output_norm": "decoder.norm", "output": "classifier"}


def gguf_llama(file: GgufFile) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The configuration and the weights of a Llama-type model."""
    config = _llama_config(file)
    weights = {}
    for name in file.tensors:
        if name == "rope_freqs.weight":
            continue
        parts = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
        table = _LAYER if parts and parts[1] else _TOP
        if not parts or parts[2] not in table:
            raise UserError(f"{file.path} has a tensor that no Llama has: {name:.80}")
        layer = f"decoder.layers.{int(parts[1])}." if parts[1] else ""
        weights[f"{layer}{table[parts[2]]}.{parts[3]}"] = file.tensor(name)
    return config, weights


def _llama_config(file: GgufFile) -> ModelConfig:
    if (architecture := file.metadata.get("general.architecture")) != "llama":
        raise UserError(
            f"{file.path} has the architecture {architecture!r:.80}: only llama can be imported"
        )

    def number(name: str, default: float | None = None) -> Any:
        value = file.metadata.get(f"llama.{name}", default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise UserError(f"{file.path} has llama.{name} = {value!r:.80}, which is no number")
        return value

    if number("expert_count", 0):
        raise UserError(f"{file.path} is a mixture of experts, which cannot be imported")
    heads = number("attention.head_count")
    head_dim = number("attention.key_length", number("embedding_length") // max(1, heads))
    if number("rope.dimension_count", head_dim) != head_dim:
        raise UserError(f"{file.path} turns only a part of each head, which cannot be imported")
    values = {
        "vocab": file.shape("token_embd.weight")[0],
        "layers": number("block_count"),
        "d_model": number("embedding_length"),
        "d_ff": number("feed_forward_length"),
        "heads": heads,
        "kv_heads": number("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_len": number("context_length"),
        "norm_eps": round(number("attention.layer_norm_rms_epsilon"), 12),  # it is float32
        "rotary_base": number("rope.freq_base", 10000.0),
    }
    config = ModelConfig(
        family="decoder-only",
        norm_order="pre",
        norm="rms",
        positions="rotary",
        activation="swiglu",
        bias=False,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        tied="none" if "output.weight" in file.tensors else "all",
        dropout=0.0,
        **values,
        **_scaling(file, number),
    )
    return _with_frequencies(file, config)


def _scaling(file: GgufFile, number: Any) -> dict[str, Any]:
    kind = file.metadata.get("llama.rope.scaling.type", "none")
    if kind == "none":
        return {}
    if kind != "linear":
        raise UserError(f"{file.path} scales its positions as {kind!r:.40}: only linear is known")
    return {"rotary_scaling": "linear", "rotary_factor": float(number("rope.scaling.factor"))}


def _with_frequencies(file: GgufFile, config: ModelConfig) -> ModelConfig:
    """Llama 3.1 and later: the file has the divisor of each frequency, not the settings behind."""
    if "rope_freqs.weight" not in file.tensors:
        return config
    divisors = file.tensor("rope_freqs.weight").flatten()
    scaled = replace(
        config, rotary_scaling="llama3", rotary_factor=round(max(1.0, float(divisors.max())), 3)
    )
    cpu = torch.device("cpu")
    plain, slowed = (rotary_frequencies(c, cpu, torch.float64) for c in (config, scaled))
    if divisors.shape != plain.shape or not torch.allclose(plain / slowed, divisors.double(), 1e-3):
        raise UserError(f"{file.path} changes the frequencies of its positions in an unknown way")
    return scaled


_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


def _split(pattern: str) -> dict[str, Any]:
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, {**_BYTES, "use_regex": False}]}


_DIGITS = {"type": "Digits", "individual_digits": True}
PRE_TOKENIZERS = {  # tokenizer.ggml.pre: a pattern is never read from a file
    "gpt-2": {**_BYTES, "use_regex": True},
    "smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, {**_BYTES, "use_regex": True}]},
    "llama-bpe": _split(LLAMA3),
    "qwen2": _split(LLAMA3.replace("{1,3}", "")),
}


def recognise(path: Path) -> bool:
    """Whether this is such a file."""
    return path.suffix == ".gguf"


def read(path: Path) -> ImportedModel:
    """A Llama-type model with the tokenizer and the chat template of its metadata."""
    file = GgufFile(path)
    config, weights = gguf_llama(file)
    check_weights(config, weights, str(path))
    tokenizer = gguf_tokenizer(file)
    if len(tokenizer) > config.vocab:
        raise UserError(f"{path} has {len(tokenizer)} tokens, and vectors for {config.vocab}")
    origin = Origin("gguf", "LlamaForCausalLM", str(path), hashes([path]))
    template = file.metadata.get("tokenizer.chat_template", "")
    return ImportedModel(
        config,
        weights,
        tokenizer,
        origin,
        "texts",
        DecodeConfig(beam=1),
        chat_template=template if isinstance(template, str) else "",
    )


def gguf_tokenizer(file: GgufFile) -> ImportedTokenizer:
    """Byte-level BPE as GPT-2's, or SentencePiece's as Llama 2's, and its special tokens."""

    def found(name: str, kind: type, default: Any = None) -> Any:
        value = file.metadata.get(f"tokenizer.ggml.{name}", default)
        if not isinstance(value, kind):
            raise UserError(f"{file.path} has no usable tokenizer.ggml.{name}")
        return value

    tokens, model = found("tokens", list), found("model", str)
    types = found("token_type", list, [1] * len(tokens))
    if not all(isinstance(t, str) for t in tokens) or len({*tokens}) != len(tokens):
        raise UserError(f"{file.path} has two tokens of the same name")
    if len(types) != len(tokens):
        raise UserError(f"{file.path} has {len(tokens)} tokens, and types of {len(types)}")
    coder: Coder
    if model == "gpt2":
        pre, merges = found("pre", str, "gpt-2"), found("merges", list)
        content = _byte_level(file, tokens, types, merges, pre)
        coder = JsonCoder({"tokenizer.json": json.dumps(content, ensure_ascii=False).encode()})
    elif model == "llama":
        coder = SentencePieceCoder({"tokenizer.spm": to_bytes(_pieces(file, tokens, types))})
    else:
        raise UserError(
            f"{file.path} has a tokenizer of kind {model!r:.80}: gpt2 and llama are known"
        )

    def special(name: str) -> list[int]:
        i = file.metadata.get(f"tokenizer.ggml.{name}_token_id", -1)
        return [i] if type(i) is int and 0 <= i < len(tokens) else []

    ends = [*special("eos"), *special("eot"), *special("eom")]
    if not ends:
        raise UserError(f"{file.path} names no token that ends a text")
    ends += [tokens.index(name) for name in _ENDS if name in tokens]
    starts = special("bos") or ends
    spoken = {i for i, kind in enumerate(types) if kind in (1, 4, 6)}  # text, bytes
    return ImportedTokenizer(
        coder,
        SpecialTokens(
            pad=(special("padding") or ends)[0],
            start=starts[0],
            end=ends[0],
            text_start=(starts[0],) if found("add_bos_token", bool, model == "llama") else (),
            ends=tuple(dict.fromkeys(ends[1:])),
            others=tuple(i for i in range(len(tokens)) if i not in spoken),
        ),
    )


def _pieces(file: GgufFile, tokens: list[str], types: list[int]) -> SentencePieceModel:
    scores = file.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise UserError(f"{file.path} has no usable tokenizer.ggml.scores")
    prefix = file.metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    pieces = [*zip(tokens, map(float, scores), map(int, types), strict=True)]
    return SentencePieceModel(pieces, BPE, b"", prefix, False, byte_fallback=True)


def _byte_level(
    file: GgufFile, tokens: list[str], types: list[int], merges: list[str], pre: str
) -> dict[str, Any]:
    if pre not in PRE_TOKENIZERS:
        raise unknown_name("pre-tokenizer", pre, PRE_TOKENIZERS)
    pairs = [merge.split(" ") for merge in merges if isinstance(merge, str)]
    vocab = {token: i for i, token in enumerate(tokens)}
    for pair in pairs:
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocab.keys():
            raise UserError(f"{file.path} merges {pair!r:.80}, which are not its tokens")
    fixed = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    control = [i for i, kind in enumerate(types) if kind == CONTROL]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": tokens[i], **fixed, "special": True} for i in control
        ],
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": {**_BYTES, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre == "llama-bpe",
            "vocab": vocab,
            "merges": pairs,
        },
    }
