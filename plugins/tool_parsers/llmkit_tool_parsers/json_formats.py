"""Formats whose calls are JSON objects, alone or in a list, between markers or bare."""

from __future__ import annotations

import re
from dataclasses import replace

from llmkit.parsers.json_calls import JsonCallReader, JsonFormat
from llmkit.parsers.reading import Malformed, Reading
from llmkit.parsers.tags import Layout

_NAME = re.compile(r"[\w.:/-]*")


class MistralReader(JsonCallReader):
    """Both generations: a list of objects, or since tokenizer 11 each call with a marker of its own."""

    def read_calls(self, opener: str) -> Reading[None]:
        yield from self.skip_space()
        name = yield from self.run(_NAME)
        if not name:
            yield from super().read_calls(opener)
            return
        if (yield from self.accept("[CALL_ID]")):
            yield from self.run(_NAME)
        yield from self.accept("[ARGS]")
        if not (yield from self._streamed(name)):
            raise Malformed
        self.closed()


_CALL = ('{"name": {name}, "arguments": ', "}")
_WITH_PARAMETERS = ('{"name": {name}, "parameters": ', "}")
_TAGS = ("<tool_call>", "</tool_call>")
_HERMES = JsonFormat(
    openers=_TAGS[:1],
    closers=_TAGS[1:],
    special_tokens=_TAGS,
    layout=Layout("<tool_call>\n" + _CALL[0], _CALL[1] + "\n</tool_call>", "\n"),
    source="Qwen/Qwen2.5-7B-Instruct: chat template",
)
_LISTED = Layout(*_CALL, ", ", sections=[("[", "]")])
_LLAMA = Layout(*_WITH_PARAMETERS, "; ")
_MISTRAL = JsonFormat(
    openers=("[TOOL_CALLS]",),
    special_tokens=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    layout=Layout("[TOOL_CALLS]{name}[ARGS]", ""),
    quoted=False,
    reader=MistralReader,
    source="mistralai/Ministral-3-14B-Reasoning-2512: chat template",
)
"""It reads both generations; models of the first are to be held to their own, ``mistral_list``."""

