"""The model card of an export: README.md, with what the run says of data, scores and licence."""

import json
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from limelight.data.config import DataConfig
from limelight.data.registry import NAMED
from limelight.loading import LoadedModel
from limelight.run.bundled_models import FACTS
from limelight.run.folder import RunFolder
from limelight.run.log import summary

_TASKS = {  # names of the hub's pipelines, and the classes of transformers
    "translate": ("translation", "AutoModelForSeq2SeqLM"),
    "write": ("text-generation", "AutoModelForCausalLM"),
    "fill": ("fill-mask", "AutoModelForMaskedLM"),
    "classify": ("text-classification", "AutoModelForSequenceClassification"),
    "embed": ("feature-extraction", "AutoModel"),
}
_RUNS: dict[str, str] = tomllib.loads(
    Path(__file__).with_name("model_card.toml").read_text("utf-8")
)
_GENERATE = "print(tokenizer.decode(model.generate(**text)[0], skip_special_tokens=True))"


def _onnx(loaded: LoadedModel, text: str) -> str:
    """Greedy search in a few lines of NumPy."""
    config, tokenizer = loaded.model.config, loaded.tokenizer
    if config.family == "encoder-only":
        run = _RUNS["onnx_encoder"].format(result="(logits,)") + "\nprint(logits)"
        return _RUNS["onnx"].format(text=text, run=run)
    two = config.family == "encoder-decoder"
    shape = f"{config.num_decoder_layers}, 1, {config.num_kv_heads}, 0, {config.d_head}"
    memory = ', "memory_keys": memory[0], "memory_values": memory[1], "attention_mask": seen'
    run = _RUNS["onnx_decoder"].format(
        shape=shape,
        begin=f"numpy.array([[{tokenizer.start}]])" if two else "ids",
        memory=memory if two else "",
        end=tokenizer.end,
    )
    read = _RUNS["onnx_encoder"].format(result="memory") + "\n" if two else ""
    return _RUNS["onnx"].format(text=text, run=read + run)


def _use(loaded: LoadedModel, to: str, auto: str, text: str) -> str:
    """Python that runs the model."""
    family = loaded.family
    run = "print(model(**text))" if family == "encoder-only" else _GENERATE
    if to == "onnx":
        return _onnx(loaded, text)
    if to == "ctranslate2":
        run = 'Generator(".").generate_batch([tokens], max_length=100)[0].sequences[0]'
        if family == "encoder-decoder":
            run = 'Translator(".").translate_batch([tokens])[0].hypotheses[0]'
    return _RUNS[to].format(auto=auto, text=text, run=run)


def model_card(loaded: LoadedModel, run: RunFolder, to: str) -> str:
    """A card as the hub shows it, with Python that runs the model."""
    facts = run.read_json(FACTS) if (run.path / FACTS).is_file() else {}
    origin = json.loads(loaded.carried.get("imported.json", "{}")).get("origin", {})
    licence = facts.get("licence") or "not stated: whoever publishes this model names it here"
    task = "write" if loaded.family == "decoder-only" else loaded.tasks[0]
    pipeline, auto = _TASKS[task]
    library = "transformers" if to == "huggingface" else to
    head = [f"library_name: {library}", f"pipeline_tag: {pipeline}"]
    if "licence" in facts:
        head = ["license: other", f"license_name: {json.dumps(licence)}", *head]
    config, name = loaded.model.config, run.path.resolve().name
    size = sum(p.numel() for p in loaded.model.parameters())
    data = dict.fromkeys(_data(loaded.recipe.data))  # a corpus may be read in both directions
    came = f", imported ({origin['architecture']})" if origin else ""
    use = _use(loaded, to, auto, "I am hungry." if task == "translate" else "It was").strip()
    return "\n".join(
        [
            *("---", *head, "---", "", f"# {name}", "", loaded.recipe.about, ""),
            f"{config.family}, {config.layers} layers of {config.d_model}, {size:,} parameters, "
            f"{config.vocab:,} tokens, texts of up to {config.max_len} tokens{came}. Exported by "
            f"Limelight {version('limelight')}; `certificate.json` has how far it is from the run.",
            *("", "```python", use, "```", "", "## Data", ""),
            *(data if not origin else ["See the model that was imported."]),
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
