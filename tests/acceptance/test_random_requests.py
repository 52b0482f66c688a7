"""Random requests on real servers: a whole answer is what the stream of the same request says.

With scripted outputs (calls and reasoning in every form), with a tiny model of random weights that would say
anything, and with the small real one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from llmkit.testing import bytes_tokenizer
from llmkit.testing.http import ServerProcess, validate_stream
from tests.acceptance.conftest import Scripted
from tests.acceptance.random_requests import make_request, stream_says, whole_says
from tests.acceptance.test_tool_calls import SCRIPT, SPECIAL, TEMPLATE

FORMATS = ("--tool-call-parser=hermes", "--reasoning-parser=qwen3", "--enable-auto-tool-choice")
BROKEN = "the grammar does not allow"
"""A script does not look at grammars: what it says against one fails, both ways."""
FULL = pytest.mark.full


@pytest.fixture(scope="module")
def scripted_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    servers = Scripted(tmp_path_factory.mktemp("s"))
    yield servers.start(*FORMATS, script=SCRIPT, model={"chat_template": TEMPLATE, "special": SPECIAL})
    servers.close()


@pytest.fixture(scope="module")
def random_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = bytes_tokenizer.write(
        tmp_path_factory.mktemp("random") / "tiny", chat_template=TEMPLATE, special=SPECIAL
    )
    flags = [*FORMATS, "--load-format=dummy", "--deterministic", "--max-model-len=2048"]
    with ServerProcess([str(model), *flags]) as server:
        yield server


@pytest.mark.parametrize(
    "numbers", [range(60), pytest.param(range(60, 500), marks=FULL)], ids=["some", "many"]
)
def test_scripted_outputs(scripted_server: ServerProcess, numbers: range) -> None:
    seen = compared(scripted_server, numbers, scores_prompts=False)
    assert seen["answered"] > len(numbers) / 2
    for kind in ("calls", "reasoning", "logprobs", "stop_reason", "length", "tool_calls"):
        assert seen[kind] > 0, (kind, seen)


@FULL
def test_random_weights(random_server: ServerProcess) -> None:
    seen = compared(random_server, range(1000, 1250), most_tokens=60)
    assert seen["answered"] > 150
    assert min(seen["stop"], seen["length"], seen["logprobs"]) > 0


@FULL
def test_the_real_model(model_server: ServerProcess) -> None:
    seen = compared(model_server, range(2000, 2060), most_tokens=30)
    assert seen["answered"] > 30
    assert seen["failed"] == 0


def compared(server: ServerProcess, numbers: range, **options: Any) -> Counter[str]:
    """What was in the answers, which are equal both ways."""
    seen: Counter[str] = Counter()
    with httpx.Client(base_url=server.url, timeout=120, trust_env=False) as client:
        for number in numbers:
            path, body = make_request(number, **options)
            whole = client.post(path, json=body)
            usage = {"include_usage": True, "continuous_usage_stats": number % 2 == 0}
            streamed = client.post(path, json=body | {"stream": True, "stream_options": usage})
            if whole.status_code != 200:
                why, late = whole.json()["error"]["message"], failure(streamed)
                broken = BROKEN in why and BROKEN in late  # which choice is the first to fail may differ
                assert late == why or broken, (number, body)
                assert whole.status_code < 500 or broken, (number, body, why)
                seen["failed" if broken else "refused"] += 1
                continue
            answer = validate_stream(streamed.text.splitlines())
            says = whole_says(whole.json())
            assert stream_says(answer) == says, (number, path, body)
            assert without_cache(answer.usage) == without_cache(whole.json()["usage"]), (number, body)
            seen["answered"] += 1
            seen.update(name for choice in says for name, value in choice.items() if value)
            seen.update(choice["finish_reason"] for choice in says)
    return seen


def failure(streamed: httpx.Response) -> str:
    """Of a stream that was refused, or found out later that it has no answer."""
    if streamed.status_code != 200:
        return str(streamed.json()["error"]["message"])
    error = validate_stream(streamed.text.splitlines()).error
    assert error is not None
    return str(error["message"])


def without_cache(usage: dict[str, Any] | None) -> dict[str, Any]:
    """The second of two equal requests finds its prompt in the cache."""
    assert usage is not None
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}
