"""The entry point: every format by name, and what ``auto`` takes a model's for."""

from __future__ import annotations

import pytest

from llmkit.config import PluginConfig
from llmkit.contracts import ParserHints
from llmkit.plugins import load_plugins
from llmkit.registry import Registry
from llmkit_reasoning_parsers.formats import FORMATS
from tests.templates.fetch import TEMPLATES


@pytest.fixture(scope="module")
def registry() -> Registry:
    """With what ``register_reasoning_parsers`` of the built-in plugins gave."""
    return load_plugins(PluginConfig()).registry


def chosen(registry: Registry, hints: ParserHints) -> str | None:
    choice = registry.recognized("reasoning_parser", "auto", hints)
    return choice and choice.name


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_its_name(registry: Registry, name: str) -> None:
    assert registry.create("reasoning_parser", name) is FORMATS[name]


@pytest.mark.parametrize(
    ("template", "tokens", "model_type", "expected"),
    [
        pytest.param("{{ m }}<think>{{ r }}</think>", (), "qwen3", "qwen3", id="tags"),
        pytest.param("<｜Assistant｜>{{ c.split('</think>') }}", (), "qwen2", "deepseek_r1", id="r1"),
        pytest.param(
            "<｜Assistant｜>{% if not thinking %}</think>", (), "deepseek_v3", "deepseek_v3", id="v3"
        ),
        pytest.param("{{ m }}", ("[THINK]", "[/THINK]"), "mistral", "mistral", id="a-special-token"),
        pytest.param("<|channel|>analysis<|message|>", (), "gpt_oss", "gptoss", id="harmony"),
        pytest.param("<think></think>", (), "olmo3", "olmo3", id="the-model-type"),
        pytest.param("<think></think>", (), "step3_text", "step3", id="the-model-types-beginning"),
        pytest.param("<think><answer>", (), "hunyuan_v1_moe", "hunyuan_a13b", id="tags-and-type"),
        pytest.param("{{ m }}", ("<|im_end|>",), "llama", None, id="none"),
        pytest.param("", (), "", None, id="nothing-is-known"),
    ],
)
def test_auto_knows_a_model(
    registry: Registry, template: str, tokens: tuple[str, ...], model_type: str, expected: str | None
) -> None:
    assert chosen(registry, ParserHints(template, frozenset(tokens), model_type)) == expected


def test_the_reason_names_what_was_found(registry: Registry) -> None:
    choice = registry.recognized(
        "reasoning_parser", "auto", ParserHints("<think></think>", frozenset(), "olmo3")
    )
    assert choice is not None
    assert choice.why == "auto: its template or tokens have <think>, the model type is olmo3"


PUBLISHED = {
    "Qwen-Qwen3-0.6B": ("qwen3", "qwen3"),
    "Qwen-QwQ-32B": ("qwen2", "qwen3"),
    "Qwen3.5-4B": ("qwen3_5", "qwen3"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("qwen2", "deepseek_r1"),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek_v3", "deepseek_v3"),
    "deepseek-ai-DeepSeek-V3.2": ("deepseek_v32", "deepseek_v3"),
    "openai-gpt-oss-120b": ("gpt_oss", "gptoss"),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral3", "mistral"),
    "GLM-4.6": ("glm4_moe", "glm45"),
    "GLM-4.7-Flash": ("glm4_moe_lite", "glm45"),
    "MiniMax-M2": ("minimax_m2", "minimax_m2"),
    "Kimi-K2-Thinking": ("kimi_k2", "kimi_k2"),
    "ByteDance-Seed-OSS": ("seed_oss", "seed_oss"),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("nemotron_h", "nemotron_v3"),
    "StepFun3.5-Flash": ("step3p5", "step3"),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite", "granite"),
    "Cohere2MoE": ("cohere2_moe", "cohere"),
    "google-gemma-4-31B-it": ("gemma4", "gemma"),
    "Qwen-Qwen2.5-7B-Instruct": ("qwen2", None),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama", None),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", None),
    "Qwen3-Coder": ("qwen3_moe", None),
    "google-gemma-2-2b-it": ("gemma2", None),
    "moonshotai-Kimi-K2": ("kimi_k2", None),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_auto_knows_published_templates(registry: Registry, name: str) -> None:
    path = TEMPLATES / f"{name}.jinja"
    if not path.is_file():
        pytest.skip(f"no {path}; `make templates` fetches it")
    model_type, expected = PUBLISHED[name]
    hints = ParserHints(path.read_text(encoding="utf-8"), frozenset(), model_type)
    assert chosen(registry, hints) == expected
