"""The application: all routes, one form of errors, and the middleware before them."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse

from limelight.serve import docs_pages
from limelight.serve.direct_routes import DirectRoutes
from limelight.serve.errors import RefusedError, add_error_handlers
from limelight.serve.middleware import SecurityMiddleware
from limelight.serve.model_registry import ModelRegistry, Registry
from limelight.serve.routes import api, images, openai, trace
from limelight.serve.schemas.common import ErrorBody, Health
from limelight.serve.static import add_files, page_files

_PROBLEMS = {
    400: "the request is impossible, or not JSON",
    401: "the key is missing or wrong",
    403: "this Host or Origin is not allowed",
    404: "there is no such model or route",
    408: "the request arrived too slowly",
    410: "the model has changed since the text was traced",
    413: "the request is too large",
    415: "the request is not JSON",
    422: "a field is missing, unknown or out of range",
    429: "too many requests are waiting",
    503: "the model is not ready",
    504: "there was no answer in time",
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text} for status, text in _PROBLEMS.items()
}
_health, _pages = APIRouter(tags=["Health"]), APIRouter(include_in_schema=False)


def application(
    registry: ModelRegistry,
    key: str = "",
    hosts: Iterable[str] = (),
    origins: Iterable[str] = (),
    frames: Iterable[str] = (),
) -> SecurityMiddleware:
    """The service for these models, as an ASGI application."""
    app = FastAPI(
        title="Limelight",
        version=_version(),
        docs_url=None,  # FastAPI's own page would load scripts from another host
        redoc_url=None,
        redirect_slashes=False,
        responses=_RESPONSES,
    )
    app.state.registry = registry
    routers = (openai.router, images.router, api.router, trace.router, _health, _pages)
    for router in routers:
        app.include_router(router)
    public = page_files()
    add_files(app, public, " ".join(frames))
    add_error_handlers(app)
    direct = DirectRoutes(app, registry, routers)
    limits, metrics = registry.limits, registry.metrics
    return SecurityMiddleware(direct, limits, metrics, key, hosts, origins, public)


def _version() -> str:
    try:
        return version("limelight")
    except PackageNotFoundError:  # run from its source, not installed
        return "unknown"


@_health.get("/healthz", summary="Whether the process is alive, and where models run")
async def healthz(registry: Registry) -> Health:
    devices = {name: model.devices for name, model in registry.models.items()}
    return Health(status="ok", devices=devices)


@_health.get("/readyz", summary="Whether every model accepts requests")
async def readyz(registry: Registry) -> Health:
    if registry.ready:
        models = {name: model.ready for name, model in registry.models.items()}
        devices = {name: model.devices for name, model in registry.models.items()}
        return Health(status="ok", models=models, devices=devices)
    message = "the service is shutting down" if registry.draining else "a model is not ready"
    raise RefusedError(503, "not_ready", message, "try again in a moment", 2)


@_health.get("/metrics", response_class=Response, summary="Metrics for Prometheus")
async def metrics(registry: Registry) -> Response:
    return Response(registry.metrics.shown(), media_type="text/plain; version=0.0.4")


@_pages.get("/about")
async def about(registry: Registry) -> HTMLResponse:
    return HTMLResponse(docs_pages.landing(registry))


@_pages.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    return HTMLResponse(docs_pages.reference(request.app.openapi()))
