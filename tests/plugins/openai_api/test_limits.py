"""What one client may ask for: every size has a bound, and no body makes an answer of 500."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmkit.config import Config, SchedulerConfig
from llmkit.contracts import CheckpointInfo, ModelFiles, RequestContext, SamplingParams, TokenizerSpec
from llmkit.errors import QueueFull
from llmkit.frontend.prepare import PrepareHook
from llmkit.testing import bytes_tokenizer
from llmkit_loaders.fast_tokenizer import open_tokenizer
from llmkit_openai_api.choices import Choices
from llmkit_openai_api.schema import MAX_ITEMS, MAX_MESSAGES, MAX_PARTS, MAX_TOKENS
from tests.core.server.local_front import (
    MAX_MODEL_LEN,
    ByteTokenizer,
    LocalFront,
    Script,
    limited_config,
    serving,
)

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
JSON = {"Content-Type": "application/json"}
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def front() -> LocalFront:
    return LocalFront()


@pytest.fixture
async def client(front: LocalFront) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(front) as client:
        yield client


async def refusal(client: httpx.AsyncClient, path: str, body: Any, status: int = 400) -> dict[str, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await client.post(path, content=content, headers=JSON)
    assert answer.status_code == status, answer.text[:300]
    assert len(answer.content) < 2000
    error = answer.json()["error"]
    assert isinstance(error, dict)
    return error


# ---- many prompts ----


@pytest.mark.parametrize("seed", range(12))
async def test_many_prompts_cancelled_at_any_moment_leave_nothing(front: LocalFront, seed: int) -> None:
    dice = random.Random(seed)
    front.engine.script = lambda request: Script("abcdefgh" * 4, hang_after=dice.choice([0, 5, 32]))
    prompts = {f"prompt[{position}]": "x" for position in range(100)}
    params = SamplingParams(n=dice.choice([1, 3]), max_tokens=64)
    choices = Choices(front.services, prompts, params, RequestContext(), add_special_tokens=True)

    async def use() -> None:
        try:
            await choices.start()
            async for _ in choices:
                await asyncio.sleep(dice.choice([0, 0, 0.001]))
        finally:
            await choices.aclose()

    task = asyncio.create_task(use())
    for _ in range(dice.choice([0, 1, 2, 5, 20, 100, 500])):
        await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(10):
        await asyncio.wait({task})
    assert task.cancelled()
    assert front.generator.in_flight == 0
    assert front.engine.running == set()
    await choices.aclose()
    assert front.generator.in_flight == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_of_many_prompts_that_reads_nothing_and_leaves(
    front: LocalFront, client: httpx.AsyncClient, stream: bool
) -> None:
    front.engine.script = lambda request: Script("ab" * 200, hang_after=300)
    body = {"prompt": ["x"] * 100, "stream": stream, "max_tokens": 400}
    task = asyncio.create_task(client.post(COMPLETIONS, json=body))
    async with asyncio.timeout(20):
        while len(front.engine.running) < 100 or front.engine.generated < 5000:
            await asyncio.sleep(0.005)
        task.cancel()
        while front.engine.running or front.generator.in_flight:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("path", "fields", "param", "said"),
    [
        (CHAT, {"n": 129}, "n", "n is 129; it may be at most 128"),
        (CHAT, {"n": 1_000_000}, "n", "n is 1000000; it may be at most 128"),
        (COMPLETIONS, {"n": 1_000_000}, "n", "n is 1000000; it may be at most 128"),
        (CHAT, {"best_of": 1_000_000}, "best_of", "best_of is 1000000; it may be at most 128"),
        (CHAT, {"use_beam_search": True, "best_of": 129}, "best_of", "best_of is 129; it may be at most 128"),
        (CHAT, {"use_beam_search": True, "n": 10_000}, "n", "n is 10000; it may be at most 128"),
        (
            COMPLETIONS,
            {"best_of": 20, "prompt": ["x"] * 60},
            "best_of",
            "Lower best_of, or send fewer prompts",
        ),
        (
            COMPLETIONS,
            {"prompt": ["x"] * 60},
            "prompt",
            "for 60; .* holds 50 .* Send fewer prompts",
        ),
        (CHAT, {"n": 60}, "n", "for 60; .* Lower n"),
        (CHAT, {"use_beam_search": True, "n": 60}, "n", "for 60; .* Lower n"),
    ],
)
async def test_too_many_sequences_name_the_field_that_asks_for_them(
    path: str, fields: dict[str, Any], param: str, said: str
) -> None:
    front = LocalFront(Config(scheduler=SchedulerConfig(max_num_seqs=40, max_queue=10)))
    async with serving(front) as client:
        prompt = {"messages": HI} if path == CHAT else {"prompt": "x"}
        error = await refusal(client, path, {**prompt, **fields})
    assert error["param"] == param
    assert re.search(said, error["message"]), error["message"]
    assert front.engine.requests == []


async def test_more_choices_than_a_server_ever_holds(front: LocalFront, client: httpx.AsyncClient) -> None:
    error = await refusal(client, COMPLETIONS, {"prompt": ["x"] * 1000, "n": 100})
    assert error["param"] == "n"
    assert front.engine.requests == []


# ---- before work is put in ----


class CountingTokenizer(ByteTokenizer):
    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.threads.append(threading.current_thread())
        return super().encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids: Any, *, skip_special_tokens: bool = False) -> str:
        self.threads.append(threading.current_thread())
        return super().decode(ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, {"messages": HI}), (COMPLETIONS, {"prompt": "x"})], ids=["chat", "completions"]
)
async def test_a_full_server_neither_renders_nor_tokenizes(path: str, body: dict[str, Any]) -> None:
    tokenizer = CountingTokenizer()
    front = LocalFront(Config(scheduler=SchedulerConfig(max_num_seqs=1, max_queue=1)), tokenizer=tokenizer)
    front.says("a", hang_after=0)
    async with serving(front) as client:
        held = await front.generator.submit([1], SamplingParams(n=2))
        await refusal(client, path, body, 429)
        if front.services.chat is not None:
            front.services.chat = None  # rendering would now be a 400
            await refusal(client, path, body, 429)
        assert tokenizer.threads == []
        await held.aclose()


async def test_room_is_kept_while_a_prompt_is_tokenized() -> None:
    front = LocalFront(Config(scheduler=SchedulerConfig(max_num_seqs=1, max_queue=1)))
    go = threading.Event()
    front.generator._preparer._hooks = (PrepareHook("slow", lambda draft: go.wait(20)),)
    first = asyncio.create_task(front.generator.submit([1], SamplingParams(n=2)))
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await front.generator.submit([1], SamplingParams())
    first.cancel()
    await asyncio.wait({first})
    go.set()
    assert front.generator.in_flight == 0


async def test_any_failure_gives_the_room_back() -> None:
    class Broken(ByteTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            raise ZeroDivisionError

    front = LocalFront(tokenizer=Broken())
    with pytest.raises(ZeroDivisionError):
        await front.generator.submit("x", SamplingParams(n=5))
    assert front.generator.in_flight == 0
    front.engine.stream = lambda request: 1 / 0  # type: ignore[method-assign,return-value,assignment]
    with pytest.raises(ZeroDivisionError):
        await front.generator.submit([1], SamplingParams(n=5))
    assert front.generator.in_flight == 0


async def test_a_prompt_surely_too_long_is_not_tokenized() -> None:
    tokenizer = CountingTokenizer()
    async with serving(LocalFront(tokenizer=tokenizer)) as client:
        text = "x" * (MAX_MODEL_LEN * 12 + 1)
        for path, body in (
            (COMPLETIONS, {"prompt": text}),
            (CHAT, {"messages": [{**HI[0], "content": text}]}),
        ):
            error = await refusal(client, path, body)
            assert error["code"] == "context_length_exceeded"
            assert error["param"] == ("prompt" if path == COMPLETIONS else "messages")
        assert tokenizer.threads == []
        assert (await client.post("/tokenize", json={"prompt": text})).json()["count"] == len(text)


async def test_long_texts_and_ids_are_worked_on_beside_the_event_loop() -> None:
    tokenizer = CountingTokenizer()
    async with serving(LocalFront(tokenizer=tokenizer)) as client:
        for size in (10, 10_000):
            ids = (await client.post("/tokenize", json={"prompt": "x" * size})).json()["tokens"]
            await client.post("/tokenize", json={"messages": [{"role": "user", "content": "x" * size}]})
            assert (await client.post("/detokenize", json={"tokens": ids})).json()["prompt"] == "x" * size
    on_loop = [thread is threading.main_thread() for thread in tokenizer.threads]
    assert on_loop == [True] * 3 + [False] * 3


async def test_bad_words_are_tokenized_beside_the_event_loop() -> None:
    tokenizer = CountingTokenizer()
    async with serving(LocalFront(tokenizer=tokenizer)) as client:
        answer = await client.post(COMPLETIONS, json={"prompt": [1], "bad_words": ["a", "b"]})
        assert answer.status_code == 200
    assert len(tokenizer.threads) == 4
    assert threading.main_thread() not in tokenizer.threads


# ---- sizes ----

PART = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("path", "body", "param", "limit"),
    [
        (CHAT, {"messages": [{"role": "user", "content": ""}] * 50_000}, "messages", MAX_MESSAGES),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [PART] * 4000}] * 9},
            "messages",
            MAX_PARTS,
        ),
        (CHAT, {"messages": [{"role": "user", "content": [PART] * 5000}]}, "messages[0].content", MAX_ITEMS),
        (CHAT, {"messages": HI, "stop": ["x"] * 5000}, "stop", MAX_ITEMS),
        (CHAT, {"messages": HI, "stop_token_ids": [1] * 500_000}, "stop_token_ids", MAX_ITEMS),
        (CHAT, {"messages": HI, "logit_bias": {str(i): 1 for i in range(5000)}}, "logit_bias", MAX_ITEMS),
        (CHAT, {"messages": HI, "tools": [{}] * 5000}, "tools", MAX_ITEMS),
        (COMPLETIONS, {"prompt": ["x"] * 100_000}, "prompt", 1024),
        ("/tokenize", {"messages": [{"role": "user", "content": ""}] * 10_000}, "messages", MAX_MESSAGES),
        ("/detokenize", {"tokens": [1] * (MAX_TOKENS + 1)}, "tokens", MAX_TOKENS),
        (CHAT, {"messages": HI, "plugin_args": {"p": "x" * (64 << 10)}}, "plugin_args", 64 << 10),
        (CHAT, {"messages": HI, "vllm_xargs": {"p": "x" * (64 << 10)}}, "vllm_xargs", 64 << 10),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_every_list_has_a_bound_that_its_refusal_names(
    path: str, body: dict[str, Any], param: str, limit: int
) -> None:
    async with serving(LocalFront(hooks=[PrepareHook("p", lambda draft: None)])) as client:
        error = await refusal(client, path, body)
        assert error["param"] == param
        assert str(limit) in error["message"]


# ---- what no tokenizer or template can take ----


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server with a real tokenizer, which is stricter than the tests' own."""
    files = ModelFiles(str(bytes_tokenizer.write(tmp_path)), "m", "test")
    tokenizer = open_tokenizer(TokenizerSpec(files, CheckpointInfo("X", {})))
    async with serving(LocalFront(tokenizer=tokenizer)) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, b'{"messages": [{"role": "user", "content": "a\\ud800"}]}', "messages"),
        (
            CHAT,
            b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "\\ud800"}]}]}',
            "messages",
        ),
        (CHAT, b'{"messages": [{"role": "\\ud800", "content": "a"}]}', "messages[0].role"),
        (COMPLETIONS, b'{"prompt": "\\udfff"}', "prompt"),
        (COMPLETIONS, b'{"prompt": ["a", "\\udfff"]}', "prompt[1]"),
        ("/tokenize", b'{"prompt": "\\ud800"}', "prompt"),
        ("/tokenize", b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "messages"),
    ],
)
async def test_half_a_surrogate_pair_is_no_text(
    real: httpx.AsyncClient, path: str, body: bytes, param: str
) -> None:
    error = await refusal(real, path, body)
    assert error["param"] == param
    assert "surrogate" in error["message"] or "unicode" in error["message"]


