"""JSON bodies of one meaning and of bearable structure."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkit.server import json_body
from llmkit.server.json_body import MAX_DEPTH, MAX_MEMBERS, MAX_VALUES, fault
from tests.core.server.local_front import LocalFront, serving

CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}

TEXT = st.text(st.sampled_from('ab"\\{}[],:é\n'), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=30,
)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b'{"n": 1, "n": 2}', "n", "'n' twice"),
        (b'{"a": {"b": 1, "\\u0062": 1}}', "b", "'b' twice"),
        (b'{"temperature": NaN}', "temperature", "NaN"),
        (b'{"tools": [{"function": {"x": [1, [-Infinity]]}}]}', "x", "-Infinity"),
        (b"[Infinity]", None, "the body has Infinity"),
        (b'{"tools": ' + b"[" * 300 + b"]" * 300 + b"}", "tools", f"at most {MAX_DEPTH} levels"),
        (b'{"a": 1, "metadata": ' + b'{"a":' * 300 + b"1" + b"}" * 301, "metadata", "nested too deeply"),
        (b"[" * 100_000, None, "nested too deeply"),
        (b'{"a": "[", "messages": [' + b"[]," * MAX_MEMBERS + b"[]]}", "messages", str(MAX_MEMBERS)),
        (b'{"prompt": [' + b"1," * (MAX_VALUES + 1) + b"1]}", "prompt", str(MAX_VALUES)),
        (b'{"\\"k": {"":' * 150_000 + b"1" + b"}" * 300_000, '"k', "nested too deeply"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
async def test_what_is_wrong_is_named(body: bytes, param: str | None, words: str) -> None:
    failure = await fault(body)
    assert failure is not None
    assert failure.status == 400
    assert failure.param == param
    assert words in failure.message
    assert len(failure.message) < 300


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"a": "\xff"}', b"null", b'{"a": "\\ud800"}', b"{} {}", b"[1e999]"]
)
async def test_what_is_no_json_is_left_to_the_route(body: bytes) -> None:
    assert await fault(body) is None


@given(VALUES)
def test_strings_are_told_from_structure(value: Any) -> None:
    body = json.dumps(value, ensure_ascii=False).encode()
    within = json_body._in_strings(np.frombuffer(body, np.uint8))
    assert within.tolist() == _in_strings_one_by_one(body)


@given(VALUES)
async def test_ordinary_json_has_no_fault(value: Any) -> None:
    assert await fault(json.dumps(value).encode()) is None
    assert json_body.intricacy(json.dumps(value).encode()) is None


def _in_strings_one_by_one(body: bytes) -> list[bool]:
    found, inside, escaped = [], False, False
    for byte in body:
        if escaped:
            escaped = False
        elif inside and byte == ord("\\"):
            escaped = True
        elif byte == ord('"'):
            inside = not inside
        found.append(inside)
    return found


async def test_a_route_sees_the_body_as_it_came_whole_or_in_pieces() -> None:
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'

    async def pieces() -> Any:
        for at in range(0, len(body), 7):
            yield body[at : at + 7]

    async with serving(LocalFront()) as client:
        for content in (body, pieces()):
            assert (await client.post(CHAT, content=content, headers=JSON)).status_code == 200
        twice = await client.post(CHAT, content=body[:-1] + b', "messages": []}', headers=JSON)
        assert twice.status_code == 400
        assert twice.json()["error"]["param"] == "messages"
        counted = 'llmkit:requests_refused_total{code="invalid_request_error",status="400"} 1.0'
        assert counted in (await client.get("/metrics")).text
