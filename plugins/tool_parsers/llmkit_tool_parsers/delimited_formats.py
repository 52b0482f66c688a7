"""Formats that write a call's name and its JSON arguments between special tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llmkit.contracts import ToolFormat
from llmkit.parsers.delimited import Delimited
from llmkit.parsers.scanning import NAME, SPACE, Head, Place, literal
from llmkit.parsers.tags import Layout


def _form(
    sections: tuple[str, ...],
    call: tuple[str, str],
    name: Sequence[str],
    written: tuple[str, str],
    *,
    inner: Sequence[str],
    fence: str = "",
    separator: str = "",
    bare_name: str = "(.+)",
    source: str,
) -> Delimited:
    """One format.

    :param sections: what opens the place of calls, once or in several spellings, and what ends it.
    :param name: the atoms between a call's first token and its arguments.
    :param written: before and behind a call's arguments as the model is made to write it, with ``{name}``.
    :param bare_name: its group 1 is the name in what stands in its place.
    :param fence: what may stand behind the arguments.
    :param separator: between calls.
    """
    *opening, closing = sections
    passed_over = _between(*sections, call[0])
    behind = (SPACE, *((literal(fence), SPACE) if fence else ()), literal(call[1]))
    places = [
        Place(
            Head(literal(opener), passed_over, literal(call[0]), *name),
            again=(Head(passed_over, literal(call[0]), *name),),
            between=(Head(*behind),),
            ends=(Head(passed_over, literal(closing)),),
        )
        for opener in opening
    ]
    alone = Place(
        Head(literal(call[0]), *name),
        again=(Head(SPACE, literal(call[0]), *name),),
        between=(Head(*behind),),
        ends=(Head(SPACE, literal(closing)),),
    )
    return Delimited(
        source=source,
        openers=(*opening, call[0]),
        special_tokens=(*sections, *call, *inner),
        places=(*places, alone),
        no_arguments=(Head(*behind[1:]),),
        name=re.compile(bare_name),
        layout=Layout(*written, separator, sections=[(opening[0], closing)]),
    )


def _between(*marks: str, without: str = "") -> str:
    """Atom of what stands between calls and is passed over: some text with none of these marks in it."""
    ends = "|".join(re.escape(mark.removeprefix("<")) for mark in marks)
    text = f"[^<{without}]{{0,256}}+"
    return f"{text}(?:<(?!{ends}){text}){{0,4}}+"


def _harmony() -> Delimited:
    """Messages for a tool. The rest of Harmony is the reasoning parser's, which leaves these as they are.

    The recipient stands before or behind the channel, the prompt may have the header's beginning.
    """
    start, channel, message, constrain = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
    ends = ("<|call|>", "<|end|>", "<|return|>")
    header = _between(message, start, *ends, without=r"\s")
    call = (
        *literal(" to=functions."),
        r"([\w.-]{1,128})",
        _between(message, start, *ends),
        *literal(message),
    )
    behind = [Head(SPACE, literal(end)) for end in ends]
    heads = (Head(literal(start), header, *call), Head(literal(channel), header, *call), Head(*call))
    return Delimited(
        source="openai/harmony: docs/format.md",
        openers=(start, channel, " to=functions."),
        special_tokens=(start, channel, message, constrain, *ends),
        places=[Place(head, ends=behind) for head in heads],
        no_arguments=behind,
        name=re.compile("(.+)"),
        layout=Layout(
            f"{channel}commentary to=functions.{{name}} {constrain}json{message}",
            ends[0],
            separator=f"{start}assistant",
            other_begins=(f" to=functions.{{name}}{channel}commentary json{message}",),
            lead=f"{start}assistant",
            beside=(start, channel, message, constrain, "<|end|>"),
        ),
    )


_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_CALL, _DEEPSEEK_SEP = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"), "<｜tool▁sep｜>"
_KIMI_CALL, _KIMI_SEP = ("<|tool_call_begin|>", "<|tool_call_end|>"), "<|tool_call_argument_begin|>"
_TEMPLATES = "ggml-org/llama.cpp: models/templates/"

FORMATS: dict[str, ToolFormat] = {
    "deepseek_v3": _form(
        _DEEPSEEK,
        _DEEPSEEK_CALL,
        (r"\w{0,32}", *literal(_DEEPSEEK_SEP), NAME, *literal("\n```json\n")),
        (f"{_DEEPSEEK_CALL[0]}function{_DEEPSEEK_SEP}{{name}}\n```json\n", f"\n```{_DEEPSEEK_CALL[1]}"),
        inner=(_DEEPSEEK_SEP,),
        fence="```",
        separator="\n",
        source=_TEMPLATES + "llama-cpp-deepseek-r1.jinja",
    ),
    "deepseek_v31": _form(
        _DEEPSEEK,
        _DEEPSEEK_CALL,
        (NAME, *literal(_DEEPSEEK_SEP)),
        (f"{_DEEPSEEK_CALL[0]}{{name}}{_DEEPSEEK_SEP}", _DEEPSEEK_CALL[1]),
        inner=(_DEEPSEEK_SEP,),
        source=_TEMPLATES + "deepseek-ai-DeepSeek-V3.1.jinja",
    ),
    "kimi_k2": _form(
        ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", "<|tool_calls_section_end|>"),
        _KIMI_CALL,
        (SPACE, NAME, *literal(_KIMI_SEP)),
        (f"{_KIMI_CALL[0]}functions.{{name}}:{{number}}{_KIMI_SEP}", _KIMI_CALL[1]),
        inner=(_KIMI_SEP,),
        bare_name=r"(?:functions\.)?(.+?)(?::\d+)?",
        source=_TEMPLATES + "moonshotai-Kimi-K2.jinja",
    ),
    "harmony": _harmony(),
}