@pytest.mark.parametrize("levels", [70, 300, 600, 900, 5000])
@pytest.mark.parametrize(
    "spot",
    [
        lambda deep: {"messages": HI, "chat_template_kwargs": deep},
        lambda deep: {"messages": [{**HI[0], "extra": deep}]},
        lambda deep: {
            "messages": [
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": deep}}]},
                *HI,
            ]
        },
        lambda deep: {"messages": HI, "plugin_args": {"p": deep}},
        lambda deep: {"messages": [{"role": "user", "content": deep}]},
        lambda deep: {"messages": deep},
        lambda deep: {"messages": HI, "seed": deep},
        lambda deep: {"messages": HI, "logit_bias": {"5": deep}},
    ],
)
async def test_json_however_deep_is_at_most_a_bad_request(spot: Any, levels: int) -> None:
    deep = '{"a": ' * levels + "1" + "}" * levels
    body = json.dumps(spot("DEEP")).replace('"DEEP"', deep)
    async with serving(LocalFront(hooks=[PrepareHook("p", lambda draft: None)])) as client:
        await refusal(client, CHAT, body.encode())


# ---- fields ----


@pytest.mark.parametrize(
    ("path", "extra", "begins"),
    [
        (COMPLETIONS, {"prompt": "a"}, True),
        (COMPLETIONS, {"prompt": "a", "add_special_tokens": False}, False),
        (CHAT, {"messages": HI}, False),
        (CHAT, {"messages": HI, "add_special_tokens": True}, True),
    ],
)
async def test_special_tokens_are_added_as_asked(path: str, extra: dict[str, Any], begins: bool) -> None:
    front = LocalFront(add_bos=True)
    async with serving(front) as client:
        assert (await client.post(path, json=extra)).status_code == 200
    assert (front.engine.requests[0].prompt_ids[0] == 258) is begins


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"priority": 1}, "priority"),
        ({"plugin_args": {"nobody": 1}}, "plugin_args"),
        ({"vllm_xargs": {"nobody": 1}}, "vllm_xargs"),
    ],
)
async def test_what_would_be_ignored_is_refused(
    client: httpx.AsyncClient, extra: dict[str, Any], param: str
) -> None:
    error = await refusal(client, CHAT, {"messages": HI, **extra})
    assert error["param"] == param


