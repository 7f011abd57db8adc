"""nanoGPT's checkpoints (ckpt.pt): GPT-2's layers, and the numbers of the model beside them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limelight.errors import UserError
from limelight.files import read_bounded_bytes
from limelight.interop.characters import CharacterCoder
from limelight.interop.coders import JsonCoder
from limelight.interop.huggingface_config import FAMILIES
from limelight.interop.imported import ImportedModel, Origin, hashes
from limelight.interop.names import gpt2
from limelight.interop.pickled import Checkpoint, read_checkpoint, read_pickle
from limelight.interop.tokenizers import ImportedTokenizer, SpecialTokens
from limelight.model import ModelConfig

_COMPILED = "_orig_mod."  # before every name, if torch.compile had the model


def checkpoint_at(path: Path) -> Path:
    """The ckpt.pt that is this path, or in this folder."""
    return path if path.name == "ckpt.pt" else path / "ckpt.pt"


def read(path: Path) -> ImportedModel:
    """A checkpoint, and the tokenizer beside it: meta.pkl for characters, else tokenizer.json."""
    path = checkpoint_at(path)
    config, weights = nanogpt_model(read_checkpoint(path))
    tokenizer = _tokenizer(path.parent)
    origin = Origin("nanogpt", "GPT", str(path), hashes([path]))
    return ImportedModel(config, weights, tokenizer, origin, "texts")


def _tokenizer(folder: Path) -> ImportedTokenizer:
    if (folder / "meta.pkl").is_file():
        meta = read_pickle(read_bounded_bytes(folder / "meta.pkl"))
        table = meta.get("stoi") if isinstance(meta, dict) else None
        data = json.dumps(table if isinstance(table, dict) else None, skipkeys=True).encode()
        coder = CharacterCoder({"vocab.json": data})
        first = coder.ids.get("\n", 0)  # nanoGPT starts from a new line, and nothing ends a text
        tokens = SpecialTokens(
            pad=first, start=first, end=first, text_start=(first,), shared=(first,)
        )
        return ImportedTokenizer(coder, tokens)
    if not (folder / "tokenizer.json").is_file():
        raise UserError(
            f"{folder} has no tokenizer: put meta.pkl there, which nanoGPT writes for characters, "
            "or the tokenizer.json of GPT-2 (huggingface.co/openai-community/gpt2)"
        )
    json_coder = JsonCoder({"tokenizer.json": read_bounded_bytes(folder / "tokenizer.json")})
    end = json_coder.ids.get("<|endoftext|>")
    if end is None:
        raise UserError(f"{folder / 'tokenizer.json'} has no <|endoftext|>, which GPT-2 has")
    return ImportedTokenizer(json_coder, SpecialTokens(pad=end, start=end, end=end))


def nanogpt_model(checkpoint: Checkpoint) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The configuration and the weights; a norm without a bias gets one of zeros."""
    content = checkpoint.content
    if not isinstance(content, dict) or not {"model", "model_args"} <= content.keys():
        raise UserError(f"{checkpoint.path} is not a checkpoint of nanoGPT: it has no model_args")
    args, path = content["model_args"], checkpoint.path
    if not isinstance(args, dict):
        raise UserError(f"{path} has no model_args")
    found = checkpoint.tensors(content["model"])
    tensors = {name.removeprefix(_COMPILED): tensor.float() for name, tensor in found.items()}
    table, head = (tensors.get(name) for name in ("transformer.wte.weight", "lm_head.weight"))
    tied = head is None or (table is not None and torch.equal(table, head))
    if tied:
        tensors.pop("lm_head.weight", None)
    config = ModelConfig(
        vocab=_number(args, "vocab_size"),
        layers=_number(args, "n_layer"),
        d_model=_number(args, "n_embd"),
        heads=_number(args, "n_head"),
        max_len=_number(args, "block_size"),
        activation="gelu",
        bias=args.get("bias", True) is True,
        tied="all" if tied else "none",
        **FAMILIES["gpt2"].fixed,
    )
    for name in [name for name in tensors if ".ln_" in name and name.endswith("weight")]:
        bias = name.replace("weight", "bias")  # our layer norm always has one
        tensors.setdefault(bias, torch.zeros_like(tensors[name]))
    return config, gpt2(config, turn=lambda x: x).to_ours(tensors, str(path))


def _number(args: Mapping[str, Any], name: str) -> int:
    value = args.get(name)
    if type(value) is not int:
        raise UserError(f"this checkpoint of nanoGPT has {name}={value!r:.40}, which is no number")
    return value
