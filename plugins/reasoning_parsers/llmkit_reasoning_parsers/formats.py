"""The table of reasoning formats: ``FORMATS`` holds each under its name."""

from __future__ import annotations

from dataclasses import replace

from llmkit.contracts import ReasoningFormat
from llmkit.parsers.thinking import Tags
from llmkit_reasoning_parsers.harmony import Harmony
from llmkit_reasoning_parsers.plain import Plain

ALWAYS = Tags(thinks_first=True)
"""Models that always think; templates of some write ``<think>`` into the prompt."""
MAYBE = Tags()
"""Models that write ``<think>`` themselves, or whose template does, where they think."""

_TEMPLATES = "ggml-org/llama.cpp: models/templates/"

FORMATS: dict[str, ReasoningFormat] = {
    "cohere": Tags(
        starts=("<|START_THINKING|>",),
        ends=("<|END_THINKING|>",),
        anywhere=True,
        wrappers=(("<|START_RESPONSE|>", "<|END_RESPONSE|>"), ("<|START_TEXT|>", "<|END_TEXT|>")),
        special_tokens=(
            "<|START_THINKING|>",
            "<|END_THINKING|>",
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
            "<|START_TEXT|>",
            "<|END_TEXT|>",
        ),
        source="CohereForAI/c4ai-command-r7b-12-2024: chat template",
    ),
    "deepseek_r1": replace(ALWAYS, source=_TEMPLATES + "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja"),
    "deepseek_v3": replace(MAYBE, source=_TEMPLATES + "deepseek-ai-DeepSeek-V3.1.jinja"),
    "ernie45": Tags(
        thinks_first=True,
        wrappers=(("<response>", "</response>"),),
        source="PaddlePaddle/FastDeploy: fastdeploy/reasoning/ernie_x1_reasoning_parsers.py",
    ),
    "gemma": Tags(
        starts=("<|channel>thought",),
        ends=("<channel|>",),
        anywhere=True,
        special_tokens=("<|channel>", "<channel|>"),
        source=_TEMPLATES + "google-gemma-4-31B-it.jinja",
    ),
    "glm45": replace(MAYBE, source=_TEMPLATES + "GLM-4.6.jinja"),
    "gptoss": Harmony(),
    # Granite 3.2 writes sentences, 3.3 tags.
    "granite": Tags(
        starts=("Here is my thought process:", "Here's my thought process:", "<think>"),
        ends=("Here is my response:", "Here's my response:", "</think>"),
        wrappers=(("<response>", "</response>"),),
        source=_TEMPLATES + "ibm-granite-granite-3.3-2B-Instruct.jinja",
    ),
    "hunyuan_a13b": Tags(
        wrappers=(("<answer>", "</answer>"),),
        source="vllm-project/vllm: vllm/reasoning/hunyuan_a13b_reasoning_parser.py",
    ),
    "identity": Plain(),
    "kimi_k2": replace(ALWAYS, source=_TEMPLATES + "Kimi-K2-Thinking.jinja"),
    "minimax_m2": replace(ALWAYS, source=_TEMPLATES + "MiniMax-M2.jinja"),
    "mistral": Tags(
        starts=("[THINK]",),
        ends=("[/THINK]",),
        anywhere=True,
        special_tokens=("[THINK]", "[/THINK]"),
        source=_TEMPLATES + "mistralai-Ministral-3-14B-Reasoning-2512.jinja",
    ),
    "nemotron_v3": replace(ALWAYS, source=_TEMPLATES + "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.jinja"),
    "olmo3": replace(ALWAYS, source="vllm-project/vllm: vllm/reasoning/olmo3_reasoning_parser.py"),
    "qwen3": replace(MAYBE, source=_TEMPLATES + "Qwen-Qwen3-0.6B.jinja"),
    "seed_oss": Tags(
        starts=("<seed:think>",),
        ends=("</seed:think>",),
        source=_TEMPLATES + "ByteDance-Seed-OSS.jinja",
    ),
    "step3": replace(ALWAYS, source=_TEMPLATES + "StepFun3.5-Flash.jinja"),
}
