"""The table of reasoning formats: ``FORMATS`` holds each under its name."""

from __future__ import annotations

from llmkit.contracts import ReasoningFormat
from llmkit.parsers.thinking import Tags
from llmkit_reasoning_parsers.harmony import Harmony
from llmkit_reasoning_parsers.plain import Plain

ALWAYS = Tags(thinks_first=True)
"""Models that always think; templates of some write ``<think>`` into the prompt."""
MAYBE = Tags()
"""Models that write ``<think>`` themselves, or whose template does, where they think."""

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
    ),
    "deepseek_r1": ALWAYS,
    "deepseek_v3": MAYBE,
    "ernie45": Tags(thinks_first=True, wrappers=(("<response>", "</response>"),)),
    "gemma": Tags(
        starts=("<|channel>thought",),
        ends=("<channel|>",),
        anywhere=True,
        special_tokens=("<|channel>", "<channel|>"),
    ),
    "glm45": MAYBE,
    "gptoss": Harmony(),
    # Granite 3.2 writes sentences, 3.3 tags.
    "granite": Tags(
        starts=("Here is my thought process:", "Here's my thought process:", "<think>"),
        ends=("Here is my response:", "Here's my response:", "</think>"),
        wrappers=(("<response>", "</response>"),),
    ),
    "hunyuan_a13b": Tags(wrappers=(("<answer>", "</answer>"),)),
    "identity": Plain(),
    "kimi_k2": ALWAYS,
    "minimax_m2": ALWAYS,
    "mistral": Tags(
        starts=("[THINK]",), ends=("[/THINK]",), anywhere=True, special_tokens=("[THINK]", "[/THINK]")
    ),
    "nemotron_v3": ALWAYS,
    "olmo3": ALWAYS,
    "qwen3": MAYBE,
    "seed_oss": Tags(starts=("<seed:think>",), ends=("</seed:think>",)),
    "step3": ALWAYS,
}
