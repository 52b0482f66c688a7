"""``/v1/models``, ``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from llmkit.config import Config
from tests.core.server.local_front import MAX_MODEL_LEN, LocalFront, serving


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with serving(LocalFront()) as client:
        yield client


async def test_every_served_name_is_a_model() -> None:
    config = Config()
    config = replace(config, model=replace(config.model, served_model_name=("org/big", "small")))
    async with serving(LocalFront(config)) as client:
        listing = (await client.get("/v1/models")).json()
        assert [card["id"] for card in listing["data"]] == ["org/big", "small"]
        card = (await client.get("/v1/models/org/big")).json()
        assert card == listing["data"][0]
        assert card["max_model_len"] == MAX_MODEL_LEN
        assert (card["root"], card["parent"]) == ("/models/tiny", None)
        assert card["permission"][0]["object"] == "model_permission"
        missing = await client.get("/v1/models/org/none")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "model_not_found"
        answer = await client.post("/v1/completions", json={"prompt": "a", "model": "small"})
        assert answer.json()["model"] == "org/big"


async def test_tokenize_a_text(client: httpx.AsyncClient) -> None:
    answer = await client.post("/tokenize", json={"prompt": "hé", "return_token_strs": True})
    assert answer.json() == {
        "count": 3,
        "max_model_len": MAX_MODEL_LEN,
        "tokens": [104, 195, 169],
        "token_strs": ["h", "\ufffd", "\ufffd"],
    }
    assert (await client.post("/tokenize", json={"prompt": ""})).json()["tokens"] == []


async def test_special_tokens_are_added_unless_told_not_to() -> None:
    async with serving(LocalFront(add_bos=True)) as client:
        assert (await client.post("/tokenize", json={"prompt": "a"})).json()["tokens"] == [258, 97]
        bare = {"prompt": "a", "add_special_tokens": False}
        assert (await client.post("/tokenize", json=bare)).json()["tokens"] == [97]


@pytest.mark.parametrize("value", [5, "x", [1], {"a": 1}])
async def test_a_field_of_another_route_is_an_unknown_field(client: httpx.AsyncClient, value: object) -> None:
    answer = await client.post("/tokenize", json={"prompt": "a", "response_format": value})
    assert answer.status_code == 200


async def test_messages_are_tokenized_as_chat_would(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    counted = (await client.post("/tokenize", json={"messages": messages})).json()
    answer = (await client.post("/v1/chat/completions", json={"messages": messages})).json()
    assert counted["count"] == answer["usage"]["prompt_tokens"]
    text = (await client.post("/detokenize", json={"tokens": counted["tokens"]})).json()["prompt"]
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "tools": [{}]}, "tools[0].function"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [97, 259]}, "tokens[1]"),
        ("/detokenize", {"tokens": [97, "a"]}, "tokens[1]"),
    ],
)
async def test_a_wrong_field_is_named(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    answer = await client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_an_unknown_model_is_404(client: httpx.AsyncClient, path: str) -> None:
    body = {"model": "other", "prompt": "a", "tokens": [97]}
    answer = await client.post(path, json=body)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
