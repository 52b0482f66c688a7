"""Calls rendered through published chat templates are the calls that are parsed from the text."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any

import pytest

from llmkit.config import PluginConfig
from llmkit.contracts import CheckpointInfo, ModelFiles, ParserSpec, Tokenizer, TokenizerSpec
from llmkit.events import Finished
from llmkit.fold import FoldedChoice, fold
from llmkit.frontend import template_sandbox
from llmkit.frontend.chat_template import ChatTemplate
from llmkit.frontend.parsing import ParsedText
from llmkit.frontend.stop import StopMatcher
from llmkit.plugins import load_plugins
from llmkit.registry import Registry
from llmkit.testing import bytes_tokenizer
from llmkit.testing.reasoning_parsers import random_cut
from llmkit.types import FinishReason, Tool
from llmkit_loaders.fast_tokenizer import open_tokenizer
from llmkit_tool_parsers.plugin import OTHER_NAMES
from tests.templates.fetch import ROOT, TEMPLATES
from tests.templates.round_trip import (
    PLAIN,
    QUESTION,
    SCALARS,
    Published,
    Written,
    assistant,
    random_call,
    written,
)

PAIRS = 200
IM, LLAMA, GRANITE, DEEPSEEK = "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>"
WITHOUT = frozenset(
    {"ernie45", "jamba", "longcat", "longcat_xml", "minimax_m1", "olmo3", "phi4_mini_json", "step3"}
)
"""Formats of which no published template that writes their calls could be had; docs/parsers.md says why."""
NO_TEXT = ("whole", "real", "truth", "list", "object")
"""Where the template writes a text without its quotes."""

PUBLISHED = (
    Published("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "hermes", IM, says=False),
    Published("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes", IM, says=False),
    Published("Qwen-Qwen2.5-7B-Instruct", "hermes", IM),
    Published("Qwen-Qwen3-0.6B", "hermes", IM, "qwen3", thinks="maybe"),
    Published("Qwen-QwQ-32B", "hermes", IM, "deepseek_r1", says=False),
    Published("Qwen3-Coder", "qwen3_coder", IM),
    Published("Qwen3-Coder", "qwen3_xml", IM),
    Published("Qwen3.5-4B", "qwen3_coder", IM, "qwen3", thinks="maybe"),
    Published("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "qwen3_coder", IM, "nemotron_v3", thinks="maybe"),
    Published("StepFun3.5-Flash", "qwen3_coder", IM, "step3", thinks="maybe"),
    Published("meta-llama-Llama-3.1-8B-Instruct", "llama3_json", LLAMA, most_calls=1, says=False),
    Published("meta-llama-Llama-3.2-3B-Instruct", "llama3_json", LLAMA, most_calls=1, says=False),
    Published("meta-llama-Llama-3.3-70B-Instruct", "llama3_json", LLAMA, most_calls=1, says=False),
    Published("mistralai-Mistral-Nemo-Instruct-2407", "mistral", IM, says=False),
    Published("mistralai-Mistral-Nemo-Instruct-2407", "mistral_list", IM, says=False),
    Published("Mistral-Small-3.2-24B-Instruct-2506", "mistral", IM, says=False),
    Published("unsloth-mistral-Devstral-Small-2507", "mistral", IM),
    Published("mistralai-Ministral-3-14B-Reasoning-2512", "mistral", IM, "mistral"),
    Published("ibm-granite-granite-4.0", "granite4", GRANITE),
    Published("ibm-granite-granite-4.1", "granite4", GRANITE),
    Published("deepseek-ai-DeepSeek-V3.1", "deepseek_v31", DEEPSEEK, "deepseek_v3"),
    Published("deepseek-ai-DeepSeek-V3.2", "deepseek_v32", DEEPSEEK, "deepseek_v3"),
    Published("deepseek-ai-DeepSeek-V4", "deepseek_v4", DEEPSEEK, "deepseek_v3"),
    # Its template ends the turn after a second call, and not at all after one.
    Published(
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "deepseek_v3",
        "",
        "deepseek_r1",
        most_calls=1,
        says=False,
    ),
    Published("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek_v3", DEEPSEEK, "deepseek_r1", says=False),
    Published("llama-cpp-deepseek-r1", "deepseek_v3", DEEPSEEK, "deepseek_r1", says=False),
    Published("moonshotai-Kimi-K2", "kimi_k2", IM),
    Published("Kimi-K2-Instruct", "kimi_k2", IM),
    Published("Kimi-K2-Thinking", "kimi_k2", IM, "kimi_k2", thinks="maybe"),
    Published("GLM-4.6", "glm45", "", "glm45", thinks="maybe"),
    Published("GLM-4.7-Flash", "glm47", "", "glm45", thinks="maybe"),
    Published("MiniMax-M2", "minimax_m2", "[e~[", "minimax_m2", thinks="always"),
    Published("ByteDance-Seed-OSS", "seed_oss", "<seed:eos>", "seed_oss", thinks="maybe", kinds=SCALARS),
    Published(
        "openai-gpt-oss-120b", "harmony", "<|call|>", "gptoss", most_calls=1, thinks="maybe", says=False
    ),
    Published("Cohere2MoE", "cohere_command", "<|END_OF_TURN_TOKEN|>", "cohere", thinks="maybe", says=False),
    Published("GigaChat3.1-10B-A1.8B", "gigachat3", "<|message_sep|>", most_calls=1),
    Published(
        "google-gemma-4-31B-it",
        "gemma4",
        "<|tool_response>",
        "gemma",
        thinks="maybe",
        template_args={"enable_thinking": True},
    ),
    Published("LFM2.5-8B-A1B", "lfm2", IM, letters=PLAIN),
    Published("tool_chat_template_functiongemma", "functiongemma", "<end_of_turn>", says=False),
    Published("tool_chat_template_granite", "granite", GRANITE, says=False),
    Published("tool_chat_template_granite_20b_fc", "granite_20b_fc", "<|endoftext|>", says=False),
    Published("tool_chat_template_hunyuan_a13b", "hunyuan_a13b", "<|eos|>"),
    Published("tool_chat_template_internlm2_tool", "internlm2", IM),
    Published("tool_chat_template_llama3.2_pythonic", "pythonic", LLAMA, says=False, kinds=NO_TEXT),
    Published("tool_chat_template_llama4_json", "llama4_json", "\n<|eot|>"),
    Published(
        "tool_chat_template_llama4_pythonic", "llama4_pythonic", "<|eot|>", kinds=["text"], letters=PLAIN
    ),
    Published("tool_chat_template_xlam_llama", "xlam", LLAMA, says=False),
    Published("tool_chat_template_xlam_qwen", "xlam", IM, says=False),
)


class Noon(datetime):
    """A clock that stands: a prompt may have the second in it."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Noon:
        return cls(2026, 1, 1, 12, tzinfo=tz)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "datetime", Noon)


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_plugins(PluginConfig()).registry


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = bytes_tokenizer.write(tmp_path_factory.mktemp("bytes"))
    return open_tokenizer(TokenizerSpec(ModelFiles(str(directory), "m", "test"), CheckpointInfo("X", {})))


