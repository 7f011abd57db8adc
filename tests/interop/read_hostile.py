"""Reads every file of a folder as what its name says, in little memory; prints what came of it.

It runs in a process of its own: whatever a file does, the tests survive it.
"""

import json
import resource
import sys
import time
from pathlib import Path

import torch

from limelight.errors import UserError
from limelight.interop.fairseq import fairseq_model
from limelight.interop.gguf_file import GgufFile, gguf_llama, gguf_tokenizer
from limelight.interop.imported import check_weights
from limelight.interop.llama2c import llama2c_model, llama2c_tokenizer
from limelight.interop.marian import marian_model
from limelight.interop.nanogpt import nanogpt_model
from limelight.interop.pickled import read_checkpoint
from limelight.interop.sentencepiece import SentencePieceCoder
from limelight.interop.subword_nmt import SubwordCoder

MEMORY = 2**30  # bytes that reading may add


def checked(model):
    check_weights(*model, "it")


def read_gguf(path):
    file = GgufFile(path)
    gguf_tokenizer(file)
    checked(gguf_llama(file))


def read_pieces(path):
    SentencePieceCoder({"m.spm": path.read_bytes()}).encode(["The quick E\u0301 fox </s>", "a  b "])


def read_codes(path):
    dictionary, _, codes = path.read_bytes().partition(b"=====")
    SubwordCoder({"dict.txt": dictionary, "bpe.codes": codes}).encode(["the abc", "you"])


READERS = {
    ".pt": lambda path: checked(fairseq_model(read_checkpoint(path))),
    ".ckpt": lambda path: checked(nanogpt_model(read_checkpoint(path))),
    ".gguf": read_gguf,
    ".marian": lambda path: checked(marian_model(path)),
    ".bin": lambda path: checked(llama2c_model(path)),
    ".tok": lambda path: llama2c_tokenizer(path, 285),
    ".spm": read_pieces,
    ".codes": read_codes,
}


def main(folder):
    torch.empty(1, device="meta").normal_()  # whose import is large and slow
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for path in sorted(Path(folder).iterdir()):
        started = time.process_time()
        try:
            READERS[path.suffix](path)
            outcome = "read"
        except UserError as error:
            outcome = f"refused: {error}"
        except BaseException as error:
            outcome = f"failed: {type(error).__name__}: {error}"
        seconds = time.process_time() - started
        print(json.dumps([path.name, outcome, seconds]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
