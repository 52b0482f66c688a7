"""``examples/redact``: an output stage of a third party, across every cut, over every route."""

from __future__ import annotations

import json
import re
import string
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit import LLM, RequestError, SamplingParams, UsageError
from llmkit.contracts import (
    ArgumentsDelta,
    BeamSearch,
    Content,
    Delta,
    Reasoning,
    StageMaker,
    ToolCallClosed,
    ToolCallOpened,
)
from llmkit.testing import bytes_tokenizer, tiny
from llmkit.testing.bytes_tokenizer import VOCAB_SIZE
from llmkit.testing.http import ServerProcess, validate_stream
from llmkit.testing.output_stages import Example, OutputStageContract, shown
from tests.acceptance.conftest import Scripted
from tests.core.distributions import EXAMPLES, install_project

CARD = "4111 1111 1111 1111"
WORDS = ("Falcon", "Falconer", "New York")


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    install_project(folder, EXAMPLES / "redact")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder
        for name in [name for name in sys.modules if name.startswith("llmkit_redact")]:
            del sys.modules[name]


def redaction() -> StageMaker:
    from llmkit_redact.plugin import Options, make

    return make(Options(words=WORDS))


def call(arguments: str) -> tuple[Delta, ...]:
    return ToolCallOpened("send"), ArgumentsDelta(arguments), ToolCallClosed()


class TestRedaction(OutputStageContract):
    most_held = 64 + 1 + 63 + 4 * 64

    def make_stages(self) -> StageMaker:
        return redaction()

    def words(self) -> Sequence[str]:
        return (
            *(*WORDS, "bob@example.org", "b.o-b+1@mail.example.co.uk", "bob@", "@example", "example.org"),
            *(
                CARD,
                CARD.replace(" ", ""),
                "4111 1111 1111 1112",
                "3782 822463 10005",
                "2026-11-30",
                "41",
                ".",
            ),
        )

    def examples(self) -> Sequence[Example]:
        return [
            Example(
                "text",
                (Content(f"Write to bob@example.org. Pay with {CARD}, says Falconer of New York"),),
                (Content("Write to [email]. Pay with [card], says [redacted] of [redacted]"),),
            ),
            Example(
                "nothing",
                (Content("bob@home, 4111 1111 1111 1112, falcon, New"),),
                (Content("bob@home, 4111 1111 1111 1112, falcon, New"),),
            ),
            Example(
                "reasoning and content are two texts",
                (Reasoning("bob@example"), Content(".org")),
                (Reasoning("bob@example"), Content(".org")),
            ),
            Example(
                "arguments",
                (
                    Content("bob@a.org"),
                    *call(f'{{"to": "bob\\u0040a.org", "n": 4111111111111111, "t": "{CARD}"}}'),
                ),
                (Content("[email]"), *call('{"to": "[email]", "n": "[card]", "t": "[card]"}')),
            ),
            Example(
                "numbers that are none",
                call('{"x": 0.4111111111111111, "y": -4111111111111111, "z": 4111111111111111.5}'),
                call('{"x": 0.4111111111111111, "y": -4111111111111111, "z": 4111111111111111.5}'),
            ),
            Example(
                "escapes",
                call('{"a": "\\ud83d\\ude00 \\"Falcon\\" \\n\\\\", "b": "\\ud83d"}'),
                call('{"a": "😀 \\"[redacted]\\" \\n\\\\", "b": "\\ud83d"}'),
            ),
            Example(
                "an incomplete call",
                (ToolCallOpened("send"), ArgumentsDelta('{"to": "bob@a.org')),
                (ToolCallOpened("send"), ArgumentsDelta('{"to": "[email]')),
            ),
            Example("a long run", (Content("a" * 900 + "@a.org"),), (Content("a" * 836 + "[email]"),)),
        ]


PARTS = [
    "bob",
    "@",
    "a.org",
    ".",
    "-",
    " ",
    "Falcon",
    "er",
    "New ",
    "York",
    "4111",
    "11111111",
    "1111",
    "x",
    "é",
]


@given(st.lists(st.sampled_from(PARTS), max_size=14), st.lists(st.integers(1, 9), max_size=60))
@settings(max_examples=300, deadline=None)
def test_the_result_is_that_of_the_whole_text(parts: Sequence[str], sizes: Sequence[int]) -> None:
    text = "".join(parts)
    pieces, at = [], 0
    for size in [*sizes, *[1] * len(text)]:
        if at < len(text):
            pieces.append(Content(text[at : at + size]))
            at += size
    given_ = shown(redaction().stage(), pieces)
    assert given_ == ([Content(expected(text))] if text else [])