FORMATS = {
    "hermes": _HERMES,
    "granite4": replace(_HERMES, source="ibm-granite/granite-4.0-h-small: chat template"),
    "llama3_json": JsonFormat(
        openers=("<|python_tag|>",),
        bare=("{",),
        separators=";,",
        special_tokens=("<|python_tag|>",),
        layout=_LLAMA,
        source="meta-llama/Llama-3.1-8B-Instruct: chat template",
    ),
    "llama4_json": JsonFormat(
        openers=("<|python_start|>", "<|python_tag|>"),
        closers=("<|python_end|>",),
        bare=("{",),
        separators=";,",
        special_tokens=("<|python_start|>", "<|python_end|>", "<|python_tag|>"),
        layout=_LLAMA,
        source="vllm-project/vllm: examples/tool_chat_template_llama4_json.jinja",
    ),
    "mistral": _MISTRAL,
    "mistral_list": replace(
        _MISTRAL,
        layout=replace(_LISTED, sections=[("[TOOL_CALLS][", "]")]),
        quoted=True,
        source="mistralai/Mistral-Nemo-Instruct-2407: chat template",
    ),
    "granite": JsonFormat(
        openers=("<|tool_call|>", "<tool_call>"),
        special_tokens=("<|tool_call|>",),
        layout=replace(_LISTED, sections=[("<|tool_call|>[", "]")]),
        source="ibm-granite/granite-3.3-2b-instruct: chat template",
    ),
    "granite_20b_fc": JsonFormat(
        openers=("<function_call>",),
        special_tokens=("<function_call>",),
        layout=Layout("<function_call> " + _CALL[0], _CALL[1], "\n"),
        source="vllm-project/vllm: examples/tool_chat_template_granite_20b_fc.jinja",
    ),
    "jamba": JsonFormat(
        openers=("<tool_calls>",),
        closers=("</tool_calls>",),
        special_tokens=("<tool_calls>", "</tool_calls>"),
        layout=Layout(*_CALL, ",\n    ", sections=[("<tool_calls>[\n    ", "\n]</tool_calls>")]),
        source="vllm-project/vllm: vllm/tool_parsers/jamba_tool_parser.py",
    ),
    "hunyuan_a13b": JsonFormat(
        openers=("<tool_calls>",),
        closers=("</tool_calls>",),
        special_tokens=("<tool_calls>", "</tool_calls>"),
        layout=replace(_LISTED, sections=[("<tool_calls>[", "]</tool_calls>")]),
        source="vllm-project/vllm: examples/tool_chat_template_hunyuan_a13b.jinja",
    ),
    "internlm2": JsonFormat(
        openers=("<|action_start|><|plugin|>",),
        closers=("<|action_end|>",),
        special_tokens=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
        layout=Layout(
            "<|action_start|><|plugin|>\n" + _WITH_PARAMETERS[0], _WITH_PARAMETERS[1] + "<|action_end|>", "\n"
        ),
        source="InternLM/InternLM: chat/chat_format.md",
    ),
    "phi4_mini_json": JsonFormat(
        openers=("functools[",),
        layout=replace(_LISTED, sections=[("functools[", "]")]),
        source="vllm-project/vllm: examples/tool_chat_template_phi4_mini.jinja",
    ),
    "xlam": JsonFormat(
        openers=("<tool_call>", "```json", "[TOOL_CALLS]"),
        closers=("</tool_call>", "```"),
        bare=("[",),
        special_tokens=("<tool_call>", "</tool_call>", "[TOOL_CALLS]"),
        layout=_LISTED,
        source="vllm-project/vllm: examples/tool_chat_template_xlam_llama.jinja",
    ),
    "minimax_m1": JsonFormat(
        openers=("<tool_calls>",),
        closers=("</tool_calls>",),
        special_tokens=("<tool_calls>", "</tool_calls>"),
        layout=Layout(*_CALL, "\n", sections=[("<tool_calls>\n", "\n</tool_calls>")]),
        source="MiniMaxAI/MiniMax-M1-80k: docs/function_call_guide.md",
    ),
    "ernie45": replace(
        _HERMES,
        source="PaddlePaddle/FastDeploy: fastdeploy/entrypoints/openai/tool_parsers/ernie_x1_tool_parser.py",
    ),
    "longcat": JsonFormat(
        openers=("<longcat_tool_call>",),
        closers=("</longcat_tool_call>",),
        special_tokens=("<longcat_tool_call>", "</longcat_tool_call>"),
        layout=Layout("<longcat_tool_call>\n" + _CALL[0], _CALL[1] + "\n</longcat_tool_call>", "\n"),
        source="vllm-project/vllm: vllm/tool_parsers/longcat_tool_parser.py",
    ),
    "gigachat3": JsonFormat(
        openers=(
            "<|function_call|>",
            "<|message_sep|>\n\nfunction call<|role_sep|>\n",
            "function call<|role_sep|>\n",
        ),
        special_tokens=("<|function_call|>", "<|message_sep|>", "<|role_sep|>"),
        layout=Layout("<|function_call|>" + _CALL[0], _CALL[1]),
        source="ai-sage/GigaChat3.1-10B-A1.8B: chat template",
    ),
    "cohere_command": JsonFormat(
        openers=("<|START_ACTION|>",),
        closers=("<|END_ACTION|>",),
        special_tokens=("<|START_ACTION|>", "<|END_ACTION|>"),
        layout=Layout(
            '{"tool_call_id": "{number}", "tool_name": {name}, "parameters": ',
            "}",
            ",\n    ",
            sections=[("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>")],
        ),
        source="CohereForAI/c4ai-command-r7b-12-2024: chat template",
    ),
}
