"""Every failure as an OpenAI error object: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from llmkit.errors import (
    Draining,
    EngineDead,
    EngineError,
    QueueFull,
    RequestError,
    RequestTimeout,
    Sleeping,
)

RETRY_AFTER_S = 5
"""What a client is told to wait while the server starts, drains or is down."""


class _JsonWords(reprlib.Repr):
    """Values as a client wrote them, shortened."""

    def repr_NoneType(self, _value: None, _level: int) -> str:
        return "null"

    def repr_bool(self, value: bool, _level: int) -> str:
        return "true" if value else "false"


_NULLABLE = {"type": ["string", "null"]}
DOCUMENTED: dict[str, Any] = {
    "description": "What is wrong, as an error object",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {
                    "error": {
                        "type": "object",
                        "required": ["message", "type", "param", "code"],
                        "properties": {
                            "message": {"type": "string"},
                            "type": {"type": "string"},
                            "param": _NULLABLE,
                            "code": _NULLABLE,
                        },
                    }
                },
            }
        }
    },
}
"""Of every failure of every route, for ``/openapi.json``."""
_SHORT = _JsonWords()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlist = _SHORT.maxdict = _SHORT.maxtuple = 3
_SHORT.maxlevel = 2
_REASONS = {
    "missing": "it is missing",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_attributes_type": "must be an object",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "may be at most {le}",
    "too_short": "has {actual_length} items; it must have at least {min_length}",
    "too_long": "has {actual_length} items; it may have at most {max_length}",
    "string_too_short": "must have a length of at least {min_length}",
    "string_too_long": "may have a length of at most {max_length}",
}
"""Pydantic's types of error in our words; others say it in theirs."""

_UNAVAILABLE = {EngineDead: "engine_dead", Draining: "draining", Sleeping: "sleeping"}


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure as a client sees it."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    retry_after_s: int | None = None

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self, headers: Mapping[str, str] | None = None) -> JSONResponse:
        merged = dict(headers or {})
        if self.retry_after_s is not None:
            merged["Retry-After"] = str(self.retry_after_s)
        return JSONResponse(self.body(), self.status, merged)


def failure_of(error: RequestError | EngineError) -> Failure:
    """How an error that was raised on purpose looks to the client."""
    match error:
        case QueueFull():
            return Failure(
                error.status,
                str(error),
                "rate_limit_error",
                error.param,
                error.code,
                error.retry_after_s,
            )
        case RequestError():
            return Failure(error.status, str(error), "invalid_request_error", error.param, error.code)
        case RequestTimeout():
            return Failure(504, str(error), "server_error", code="request_timeout")
        case EngineDead() | Draining() | Sleeping():
            code = _UNAVAILABLE[type(error)]
            return Failure(503, str(error), "server_error", code=code, retry_after_s=RETRY_AFTER_S)
        case _:
            return Failure(500, str(error), "server_error", code="engine_error")


def internal_failure() -> Failure:
    """For an exception nobody foresaw: the log has it, the client must not."""
    return Failure(500, "the server failed on this request; its log says why", "server_error")


def stopping() -> Failure:
    """For a request that the server's end cut short before its answer began."""
    return failure_of(Draining("the server is shutting down"))


def install(app: FastAPI) -> None:
    """Give ``app`` an error object for each exception that a route or FastAPI itself raises."""

    async def on_llmkit(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestError | EngineError)
        return failure_of(error).response()

    async def on_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return _http_failure(request, error).response(error.headers)

    async def on_validation(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        if not error.body and error.errors()[0]["loc"] == ("body",):
            return (await _no_body(request)).response()
        return validation_failure(error.errors(), error.body).response()

    app.add_exception_handler(RequestError, on_llmkit)
    app.add_exception_handler(EngineError, on_llmkit)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_validation)


def validation_failure(errors: Sequence[Any], body: Any) -> Failure:
    """A 400 from pydantic's findings about ``body``: the first field found wrong, all its reasons."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return _bad(f"the body is not JSON: {first['ctx']['error']} at character {first['loc'][-1]}")
    if first["loc"] == ("body",):
        return (
            _not_json()
            if isinstance(body, bytes)
            else _bad(f"the body must be an object, not {_shown(body)}")
        )
    located = [(*_locate(body, error), error) for error in errors]
    within = [entry for entry in located if (entry[0] or "").startswith(located[0][0] or "")]
    # Of a union, the member that got furthest is the one that was meant.
    param, value, first = max(within, key=lambda entry: len(entry[0] or ""))
    reasons = "; or ".join(dict.fromkeys(_reason(error) for where, _, error in within if where == param))
    tells = first["type"] in ("missing", "too_short", "too_long")
    return _bad(f"{param or 'body'}: {reasons}" + ("" if tells else f", not {_shown(value)}"), param)


# ---- below: how ----


def _bad(message: str, param: str | None = None) -> Failure:
    return Failure(400, message, "invalid_request_error", param)


def _not_json() -> Failure:
    return _bad("the body must be JSON with the header Content-Type: application/json")


async def _no_body(request: Request) -> Failure:
    """Of a body that is null, false, empty, or was not looked at."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        return _not_json()
    given = (await request.body()).decode(errors="replace").strip()
    return _bad(f"the body is {_SHORT.repr(given)[1:-1] or 'empty'}; it must be an object")


def _shown(value: Any) -> str:
    return _SHORT.repr(value)


def _reason(error: Mapping[str, Any]) -> str:
    words = _REASONS.get(error["type"])
    if words is not None:
        return words.format_map(error.get("ctx", {}))
    text: str = error["msg"]
    text = text.removeprefix("Value error, ").removeprefix("Input ")
    return text[:1].lower() + text[1:]


def _locate(body: Any, error: Mapping[str, Any]) -> tuple[str | None, Any]:
    """The field an error is about, as ``messages[0].content``, and the value it holds.

    Pydantic's location also names the union members it tried; those are no part of the body.
    """
    where, *path = error["loc"]
    if where != "body":
        return str(path[0]) if path else str(where), error["input"]
    text, value = "", body
    for position, step in enumerate(path):
        last = position == len(path) - 1
        if isinstance(step, str) and isinstance(value, dict):
            if step in value or (last and error["type"] == "missing"):
                text += f".{step}" if text else step
                value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and step < len(value):
            text += f"[{step}]"
            value = value[step]
    return text or None, value


def _http_failure(request: Request, error: HTTPException) -> Failure:
    target = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return Failure(404, f"{target}: there is no such route", "invalid_request_error", code="not_found")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return Failure(405, f"{target}: use {allowed}", "invalid_request_error", code="method_not_allowed")
    cause = error.__cause__
    if isinstance(cause, UnicodeDecodeError):
        return _bad(f"the body is not UTF-8: {cause.reason} at byte {cause.start}")
    if isinstance(cause, RecursionError):
        return _bad("the body is nested too deeply")
    if isinstance(cause, ValueError) and "integer string conversion" in str(cause):
        return _bad(f"the body has an integer of more than {sys.get_int_max_str_digits()} digits")
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    return Failure(error.status_code, str(error.detail), kind)
