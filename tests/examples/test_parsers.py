"""``examples/atlas`` and ``examples/birch``: third parties' formats keep the contract and serve by name."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from llmkit.config import PluginConfig
from llmkit.contracts import Content, ParserHints, Reasoning, ReasoningFormat, ToolFormat
from llmkit.plugins import load_plugins
from llmkit.testing.bytes_tokenizer import VOCAB_SIZE
from llmkit.testing.http import ServerProcess, validate_stream
from llmkit.testing.reasoning_parsers import Example, ReasoningParserContract
from llmkit.testing.tool_parsers import Calls, Golden
from tests.acceptance.conftest import Scripted
from tests.core.distributions import EXAMPLES, install_project
from tests.plugins.tool_parsers.common import FormatContract


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    install_project(folder, EXAMPLES / "atlas")
    install_project(folder, EXAMPLES / "birch")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder
        for name in [name for name in sys.modules if name.startswith(("llmkit_atlas", "llmkit_birch"))]:
            del sys.modules[name]


def atlas(calls: Calls) -> str:
    written = [json.dumps({"name": n, "parameters": a}, ensure_ascii=False) for n, a in calls]
    return "".join(f"<|use|>{call}<|done|>" for call in written)


def birch(calls: Calls) -> str:
    def plain(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def written(name: str, arguments: Any) -> str:
        inner = "".join(f"<arg {key}>{plain(value)}</arg>" for key, value in arguments.items())
        return f"<call {name}>{inner}</call>"

    return f"<do>{''.join(written(*call) for call in calls)}</do>"


class TestAtlas(FormatContract):
    own_goldens = (
        Golden(
            "cut off in a closing token",
            '<|use|>{"name": "put", "parameters": {"a": 1}}<|do',
            content="<|do",
            calls=[("put", {"a": 1})],
        ),
        Golden("no object", "<|use|>later<|done|>", content="<|use|>later<|done|>"),
    )

    def make_format(self) -> ToolFormat:
        from llmkit_atlas.plugin import make

        return make(None)

    def write(self, calls: Calls) -> str:
        return atlas(calls)


class TestBirchCalls(FormatContract):
    own_goldens = (
        Golden("no call in it", "<do>nothing</do>", content="<do>nothing</do>"),
        Golden(
            "blanks between",
            "<do>\n<call f>\n<arg a>x</arg>\n</call>\n<call g></call>\n</do>",
            calls=[("f", {"a": "x"}), ("g", {})],
        ),
    )

    def make_format(self) -> ToolFormat:
        from llmkit_birch.plugin import make_calls

        return make_calls(None)

    def write(self, calls: Calls) -> str:
        return birch(calls)


class TestBirchPlans(ReasoningParserContract):
    syntax = r"\s{0,2}</?plan>\n{0,2}"
    longest_marker = len("\n\n</plan>")

    def make_format(self) -> ReasoningFormat:
        from llmkit_birch.plugin import make_plans

        return make_plans(None)

    def examples(self) -> Sequence[Example]:
        return [
            Example(
                "a plan", "<plan>\nTwo cities.\n</plan>\n\nSo:", (Reasoning("Two cities."), Content("So:"))
            ),
            Example("none", "So: <plan>", (Content("So: <plan>"),)),
            Example("begun by the prompt", "a</plan>b", (Reasoning("a"), Content("b")), "<plan>\n"),
            Example("cut off", "<plan>Two </pl", (Reasoning("Two </pl"),)),
            Example("a call ends it", "<plan>a<do>x", (Reasoning("a"), Content("<do>x")), openers=["<do>"]),
        ]


def test_auto_knows_their_models_once_they_are_enabled() -> None:
    hints = ParserHints("{{ x }}<|use|>", frozenset(), "birch")
    both = load_plugins(PluginConfig(plugin=("atlas", "birch"))).registry
    assert {name for name in ("atlas", "birch") if name in both.names("tool_parser")} == {"atlas", "birch"}
    chosen = both.recognized("reasoning_parser", "auto", hints)
    assert chosen is not None
    assert (chosen.name, chosen.why) == ("birch", "auto: the model type is birch")
    only_atlas = load_plugins(PluginConfig(plugin=("atlas",))).registry.recognized(
        "tool_parser", "auto", hints
    )
    assert only_atlas is not None
    assert (only_atlas.name, only_atlas.why) == ("atlas", "auto: its template has <|use|>")
    installed = load_plugins(PluginConfig(), {"tool_parser": "atlas"}).registry
    assert installed.recognized("tool_parser", "auto", hints) is None


# ---- on a server ----

CALLS = [("weather", {"city": "Zürich"}), ("weather", {"city": "Oslo"})]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def use_tokens(calls: Calls) -> list[int]:
    """Atlas' calls with its special tokens."""
    ids: list[int] = []
    for part in atlas(calls).replace("<|done|>", "<|use|>|").split("<|use|>")[1:]:
        ids += [VOCAB_SIZE + 1, *part[1:].encode()] if part[0] == "|" else [VOCAB_SIZE, *part.encode()]
    return ids


