"""What the routes share: the models by name, and how they are asked."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

from fastapi import Request

from limelight.serve.ipc import Message
from limelight.serve.limits import Limits
from limelight.serve.metrics import Metrics
from limelight.serve.schemas import BaseRequest, Settings
from limelight.serve.worker_client import RefusedError, WorkerClient


class ModelRegistry:
    """All models of a service. Names come from the list made at start, and from nowhere else."""

    def __init__(self, desks: dict[str, WorkerClient], limits: Limits, counts: Metrics) -> None:
        self.desks, self.limits, self.counts = desks, limits, counts
        self.draining = False

    @property
    def ready(self) -> bool:
        """Whether every model can be asked."""
        return not self.draining and all(desk.ready for desk in self.desks.values())

    def find(self, name: str) -> WorkerClient:
        """A model by its name; the first, if none is named."""
        if not name:
            return next(iter(self.desks.values()))
        if name not in self.desks:
            hint = f"choose one of: {', '.join(self.desks)}"
            raise RefusedError(404, "model_not_found", "there is no model of this name", hint)
        return self.desks[name]

    def choose(self, name: str, *abilities: str) -> WorkerClient:
        """A model that can do one of these."""
        desk = self.find(name)
        if self.draining:
            raise RefusedError(
                503, "shutting_down", "the service is about to end", "ask another", 2
            )
        desk.check()
        can = (desk.facts or {}).get("abilities", ())
        if abilities and not set(abilities) & set(can):
            message = f"this model cannot {abilities[0]}"
            raise RefusedError(400, "not_for_this_model", message, f"it can {', '.join(can)}")
        return desk

    def ask(
        self, desk: WorkerClient, asked: BaseRequest, do: str, **fields: Any
    ) -> AsyncGenerator[Message]:
        """Hand in a job."""
        return desk.ask(do, asked.timeout, **fields)

    async def answer(
        self, desk: WorkerClient, asked: BaseRequest, do: str, **fields: Any
    ) -> Message:
        """The whole answer."""
        return await self.fetch(desk, asked.timeout, do, **fields)

    async def fetch(
        self, desk: WorkerClient, seconds: float | None, do: str, **fields: Any
    ) -> Message:
        """The same, within so many seconds."""
        async with aclosing(desk.ask(do, seconds, **fields)) as messages:
            async for message in messages:
                if "done" in message:
                    done: Message = message["done"]
                    return done | {"blob": message["blob"]} if "blob" in message else done
        raise RuntimeError("a worker's last message has its answer")

    def check_texts(self, texts: Iterable[str]) -> None:
        """No text is too long."""
        for text in texts:
            if len(text) > self.limits.characters:
                message = f"a text has {len(text):,} characters"
                hint = f"{self.limits.characters:,} are allowed"
                raise RefusedError(413, "too_long", message, hint)

    def check_count(self, count: int) -> None:
        """Not too many are asked for at once."""
        if count > self.limits.texts:
            message = f"{count} texts are asked for at once"
            raise RefusedError(413, "too_many_texts", message, f"{self.limits.texts} are allowed")

    def settings(self, asked: Settings, max_tokens: int | None) -> dict[str, Any]:
        """How to write, as the worker is told it."""
        if max_tokens is not None and max_tokens > self.limits.tokens:
            message = f"{max_tokens} tokens are asked for"
            raise RefusedError(413, "too_long", message, f"{self.limits.tokens} are allowed")
        names = ("temperature", "top_p", "top_k", "min_p", "seed", "beam", "repetition_penalty")
        given = {name: getattr(asked, name) for name in names}
        # A beam of another size may not be divisible into the recipe's groups.
        groups = {} if asked.beam is None else {"beam_groups": 1}
        return {**given, **groups, "max_tokens": max_tokens}


async def refuse_unknown_questions(request: Request) -> None:
    """What stands behind the ? of an address is known to its route: a slip is not ignored."""
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            hint = f"there is {', '.join(known)}" if known else "leave it out"
            message = f"{name[:100]}: there is no such parameter"
            raise RefusedError(422, "invalid_field", message, hint)
