"""Our own interface: what OpenAI's has no words for."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from limelight.run.folder import RunFolder
from limelight.run.log import Entry, read_log, summary
from limelight.serve.model_registry import ModelRegistry, refuse_unknown_questions
from limelight.serve.schemas import (
    ClassifyResponse,
    FillRequest,
    FillResponse,
    ModelDescription,
    Name,
    Neighbours,
    NeighboursRequest,
    RunFacts,
    RunList,
    RunMetrics,
    ScoreList,
    ScoreRequest,
    SuggestRequest,
    SuggestResponse,
    TextsRequest,
    TranslateRequest,
    TranslateResponse,
)
from limelight.serve.worker_client import WorkerClient

_MOST_ENTRIES = 1000  # lines of a log that are told at a time


def routes(house: ModelRegistry) -> APIRouter:
    """All under /api."""
    checks = [Depends(refuse_unknown_questions)]
    router = APIRouter(prefix="/api", tags=["Our own"], dependencies=checks)

    @router.get("/model", summary="All about a model")
    async def describe(model: Annotated[Name, Query()] = "") -> ModelDescription:
        desk = house.find(model)
        if desk.facts is None:
            desk.check()
        return ModelDescription(name=desk.name, **(desk.facts or {}))

    @router.post("/translate", response_model_exclude_none=True)
    async def translate(asked: TranslateRequest) -> TranslateResponse:
        """A text's translations, and on demand what else could have been."""
        house.check_texts([asked.text])
        desk = house.choose(asked.model, "translate")
        names = ("text", "nbest", "alternatives", "alignment", "tree", "prefix", "include")
        fields: dict[str, Any] = {name: getattr(asked, name) for name in (*names, "exclude", "tag")}
        fields["settings"] = house.settings(asked, asked.max_tokens)
        return TranslateResponse(**await house.answer(desk, asked, "translate", **fields))

    @router.post("/suggest")
    async def suggest(asked: SuggestRequest) -> SuggestResponse:
        """How a text could go on: the likeliest next tokens, each with its continuation."""
        house.check_texts([asked.text])
        desk = house.choose(asked.model, "write")
        fields = {"text": asked.text, "count": asked.n, "tokens": asked.max_tokens}
        return SuggestResponse(**await house.answer(desk, asked, "suggest", **fields))

    @router.post("/fill")
    async def fill(asked: FillRequest) -> FillResponse:
        """What could stand in the blanks of a text, written ___."""
        house.check_texts([asked.text])
        desk = house.choose(asked.model, "fill")
        fields = {"text": asked.text, "count": asked.count}
        return FillResponse(**await house.answer(desk, asked, "fill", **fields))

    @router.post("/classify")
    async def classify(asked: TextsRequest) -> ClassifyResponse:
        """Which class each text belongs to, and how probably."""
        house.check_texts(asked.texts)
        desk = house.choose(asked.model, "classify")
        return ClassifyResponse(**await house.answer(desk, asked, "classify", texts=asked.texts))

    @router.post("/score")
    async def score(asked: ScoreRequest) -> ScoreList:
        """How likely each text is; of a source and a target, the target."""
        house.check_texts(side for text in asked.texts for side in text)
        desk = house.choose(asked.model, "score")
        fields = {"texts": asked.texts, "tag": asked.tag}
        return ScoreList(**await house.answer(desk, asked, "score", **fields))

    @router.post("/neighbours")
    async def neighbours(asked: NeighboursRequest) -> Neighbours:
        """The tokens whose embeddings are most like those of a word."""
        desk = house.choose(asked.model)
        fields = {"text": asked.text, "count": asked.count}
        return Neighbours(**await house.answer(desk, asked, "neighbours", **fields))

    @router.get("/runs", summary="All runs, and how their training stands")
    async def runs() -> RunList:
        return RunList(runs=[await _facts_of(desk) for desk in house.desks.values()])

    @router.get("/runs/{name}/metrics", summary="A run's log, as it grows")
    async def metrics(name: str, after: Annotated[int, Query(ge=-1, le=2**40)] = -1) -> RunMetrics:
        desk = house.find(name)
        return RunMetrics(name=desk.name, entries=await asyncio.to_thread(_lines_of, desk, after))

    return router


async def _facts_of(desk: WorkerClient) -> RunFacts:
    """One run; its log may have grown since it was read last."""
    told = await asyncio.to_thread(summary, RunFolder(desk.run_path).log)
    abilities = (desk.facts or {}).get("abilities", [])
    return RunFacts(name=desk.name, ready=desk.ready, abilities=abilities, **told)


def _lines_of(desk: WorkerClient, after: int) -> list[Entry]:
    """The first lines after a step."""
    found = []
    for entry in read_log(RunFolder(desk.run_path).log):
        if entry.get("step", -1) > after:
            found.append(entry)
        if len(found) == _MOST_ENTRIES:
            break
    return found