def expected(text: str) -> str:
    """The whole text at once, by the regular expression of all that is looked for."""
    email = r"[\w.%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,4}"
    card = r"(?<!\d)(?:\d{13,19}|\d{4}([ -])\d{4}\1\d{4}\1\d{4})(?!\d)"
    names = {"w": "[redacted]", "e": "[email]", "c": "[card]"}

    def one(found: re.Match[str]) -> str:
        digits = re.sub(r"\D", "", found[0])
        if found.lastgroup == "c" and not valid(digits):
            return found[0]
        return names[found.lastgroup or ""]

    either = rf"(?P<w>Falconer|Falcon|New York)|(?P<e>{email})|(?P<c>{card.replace(chr(92) + '1', '(?P=s)')})"
    return re.sub(either.replace("([ -])", "(?P<s>[ -])"), one, text, flags=re.ASCII)


def valid(digits: str) -> bool:
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


@pytest.mark.parametrize(
    "option", ["redact.kinds=email,phone", "redact.words=a,,b", f"redact.words={'x' * 101}"]
)
def test_wrong_options_are_refused(option: str) -> None:
    from llmkit.config import PluginConfig
    from llmkit.plugins import load_plugins

    with pytest.raises(UsageError, match="redact"):
        load_plugins(PluginConfig(plugin_option=(option,)), {"output_stage": ("redact",)})


# ---- on a server ----

SECRET = f"Mail bob@example.org, card {CARD}."
HIDDEN = "Mail [email], card [card]."
SPECIAL = ("<think>", "</think>")
CALL = '<tool_call>\n{"name": "send", "arguments": {"to": "bob@example.org"}}\n</tool_call>'
SCRIPT = {
    "rules": [
        {"match": "text-case", "text": SECRET},
        {"match": "stop-case", "text": SECRET + "END more bob@example.org"},
        {"match": "cut-case", "text": "to bob@example.or"},
        {
            "match": "call-case",
            "tokens": [
                VOCAB_SIZE,
                *b"Ask bob@example.org",
                VOCAB_SIZE + 1,
                *f"bob@example.org{CALL}".encode(),
            ],
        },
    ]
}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "send",
            "parameters": {"type": "object", "properties": {"to": {"type": "string"}}},
        },
    }
]


@pytest.fixture(scope="module")
def server(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    servers = Scripted(tmp_path_factory.mktemp("s"))
    yield servers.start(
        "--output-stage=redact",
        "--tool-call-parser=hermes",
        "--reasoning-parser=qwen3",
        script=SCRIPT,
        model={"special": SPECIAL},
        environment={"PYTHONPATH": str(site)},
    )
    servers.close()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def folded(server: ServerProcess, path: str, body: dict[str, Any]) -> Any:
    asked = {**body, "stream": True}
    with httpx.stream("POST", server.url + path, json=asked, trust_env=False, timeout=30) as answer:
        return validate_stream(answer.iter_lines())


def test_completions_streamed_and_whole(server: ServerProcess, client: openai.OpenAI) -> None:
    body: dict[str, Any] = {"model": "tiny", "prompt": "text-case", "n": 2, "max_tokens": 200}
    whole = client.completions.create(**body)
    assert [choice.text for choice in whole.choices] == [HIDDEN] * 2
    stream = folded(server, "/v1/completions", body)
    assert [choice.text for choice in stream.choices.values()] == [HIDDEN] * 2
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 2 * (len(SECRET) + 1)


@pytest.mark.parametrize(
    ("case", "fields", "text", "reason"),
    [
        pytest.param("text-case", {}, HIDDEN, "stop", id="text"),
        pytest.param("stop-case", {"stop": ["END"]}, HIDDEN, "stop", id="stop-string"),
        pytest.param("stop-case", {"stop": ["example.org"]}, "Mail bob@", "stop", id="stop-within-a-match"),
        pytest.param("cut-case", {"max_tokens": 17}, "to [email]", "length", id="cut-off"),
    ],
)
def test_chat_streamed_and_whole(
    server: ServerProcess, client: openai.OpenAI, case: str, fields: dict[str, Any], text: str, reason: str
) -> None:
    body: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": case}], **fields}
    choice = client.chat.completions.create(**body).choices[0]
    assert (choice.message.content, choice.finish_reason) == (text, reason)
    streamed = folded(server, "/v1/chat/completions", body).choices[0]
    assert (streamed.text, streamed.finish_reason) == (text, reason)


def test_reasoning_and_arguments_too(server: ServerProcess, client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "call-case"}]
    body: dict[str, Any] = {"model": "tiny", "messages": messages, "tools": TOOLS}
    choice = client.chat.completions.create(**body).choices[0]
    calls = choice.message.tool_calls or []
    assert [json.loads(made.function.arguments) for made in calls] == [{"to": "[email]"}]  # type: ignore[union-attr]
    assert choice.message.content == "[email]"
    assert getattr(choice.message, "reasoning_content", None) == "Ask [email]"
    assert choice.finish_reason == "tool_calls"
    streamed = folded(server, "/v1/chat/completions", body).choices[0]
    assert (streamed.text, streamed.reasoning) == ("[email]", "Ask [email]")
    assert [made.arguments for made in streamed.calls] == [made.function.arguments for made in calls]  # type: ignore[union-attr]
    assert streamed.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/completions", "logprobs", 1),
        ("/v1/completions", "return_token_ids", True),
        ("/v1/chat/completions", "logprobs", True),
        ("/v1/chat/completions", "return_token_ids", True),
    ],
)
def test_what_would_tell_is_refused(server: ServerProcess, path: str, field: str, value: Any) -> None:
    prompt = (
        {"prompt": "x"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "x"}]}
    )
    answer = httpx.post(server.url + path, json={**prompt, field: value}, trust_env=False)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == field
    assert "output stage 'redact'" in error["message"]