async def test_arguments_for_an_unknown_plugin_name_the_known() -> None:
    async with serving(LocalFront(hooks=[PrepareHook("steering", lambda draft: None)])) as client:
        error = await refusal(client, CHAT, {"messages": HI, "plugin_args": {"stering": {}}})
        assert "'stering'" in error["message"]
        assert "Known: steering" in error["message"]
        body = {"messages": HI, "plugin_args": {"steering": {}}}
        assert (await client.post(CHAT, json=body)).status_code == 200


async def test_values_that_ask_for_nothing_are_taken(client: httpx.AsyncClient) -> None:
    body = {"messages": HI, "top_logprobs": 0, "spaces_between_special_tokens": True, "priority": 0}
    assert (await client.post(CHAT, json=body)).status_code == 200


async def test_unknown_fields_are_named_wherever_they_are(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    body = {
        "messages": [{"role": "user", "content": "hi", "for_the_template": 1}],
        "stream": True,
        "stream_options": {"include_usage": True, "include_obfuscation": False, "shiny": 1},
        "response_format": {"type": "text", "new": 2},
    }
    with caplog.at_level(logging.WARNING):
        assert (await client.post(CHAT, json=body)).status_code == 200
    warned = " ".join(record.getMessage() for record in caplog.records)
    assert "'stream_options.shiny'" in warned
    assert "'response_format.new'" in warned
    assert "obfuscation" not in warned
    assert "for_the_template" not in warned


async def test_a_silent_completion_is_cut_to_the_context(
    front: LocalFront, client: httpx.AsyncClient
) -> None:
    body = {"prompt": [97] * (MAX_MODEL_LEN - 5)}
    answer = (await client.post(COMPLETIONS, json=body)).json()
    assert front.engine.requests[0].max_tokens == 5
    assert answer["choices"][0]["finish_reason"] == "length"
    await refusal(client, COMPLETIONS, {**body, "max_tokens": 16})


# ---- bounds that flags move ----

TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("limit", "path", "body", "param"),
    [
        ({"max_n": 2}, CHAT, {"messages": HI, "n": 3}, "n"),
        ({"max_best_of": 2}, COMPLETIONS, {"prompt": "a", "best_of": 3}, "best_of"),
        ({"max_best_of": 2}, COMPLETIONS, {"prompt": "a", "use_beam_search": True, "n": 3}, "n"),
        ({"max_logprobs": 2}, COMPLETIONS, {"prompt": "a", "logprobs": 3}, "logprobs"),
        ({"max_logprobs": 2}, CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 3}, "top_logprobs"),
        ({"max_logprobs": 2}, COMPLETIONS, {"prompt": "a", "prompt_logprobs": 3}, "prompt_logprobs"),
        ({"max_stop_strings": 2}, CHAT, {"messages": HI, "stop": ["a", "b", "c"]}, "stop"),
        ({"max_tools": 0}, CHAT, {"messages": HI, "tools": [TOOL]}, "tools"),
        ({"max_messages": 1}, CHAT, {"messages": HI * 2}, "messages"),
        ({"max_messages": 1}, "/tokenize", {"messages": HI * 2}, "messages"),
        ({"max_prompts": 1}, COMPLETIONS, {"prompt": ["a", "b"]}, "prompt"),
        ({"max_prompt_chars": 3}, COMPLETIONS, {"prompt": "four"}, "prompt"),
        ({"max_prompt_chars": 3}, CHAT, {"messages": HI}, "messages"),
        ({"max_prompt_chars": 3}, "/tokenize", {"prompt": "four"}, "prompt"),
        ({"max_prompt_tokens": 3}, COMPLETIONS, {"prompt": "four"}, "prompt"),
        ({"max_prompt_tokens": 3}, COMPLETIONS, {"prompt": [1, 2, 3, 4]}, "prompt"),
    ],
    ids=str,
)
async def test_a_bound_that_a_flag_moves_is_refused_by_its_name(
    limit: dict[str, int], path: str, body: dict[str, Any], param: str
) -> None:
    (flag,) = ("--" + name.replace("_", "-") for name in limit)
    async with serving(LocalFront(limited_config(**limit))) as client:
        error = await refusal(client, path, body)
    assert flag in error["message"]
    assert error["param"] == param
    async with serving(LocalFront()) as client:
        answer = await client.post(path, json=body)
        assert answer.status_code == 200 or flag not in answer.text


async def test_bounds_may_be_wider_than_they_are_by_default() -> None:
    body = {"prompt": "a", "n": 130, "logprobs": 21, "stop": [str(n) for n in range(17)], "max_tokens": 1}
    config = limited_config(max_n=200, max_logprobs=30, max_stop_strings=20)
    async with serving(LocalFront(config)) as client:
        answer = await client.post(COMPLETIONS, json=body)
        assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"]) == 130


async def test_the_first_item_that_is_wrong_is_enough() -> None:
    """Thousands of findings about one body would take longer than reading it."""
    parts = [{"type": 1}] * 4000
    async with serving(LocalFront()) as client:
        error = await refusal(client, CHAT, {"messages": [{"role": "user", "content": parts}] * 8})
    assert error["param"] == "messages[0].content[0].type"
