"""fairseq's Transformers: a checkpoint, a dictionary for each side, and the codes of its subwords.

fairseq computes its sinusoids from other angles than the paper's and starts to count at 2, so they
become a table of learned positions. Its decoder starts with the end token.
"""

import json
import re
from collections.abc import Mapping
from itertools import chain, islice, permutations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limelight.decode.config import DecodeConfig
from limelight.errors import UserError
from limelight.files import read_bounded_bytes
from limelight.interop.coders import Coder
from limelight.interop.imported import FORMATS, ImportedModel, Origin, hashes, known_values
from limelight.interop.marian import half_sinusoids
from limelight.interop.names import Entry, NameTable, bart_names
from limelight.interop.pickled import Checkpoint, Stub, read_checkpoint
from limelight.interop.sentencepiece import SentencePieceCoder
from limelight.interop.subword_nmt import (
    CODES,
    DICTIONARY,
    END,
    PAD,
    START,
    UNKNOWN,
    SubwordCoder,
    parse_dictionary,
)
from limelight.interop.tokenizers import ImportedTokenizer, SpecialTokens
from limelight.model import ModelConfig

_FIRST_POSITION = 2  # behind the padding
_DERIVED = (  # what is no parameter, or is tied
    r"(?:.*\.)?(?:version|_float_tensor)|(?:en|de)coder\.embed_positions\.weight"
    r"|decoder\.(?:output_projection|embed_tokens)\.weight"
)
_MOST_FILES = 10_000
_PATTERNS = {  # in the folder, or up to two below it
    "checkpoint": r"(checkpoint.*|model|.*\.checkpoint)\.pt",
    "dictionary": r"dict\.(?:([\w-]+)\.)?txt",
    "codes": r"(bpe)?[._-]?codes?|.*\.bpe\.codes|bpecodes|code",
    "pieces": r".*(sentencepiece|spm).*\.model|.*\.spm",
}


def recognise(path: Path) -> bool:
    """Whether this is a folder with a checkpoint and dictionaries."""
    found = _find_files(path) if path.is_dir() else {}
    return bool(found.get("checkpoint") and found.get("dictionary"))


def read(folder: Path) -> ImportedModel:
    """A folder with a checkpoint, `dict.SOURCE.txt` and `dict.TARGET.txt`, and codes or pieces."""
    found = _find_files(folder)
    if not found["checkpoint"]:
        raise UserError(f"{folder} has no checkpoint of fairseq (checkpoint_best.pt)")
    checkpoint = read_checkpoint(found["checkpoint"][0])
    config, weights = fairseq_model(checkpoint)
    if not found["codes"] + found["pieces"]:
        raise UserError(
            f"{folder} has neither the codes of subword-nmt (bpe.codes) nor a model of "
            "SentencePiece: put the file that cut the training text beside the checkpoint"
        )
    tokens = SpecialTokens(pad=PAD, start=END, end=END, others=(START, UNKNOWN))
    sides: list[tuple[Coder, SpecialTokens]] = []
    for prefix, path in zip(("source-", ""), _dictionaries(folder, found, config), strict=True):
        dictionary = read_bounded_bytes(path)
        if found["codes"]:
            files = {f"{prefix}{DICTIONARY}": dictionary}
            files[f"{prefix}{CODES}"] = read_bounded_bytes(found["codes"][0])
            sides.append((SubwordCoder(files), tokens))
        else:
            symbols = enumerate(parse_dictionary(dictionary.decode(errors="replace")))
            table = json.dumps({symbol: i for i, symbol in symbols}).encode()
            files = {f"{prefix}pieces.spm": read_bounded_bytes(found["pieces"][0])}
            sides.append((SentencePieceCoder({**files, f"{prefix}vocab.json": table}), tokens))
    tokenizer = ImportedTokenizer(*sides[1], ImportedTokenizer(*sides[0]))
    origin = Origin("fairseq", "TransformerModel", str(folder), hashes([checkpoint.path]))
    decode = DecodeConfig(beam=5, length_penalty=1.0)  # as fairseq's own
    return ImportedModel(config, weights, tokenizer, origin, "pairs", decode)


def _find_files(folder: Path) -> dict[str, list[Path]]:
    levels = [folder.glob(pattern) for pattern in ("*", "*/*", "*/*/*")]
    paths = [*islice(chain(*levels), _MOST_FILES)]
    return {
        name: sorted(p for p in paths if re.fullmatch(pattern, p.name) and p.is_file())
        for name, pattern in _PATTERNS.items()
    }


def _dictionaries(
    folder: Path, found: Mapping[str, list[Path]], config: ModelConfig
) -> tuple[Path, Path]:
    """The dictionaries of source and target: the only one, or those of the right sizes."""
    sizes = {
        path: len(parse_dictionary(read_bounded_bytes(path).decode(errors="replace")))
        for path in found["dictionary"]
    }
    wanted = (config.num_source_tokens, config.vocab)
    pairs = [pair for pair in permutations(sizes, 2) if tuple(map(sizes.get, pair)) == wanted]
    if len(sizes) == 1 and {*sizes.values()} == {*wanted}:
        (only,) = sizes
        return only, only
    if len(pairs) != 1:
        have = ", ".join(f"{path.name}: {size}" for path, size in sizes.items()) or "none"
        raise UserError(
            f"{folder} has no two dictionaries that fit only one way: the source has {wanted[0]} "
            f"tokens and the target {wanted[1]} ({have})"
        )
    return pairs[0]


def fairseq_model(checkpoint: Checkpoint) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The configuration and the weights; whatever ours cannot be is refused by name."""
    content = checkpoint.content
    if not isinstance(content, dict) or "model" not in content:
        raise UserError(f"{checkpoint.path} is not a checkpoint of fairseq: it has no model")
    tensors = _split_projections(checkpoint.tensors(content["model"]))
    config = _config(checkpoint.path, _arguments(content), tensors)
    tables = {"encoder.embed_tokens.weight": "source.tokens.weight"}
    if config.tying != "all":
        tables["decoder.embed_tokens.weight"] = "target.tokens.weight"
    if config.tying == "none":
        tables["decoder.output_projection.weight"] = "classifier.weight"
    names = [*tables.items(), *bart_names(config, "")]
    table = NameTable([Entry(theirs, (ours,)) for theirs, ours in names], _DERIVED)
    floats = {name: tensor.float() for name, tensor in tensors.items()}
    weights = table.to_ours(floats, str(checkpoint.path))
    for side, embedding in (("encoder", "source"), ("decoder", "target")):
        positions = floats.get(f"{side}.embed_positions.weight")
        if positions is None:
            positions = half_sinusoids(0, _FIRST_POSITION + config.max_len, config.d_model)
        positions = positions[_FIRST_POSITION : _FIRST_POSITION + config.max_len]
        weights[f"{embedding}.positions.weight"] = positions
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
    for name, values in known_values(FORMATS["fairseq"]).items():
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
    tied: Any = "all" if args.get("share_all_embeddings") else "none"
    if tied == "none" and args.get("share_decoder_input_output_embed"):
        tied = "target"
    if tied == "none" and "decoder.output_projection.weight" not in tensors:
        raise UserError(f"{path} has no tensor decoder.output_projection.weight")
    learned = both("learned_pos", False)
    lengths = [
        tensors[f"{s}.embed_positions.weight"].size(0)
        for s in ("encoder", "decoder")
        if f"{s}.embed_positions.weight" in tensors
    ]
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
