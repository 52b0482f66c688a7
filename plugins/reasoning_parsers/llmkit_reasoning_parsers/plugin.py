"""Entry point of the reasoning formats that ship with llmkit; imports no format before it is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from llmkit import hookimpl
from llmkit.contracts import ParserHints, ReasoningFormat, RegisterReasoningParser


@dataclass(frozen=True, slots=True)
class Offered:
    """A format's name and by what ``auto`` knows a model that writes it: all of it; never, without marks."""

    name: str
    marks: tuple[str, ...] = ()
    """Texts of the chat template, or special tokens of the model."""
    model_type: str = ""
    """What the model type in config.json begins with."""
    priority: int = 0


SPECIAL, GENERAL, ANY = 2, 1, 0
"""Priorities: tags or tokens that no other has; those of a family; what many write."""

OFFERED = (
    Offered("gptoss", marks=("<|channel|>", "<|message|>", "analysis"), priority=SPECIAL),
    Offered("cohere", marks=("<|START_THINKING|>",), priority=SPECIAL),
    Offered("gemma", marks=("<|channel>", "thought"), priority=SPECIAL),
    Offered("mistral", marks=("[THINK]",), priority=SPECIAL),
    Offered("seed_oss", marks=("<seed:think>",), priority=SPECIAL),
    Offered("granite", marks=("<|start_of_role|>", "<response>"), priority=SPECIAL),
    Offered("hunyuan_a13b", marks=("<think>", "<answer>"), model_type="hunyuan", priority=SPECIAL),
    Offered("ernie45", marks=("<think>",), model_type="ernie4_5", priority=SPECIAL),
    Offered("step3", marks=("<think>",), model_type="step3", priority=SPECIAL),
    Offered("olmo3", marks=("<think>",), model_type="olmo3", priority=SPECIAL),
    Offered("nemotron_v3", marks=("<think>",), model_type="nemotron", priority=SPECIAL),
    Offered("minimax_m2", marks=("]~b]", "<think>"), priority=SPECIAL),
    Offered("kimi_k2", marks=("<|im_middle|>", "<think>"), priority=SPECIAL),
    Offered("glm45", marks=("[gMASK]", "<think>"), priority=SPECIAL),
    Offered("deepseek_v3", marks=("<｜Assistant｜>", "</think>", " thinking"), priority=SPECIAL),
    Offered("deepseek_r1", marks=("<｜Assistant｜>", "</think>"), priority=GENERAL),
    Offered("qwen3", marks=("<think>", "</think>"), priority=ANY),
    Offered("identity"),
)

OTHER_NAMES = {
    "cohere_command3": "cohere",
    "deepseek_v4": "deepseek_v3",
    "gemma4": "gemma",
    "glm47": "glm45",
    "mimo": "qwen3",
    "openai_gptoss": "gptoss",
    "step3p5": "step3",
}
"""vLLM's names of formats that have another one here; ``auto`` takes none of them."""


@hookimpl
def register_reasoning_parsers(register: RegisterReasoningParser) -> None:
    for offered in OFFERED:
        register(
            offered.name,
            partial(make, offered.name),
            recognizes=partial(recognizes, offered),
            priority=offered.priority,
        )
    for name, same in OTHER_NAMES.items():
        register(name, partial(make, same), recognizes=lambda hints: None)


def make(name: str, options: Any) -> ReasoningFormat:
    from llmkit_reasoning_parsers.formats import FORMATS

    return FORMATS[name]


def recognizes(offered: Offered, hints: ParserHints) -> str | None:
    """Why this is the model's format, None if it is not."""
    if not offered.marks or not hints.model_type.startswith(offered.model_type):
        return None
    if not all(mark in hints.template or mark in hints.special_tokens for mark in offered.marks):
        return None
    marks = " and ".join(offered.marks)
    kind = f", the model type is {hints.model_type}" if offered.model_type else ""
    return f"its template or tokens have {marks}{kind}"
