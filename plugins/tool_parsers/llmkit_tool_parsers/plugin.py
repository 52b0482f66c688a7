"""Entry point of the tool-call formats that ship with llmkit; imports no format before it is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from llmkit import hookimpl
from llmkit.contracts import ParserHints, RegisterToolParser, ToolFormat


@dataclass(frozen=True, slots=True)
class Offered:
    """A format's name, where it is, and by what ``auto`` knows a model that writes it."""

    name: str
    module: str
    """Of this package; its ``FORMATS`` holds the format under its name."""
    marks: tuple[str, ...] = ()
    """Texts that are all in the chat template, or special tokens of the model; none if never."""
    lacks: tuple[str, ...] = ()
    """Texts that are not in the chat template: another format's that is written alike."""
    model_types: tuple[str, ...] = ()
    """As in config.json; the format is only theirs. Empty if it does not matter."""
    priority: int = 0
    """Above the formats of which it is a special case."""


OFFERED = (
    Offered(
        "hermes",
        "json_formats",
        marks=("<tool_call>", "arguments"),
        lacks=("<function=", "<arg_key>", "<tool_calls>"),
    ),
    Offered(
        "llama3_json",
        "json_formats",
        marks=("<|python_tag|>", '"parameters": '),
        lacks=("<tool_call>",),
        model_types=("llama", "mllama"),
    ),
    Offered("llama4_json", "json_formats"),
    Offered("mistral", "json_formats", marks=("[TOOL_CALLS]", "[ARGS]")),
    Offered("mistral_list", "json_formats", marks=("[TOOL_CALLS]",), lacks=("[ARGS]",)),
    Offered("granite", "json_formats", marks=("<|tool_call|>",), model_types=("granite", "granitemoe")),
    Offered("granite_20b_fc", "json_formats", marks=("<function_call>",), model_types=("gpt_bigcode",)),
    Offered(
        "granite4",
        "json_formats",
        marks=("<tool_call>", "arguments"),
        model_types=("granite", "granitemoe", "granitemoehybrid"),
        priority=1,
    ),
    Offered("jamba", "json_formats", marks=("<tool_calls>",), model_types=("jamba",)),
    Offered("internlm2", "json_formats", marks=("<|action_start|>", "<|plugin|>")),
    Offered("phi4_mini_json", "json_formats", marks=("<|tool|>",), model_types=("phi3",)),
    Offered("xlam", "json_formats"),
    Offered("hunyuan_a13b", "json_formats", marks=("<tool_calls>",), model_types=("hunyuan_v1_moe",)),
    Offered("minimax_m1", "json_formats", marks=("<tool_calls>",), model_types=("minimax_m1",)),
    Offered("ernie45", "json_formats", marks=("<tool_call>",), model_types=("ernie4_5", "ernie4_5_moe")),
    Offered("longcat", "json_formats", marks=("<longcat_tool_call>",), lacks=("<longcat_arg_key>",)),
    Offered("longcat_xml", "markup_formats", marks=("<longcat_tool_call>", "<longcat_arg_key>")),
    Offered("gigachat3", "json_formats", marks=("<|role_sep|>", "function call")),
    Offered("cohere_command", "json_formats", marks=("<|START_ACTION|>", "tool_name")),
    Offered("qwen3_coder", "markup_formats", marks=("<tool_call>", "<function=", "<parameter="), priority=1),
    Offered(
        "seed_oss", "markup_formats", marks=("<seed:tool_call>", "<function=", "<parameter="), priority=1
    ),
    Offered("minimax_m2", "markup_formats", marks=("<minimax:tool_call>", "<invoke name="), priority=1),
    Offered(
        "glm45", "markup_formats", marks=("<tool_call>", "<arg_key>", "</arg_key>\n<arg_value>"), priority=1
    ),
    Offered(
        "glm47", "markup_formats", marks=("<tool_call>", "<arg_key>", "</arg_key><arg_value>"), priority=1
    ),
    Offered(
        "deepseek_v32", "markup_formats", marks=("｜DSML｜", "function_calls>", "invoke name="), priority=1
    ),
    Offered("deepseek_v4", "markup_formats", marks=("｜DSML｜", "tool_calls>", "invoke name="), priority=1),
    Offered("pythonic", "pythonic_formats"),
    Offered("llama4_pythonic", "pythonic_formats", marks=("<|python_start|>",), model_types=("llama4",)),
    Offered("lfm2", "pythonic_formats", model_types=("lfm2", "lfm2_moe", "lfm2_vl")),
    Offered("olmo3", "pythonic_formats", marks=("<function_calls>",), model_types=("olmo3",)),
    Offered("functiongemma", "quoted_formats", marks=("<start_function_call>", "<escape>")),
    Offered("gemma4", "quoted_formats", marks=("<|tool_call>call:", '<|"|>')),
    Offered("deepseek_v3", "delimited_formats", marks=("<｜tool▁calls▁begin｜>", "```json"), priority=1),
    Offered("deepseek_v31", "delimited_formats", marks=("<｜tool▁calls▁begin｜>",), lacks=("```json",)),
    Offered("kimi_k2", "delimited_formats", marks=("<|tool_calls_section_begin|>",)),
    Offered("harmony", "delimited_formats", marks=("<|channel|>", "<|message|>", "functions")),
    Offered("step3", "markup_formats", marks=("<｜tool_calls_begin｜>", "<steptml:invoke"), priority=2),
)

OTHER_NAMES = {
    "cohere_command3": "cohere_command",
    "granite-20b-fc": "granite_20b_fc",
    "internlm": "internlm2",
    "mimo": "qwen3_coder",
    "minimax": "minimax_m1",
    "openai": "harmony",
    "qwen3_xml": "qwen3_coder",
    "step3p5": "qwen3_coder",
}
"""vLLM's names of formats that have another one here; ``auto`` takes none of them."""


@hookimpl
def register_tool_parsers(register: RegisterToolParser) -> None:
    for offered in OFFERED:
        register(
            offered.name,
            partial(make, offered),
            recognizes=partial(recognizes, offered),
            priority=offered.priority,
        )
    by_name = {offered.name: offered for offered in OFFERED}
    for name, same in OTHER_NAMES.items():
        register(name, partial(make, by_name[same]), recognizes=lambda hints: None)


def make(offered: Offered, options: Any) -> ToolFormat:
    formats: dict[str, ToolFormat] = import_module(f"llmkit_tool_parsers.{offered.module}").FORMATS
    return formats[offered.name]


def recognizes(offered: Offered, hints: ParserHints) -> str | None:
    """Why this is the model's format, None if it is not."""
    if offered.model_types and hints.model_type not in offered.model_types:
        return None
    if not all(mark in hints.template or mark in hints.special_tokens for mark in offered.marks):
        return None
    if any(text in hints.template for text in offered.lacks):
        return None
    reasons = []
    if offered.model_types:
        reasons.append(f"the model type is {hints.model_type}")
    if offered.marks:
        reasons.append(f"its template or tokens have {' and '.join(offered.marks)}")
    return ", ".join(reasons) or None
