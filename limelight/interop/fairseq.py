"""fairseq's Transformers: a checkpoint, a dictionary for each side, and the codes of its subwords.

fairseq computes its sinusoids from other angles than the paper's and starts to count at 2, so they
become a table of learned positions. Its decoder starts with the end token.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limelight.errors import UserError
from limelight.files import read_bounded
from limelight.interop.marian import half_sinusoids
from limelight.interop.pickled import Checkpoint, Stub
from limelight.model import ModelConfig

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # the first ids of every dictionary
END, UNKNOWN = 2, 3
_FIRST_POSITION = 2  # behind the padding
_LARGEST = 2**26  # bytes of a dictionary, or of codes
_MOST_SYMBOLS = 2**21
_WANTED = {  # what changes the computation, with the values that ours has too
    "adaptive_input": (False,),
    "adaptive_softmax_cutoff": (None,),
    "layernorm_embedding": (False,),
    "no_cross_attention": (False,),
    "cross_self_attention": (False,),
    "no_token_positional_embeddings": (False,),
    "activation_fn": ("relu", "gelu", "gelu_accurate", "swish"),
    "char_inputs": (False,),
    "base_layers": (0,),
    "encoder_learned_pos": (False, True),
}
_PARTS = {
    "self_attn.q_proj": "self_attention.query",
    "self_attn.k_proj": "self_attention.key",
    "self_attn.v_proj": "self_attention.value",
    "self_attn.out_proj": "self_attention.output",
    "self_attn_layer_norm": "self_residual.norm",
    "encoder_attn.q_proj": "cross_attention.query",
    "encoder_attn.k_proj": "cross_attention.key",
    "encoder_attn.v_proj": "cross_attention.value",
    "encoder_attn.out_proj": "cross_attention.output",
    "encoder_attn_layer_norm": "cross_residual.norm",
    "fc1": "feed_forward.inner",
    "fc2": "feed_forward.outer",
    "final_layer_norm": "feed_forward_residual.norm",
}
_BUFFERS = ("version", "_float_tensor", "decoder.output_projection.weight")


def fairseq_model(checkpoint: Checkpoint) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The configuration and the weights; whatever ours cannot be is refused by name."""
    content = checkpoint.content
    if not isinstance(content, dict) or "model" not in content:
        raise UserError(f"{checkpoint.path} is not a checkpoint of fairseq: it has no model")
    tensors = _split_projections(checkpoint.tensors(content["model"]))
    config = _config(checkpoint.path, _arguments(content), tensors)
    weights: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if ours := _our_name(checkpoint.path, name, config):
            weights[ours] = tensor.float()
    for side, embedding in (("encoder", "source"), ("decoder", "target")):
        learned = tensors.get(f"{side}.embed_positions.weight")
        if learned is None:
            table = half_sinusoids(_FIRST_POSITION, config.max_len, config.d_model)
        else:
            table = learned[_FIRST_POSITION : _FIRST_POSITION + config.max_len].float()
        weights[f"{embedding}.positions.weight"] = table
    if config.tying == "none":
        weights["classifier.weight"] = tensors["decoder.output_projection.weight"].float()
    if config.tying == "all":
        del weights["target.tokens.weight"]
    weights["classifier.bias"] = torch.zeros(config.vocab)  # fairseq has none
    return config, weights


def _arguments(content: dict[str, Any]) -> Mapping[str, Any]:
    """The options of its training: `args` of old checkpoints, `cfg.model` of newer ones."""
    found = content.get("args")
    if found is None and isinstance(content.get("cfg"), dict):
        found = content["cfg"].get("model")
    state = found.state if isinstance(found, Stub) else found
    if not isinstance(state, dict):
        raise UserError("this checkpoint of fairseq has no options (args or cfg)")
    return state


