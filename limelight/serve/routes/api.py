"""What OpenAI's API has no routes for: translations, blanks, classes, scores, models and runs."""

import asyncio
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Query

from limelight.run.folder import RunFolder
from limelight.run.log import Entry, read_log, summary
from limelight.serve.ipc import Message
from limelight.serve.model_registry import (
    ModelName,
    ModelRegistry,
    Registry,
    reject_unknown_parameters,
)
from limelight.serve.schemas import api as schemas

router = APIRouter(
    prefix="/api",
    tags=["Limelight"],
    dependencies=[Depends(reject_unknown_parameters)],
)
_MOST_ENTRIES = 1000  # of a log, in one response
_MOST_CHARACTERS = 4_000_000  # of all their values: one with many examples may be long
_TRANSLATE_FIELDS = {
    *("nbest", "alternatives", "alignment", "tree", "prefix", "include", "exclude", "glossary"),
    "tag",
}


@router.get("/model", summary="Architecture, sizes, tasks and device of a model")
async def describe(registry: Registry, model: ModelName = "") -> schemas.ModelDescription:
    found = registry.find(model)
    facts = found.description()
    where = ", ".join(found.devices) or facts["device"]
    return schemas.ModelDescription(**{**facts, "name": found.name, "device": where})


@router.post(
    "/translate", response_model=schemas.TranslateResponse, response_model_exclude_none=True
)
async def translate(request: schemas.TranslateRequest, registry: Registry) -> Message:
    """Translate a text, or several; one on demand with alternatives, alignment and search tree."""
    settings = registry.settings(request, request.max_tokens)
    fields = request.model_dump(include=_TRANSLATE_FIELDS) | {"settings": settings}
    return await _each(request, registry, "translate", **fields)


@router.post("/ask", response_model=schemas.TranslationResult, response_model_exclude_none=True)
async def ask(request: schemas.AskRequest, registry: Registry) -> Message:
    """The answer to a question about a paragraph."""
    fields = request.model_dump(include={"question", "context"})
    done = await registry.call(request, "ask", fields.values(), "ask", "translate", **fields)
    return cast(Message, done["translations"][0])


@router.post(
    "/paraphrase", response_model=schemas.TranslateResponse, response_model_exclude_none=True
)
async def paraphrase(request: schemas.TextRequest, registry: Registry) -> Message:
    """A text, or several, in other words; `outputs` has what else the beam found."""
    return await _each(request, registry, "paraphrase")


@router.post(
    "/summarise", response_model=schemas.TranslateResponse, response_model_exclude_none=True
)
async def summarise(request: schemas.TextRequest, registry: Registry) -> Message:
    """The summary of a text, or of several; a long one has those of its `parts`."""
    return await _each(request, registry, "summarise")


@router.post("/suggest", response_model=schemas.SuggestResponse)
async def suggest(request: schemas.SuggestRequest, registry: Registry) -> Message:
    """The most likely next tokens of a text, each with its continuation."""
    fields = {"text": request.text, "count": request.n, "tokens": request.max_tokens}
    return await registry.call(request, "suggest", [request.text], "write", **fields)


@router.post("/fill", response_model=schemas.FillResponse, response_model_exclude_none=True)
async def fill(request: schemas.FillRequest, registry: Registry) -> Message:
    """Candidates for the blanks of a text, written ___, or of several texts."""
    return await _each(request, registry, "fill", "filled", "fill", count=request.count)


async def _each(
    request: schemas.TextRequest,
    registry: ModelRegistry,
    op: str,
    results: str = "translations",
    task: str = "translate",
    **fields: Any,
) -> Message:
    """The result of a text; of several, that of the first, with all of them."""
    texts = request.texts or [request.text]
    registry.check_count(len(texts))
    done = await registry.call(request, op, texts, op, task, texts=texts, **fields)
    return done[results][0] | (done if request.texts else {})


@router.post("/classify", response_model=schemas.ClassifyResponse)
async def classify(request: schemas.TextRequest, registry: Registry) -> Message:
    """Class probabilities of each text."""
    texts = request.texts or [request.text]
    return await registry.call(request, "classify", texts, texts=texts)


@router.post("/score", response_model=schemas.ScoreList)
async def score(request: schemas.ScoreRequest, registry: Registry) -> Message:
    """Log-probability of each text; of a pair, that of the target given the source."""
    one = [request.text] if isinstance(request.text, str) else request.text
    texts = request.texts or [one]
    every = chain.from_iterable(texts)
    return await registry.call(request, "score", every, texts=texts, tag=request.tag)


@router.post("/search", response_model=schemas.SearchResponse, response_model_exclude_none=True)
async def search(request: schemas.SearchRequest, registry: Registry) -> Message:
    """The texts that are closest in meaning to a query."""
    texts, fields = [request.query, *request.texts], {"query", "texts", "top", "why"}
    asked = request.model_dump(include=fields)
    return await registry.call(request, "search", texts, "embed", **asked)


@router.post("/neighbours", response_model=schemas.Neighbours)
async def neighbours(request: schemas.NeighboursRequest, registry: Registry) -> Message:
    """The tokens whose embeddings are closest to those of a word."""
    fields = {"text": request.text, "count": request.count}
    return await registry.choose(request.model).call("neighbours", request.timeout, **fields)


@router.get("/runs", summary="All runs, and the state of their training")
async def runs(registry: Registry) -> schemas.RunList:
    return schemas.RunList(
        runs=[
            schemas.RunFacts(
                name=model.name,
                ready=model.ready,
                abilities=model.facts.get("abilities", []),
                **await asyncio.to_thread(summary, RunFolder(model.run_path).log),
            )
            for model in registry.models.values()
        ]
    )


@router.get("/runs/{name}/steps", summary="The training steps that can be traced")
async def steps(name: str, registry: Registry) -> schemas.RunSteps:
    model = registry.find(name)
    found = await asyncio.to_thread(RunFolder(model.run_path).steps)
    loaded = model.description()["step"]
    return schemas.RunSteps(name=model.name, loaded=loaded, steps=found[-_MOST_ENTRIES:])


@router.get("/runs/{name}/metrics", summary="A run's log, as it grows")
async def metrics(
    name: str, registry: Registry, after: Annotated[int, Query(ge=-1, le=2**40)] = -1
) -> schemas.RunMetrics:
    model = registry.find(name)
    entries = await asyncio.to_thread(_entries, model.run_path, after)
    return schemas.RunMetrics(name=model.name, entries=entries)


def _entries(run: Path, after: int) -> list[Entry]:
    entries: list[Entry] = []
    size = 0
    for entry in read_log(RunFolder(run).log):
        if entry["step"] > after:
            entries.append(entry)
            size += len(str(entry))
            if len(entries) == _MOST_ENTRIES or size > _MOST_CHARACTERS:
                break
    return entries
