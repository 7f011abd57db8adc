"""Kills exports at their worst moments and says what is left: each in a process of its own.

It has to be started anew, as engines that have run threads cannot be forked.
"""

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import ctranslate2
import onnxruntime
import transformers as hf

from limelight.interop import (
    certificate,
    ctranslate2_export,
    export_model,
    huggingface_export,
    onnx_export,
)
from limelight.interop.gguf_file import GgufFile

MOMENTS = {  # a module, and the name in it whose call is the end
    "weights": (huggingface_export, "save_file"),
    "comparison": (certificate, "verdict"),
    "comparison of ctranslate2": (ctranslate2_export, "verdict"),
    "comparison of onnx": (onnx_export, "verdict"),
    "certificate": (export_model, "write_json"),
    "sync": (export_model, "sync"),
}
CASES = [
    *(("huggingface", when) for when in ("weights", "comparison", "certificate", "sync")),
    *(("ctranslate2", when) for when in ("comparison of ctranslate2", "sync")),
    *(("gguf", when) for when in ("comparison", "sync")),
    ("onnx", "comparison of onnx"),
]
LOADERS = (
    hf.AutoConfig.from_pretrained,
    hf.AutoTokenizer.from_pretrained,
    ctranslate2.Translator,
    ctranslate2.Generator,
    lambda folder: onnxruntime.InferenceSession(Path(folder) / "decoder.onnx"),
    lambda folder: GgufFile(Path(folder) / "model.gguf"),
)


def forked(work, *given):
    """How a process ended that did this work."""
    if (child := os.fork()) == 0:
        with suppress(BaseException):
            os._exit(work(*given) or 0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill(run, out, to, when):
    module, name = MOMENTS[when]
    setattr(module, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    export_model.export_model(run, out, to)


def loads(parent):
    """How many libraries take a folder that lies in this one."""
    taken = 0
    for folder in parent.iterdir():
        for load in LOADERS:
            with suppress(Exception):
                load(str(folder))
                taken += 1
    return taken


def export(run, out, to):
    return int(export_model.export_model(run, out, to).compared == "nothing")


def main(run, base):
    for to, when in CASES:
        out = base / to / when / "out"
        out.parent.mkdir(parents=True)
        times = 1 if to == "onnx" else 2  # as it takes long
        ends = [forked(kill, run, out, to, when) for _ in range(times)]
        left = [path.name for path in out.parent.iterdir()]
        print(json.dumps([to, when, ends, left, forked(loads, out.parent)]), flush=True)
    again = forked(export, run, out := base / "gguf" / "sync" / "out", "gguf")
    left = [path.name for path in out.parent.iterdir()]
    print(json.dumps(["again", again, left, forked(loads, out.parent)]))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
