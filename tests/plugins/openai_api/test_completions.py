"""Plain completions over a real HTTP server and a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from llmkit.contracts import FinishReason
from llmkit.frontend.prepare import PrepareHook
from llmkit.testing.http import StreamedAnswer, validate_stream
from tests.core.server.local_front import MAX_MODEL_LEN, LocalFront, Script, serving

URL = "/v1/completions"


@pytest.fixture
async def front() -> LocalFront:
    front = LocalFront()
    # Each prompt is answered with itself, so that crossed choices would show.
    front.engine.script = lambda request: Script([bytes([i]) for i in request.prompt_ids])
    return front


@pytest.fixture
async def client(front: LocalFront) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(front) as client:
        yield client


async def whole(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post(URL, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def streamed(client: httpx.AsyncClient, **body: Any) -> StreamedAnswer:
    async with client.stream("POST", URL, json={"stream": True, **body}) as answer:
        assert answer.status_code == 200, await answer.aread()
        return validate_stream([line async for line in answer.aiter_lines()])


async def refused(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post(URL, json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


async def test_a_whole_answer_has_openais_shape(client: httpx.AsyncClient) -> None:
    answer = await whole(client, prompt="abc")
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "abc", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert answer["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    "prompt", ["abc", ["abc", "de"], [97, 98], [[97], [98, 99], [100]], ["abc", [97, 98]]]
)
@pytest.mark.parametrize("n", [1, 2])
async def test_choices_are_numbered_across_prompts(
    front: LocalFront, client: httpx.AsyncClient, prompt: Any, n: int
) -> None:
    prompts = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    texts = [one if isinstance(one, str) else bytes(one).decode() for one in prompts for _ in range(n)]
    body = {"prompt": prompt, "n": n, "logprobs": 1}
    answer = await whole(client, **body)
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(texts)))
    assert [choice["text"] for choice in answer["choices"]] == texts
    usage = answer["usage"]
    assert usage["prompt_tokens"] == sum(map(len, texts)) // n
    assert usage["completion_tokens"] == sum(len(text) + 1 for text in texts)
    stream = await streamed(client, **body, stream_options={"include_usage": True})
    assert [stream.choices[i].text for i in range(len(texts))] == texts
    assert stream.usage == usage
    for choice in answer["choices"]:
        logprobs = choice["logprobs"]
        pairs = list(zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True))
        assert stream.choices[choice["index"]].logprobs == pairs
    assert front.engine.running == set()


async def test_silence_means_sixteen_tokens(front: LocalFront, client: httpx.AsyncClient) -> None:
    await whole(client, prompt="abc")
    assert front.engine.requests[0].max_tokens == 16


async def test_logprobs_count_characters(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.says("a", "é", "b")
    answer = await whole(client, prompt="x", logprobs=2)
    logprobs = answer["choices"][0]["logprobs"]
    assert answer["choices"][0]["text"] == "aéb"
    assert logprobs["tokens"] == ["a", "\ufffd", "\ufffd", "b", "<|im_end|>"]
    assert logprobs["text_offset"] == [0, 1, 1, 2, 3]
    assert logprobs["token_logprobs"] == [-0.25] * 5
    assert logprobs["top_logprobs"][0] == {"a": -0.25, "b": -1.25}
    none = await whole(client, prompt="x", logprobs=0)
    assert none["choices"][0]["logprobs"]["top_logprobs"][0] == {"a": -0.25}


async def test_offsets_go_on_from_chunk_to_chunk(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.says("ab", "cd")
    body = {"prompt": "xy", "logprobs": 0}
    offsets = (await whole(client, **body))["choices"][0]["logprobs"]["text_offset"]
    chunks = (await streamed(client, **body)).chunks
    shown = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [at for logprobs in shown if logprobs for at in logprobs["text_offset"]] == offsets


@pytest.mark.parametrize("prompt", ["abc", [97, 98, 99]])
async def test_echo_puts_the_prompt_first(client: httpx.AsyncClient, prompt: Any) -> None:
    assert (await whole(client, prompt=prompt, echo=True))["choices"][0]["text"] == "abcabc"
    assert (await streamed(client, prompt=prompt, echo=True, n=2)).choices[1].text == "abcabc"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt[1]"),
        ({"prompt": ["a", None]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [[True], [1]]}, "prompt[0][0]"),
        ({"prompt": ["a" * 600, "b"]}, "prompt[0]"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [1, 300]}, "prompt[1]"),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2, "stream": True}, "best_of"),
        ({"prompt": "a", "echo": True, "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt": "a", "allowed_token_ids": []}, "allowed_token_ids"),
        ({"prompt": "a" * 600}, "prompt"),
        ({"prompt": ["a", "b"], "prompt_logprobs": 100}, "prompt_logprobs"),
        ({"prompt": "a", "truncate_prompt_tokens": -1, "max_tokens": -5}, "max_tokens"),
        ({"prompt": "a", "use_beam_search": True, "n": 129}, "n"),
        ({"prompt": "a", "use_beam_search": True, "n": 2, "best_of": 129}, "best_of"),
        ({"prompt": "a", "use_beam_search": True, "length_penalty": 11}, "length_penalty"),
        ({"prompt": "a", "use_beam_search": True, "echo": True, "logprobs": 1}, "echo"),
    ],
)
async def test_a_wrong_field_is_named(
    front: LocalFront, client: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    assert (await refused(client, **body))["param"] == param
    assert front.engine.requests == []


@pytest.mark.parametrize(
    ("prompt", "kind"), [(None, "null"), (True, "true"), ({"a": 1}, "an object"), (2.5, "2.5")]
)
async def test_what_is_no_prompt_is_shown_as_json_has_it(
    client: httpx.AsyncClient, prompt: Any, kind: str
) -> None:
    for value, where in ((prompt, "prompt"), ([prompt], "prompt[0]")):
        answer = await client.post(URL, json={"prompt": value})
        assert answer.json()["error"]["message"].endswith(
            f"{where} must be a text or a list of token ids, not {kind}"
        )


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
async def test_a_wrong_deadline_names_its_header(client: httpx.AsyncClient, seconds: str) -> None:
    answer = await client.post(URL, json={"prompt": "a"}, headers={"X-Request-Timeout": seconds})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "X-Request-Timeout")
    assert error["message"].startswith("X-Request-Timeout is ")


@pytest.mark.parametrize("wanted", [1, 3])
async def test_a_plugin_may_change_how_many_choices_there_are(wanted: int) -> None:
    front = LocalFront(hooks=[PrepareHook("more", lambda draft: draft.set("n", wanted, "a test"))])
    front.engine.script = lambda request: Script([bytes([request.prompt_ids[0], 48 + request.choice])])
    body = {"prompt": ["a", "b"], "n": 2, "echo": True}
    texts = [f"{prompt}{prompt}{choice}" for prompt in "ab" for choice in range(wanted)]
    async with serving(front) as client:
        assert [choice["text"] for choice in (await whole(client, **body))["choices"]] == texts
        answer = await streamed(client, **body)
        assert [answer.choices[index].text for index in range(2 * wanted)] == texts


async def test_one_wrong_prompt_leaves_none_running(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.says("a", hang_after=0)
    error = await refused(client, prompt=["a", "b", [1, 300]])
    assert error["param"] == "prompt[2][1]"
    assert error["message"].startswith("prompt[2]: ")
    assert front.engine.running == set()
    assert front.generator.in_flight == 0


async def test_a_hang_up_ends_every_prompt(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.says("a", "b", hang_after=1)
    for stream in (False, True):
        body = {"prompt": ["a", "b", "c"], "n": 2, "stream": stream}
        task = asyncio.create_task(client.post(URL, json=body))
        await until(lambda: len(front.engine.running) == 6)
        await asyncio.sleep(0.02)
        task.cancel()
        await until(lambda: not front.engine.running)
        assert front.generator.in_flight == 0


async def test_one_failing_prompt_fails_the_request(front: LocalFront, client: httpx.AsyncClient) -> None:
    def script(request: Any) -> Script:
        if request.prompt_ids == [98]:
            return Script("b", finish=FinishReason.ERROR, error="no b")
        return Script("a", hang_after=1)

    front.engine.script = script
    answer = await client.post(URL, json={"prompt": ["a", "b"]})
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "no b"
    stream = await streamed(client, prompt=["a", "b"])
    assert stream.error is not None
    await until(lambda: not front.engine.running)


async def until(holds: Any, timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.005)


# ---- echo with logprobs, prompt_logprobs, token ids ----


@pytest.mark.parametrize("n", [1, 2])
async def test_an_echo_with_logprobs_is_the_same_streamed(client: httpx.AsyncClient, n: int) -> None:
    body = {"prompt": ["aé", [98, 99]], "echo": True, "logprobs": 1, "n": n}
    choices = (await whole(client, **body))["choices"]
    stream = await streamed(client, **body)
    assert [choice["text"] for choice in choices] == ["aéaé"] * n + ["bcbc"] * n
    for choice in choices:
        logprobs = choice["logprobs"]
        pairs = list(zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True))
        streamed_choice = stream.choices[choice["index"]]
        assert (streamed_choice.text, streamed_choice.logprobs) == (choice["text"], pairs)
        assert logprobs["top_logprobs"][0] is None
        assert logprobs["token_logprobs"][0] is None
        assert None not in logprobs["token_logprobs"][1:]
    assert choices[0]["logprobs"]["text_offset"] == [0, 1, 1, 2, 3, 3, 4]
    assert choices[-1]["logprobs"]["text_offset"] == [0, 1, 2, 3, 4]


async def test_a_token_that_the_tokenizer_adds_is_no_part_of_the_echo() -> None:
    front = LocalFront(add_bos=True)
    async with serving(front) as client:
        answer = await whole(client, prompt="ab", echo=True, logprobs=0, max_tokens=0)
    choice = answer["choices"][0]
    assert choice["text"] == "ab"
    assert choice["logprobs"]["tokens"] == ["<s>", "a", "b"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1]


async def test_logprobs_of_an_echo_without_text_are_streamed_too() -> None:
    front = LocalFront(add_bos=True)
    body = {"prompt": "", "echo": True, "logprobs": 0, "max_tokens": 0}
    async with serving(front) as client:
        logprobs = (await whole(client, **body))["choices"][0]["logprobs"]
        assert logprobs["tokens"] == ["<s>"]
        assert (await streamed(client, **body)).choices[0].logprobs == [("<s>", None)]


async def test_only_the_first_choice_computes_the_prompts_logprobs(
    front: LocalFront, client: httpx.AsyncClient
) -> None:
    answer = await whole(client, prompt="abc", prompt_logprobs=1, n=2, max_tokens=1)
    first, second = front.engine.requests
    assert (first.params.prompt_logprobs, second.params.prompt_logprobs) == (1, None)
    assert (first.leader, second.leader) == (None, first.request_id)
    for choice in answer["choices"]:
        assert choice["prompt_logprobs"] == [
            None,
            {
                "98": {"logprob": -0.25, "rank": 2, "decoded_token": "b"},
                "99": {"logprob": -1.25, "rank": 1, "decoded_token": "c"},
            },
            {
                "99": {"logprob": -1.25, "rank": 2, "decoded_token": "c"},
                "100": {"logprob": -1.25, "rank": 1, "decoded_token": "d"},
            },
        ]
        assert choice["logprobs"] is None


async def test_token_ids_in_and_out(front: LocalFront, client: httpx.AsyncClient) -> None:
    body = {"prompt": [98, 99], "return_token_ids": True, "logprobs": 1, "return_tokens_as_token_ids": True}
    (choice,) = (await whole(client, **body))["choices"]
    ids = [98, 99, 256]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([98, 99], ids)
    assert choice["logprobs"]["tokens"] == [f"token_id:{i}" for i in ids]
    assert choice["logprobs"]["top_logprobs"][0] == {"token_id:98": -0.25}
    chunks = [chunk["choices"][0] for chunk in (await streamed(client, **body)).chunks]
    assert chunks[0]["prompt_token_ids"] == [98, 99]
    assert [i for chunk in chunks for i in chunk.get("token_ids", [])] == ids


async def test_the_prompts_end_is_kept_and_echoed(front: LocalFront, client: httpx.AsyncClient) -> None:
    answer = await whole(client, prompt="abcdef", truncate_prompt_tokens=3, echo=True, max_tokens=0)
    assert answer["choices"][0]["text"] == "def"
    assert answer["usage"]["prompt_tokens"] == 3
    await whole(client, prompt="x" * 1000, truncate_prompt_tokens=-1, max_tokens=7)
    (request,) = front.engine.requests
    assert len(request.prompt_ids) + request.max_tokens == MAX_MODEL_LEN


# ---- best_of and beams ----


async def test_best_of_gives_the_likeliest(front: LocalFront, client: httpx.AsyncClient) -> None:
    floors = [-3.0, -1.0, -2.0, -1.0]
    front.engine.script = lambda request: Script([str(request.choice)], floor=floors[request.choice])
    answer = await whole(client, prompt="a", n=3, best_of=4)
    assert [choice["text"] for choice in answer["choices"]] == ["1", "3", "2"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 8  # all four were generated
    assert front.generator.in_flight == 0
    with_logprobs = await whole(client, prompt="a", n=1, best_of=2, logprobs=0)
    assert with_logprobs["choices"][0]["logprobs"]["token_logprobs"] == [-1.0, -1.0]


async def test_a_choice_that_fails_fails_best_of(front: LocalFront, client: httpx.AsyncClient) -> None:
    front.engine.script = lambda request: Script(
        ["x"], FinishReason.ERROR if request.choice == 1 else FinishReason.STOP, "it broke"
    )
    answer = await client.post(URL, json={"prompt": "a", "best_of": 3})
    assert answer.status_code == 500
    assert "it broke" in answer.text
    assert front.generator.in_flight == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_beams_are_asked_for_in_vllms_words(
    front: LocalFront, client: httpx.AsyncClient, stream: bool
) -> None:
    body = {"prompt": "a", "use_beam_search": True, "best_of": 3, "n": 2, "max_tokens": 2, "logprobs": 1}
    if stream:
        answer = await streamed(client, **body)
        texts = [answer.choices[i].text for i in range(2)]
    else:
        texts = [choice["text"] for choice in (await whole(client, **body))["choices"]]
    # The script's likeliest continuation is "aa", and "b" is as good everywhere but for one nat.
    assert texts[0] == "aa"
    assert texts[1] in ("ab", "ba")
    assert {request.max_tokens for request in front.engine.requests} == {1}
    assert front.generator.in_flight == 0
    assert front.engine.running == set()


async def test_a_models_penalties_do_not_concern_a_search() -> None:
    front = LocalFront(defaults={"repetition_penalty": 1.1, "temperature": 0.6})
    async with serving(front) as client:
        await whole(client, prompt="a", use_beam_search=True, n=2, max_tokens=2)
        error = await refused(client, prompt="a", use_beam_search=True, repetition_penalty=1.2)
        assert error["param"] == "repetition_penalty"
