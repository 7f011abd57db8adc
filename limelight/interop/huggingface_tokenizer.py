"""Tokenizers in folders of the hub: their files, special tokens and chat templates."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limelight.errors import UserError
from limelight.files import read_bounded_bytes
from limelight.interop.coders import JsonCoder, parse_json
from limelight.interop.sentencepiece import SentencePieceCoder
from limelight.interop.tokenizers import ImportedTokenizer, SpecialTokens
from limelight.model import ModelConfig

_LARGEST_FILE = 2**25  # bytes of a tokenizer's file
_LARGEST_TEMPLATE = 2**18  # characters
_USUAL = {  # special tokens that old folders do not name
    "bert": {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "mask", "pad")},
    "gpt2": {f"{name}_token": "<|endoftext|>" for name in ("bos", "eos")},
}


def source_bytes(path: Path, most: int = 2**20) -> bytes:
    """A file of the source; the hub's cache has links to it."""
    return read_bounded_bytes(path.resolve(), most)


def read_object(path: Path, most: int = 2**20) -> dict[str, Any]:
    """A JSON object."""
    found = parse_json(source_bytes(path, most), path)
    if not isinstance(found, dict):
        raise UserError(f"{path} is no JSON object")
    return found


def maybe_object(path: Path) -> dict[str, Any]:
    """A JSON object that may be missing."""
    return read_object(path) if path.is_file() else {}


def read_tokenizer(
    folder: Path, options: Mapping[str, Any], config: ModelConfig
) -> tuple[ImportedTokenizer, str]:
    """The tokenizer with its special tokens, and the chat template, if there is one."""
    said = maybe_object(folder / "tokenizer_config.json")
    usual = _USUAL.get(options["model_type"], {})
    named = {**usual, **maybe_object(folder / "special_tokens_map.json"), **said}
    if options["model_type"] == "marian" and (folder / "source.spm").is_file():
        return _marian_tokenizer(folder, options), ""
    coder = _coder(folder, said)
    template = _chat_template(folder, said)
    generation = maybe_object(folder / "generation_config.json")
    tokens = _specials(coder, {**options, **generation}, named, config)
    return ImportedTokenizer(coder, tokens), template


def _coder(folder: Path, said: Mapping[str, Any]) -> JsonCoder:
    if (folder / "tokenizer.json").is_file():
        return JsonCoder({"tokenizer.json": source_bytes(folder / "tokenizer.json", _LARGEST_FILE)})
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        merges = source_bytes(folder / "merges.txt", _LARGEST_FILE).decode("utf-8", "replace")
        return JsonCoder.byte_level(read_object(folder / "vocab.json", _LARGEST_FILE), merges)
    if (folder / "vocab.txt").is_file():
        pieces = source_bytes(folder / "vocab.txt", _LARGEST_FILE).decode("utf-8", "replace")
        plain = re.sub(r"\[[A-Z]+\d*\]", "", pieces)  # no special tokens
        return JsonCoder.wordpiece(pieces, bool(said.get("do_lower_case", plain == plain.lower())))
    raise UserError(f"{folder} has no tokenizer that is supported: tokenizer.json is the usual one")


def _chat_template(folder: Path, said: Mapping[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    template = said.get("chat_template") or ""
    if path.is_file():
        template = source_bytes(path, _LARGEST_TEMPLATE).decode("utf-8", "replace")
    if isinstance(template, list):  # several by name
        named = {str(e.get("name")): e.get("template") for e in template if isinstance(e, dict)}
        template = named.get("default") or ""
    if not isinstance(template, str) or len(template) > _LARGEST_TEMPLATE:
        raise UserError(f"{folder}: its chat template is not a text")
    return template


def _specials(
    coder: JsonCoder, options: Mapping[str, Any], named: Mapping[str, Any], config: ModelConfig
) -> SpecialTokens:
    """By their names in the tokenizer's files, else by the ids of the config."""

    def every(*names: str) -> list[int]:
        found: list[Any] = []
        for name in names:
            token, ids = named.get(f"{name}_token"), options.get(f"{name}_token_id")
            token = token.get("content") if isinstance(token, dict) else token
            found.append(coder.ids.get(token) if isinstance(token, str) else None)
            found += ids if isinstance(ids, list) else [ids]
        return list(dict.fromkeys(i for i in found if type(i) is int and i >= 0))

    two_sided, writes = config.family == "encoder-decoder", config.family == "decoder-only"
    ends = every("eos") if config.family != "encoder-only" else every("sep", "eos")
    starts = every("cls", "bos") if config.family == "encoder-only" else every("bos", "eos")
    starts = [*(every("decoder_start") if two_sided else []), *starts]
    if not ends or not starts:
        raise UserError("the tokenizer names no start or no end of a text")
    pads, masks, (before, _) = every("pad"), every("mask"), coder.frame
    return SpecialTokens(
        pad=(pads or ends)[0],
        start=starts[0],
        end=ends[0],
        mask=(masks or [-1])[0],
        text_start=tuple(before) if writes else (),
        ends=tuple(ends[1:]) if writes else (),
        others=tuple(sorted(coder.special_ids)),
    )


def _marian_tokenizer(folder: Path, options: Mapping[str, Any]) -> ImportedTokenizer:
    """SentencePiece cuts the text, one model for each side; vocab.json has the ids."""
    apart = (folder / "target_vocab.json").is_file()
    files = {"source": "vocab.json", "target": "target_vocab.json" if apart else "vocab.json"}
    sides = {}
    for side, vocab in files.items():
        read = {f"{side}.spm": source_bytes(folder / f"{side}.spm", _LARGEST_FILE)}
        read[vocab] = source_bytes(folder / vocab, _LARGEST_FILE)
        coder = SentencePieceCoder(read)
        pad, end = coder.ids.get("<pad>"), coder.ids.get("</s>")
        if pad is None or end is None:
            raise UserError(f"{folder / vocab} has no <pad> or no </s>")
        begin = options.get("decoder_start_token_id", pad)
        unknown = coder.ids.get("<unk>")
        others = () if unknown is None else (unknown,)
        tokens = SpecialTokens(pad=pad, start=begin, end=end, others=others)
        sides[side] = coder, tokens
    return ImportedTokenizer(*sides["target"], ImportedTokenizer(*sides["source"]))