@pytest.fixture(scope="module")
def servers(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServerProcess]]:
    started = Scripted(tmp_path_factory.mktemp("s"))
    environment = {"PYTHONPATH": str(site)}
    planned = f"<plan>Two cities.\n</plan>\n\nI look.{birch(CALLS)}"
    yield {
        "atlas": started.start(
            "--tool-call-parser=atlas",
            script={
                "rules": [
                    {"match": "two", "tokens": [*b"I look.", *use_tokens(CALLS)]},
                    {"match": "must", "tokens": use_tokens(CALLS)},
                ]
            },
            model={"special": ("<|use|>", "<|done|>")},
            environment=environment,
        ),
        "birch": started.start(
            "--tool-call-parser=birch",
            "--reasoning-parser=birch",
            script={"rules": [{"match": "two", "text": planned}, {"match": "must", "text": birch(CALLS)}]},
            environment=environment,
        ),
    }
    started.close()


@pytest.mark.parametrize(("name", "reasoning"), [("atlas", None), ("birch", "Two cities.")])
@pytest.mark.parametrize("fields", [{}, {"parallel_tool_calls": False}], ids=str)
def test_a_server_calls_as_they_say(
    servers: dict[str, ServerProcess], name: str, reasoning: str | None, fields: dict[str, Any]
) -> None:
    server = servers[name]
    messages = [{"role": "user", "content": "two"}]
    body: dict[str, Any] = {"model": "tiny", "messages": messages, "tools": TOOLS, **fields}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        choice = client.chat.completions.create(**body).choices[0]
    expected = CALLS[:1] if "parallel_tool_calls" in fields else CALLS
    made: list[Any] = list(choice.message.tool_calls or [])
    assert [(call.function.name, json.loads(call.function.arguments)) for call in made] == expected
    assert choice.message.content == "I look."
    assert getattr(choice.message, "reasoning_content", None) == reasoning
    assert choice.finish_reason == "tool_calls"
    url = f"{server.url}/v1/chat/completions"
    with httpx.stream("POST", url, json={**body, "stream": True}, trust_env=False, timeout=30) as answer:
        streamed = validate_stream(answer.iter_lines()).choices[0]
    assert [(call.name, call.arguments) for call in streamed.calls] == [
        (call.function.name, call.function.arguments) for call in made
    ]
    assert (streamed.text, streamed.reasoning or None) == ("I look.", reasoning)
    assert streamed.finish_reason == "tool_calls"


@pytest.mark.parametrize("name", ["atlas", "birch"])
def test_required_calls_are_held_to_their_form(servers: dict[str, ServerProcess], name: str) -> None:
    """The scripted model is an error where it writes what the format's constraint does not allow."""
    messages: list[Any] = [{"role": "user", "content": "must"}]
    with openai.OpenAI(base_url=f"{servers[name].url}/v1", api_key="none", max_retries=0) as client:
        asked: dict[str, Any] = {"model": "tiny", "messages": messages, "tools": TOOLS}
        choice = client.chat.completions.create(**asked, tool_choice="required").choices[0]
        made: list[Any] = list(choice.message.tool_calls or [])
        assert [(call.function.name, json.loads(call.function.arguments)) for call in made] == CALLS
        messages[0]["content"] = "two"
        with pytest.raises(openai.InternalServerError, match="grammar"):
            client.chat.completions.create(**asked, tool_choice="required")
