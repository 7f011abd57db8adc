"""Requests that fail: the one form of all errors, and validation errors as plain sentences."""

import json
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from limelight.config import broken_rule, expected_types, is_type_error

_MOST_ERRORS = 100  # of a body that are searched for the one to report


class RefusedError(Exception):
    """A request that gets an error response: all but `retry_after` goes to the client."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        hint: str = "",
        retry_after: int = 0,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint = status, code, message, hint
        self.retry_after, self.param = retry_after, param  # the field that is wrong


_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def error_body(refused: RefusedError) -> bytes:
    """OpenAI's `{"error": {"message", "type", "param", "code"}}`, and a hint."""
    general = "server_error" if refused.status >= 500 else "invalid_request_error"
    kind = {"type": _TYPES.get(refused.status, general), "param": refused.param}
    detail = {"code": refused.code, "message": refused.message, "hint": refused.hint, **kind}
    return json.dumps({"error": detail}).encode()


def error_response(refused: RefusedError) -> Response:
    """With headers that say when to try again, and with what."""
    headers = {"retry-after": str(refused.retry_after)} if refused.retry_after else {}
    if refused.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(error_body(refused), refused.status, headers, media_type="application/json")


def add_error_handlers(app: FastAPI) -> None:
    """Errors of routes, validation and routing become responses in the one form."""

    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> Response:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        field, wrong = _first_wrong_field(error.errors()[:_MOST_ERRORS], error.body)
        message, hint = f"{field or 'the body'}: {wrong}", "see /docs for the fields"
        return error_response(
            RefusedError(422, "invalid_field", message, hint, param=field or None)
        )

    @app.exception_handler(HTTPException)
    async def no_route(_: Request, error: HTTPException) -> Response:
        codes = {
            404: ("not_found", "there is nothing at this path"),
            405: ("wrong_method", "this path does not support the method"),
        }
        code, message = codes.get(error.status_code, ("refused", "the request was rejected"))
        hint = "see /docs for all routes"
        response = error_response(RefusedError(error.status_code, code, message, hint))
        if allow := {k.lower(): v for k, v in (error.headers or {}).items()}.get("allow"):
            response.headers["Allow"] = allow
        return response

    @app.exception_handler(Exception)
    async def internal(_: Request, __: Exception) -> Response:
        return error_response(RefusedError(500, "internal", "internal error; the log says where"))


def _first_wrong_field(errors: Sequence[dict[str, Any]], body: Any) -> tuple[str, str]:
    """The first wrong field, empty for the body itself, and why, without its value.

    A field with several types has an error for each of them. The one deepest in the value counts:
    for a list with a wrong entry, "not a text" would mislead.
    """
    paths = [_path_of(error["loc"], body) for error in errors]
    depth = len(paths[0])
    same = [(p, e) for p, e in zip(paths, errors, strict=True) if p[:depth] == paths[0]]
    furthest = max(len(path) for path, _ in same)
    deepest = [(path, error) for path, error in same if len(path) == furthest]
    broken = [(path, error) for path, error in deepest if not is_type_error(error)]
    path, error = (broken or deepest)[0]
    types = [error for at, error in deepest if at == path]
    wrong = broken_rule(error) if broken else f"should be {expected_types(types)}"
    return ".".join(path)[:100], wrong[:200]


def _path_of(loc: Sequence[str | int], body: Any) -> list[str]:
    """pydantic's location without its names of union members (`list[str]`)."""
    origin, *parts = loc
    path, value = [], body if origin == "body" else dict.fromkeys(parts)
    for part in parts:
        named = isinstance(value, dict) and (part in value or str(part).isidentifier())
        if isinstance(part, str) and not named:
            continue
        path.append(str(part))
        value = value.get(part) if isinstance(part, str) else value[part]
    return path
