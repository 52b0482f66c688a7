"""Failures as Anthropic words them; free of fastapi, for the entry module hands it on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmkit.contracts import WordedFailure

_OVERLOADED = 529
"""Anthropic's status for a server that cannot take the request now."""
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    _OVERLOADED: "overloaded_error",
}


def word_failure(status: int, error: Mapping[str, Any], request_id: str) -> WordedFailure:
    """A failure of a route as a client of the Messages API gets it."""
    if status == 503:
        status = _OVERLOADED
    body = error_body(kind_of(status), error["message"], request_id)
    return WordedFailure(status, body, {"request-id": request_id})


def kind_of(status: int) -> str:
    """Anthropic's type of error."""
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def error_body(kind: str, message: str, request_id: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
