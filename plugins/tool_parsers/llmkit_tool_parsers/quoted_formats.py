"""Formats that write calls as ``name{key:value}`` with texts between tokens."""

from __future__ import annotations

from llmkit.contracts import ToolFormat
from llmkit.parsers.quoted import Quoted

FORMATS: dict[str, ToolFormat] = {
    "functiongemma": Quoted(
        opener="<start_function_call>call:",
        closer="<end_function_call>",
        quote="<escape>",
        special_tokens=("<start_function_call>", "<end_function_call>", "<escape>"),
        source="google/functiongemma-270m-it: ai.google.dev/gemma/docs/functiongemma",
    ),
    "gemma4": Quoted(
        opener="<|tool_call>call:",
        closer="<tool_call|>",
        quote='<|"|>',
        special_tokens=("<|tool_call>", "<tool_call|>", '<|"|>'),
        source="ggml-org/llama.cpp: models/templates/google-gemma-4-31B-it.jinja",
    ),
}
