"""Formats that write calls as Python does: ``name(key=value, ...)``, in a list or between tags."""

from __future__ import annotations

from llmkit.contracts import ToolFormat
from llmkit.parsers.pythonic import Pythonic, call_places, in_list
from llmkit.parsers.scanning import SPACE, literal
from llmkit.parsers.tags import Layout

FORMATS: dict[str, ToolFormat] = {
    "pythonic": in_list(
        "", "", bare=True, source="meta-llama/llama-models: models/llama3_2/text_prompt_format.md"
    ),
    "llama4_pythonic": in_list(
        "<|python_start|>",
        "<|python_end|>",
        bare=True,
        source="meta-llama/llama-models: models/llama4/prompt_format.md",
    ),
    "lfm2": in_list(
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        bare=False,
        source="ggml-org/llama.cpp: models/templates/LFM2.5-8B-A1B.jinja",
    ),
    "olmo3": Pythonic(
        source="vllm-project/vllm: vllm/tool_parsers/olmo3_tool_parser.py",
        openers=("<function_calls>",),
        special_tokens=(),
        places=call_places(literal("<function_calls>"), SPACE, again="", end="</function_calls>"),
        layout=Layout("{name}(", ")", "\n", sections=[("<function_calls>", "</function_calls>")]),
    ),
}
