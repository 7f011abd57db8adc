"""GGUF, the files of llama.cpp and Ollama: metadata, a tokenizer, and tensors rounded in blocks.

The header is read here, with every count checked; package `gguf` computes float32 from the blocks.
In a file of the Llama architecture queries and keys are in pairs already, as ours are.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from limelight.errors import UserError, unknown_name
from limelight.interop import names
from limelight.interop.binary import BinaryReader
from limelight.interop.coders import BYTE_LEVEL, LLAMA3, Coder, JsonCoder
from limelight.interop.huggingface_config import FAMILIES
from limelight.interop.imported import ImportedModel, Origin, hashes
from limelight.interop.sentencepiece import BPE, SentencePieceCoder, SentencePieceModel, to_bytes
from limelight.interop.tokenizers import ImportedTokenizer, SpecialTokens
from limelight.model import ModelConfig
from limelight.model.positions import rotary_frequencies

_MOST_KEYS, _MOST_TENSORS, _LONGEST_TEXT, _MOST_ITEMS = 10_000, 50_000, 2**24, 2**21
_SCALARS = "BbHhIif?__Qqd"  # by the number of a type: two are texts and lists
_TEXT, _ARRAY = 8, 9
CONTROL = 3  # tokenizer.ggml.token_type, as in SentencePiece
SIZES = {  # behind "llama." and the like; ours
    "context_length": "max_len",
    "block_count": "layers",
    "embedding_length": "d_model",
    "feed_forward_length": "d_ff",
    "attention.head_count": "heads",
    "attention.head_count_kv": "kv_heads",
}
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
        if not shape or min(shape) < 1:
            raise self.file.error(f"a tensor has the shape {shape!s:.80}")
        return _TensorInfo(shape, *self.file.numbers("IQ"))

    def info(self, name: str) -> _TensorInfo:
        if name not in self.tensors:
            raise UserError(f"{self.path} has no tensor {name}")
        return self.tensors[name]

    def tensor(self, name: str) -> Tensor:
        """A tensor in float32."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize

        shape, kind, offset = self.info(name)
        try:
            quantization = GGMLQuantizationType(kind)
            block, size = GGML_QUANT_SIZES[quantization]
        except (ValueError, KeyError) as error:
            raise self.file.error(f"{name:.80} has the unknown type {kind}") from error
        if shape[-1] % block:
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


def gguf_llama(file: GgufFile) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The configuration and the weights of a Llama-type model."""
    config = _llama_config(file)
    table = names.llama(config, paired=True)
    known = gguf_names(table, "llama", config.layers)
    for name in file.tensors.keys() - {*known.values(), "rope_freqs.weight"}:
        raise UserError(f"{file.path} has a tensor that no Llama has: {name:.80}")
    theirs = {entry: file.tensor(name) for entry, name in known.items()}
    return config, table.to_ours(theirs, str(file.path))


def gguf_names(table: names.NameTable, kind: str, layers: int) -> dict[str, str]:
    """The name in GGUF for each tensor of a table, by its name in the hub."""
    import gguf

    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], layers)
    endings = (".weight", ".bias")
    return {e.theirs: cast(str, known.get_name(e.theirs, endings)) for e in table.entries}


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
    heads, d_model = number("attention.head_count"), number("embedding_length")
    head_dim = number("attention.key_length", d_model // max(1, heads))
    if number("rope.dimension_count", head_dim) != head_dim:
        raise UserError(f"{file.path} rotates only a part of each head, which cannot be imported")
    usual = {"attention.head_count_kv": heads}
    config = ModelConfig(
        vocab=file.info("token_embd.weight").shape[0],
        head_dim=0 if head_dim * heads == d_model else head_dim,
        norm_eps=round(number("attention.layer_norm_rms_epsilon"), 12),  # it is float32
        rotary_base=number("rope.freq_base", 10000.0),
        bias=False,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        tied="none" if "output.weight" in file.tensors else "all",
        **{ours: number(theirs, usual.get(theirs)) for theirs, ours in SIZES.items()},
        **FAMILIES["llama"].fixed,
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


def _split(pattern: str) -> dict[str, Any]:
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, {**BYTE_LEVEL, "use_regex": False}]}


_DIGITS = {"type": "Digits", "individual_digits": True}
PRE_TOKENIZERS = {  # tokenizer.ggml.pre: a pattern is never read from a file
    "gpt-2": BYTE_LEVEL,
    "smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, BYTE_LEVEL]},
    "llama-bpe": _split(LLAMA3),
    "qwen2": _split(LLAMA3.replace("{1,3}", "")),
}


def read(path: Path) -> ImportedModel:
    """A Llama-type model with the tokenizer and the chat template of its metadata."""
    file = GgufFile(path)
    config, weights = gguf_llama(file)
    tokenizer = gguf_tokenizer(file)
    origin = Origin("gguf", "LlamaForCausalLM", str(path), hashes([path]))
    template = file.metadata.get("tokenizer.chat_template", "")
    said = template if isinstance(template, str) else ""
    return ImportedModel(config, weights, tokenizer, origin, "texts", chat_template=said)


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
        coder = _byte_level(file, tokens, types, merges, pre)
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
) -> JsonCoder:
    if pre not in PRE_TOKENIZERS:
        raise unknown_name("pre-tokenizer", pre, PRE_TOKENIZERS)
    pairs = [merge.split(" ") for merge in merges if isinstance(merge, str)]
    vocab = {token: i for i, token in enumerate(tokens)}
    for pair in pairs:
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocab.keys():
            raise UserError(f"{file.path} merges {pair!r:.80}, which are not its tokens")
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    model = {"type": "BPE", "vocab": vocab, "merges": pairs, "ignore_merges": pre == "llama-bpe"}
    return JsonCoder.made(model, control, PRE_TOKENIZERS[pre], BYTE_LEVEL)
