"""What an answer must be, in the words of OpenAI and of vLLM's newer and older requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from llmkit import RequestError
from llmkit.contracts import StructuredOutput, listing
from llmkit_openai_api.schema import ResponseFormat, SamplingBody

_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""vLLM's names for them are llmkit's."""
_NO_EFFECT: Mapping[str, Callable[[Any], bool]] = {
    "disable_fallback": lambda value: True,  # there never is one
    "disable_any_whitespace": lambda value: not value,
    "disable_additional_properties": lambda value: not value,
    "whitespace_pattern": lambda value: False,
}
"""What else vLLM's ``structured_outputs`` may hold -> whether a value, not null, asks for nothing."""


def structured_output(body: SamplingBody) -> tuple[str, StructuredOutput | None]:
    """The field that says what the answer must be, and what that is; None where any text will do.

    :raises RequestError: several fields say it, or one says it wrongly.
    """
    given = {
        field: wanted
        for field, wanted in (
            ("response_format", _response_format(body.response_format)),
            ("structured_outputs", _structured_outputs(body.structured_outputs)),
            *((f"guided_{kind}", _guided(body, kind)) for kind in _KINDS[:5]),
            ("structural_tag", _wanted("structural_tag", "structural_tag", body.structural_tag)),
        )
        if wanted is not None
    }
    if len(given) > 1:
        raise _wrong(sorted(given)[0], f"{listing(given)}: give only one of them")
    return next(iter(given.items()), ("structured", None))


def _response_format(form: ResponseFormat | None) -> StructuredOutput | None:
    field = "response_format"
    if form is None or form.type == "text":
        return None
    match form.type:
        case "json_object":
            return StructuredOutput("json_object")
        case "json_schema":
            schema = (form.json_schema or {}).get("schema")
            if schema is None:
                raise _wrong(field, "response_format of type json_schema needs json_schema.schema")
            return _wanted(field, "json", schema)
        case "regex" if form.pattern is not None:
            return _wanted(field, "regex", form.pattern)
        case "grammar" if form.grammar is not None:
            return _wanted(field, "grammar", form.grammar)
        case "structural_tag":
            return _wanted(field, "structural_tag", form.model_dump(exclude_none=True))
        case "regex" | "grammar":
            needs = {"regex": "pattern", "grammar": "grammar"}[form.type]
            raise _wrong(field, f"response_format of type {form.type} needs {needs}")
        case _:
            known = "text, json_object, json_schema, regex, grammar, structural_tag"
            raise _wrong(field, f"response_format has type {form.type!r:.60}; it may be {known}")


def _structured_outputs(given: Mapping[str, Any] | None) -> StructuredOutput | None:
    field = "structured_outputs"
    if given is None:
        return None
    held = {name: value for name, value in given.items() if value is not None}
    kinds = [name for name in held if name in _KINDS and held[name] is not False]
    for name, value in held.items():
        if name in _KINDS:
            continue
        if name not in _NO_EFFECT:
            raise _wrong(field, f"structured_outputs has {name!r:.60}; known are {listing(_KINDS)}")
        if not _NO_EFFECT[name](value):
            raise _wrong(field, f"structured_outputs.{name} cannot be honoured; leave it out")
    if len(kinds) != 1:
        raise _wrong(field, f"structured_outputs has {listing(kinds)}; give exactly one of {listing(_KINDS)}")
    return _wanted(field, kinds[0], held[kinds[0]])


def _guided(body: SamplingBody, kind: str) -> StructuredOutput | None:
    value = getattr(body, f"guided_{kind}")
    return None if value is False and kind == "json_object" else _wanted(f"guided_{kind}", kind, value)


def _wanted(field: str, kind: str, value: Any) -> StructuredOutput | None:
    """``value`` as the source of ``kind``: JSON values are written as text, texts stay as they are."""
    if value is None:
        return None
    if kind == "json_object":
        if value is not True:
            raise _wrong(field, f"{field}: json_object is {value!r:.60}; it must be true")
        return StructuredOutput("json_object")
    if kind in ("regex", "grammar"):
        if not isinstance(value, str):
            raise _wrong(field, f"{field}: {kind} is {json.dumps(value):.60}; it must be a string")
        return StructuredOutput("regex" if kind == "regex" else "grammar", value)
    if kind == "choice":
        return StructuredOutput("choice", _text(field, value))
    # A schema or a tag: JSON, or JSON text.
    text = value if isinstance(value, str) else _text(field, value)
    return StructuredOutput("json" if kind == "json" else "structural_tag", text)


def _text(field: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise _wrong(field, f"{field} is nested too deep") from None


def _wrong(field: str, message: str) -> RequestError:
    return RequestError(message, param=field, code="invalid_value")
