"""The application: all routes, one form of errors, and the gate before them."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from limelight.serve import docs_pages
from limelight.serve.errors import validation_message
from limelight.serve.middleware import SecurityMiddleware, error_body, error_headers
from limelight.serve.model_registry import ModelRegistry
from limelight.serve.routes import api, openai, trace
from limelight.serve.schemas import ErrorBody, Health
from limelight.serve.static import add_files, page_files
from limelight.serve.worker_client import RefusedError

_PROBLEMS = {
    400: "what is asked cannot be done, or is no JSON",
    401: "the key is missing or wrong",
    403: "this Host or Origin is not allowed",
    404: "there is no such model or route",
    408: "the request came too slowly",
    410: "the model has changed since the text was traced",
    413: "the request is too large",
    415: "the request is not JSON",
    422: "a field is missing, unknown or out of range",
    429: "too many requests wait already",
    503: "the model is not ready",
    504: "there was no answer in time",
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": words} for status, words in _PROBLEMS.items()
}


def application(
    house: ModelRegistry, key: str = "", hosts: Iterable[str] = (), origins: Iterable[str] = ()
) -> SecurityMiddleware:
    """Everything together."""
    app = FastAPI(
        title="Limelight",
        version=version("limelight"),
        docs_url=None,  # FastAPI's own page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        responses=_RESPONSES,
    )
    app.include_router(openai.routes(house))
    app.include_router(api.routes(house))
    app.include_router(trace.routes(house))
    _add_health(app, house)
    _add_pages(app, house)
    public = page_files()
    add_files(app, public)
    app.add_exception_handler(RefusedError, _tell_refused)
    app.add_exception_handler(RequestValidationError, _tell_invalid)
    app.add_exception_handler(HTTPException, _tell_http)
    app.add_exception_handler(Exception, _tell_broken)
    return SecurityMiddleware(app, house.limits, house.counts, key, hosts, origins, public)


def _add_health(app: FastAPI, house: ModelRegistry) -> None:
    """For whoever watches over the service."""

    @app.get("/healthz", tags=["Health"], summary="Whether the process lives")
    async def healthz() -> Health:
        return Health(status="ok")

    @app.get(
        "/readyz", tags=["Health"], response_model=Health, summary="Whether models can be asked"
    )
    async def readyz(response: Response) -> Health:
        models = {name: desk.ready for name, desk in house.desks.items()}
        if house.ready:
            return Health(status="ok", models=models)
        message = "the service is about to end" if house.draining else "a model is not ready"
        raise RefusedError(503, "not_ready", message, "ask again in a moment", 2)

    @app.get("/metrics", tags=["Health"], response_class=Response, summary="For Prometheus")
    async def metrics() -> Response:
        return Response(house.counts.shown(), media_type="text/plain; version=0.0.4")


def _add_pages(app: FastAPI, house: ModelRegistry) -> None:
    """For people, in plain text and tables."""

    @app.get("/about", include_in_schema=False)
    async def about() -> HTMLResponse:
        return HTMLResponse(docs_pages.landing(house))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_pages.reference(app.openapi()))


def _told(refused: RefusedError) -> Response:
    """Why there is no answer."""
    headers = {name.decode(): value.decode() for name, value in error_headers(refused)}
    body = error_body(refused)
    return Response(body, refused.status, headers, media_type="application/json")


async def _tell_refused(_: Request, error: Exception) -> Response:
    """Our own."""
    if not isinstance(error, RefusedError):
        raise error
    return _told(error)


async def _tell_invalid(_: Request, error: Exception) -> Response:
    """A field that is wrong: which, and why, but not its value."""
    if not isinstance(error, RequestValidationError):
        raise error
    message = validation_message(error.errors(), error.body)
    return _told(RefusedError(422, "invalid_field", message, "see /docs for what can be asked"))


async def _tell_http(_: Request, error: Exception) -> Response:
    """A route that is not there, or not for this method."""
    if not isinstance(error, HTTPException):
        raise error
    codes = {404: ("not_found", "there is nothing here"), 405: ("wrong_method", "not this way")}
    code, message = codes.get(error.status_code, ("refused", "this cannot be answered"))
    response = _told(RefusedError(error.status_code, code, message, "see /docs for what there is"))
    if allow := (error.headers or {}).get("allow", (error.headers or {}).get("Allow")):
        response.headers["Allow"] = allow
    return response


async def _tell_broken(_: Request, __: Exception) -> Response:
    """A mistake of ours; the log says where, and the answer does not."""
    body = {"code": "internal", "message": "something went wrong here", "hint": ""}
    return JSONResponse({"error": body}, 500)
