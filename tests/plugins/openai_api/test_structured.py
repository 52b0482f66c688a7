"""Requests that say what the answer must be: every spelling of OpenAI and vLLM, and what some lack."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmkit import RequestError
from llmkit.contracts import StructuredOutput
from llmkit_openai_api.request import name_field
from llmkit_openai_api.schema import ChatRequest
from llmkit_openai_api.structured import structured_output

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}}
TEXT = json.dumps(SCHEMA, ensure_ascii=False)
TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f>"]}


def body_of(fields: dict[str, Any]) -> ChatRequest:
    return ChatRequest.model_validate({"messages": HI, **fields})


def response_format(**form: Any) -> dict[str, Any]:
    return {"response_format": form}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        (response_format(type="text"), None),
        (response_format(type="json_object"), StructuredOutput("json_object")),
        (
            response_format(type="json_schema", json_schema={"name": "a", "strict": True, "schema": SCHEMA}),
            StructuredOutput("json", TEXT),
        ),
        (response_format(type="regex", pattern="a+"), StructuredOutput("regex", "a+")),
        (response_format(type="grammar", grammar="root ::= a"), StructuredOutput("grammar", "root ::= a")),
        ({"structured_outputs": {"json": SCHEMA}}, StructuredOutput("json", TEXT)),
        ({"structured_outputs": {"json": TEXT}}, StructuredOutput("json", TEXT)),
        ({"structured_outputs": {"regex": "a+", "json": None}}, StructuredOutput("regex", "a+")),
        ({"structured_outputs": {"choice": ["a", "é"]}}, StructuredOutput("choice", '["a", "é"]')),
        ({"structured_outputs": {"choice": []}}, StructuredOutput("choice", "[]")),
        ({"structured_outputs": {"grammar": "g"}}, StructuredOutput("grammar", "g")),
        ({"structured_outputs": {"json_object": True}}, StructuredOutput("json_object")),
        (
            {"structured_outputs": {"regex": "a", "json_object": False, "disable_fallback": True}},
            StructuredOutput("regex", "a"),
        ),
        ({"structured_outputs": {"structural_tag": "{}"}}, StructuredOutput("structural_tag", "{}")),
        ({"guided_json": SCHEMA}, StructuredOutput("json", TEXT)),
        ({"guided_json": TEXT}, StructuredOutput("json", TEXT)),
        ({"guided_regex": "a+"}, StructuredOutput("regex", "a+")),
        ({"guided_choice": ["a"]}, StructuredOutput("choice", '["a"]')),
        ({"guided_grammar": "g"}, StructuredOutput("grammar", "g")),
        ({"guided_json_object": True}, StructuredOutput("json_object")),
        ({"guided_json_object": False}, None),
    ],
)
def test_every_spelling_says_the_same(fields: dict[str, Any], expected: StructuredOutput | None) -> None:
    assert structured_output(body_of(fields))[1] == expected


def test_a_structural_tag_is_taken_whole() -> None:
    for fields in (response_format(type="structural_tag", **TAG), {"structural_tag": TAG}):
        field, wanted = structured_output(body_of(fields))
        assert field in fields
        assert wanted is not None
        assert {**TAG, **json.loads(wanted.source)} == json.loads(wanted.source)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        (response_format(type="yaml"), "response_format", "has type 'yaml'; it may be text, json_object"),
        (response_format(type="json_schema"), "response_format", "needs json_schema.schema"),
        (
            response_format(type="json_schema", json_schema={"name": "a"}),
            "response_format",
            "needs json_schema",
        ),
        (
            response_format(type="json_schema", json_schema={"name": "a", "schema": None}),
            "response_format",
            "needs json_schema.schema",
        ),
        (response_format(type="regex"), "response_format", "needs pattern"),
        ({"structured_outputs": {}}, "structured_outputs", "has none; give exactly one"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "has json, regex"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs", "has 'jsn'; known are choice"),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs", "regex is 3; it must be a string"),
        ({"structured_outputs": {"json_object": "yes"}}, "structured_outputs", "it must be true"),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": " "}},
            "structured_outputs",
            "whitespace_pattern cannot be honoured",
        ),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "give only one of them"),
        (
            {**response_format(type="json_object"), "structured_outputs": {"regex": "a"}},
            "response_format",
            "response_format, structured_outputs: give only one",
        ),
    ],
)
def test_what_is_unclear_is_refused(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        structured_output(body_of(fields))
    assert caught.value.param == param


def test_a_later_refusal_names_the_clients_field() -> None:
    error = RequestError("structured: #/type is 3; a structured answer", param="structured")
    name_field(error, body_of({"guided_json": {"type": 3}}))
    assert (str(error), error.param) == ("guided_json: #/type is 3; a structured answer", "guided_json")
    other = RequestError("n is 0", param="n")
    name_field(other, body_of({}))
    assert (str(other), other.param) == ("n is 0", "n")
