"""The served models by name, each with one worker or several, and what all routes check."""

import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Query, Request

from limelight.serve.errors import RefusedError
from limelight.serve.ipc import Message
from limelight.serve.limits import Limits
from limelight.serve.metrics import Metrics
from limelight.serve.schemas.common import BaseRequest, Name, Settings
from limelight.serve.worker_client import WorkerClient

_RETRY = "try again in a moment"
_SETTINGS = Settings.model_fields.keys() - {"tag"}


@dataclass
class ServedModel:
    """A model and its workers, which are interchangeable: no request depends on another."""

    name: str
    run_path: Path
    workers: Sequence[WorkerClient]
    limits: Limits
    metrics: Metrics

    def __post_init__(self) -> None:
        self.metrics.ready.labels(self.name).set_function(lambda: int(self.ready))
        self.metrics.waiting.labels(self.name).set_function(lambda: self.open_jobs)
        active = self.metrics.texts.labels(self.name)
        active.set_function(lambda: sum(worker.active for worker in self.workers))

    @property
    def ready(self) -> bool:
        return any(worker.ready for worker in self.workers)

    @property
    def open_jobs(self) -> int:
        return sum(len(worker.jobs) for worker in self.workers)

    @property
    def devices(self) -> list[str]:
        return [str((w.facts or {}).get("device", w.device)) for w in self.workers if w.ready]

    @property
    def facts(self) -> Message:
        """The model's description by a worker; empty before the first one is ready."""
        return next((worker.facts for worker in self.workers if worker.facts), {})

    def description(self) -> Message:
        """`facts`, which must be there: 503 while the model loads for the first time."""
        if not self.facts:
            self.choose_worker()
        return self.facts

    def choose_worker(self) -> WorkerClient:
        """The ready worker with the fewest open jobs, if one more job may be accepted."""
        ready = [worker for worker in self.workers if worker.ready]
        if not ready:
            message = "the model is restarting"
            if not self.facts:
                message = "the model is being loaded"
            elif any(worker.failed for worker in self.workers):
                message = "the model's run folder can no longer be read; the log says why"
            raise RefusedError(503, "model_unavailable", message, _RETRY, 2)
        if self.open_jobs >= self.limits.queue:
            message = f"{self.limits.queue} requests are waiting already"
            raise RefusedError(429, "too_many_requests", message, _RETRY, 1)
        return min(ready, key=lambda worker: len(worker.jobs))

    def stream(self, op: str, seconds: float | None, **fields: Any) -> AsyncGenerator[Message]:
        return self.choose_worker().stream(op, seconds, **fields)

    async def call(self, op: str, seconds: float | None = None, **fields: Any) -> Message:
        async with aclosing(self.stream(op, seconds, **fields)) as messages:
            async for message in messages:
                if "done" in message:
                    done: Message = message["done"]
                    return done | {"blob": message["blob"]} if "blob" in message else done
        raise RuntimeError("a worker's last message has its result")


class ModelRegistry:
    """All models of a service. Their names are fixed when it starts."""

    def __init__(self, models: dict[str, ServedModel], limits: Limits, metrics: Metrics) -> None:
        self.models, self.limits, self.metrics = models, limits, metrics
        self.created = int(time.time())
        self.draining = False

    @property
    def ready(self) -> bool:
        return not self.draining and all(model.ready for model in self.models.values())

    def find(self, name: str) -> ServedModel:
        """A model by its name; the first, if none is named."""
        if not name:
            return next(iter(self.models.values()))
        if name not in self.models:
            hint = f"choose one of: {', '.join(self.models)}"
            message = f"there is no model {name!r}"
            raise RefusedError(404, "model_not_found", message, hint, param="model")
        return self.models[name]

    def choose(self, name: str, *tasks: str) -> ServedModel:
        model = self.find(name)
        if self.draining:
            message = "the service is shutting down"
            raise RefusedError(503, "shutting_down", message, "ask another replica", 2)
        model.choose_worker()
        supported = model.facts.get("abilities", ())
        if tasks and not set(tasks) & set(supported):
            message = f"this model cannot {tasks[0]}"
            hint = f"it can {', '.join(supported)}"
            raise RefusedError(400, "not_for_this_model", message, hint, param="model")
        return model

    async def call(
        self, request: BaseRequest, op: str, texts: Iterable[str], /, *tasks: str, **fields: Any
    ) -> Message:
        """Have a model do this that can do one of the tasks; without any, `op` is the task."""
        self.check_texts(texts)
        model = self.choose(request.model, *(tasks or (op,)))
        return await model.call(op, request.timeout, **fields)

    def check_texts(self, texts: Iterable[str]) -> None:
        for text in texts:
            if len(text) > self.limits.characters:
                message = f"a text has {len(text):,} characters"
                hint = f"{self.limits.characters:,} are allowed"
                raise RefusedError(413, "too_long", message, hint)

    def check_count(self, count: int) -> None:
        if count > self.limits.texts:
            message = f"the request asks for {count} texts"
            raise RefusedError(413, "too_many_texts", message, f"{self.limits.texts} are allowed")

    def settings(self, request: Settings, max_tokens: int | None) -> dict[str, Any]:
        if max_tokens is not None and max_tokens > self.limits.tokens:
            message = f"the request asks for {max_tokens} tokens"
            hint = f"{self.limits.tokens} are allowed"
            raise RefusedError(413, "too_long", message, hint, param="max_tokens")
        given = request.model_dump(include=_SETTINGS, exclude_none=True)
        # A beam of another size may not be divisible into the recipe's groups.
        groups = {} if request.beam is None else {"beam_groups": 1}
        return given | groups | ({} if max_tokens is None else {"max_tokens": max_tokens})


async def _registry_of(request: Request) -> ModelRegistry:
    registry: ModelRegistry = request.app.state.registry
    return registry


# For the arguments of routes.
Registry = Annotated[ModelRegistry, Depends(_registry_of)]
ModelName = Annotated[Name, Query()]


async def reject_unknown_parameters(request: Request) -> None:
    """A misspelt query parameter is an error, not ignored."""
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            hint = f"there is {', '.join(known)}" if known else "leave it out"
            message = f"{name[:100]}: there is no such parameter"
            raise RefusedError(422, "invalid_field", message, hint, param=name[:100])
