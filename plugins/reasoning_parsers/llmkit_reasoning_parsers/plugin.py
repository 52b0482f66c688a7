"""Entry point of the reasoning formats that ship with llmkit; imports no format before it is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from llmkit import hookimpl
from llmkit.contracts import ParserHints, ReasoningFormat, RegisterReasoningParser


@dataclass(frozen=True, slots=True)
class Offered:
    """A format's name and by what ``auto`` knows a model that writes it; all that is given must hold."""

    name: str
    marks: tuple[str, ...] = ()
    """Texts of the chat template, or special tokens of the model."""
    model_types: tuple[str, ...] = ()
    """Beginnings of the model type in config.json."""
    priority: int = 0


OFFERED = (
    Offered("gptoss", marks=("<|channel|>", "analysis")),
    Offered("cohere", marks=("<|START_THINKING|>",)),
    Offered("gemma", marks=("<|channel>", "thought")),
    Offered("mistral", marks=("[THINK]",)),
    Offered("seed_oss", marks=("<seed:think>",)),
    Offered("hunyuan_a13b", marks=("<think>", "<answer>")),
    Offered("granite", marks=("<|start_of_role|>", "thinking")),
    Offered("minimax_m2", marks=("]~b]", "<think>")),
    Offered("kimi_k2", marks=("<|im_middle|>", "<think>")),
    Offered("glm45", marks=("[gMASK]", "<think>")),
    Offered("ernie45", marks=("<think>",), model_types=("ernie4_5",), priority=1),
    Offered("step3", marks=("<think>",), model_types=("step3",), priority=1),
    Offered("olmo3", marks=("<think>",), model_types=("olmo3",), priority=1),
    Offered("nemotron_v3", marks=("<think>",), model_types=("nemotron",), priority=1),
    Offered("deepseek_v3", marks=("<｜Assistant｜>", "<think>", "thinking")),
    Offered("deepseek_r1", marks=("<｜Assistant｜>", "<think>"), priority=-1),
    Offered("qwen3", marks=("<think>", "</think>"), priority=-2),
    Offered("identity"),
)


@hookimpl
def register_reasoning_parsers(register: RegisterReasoningParser) -> None:
    for offered in OFFERED:
        register(
            offered.name,
            partial(make, offered.name),
            recognizes=partial(recognizes, offered),
            priority=offered.priority,
        )


def make(name: str, options: Any) -> ReasoningFormat:
    from llmkit_reasoning_parsers.formats import FORMATS

    return FORMATS[name]


def recognizes(offered: Offered, hints: ParserHints) -> str | None:
    """Why this is the model's format, None if it is not."""
    if not offered.marks or not hints.model_type.startswith(offered.model_types or ""):
        return None
    if not all(mark in hints.template or mark in hints.special_tokens for mark in offered.marks):
        return None
    marks = " and ".join(offered.marks)
    kind = f", the model type is {hints.model_type}" if offered.model_types else ""
    return f"its template or tokens have {marks}{kind}"
