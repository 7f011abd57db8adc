"""What other people's programs and folders rely on, read from the package as it is now.

    python -m tests.interfaces     writes tests/golden/interfaces.jsonl anew

Weight names, tap names, files of a run folder, and the service's paths, methods, fields and types.
Names of schemas and all texts are free to change.
"""

import json
from pathlib import Path
from typing import Any

from limelight.model import ModelConfig, RecurrentConfig, build
from limelight.model.taps import taps
from limelight.run.folder import PARTS

GOLDEN = Path(__file__).parent / "golden" / "interfaces.jsonl"
SIZES = {"vocab": 13, "layers": 2, "d_model": 16, "max_len": 48}
TRANSFORMER = SIZES | {"heads": 4, "d_ff": 24}
VARIANTS: dict[str, dict[str, Any]] = {
    "encoder-decoder": {"family": "encoder-decoder"},
    "decoder-only": {"family": "decoder-only"},
    "encoder-only": {"family": "encoder-only"},
    "encoder-only, classes": {"family": "encoder-only", "classes": 3},
    "pre-norm, learned, untied": {
        "family": "encoder-decoder",
        "norm_order": "pre",
        "positions": "learned",
        "tied": False,
    },
    "llama": {
        "family": "decoder-only",
        "norm_order": "pre",
        "norm": "rms",
        "positions": "rotary",
        "activation": "swiglu",
        "kv_heads": 2,
        "bias": False,
    },
}
RECURRENT: dict[str, dict[str, Any]] = {
    f"{family}, {cell}, attention={attention}": {
        "family": family,
        "cell": cell,
        "attention": attention,
    }
    for family in ("recurrent-encoder-decoder", "recurrent-decoder-only")
    for cell in ("rnn", "lstm", "gru")
    for attention in (True, False)
}


def weights_and_taps() -> tuple[dict[str, Any], dict[str, Any]]:
    """Per variant, every weight with its shape, and every tap."""
    models = {name: build(ModelConfig(**TRANSFORMER | v)) for name, v in VARIANTS.items()}
    recurrent = {name: build(RecurrentConfig(**SIZES | v)) for name, v in RECURRENT.items()}
    weights = {
        name: {key: list(tensor.shape) for key, tensor in model.state_dict().items()}
        for name, model in (models | recurrent).items()
    }
    return weights, {name: [*taps(model)] for name, model in models.items()}


def type_of(schema: dict[str, Any], every: dict[str, Any], inside: tuple[str, ...] = ()) -> Any:
    """A schema without names and texts: fields and types alone."""
    if reference := schema.get("$ref"):
        if reference in inside:
            return "recursive"
        found = every[reference.rsplit("/", 1)[1]]
        return type_of(found, every, (*inside, reference))
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema and "properties" not in schema:  # or it says which fields go together
            return {several: [type_of(one, every, inside) for one in schema[several]]}
    kind: dict[str, Any] = {}
    for key in ("type", "enum", "const", "format", "minimum", "maximum", "minLength", "maxLength"):
        if key in schema:
            kind[key] = schema[key]
    if "properties" in schema:
        kind["fields"] = {
            name: type_of(one, every, inside) for name, one in schema["properties"].items()
        }
        kind["required"] = sorted(schema.get("required", []))
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            kind[key] = type_of(schema[key], every, inside)
        elif key in schema:
            kind[key] = schema[key]
    return kind


def by_shape(answers: dict[str, Any]) -> list[Any]:
    """Status codes with the answer they share."""
    shapes: list[Any] = []
    for code, shape in answers.items():
        same = next((codes for codes, known in shapes if known == shape), None)
        if same is None:
            shapes.append([[code], shape])
        else:
            same.append(code)
    return shapes


def routes(openapi: dict[str, Any]) -> dict[str, Any]:
    """Every path and method: parameters, body and answers."""
    every = openapi.get("components", {}).get("schemas", {})

    def content(part: dict[str, Any]) -> dict[str, Any]:
        return {
            kind: type_of(one.get("schema", {}), every)
            for kind, one in part.get("content", {}).items()
        }

    return {
        f"{method.upper()} {path}": {
            "parameters": {
                f"{one['in']} {one['name']}": type_of(one["schema"], every)
                for one in operation.get("parameters", [])
            },
            "body": content(operation.get("requestBody", {})),
            "answers": by_shape({c: content(one) for c, one in operation["responses"].items()}),
        }
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    }


def served() -> dict[str, Any]:
    """The service's own description of itself, without a model behind it."""
    from limelight.serve.app import application
    from limelight.serve.limits import Limits
    from limelight.serve.metrics import Metrics
    from limelight.serve.model_registry import ModelRegistry

    app: Any = application(ModelRegistry({}, Limits(), Metrics())).app.app
    return routes(app.openapi())


def now() -> dict[str, Any]:
    """All of it."""
    weights, names = weights_and_taps()
    return {"weights": weights, "taps": names, "run folder": [*PARTS], "routes": served()}


def lines(facts: dict[str, Any]) -> list[str]:
    """A line for each weight list, tap list and route, so that a change shows as one."""
    return [
        json.dumps([part, name, value], sort_keys=True)
        for part, values in facts.items()
        for name, value in (values.items() if isinstance(values, dict) else [("all", values)])
    ]


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(lines(now())) + "\n")
