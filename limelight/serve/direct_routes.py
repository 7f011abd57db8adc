"""Answers without FastAPI's layers, which take longer than all else that a request needs.

FastAPI still has every route: it describes them, and answers whatever is not the ordinary case of a
route with a body. That includes an invalid body, so errors have one form.
"""

from collections.abc import Iterable
from inspect import signature
from typing import Any, NamedTuple

from fastapi import APIRouter, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from limelight.serve.middleware import JSON, json_response
from limelight.serve.model_registry import ModelRegistry, Registry


class _Direct(NamedTuple):
    route: APIRoute
    body: type[BaseModel]
    result: TypeAdapter[Any]


class DirectRoutes:
    """An ASGI application before FastAPI's, for routes with a body and no other parameter."""

    def __init__(self, app: ASGIApp, registry: ModelRegistry, routers: Iterable[APIRouter]) -> None:
        self.app, self.registry = app, registry
        found = [_direct(route) for router in routers for route in router.routes]
        self.known = {direct.route.path: direct for direct in found if direct is not None}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        direct = self.known.get(scope["path"])
        if direct is None or scope["method"] != "POST" or scope["query_string"]:
            await self.app(scope, receive, send)
            return
        try:
            request = direct.body.model_validate(scope[JSON])
        except ValidationError:
            await self.app(scope, receive, send)
            return
        scope["route"] = direct.route
        answer = await direct.route.endpoint(request, self.registry)
        if not isinstance(answer, Response):
            result = direct.result.validate_python(answer)
            content = direct.result.dump_json(
                result,
                exclude_none=direct.route.response_model_exclude_none,
                exclude_unset=direct.route.response_model_exclude_unset,
            )
            answer = await json_response(content, scope)
        await answer(scope, receive, send)


def _direct(route: Any) -> _Direct | None:
    if not isinstance(route, APIRoute) or "POST" not in (route.methods or ()):
        return None
    first, *others = (each.annotation for each in signature(route.endpoint).parameters.values())
    if others != [Registry] or not issubclass(first, BaseModel):
        return None
    return _Direct(route, first, TypeAdapter(route.response_model))
