"""The model card of an export: README.md, with what the run says of data, scores and licence."""

import json
from collections.abc import Iterator

from limelight import __version__
from limelight.data.config import DataConfig
from limelight.data.registry import NAMED
from limelight.loading import LoadedModel
from limelight.run.bundled_models import FACTS
from limelight.run.folder import RunFolder
from limelight.run.log import summary

_PIPELINES = {
    "translate": "translation",
    "write": "text-generation",
    "fill": "fill-mask",
    "classify": "text-classification",
    "embed": "feature-extraction",
}


def model_card(loaded: LoadedModel, run: RunFolder, library: str, use: str) -> str:
    """A card as the hub shows it; `use` is Python that runs the model."""
    facts = run.read_json(FACTS) if (run.path / FACTS).is_file() else {}
    origin = json.loads(loaded.carried.get("imported.json", "{}")).get("origin", {})
    licence = facts.get("licence") or "not stated: whoever publishes this model names it here"
    head = [f"library_name: {library}", f"pipeline_tag: {_PIPELINES[loaded.tasks[0]]}"]
    if "licence" in facts:
        head = ["license: other", f"license_name: {json.dumps(licence)}", *head]
    config, name = loaded.model.config, run.path.resolve().name
    size = sum(p.numel() for p in loaded.model.parameters())
    came = f", imported from {origin.get('source')}" if origin else ""
    return "\n".join(
        [
            *("---", *head, "---", "", f"# {name}", "", loaded.recipe.about, ""),
            f"{config.family}, {config.layers} layers of {config.d_model}, {size:,} parameters, "
            f"{config.vocab:,} tokens, texts of up to {config.max_len} tokens{came}. Exported by "
            f"Limelight {__version__}; `certificate.json` says how far its numbers are from ours.",
            *("", "```python", use.strip(), "```", "", "## Data", ""),
            *(dict.fromkeys(_data(loaded.recipe.data)) if not origin else [f"See {origin['source']}."]),
            *("", "## Scores", "", *_scores(facts, run), "", "## Licence", "", licence, ""),
        ]
    )


def _data(data: DataConfig) -> Iterator[str]:
    for one in data.corpora or (data,):
        if one.name in NAMED:
            yield f"- `{one.name}`: {NAMED[one.name].origin} ({NAMED[one.name].licence})"
        else:
            files = ", ".join(path.replace("\\", "/").rpartition("/")[2] for path in one.train)
            made = one.toy or one.scenes or one.kind
            yield f"- {one.hub or files or made}: its licence is not known to the run"


def _scores(facts: dict[str, object], run: RunFolder) -> Iterator[str]:
    scores = facts.get("scores")
    if isinstance(scores, list):
        for score in scores:
            yield f"- {score['name']} {score['value']}: {score['on']} (`{score['command']}`)"
    elif best := summary(run.log)["best_validation"]:
        yield f"- validation loss {best['loss']:.4f} at step {best['step']:,}"
    else:
        yield "None in the run: `limelight evaluate` measures them."