def chat_template(published: Published, tokenizer: Tokenizer) -> ChatTemplate:
    path = TEMPLATES / f"{published.template}.jinja"
    if not path.is_file():
        pytest.skip(f"no {path}; `make templates` fetches it")
    return ChatTemplate(path.read_text(encoding="utf-8"), tokenizer)


def parsed(
    registry: Registry,
    published: Published,
    output: Written,
    tools: Sequence[Mapping[str, Any]],
    pieces: Sequence[str],
) -> FoldedChoice:
    form = registry.create("tool_parser", published.tools)
    reasoning = published.reasoning and registry.create("reasoning_parser", published.reasoning)
    spec = ParserSpec(
        tools=[Tool(t["function"]["name"], "", t["function"]["parameters"]) for t in tools],
        prompt_tail=output.prompt_tail,
        template_args=published.template_args,
        openers=form.openers,
    )
    machine = ParsedText(
        reasoning.parser(spec) if reasoning else None, form.parser(spec), StopMatcher(()), one_call=False
    )
    events = [delta for piece in pieces for delta in machine.feed(piece, armed=True)]
    events += machine.finish("", FinishReason.STOP, armed=True)
    return fold([*events, Finished(FinishReason.STOP)])


@pytest.mark.parametrize("published", PUBLISHED, ids=str)
def test_the_calls_that_were_rendered_are_parsed(
    published: Published, registry: Registry, tokenizer: Tokenizer
) -> None:
    chat = chat_template(published, tokenizer)
    source = random.Random(str(published))
    pairs = 0
    while pairs < PAIRS:
        count = source.randint(1, published.most_calls)
        drawn = [random_call(source, published.kinds, published.letters) for _ in range(count)]
        pairs += len(drawn)
        tools = [tool for tool, _ in drawn]
        calls = [(tool["function"]["name"], arguments) for tool, arguments in drawn]
        says = "Let me see." if published.says and source.random() < 0.5 else ""
        share = {"never": 0.0, "maybe": 0.7, "always": 1.0}[published.thinks]
        thinks = "The user\n\nwants it." if source.random() < share else ""
        output = written(chat, published, assistant(calls, content=says, reasoning=thinks), tools)
        for pieces in ([output.text], random_cut(output.text, source)):
            found = parsed(registry, published, output, tools, pieces)
            assert [(call.name, json.loads(call.arguments)) for call in found.calls] == calls, output
            assert all(call.complete for call in found.calls), output
            assert found.text.strip() == says, output
            assert found.reasoning.strip() == thinks, output


@pytest.mark.parametrize("template", ["Kimi-K2-Instruct", "Kimi-K2-Thinking"])
def test_results_are_told_by_a_queue_that_the_template_keeps(template: str, tokenizer: Tokenizer) -> None:
    chat = chat_template(Published(template, "kimi_k2", IM), tokenizer)
    results = [{"role": "tool", "tool_call_id": f"call{i:05}", "content": f"r{i}"} for i in range(2)]
    for _ in range(2):
        prompt = chat.render([QUESTION, assistant([("f", {}), ("g", {})]), *results])
        assert re.findall(r"## Return of (\S+)\n(r\d)", prompt) == [
            ("functions.f:0", "r0"),
            ("functions.g:1", "r1"),
        ]


def test_every_format_goes_through_a_template_or_is_listed_as_one_that_cannot(registry: Registry) -> None:
    """As docs/parsers.md lists both."""
    formats = {name: registry.create("tool_parser", name) for name in registry.names("tool_parser")}
    tried = [formats[published.tools] for published in PUBLISHED]
    untried = {name for name, made in formats.items() if not any(made is other for other in tried)}
    assert {name for name in untried if name not in OTHER_NAMES} == WITHOUT
    page = (ROOT / "docs" / "parsers.md").read_text(encoding="utf-8")
    table = page.partition("| round trip through |")[2].partition("\n\n")[0]
    listed: dict[str, set[str]] = {}
    for line in table.splitlines()[2:]:
        name, templates = (cell.strip() for cell in line.strip("| ").split(" | "))
        listed[name.strip("`")] = set(re.findall("`(.*?)`", templates))
    expected: dict[str, set[str]] = {name: set() for name in WITHOUT}
    for published in PUBLISHED:
        if published.tools not in OTHER_NAMES:
            expected.setdefault(published.tools, set()).add(published.template)
    assert listed == expected
