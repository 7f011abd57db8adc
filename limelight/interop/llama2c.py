"""llama2.c's models (.bin) and tokenizers (tok512.bin): a header of numbers, then float32.

https://github.com/karpathy/llama2.c writes them; its queries and keys are in pairs, as ours are.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from limelight.errors import UserError
from limelight.interop.binary import BinaryReader
from limelight.interop.coders import LARGEST_VOCAB
from limelight.interop.huggingface_config import FAMILIES
from limelight.interop.imported import ImportedModel, Origin, hashes
from limelight.interop.sentencepiece import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    SentencePieceCoder,
    SentencePieceModel,
    to_bytes,
)
from limelight.interop.tokenizers import ImportedTokenizer, SpecialTokens
from limelight.model import ModelConfig

_MAGIC = 0x616B3432  # "ak42": a newer file, whose header has 256 bytes
_LONGEST_TOKEN = 4096
_UNK, _BOS, _EOS = range(3)  # stories end with the token that begins the next one


def read(path: Path) -> ImportedModel:
    """A model, and its tokenizer from the only other `tok*.bin` beside it."""
    config, weights = llama2c_model(path)
    beside = sorted(p for p in path.parent.glob("tok*.bin") if p != path)
    if len(beside) != 1:
        raise UserError(
            f"{path.parent} has {len(beside)} files tok*.bin: put the tokenizer of this model, "
            "such as tok512.bin, beside it"
        )
    pieces = llama2c_tokenizer(beside[0], config.vocab)
    coder = SentencePieceCoder({"tokenizer.spm": to_bytes(pieces)})
    tokens = SpecialTokens(pad=_UNK, start=_BOS, end=_BOS, text_start=(_BOS,), others=(_UNK, _EOS))
    tokenizer = ImportedTokenizer(coder, tokens)
    origin = Origin("llama2.c", "Transformer", str(path), hashes([path]))
    return ImportedModel(config, weights, tokenizer, origin, "texts")


def llama2c_model(path: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """A model in float32; files that llama2.c has rounded to int8 are refused."""
    file = BinaryReader(path)
    newer = file.numbers("I") == (_MAGIC,)
    if newer and (version := file.number("i", 2**31 - 1, "version")) != 1:
        raise UserError(f"{path} is of version {version} of llama2.c's format: export version 1")
    if not newer:
        file.at = 0
    d_model, d_ff, layers, heads, kv_heads, vocab, length = file.numbers("7i")
    tied = file.number("B", 1, "whether its tables are one") == 1 if newer else vocab > 0
    vocab = abs(vocab)
    if not all(0 < n <= 2**24 for n in (d_model, d_ff, layers, heads, kv_heads, vocab, length)):
        raise file.error("a number of its header is out of range")
    config = ModelConfig(
        vocab=vocab,
        layers=layers,
        d_model=d_model,
        d_ff=d_ff,
        heads=heads,
        kv_heads=kv_heads,
        max_len=length,
        bias=False,
        tied="all" if tied else "none",
        **FAMILIES["llama"].fixed,
    )
    if newer:
        file.at = 256
    weights = _read_weights(file, config, newer)
    if file.left:
        raise file.error(f"{file.left} bytes are left at the end")
    return config, weights


def _read_weights(file: BinaryReader, config: ModelConfig, newer: bool) -> dict[str, Tensor]:
    d, wide, n = config.d_model, config.ffn_dim, config.layers
    keys = config.num_kv_heads * config.d_head
    shapes = {  # in the order of the file; of each layer, if the name says so
        "target.tokens.weight": (config.vocab, d),
        "self_residual.norm.weight": (n, d),
        "self_attention.query.weight": (n, d, d),
        "self_attention.key.weight": (n, keys, d),
        "self_attention.value.weight": (n, keys, d),
        "self_attention.output.weight": (n, d, d),
        "feed_forward_residual.norm.weight": (n, d),
        "feed_forward.gate.weight": (n, wide, d),
        "feed_forward.outer.weight": (n, d, wide),
        "feed_forward.inner.weight": (n, wide, d),
        "decoder.norm.weight": (d,),
        "angles": (2, config.max_len, config.d_head // 2),  # computed here
        "classifier.weight": (config.vocab, d),
    }
    if newer:  # the norms stand first, and no angles
        norms = {name: shape for name, shape in shapes.items() if "norm" in name}
        shapes = {**norms, **{name: shapes[name] for name in shapes if name not in norms}}
        del shapes["angles"]
    if config.tying == "all":
        del shapes["classifier.weight"]
    weights: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        values = torch.from_numpy(file.array("<f4", *shape).astype(np.float32))
        if name.startswith(("self_", "feed_forward")):
            weights |= {f"decoder.layers.{i}.{name}": value for i, value in enumerate(values)}
        elif name != "angles":
            weights[name] = values
    return weights


def llama2c_tokenizer(path: Path, vocab: int) -> SentencePieceModel:
    """A tokenizer of llama2.c: SentencePiece's BPE, written as scores and bytes."""
    file = BinaryReader(path)
    file.number("i", _LONGEST_TOKEN, "the length of its longest token")
    if not 259 <= vocab <= LARGEST_VOCAB:
        raise UserError(f"a model of {vocab} tokens cannot have a tokenizer of llama2.c")
    pieces = []
    for i in range(vocab):
        (score,) = file.array("<f4", 1).tolist()
        text = file.bytes(file.number("i", _LONGEST_TOKEN, "the length of a token"))
        if not np.isfinite(score):
            raise file.error(f"token {i} has no number as its score")
        kind = UNKNOWN if i == 0 else CONTROL if i < 3 else BYTE if i < 259 else NORMAL
        name = text.decode(errors="replace").strip("\n") if i < 3 else text.decode(errors="replace")
        pieces.append((name.replace(" ", "▁"), score, kind))
    if file.left:
        raise file.error(f"it has more than the {vocab} tokens of its model")
    return SentencePieceModel(
        pieces,
        kind=BPE,
        remove_extra_whitespaces=False,
        byte_fallback=True,
        special={"unk": 0, "bos": 1, "eos": 2},
    )