def _config(path: Path, args: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> ModelConfig:
    for name, values in _WANTED.items():
        if args.get(name, values[0]) not in values:
            raise UserError(f"{path} has {name}={args[name]!r:.80}, which cannot be imported")

    def both(name: str, default: Any = None) -> Any:
        first, second = (args.get(f"{side}_{name}", default) for side in ("encoder", "decoder"))
        if first != second:
            raise UserError(
                f"{path} has encoder_{name}={first!r:.40} and decoder_{name}={second!r:.40}: "
                "they must be equal"
            )
        return first

    tables = [tensors.get(f"{side}.embed_tokens.weight") for side in ("encoder", "decoder")]
    if any(table is None or table.dim() != 2 for table in tables):
        raise UserError(f"{path} is not an encoder-decoder of fairseq: it has no embed_tokens")
    source, target = (table.size(0) for table in tables if table is not None)
    tied = "all" if args.get("share_all_embeddings") else "none"
    if tied == "none" and args.get("share_decoder_input_output_embed"):
        tied = "target"
    if tied == "none" and "decoder.output_projection.weight" not in tensors:
        raise UserError(f"{path} has no tensor decoder.output_projection.weight")
    learned = both("learned_pos", False)
    lengths = [tensors[f"{s}.embed_positions.weight"].size(0) for s in ("encoder", "decoder")
               if f"{s}.embed_positions.weight" in tensors]
    if learned and len(lengths) != 2:
        raise UserError(f"{path} has no tensor encoder.embed_positions.weight")
    activation = args.get("activation_fn", "relu")
    return ModelConfig(
        family="encoder-decoder",
        vocab=target,
        source_vocab=0 if source == target else source,
        layers=args.get("encoder_layers", 6),
        decoder_layers=args.get("decoder_layers", 6),
        d_model=both("embed_dim", 512),
        d_ff=both("ffn_embed_dim", 2048),
        heads=both("attention_heads", 8),
        max_len=min(1024, *lengths) - _FIRST_POSITION if learned else 1024,
        norm_order="pre" if both("normalize_before", False) else "post",
        positions="learned",
        activation={"gelu_accurate": "gelu-tanh", "swish": "silu"}.get(activation, activation),
        tied=tied,
        embedding_scale="off" if args.get("no_scale_embedding") else "on",
        dropout=0.0,
    )


def _split_projections(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Checkpoints from before 2019 have queries, keys and values in one matrix."""
    split: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if "in_proj_" not in name:
            split[name] = tensor
            continue
        base, _, kind = name.rpartition("in_proj_")
        for letter, part in zip("qkv", tensor.chunk(3), strict=True):
            split[f"{base}{letter}_proj.{kind}"] = part
    return split


def _our_name(path: Path, name: str, config: ModelConfig) -> str | None:
    """Our name for a tensor of fairseq's; none for what is no parameter or is tied."""
    if name.endswith(_BUFFERS) or name.endswith("embed_positions.weight"):
        return None
    found = re.fullmatch(r"(encoder|decoder)\.(?:layers\.(\d+)\.)?([\w.]+)\.(weight|bias)", name)
    if found:
        side, layer, part, kind = found.groups()
        if layer and part in _PARTS:
            return f"{side}.layers.{layer}.{_PARTS[part]}.{kind}"
        if not layer and part == "layer_norm" and config.norm_order == "pre":
            return f"{side}.norm.{kind}"
        if not layer and part == "embed_tokens":
            return f"{'source' if side == 'encoder' else 'target'}.tokens.{kind}"
    raise UserError(f"{path} has a tensor that no such model has: {name:.80}")


def read_dictionary(path: Path) -> list[str]:
    """The symbols of a `dict.*.txt`, in the order of their ids."""
    symbols = list(SPECIAL)
    for number, line in enumerate(read_bounded(path, _LARGEST).split("\n"), start=1):
        if not line.strip():
            continue
        symbol, _, count = line.rstrip().removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not count.isdecimal():
            raise UserError(f"{path}, line {number}: a symbol and its count are expected")
        symbols.append(symbol)
        if len(symbols) > _MOST_SYMBOLS:
            raise UserError(f"{path} has more than {_MOST_SYMBOLS} symbols")
    if len({*symbols}) < len(symbols):
        raise UserError(f"{path} has the same symbol twice")
    return symbols


def read_codes(path: Path) -> list[tuple[str, str]]:
    """The merges of subword-nmt, of its version 0.2."""
    first, *lines = read_bounded(path, _LARGEST).split("\n")
    if first.strip() != "#version: 0.2":
        raise UserError(f"{path} must begin with '#version: 0.2', as subword-nmt writes it")
    pairs = [tuple(line.strip("\r\n ").split(" ")) for line in lines if line.strip()]
    for pair in pairs:
        if len(pair) != 2:
            raise UserError(f"{path}: {' '.join(pair)!r:.80} are not two symbols")
    return [(left, right) for left, right in pairs]


def subword_tokenizer(
    symbols: Sequence[str], merges: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """The content of a `tokenizer.json` with the ids of a dictionary.

    fairseq writes "mu@@" for a piece that goes on and "sa" for the end of a word, where the library
    has "mu" and "sa</w>". Pieces that the dictionary does not have get ids behind it: unknown, but
    a strange space at the end of a word, which fairseq loses.
    """
    vocab: dict[str, int] = {}
    for i, symbol in enumerate(symbols):
        name = symbol.removesuffix("@@") if symbol.endswith("@@") else f"{symbol}</w>"
        vocab[f" {symbol} " if i < len(SPECIAL) else name] = i
    for pair in merges:
        for piece in (*pair, "".join(pair)):
            vocab.setdefault(piece, len(vocab))
    for character in filter(str.isspace, map(chr, range(0x3001))):
        vocab.setdefault(f"{character}</w>", len(vocab))
    space = {"Regex": " +"}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split", "pattern": space, "behavior": "Removed", "invert": False
        },
        "post_processor": None,
        "decoder": {"type": "BPEDecoder", "suffix": "</w>"},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": f" {SPECIAL[UNKNOWN]} ",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": "</w>",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [list(pair) for pair in merges],
        },
    }