def test_a_stage_that_nobody_has_ends_the_start() -> None:
    with pytest.raises(
        UsageError, match="--output-stage: no output stage is called 'redakt'; did you mean 'redact'"
    ):
        LLM("smollm2-135m", output_stage=("redakt",))


def test_without_a_server(tmp_path: Path) -> None:
    model = bytes_tokenizer.write(tmp_path / "tiny", special=SPECIAL)
    script = tmp_path / "script.json"
    script.write_text(json.dumps(SCRIPT))
    options: dict[str, Any] = {
        "plugin": ("llmkit.testing.scripted",),
        "plugin_option": (f"llmkit.testing.scripted.script={script}",),
        "executor": "scripted",
        "load_format": "dummy",
        "output_stage": ("redact",),
    }
    with LLM(str(model), **options) as llm:
        params = SamplingParams(max_tokens=200, n=2)
        assert [choice.text for choice in llm.generate("text-case", params)[0].choices] == [HIDDEN] * 2
        assert llm.chat([{"role": "user", "content": "text-case"}], params)[0].text == HIDDEN
        with pytest.raises(RequestError, match="logprobs is not available here"):
            llm.generate("text-case", SamplingParams(logprobs=1))


EVERY = ",".join(string.ascii_letters + string.digits)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=40, n=2, seed=1, ignore_eos=True),
        SamplingParams(max_tokens=40, best_of=3, seed=1, ignore_eos=True),
        SamplingParams(max_tokens=60, beam_search=BeamSearch(3), n=3),
    ],
    ids=["n", "best-of", "beam-search"],
)
def test_every_choice_of_a_real_model_goes_through(models: tuple[LLM, LLM], params: SamplingParams) -> None:
    plain, staged = (llm.generate("Rivers", params)[0] for llm in models)
    assert [choice.token_ids for choice in staged.choices] == [choice.token_ids for choice in plain.choices]
    texts = [re.sub("[a-zA-Z0-9]", "[redacted]", choice.text) for choice in plain.choices]
    assert [choice.text for choice in staged.choices] == texts
    assert any("[redacted]" in text for text in texts)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, LLM]]:
    """The same model without the stage and with it, which takes out letters and digits."""
    model = str(tiny.build(bytes_tokenizer.write(tmp_path_factory.mktemp("tiny")), "LlamaForCausalLM"))
    options: dict[str, Any] = {"plugin_option": (f"redact.words={EVERY}",), "output_stage": ("redact",)}
    with (
        LLM(model, deterministic=True, max_model_len=128) as plain,
        LLM(model, deterministic=True, max_model_len=128, **options) as staged,
    ):
        yield plain, staged
