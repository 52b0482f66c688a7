"""Formats that write each argument between tags of its own; a value's type is what the tool's schema says."""

from __future__ import annotations

from llmkit.contracts import ToolFormat
from llmkit.parsers.markup import Markup
from llmkit.parsers.scanning import NAME, SPACE, Head, Place, literal
from llmkit.parsers.tags import Layout

_KEY = r"([^<>\"\n]{1,256})"

_FUNCTION = Head(literal("<function="), NAME, literal(">"))
_PARAMETER = Head(literal("<parameter="), _KEY, literal(">"))


def _function_in(opener: str, closer: str, *, newline: bool, source: str) -> Markup:
    """``<function=NAME>`` and ``<parameter=KEY>`` in an outer tag, whose opener models forget at times."""
    line = "\n" if newline else ""
    head = Head(literal(opener), SPACE, literal("<function="), NAME, literal(">"))
    again = Head(SPACE, literal("<function="), NAME, literal(">"))
    ends = (Head(SPACE, literal(closer)),)
    return Markup(
        source=source,
        openers=(opener, "<function="),
        places=(Place(head, again=(again,), ends=ends), Place(_FUNCTION, ends=ends)),
        key=_PARAMETER,
        value_ends=(line + "</parameter>", *(["</parameter>"] if newline else [])),
        call_ends=(Head(literal("</function>")),),
        newline=newline,
        special_tokens=(opener, closer),
        layout=Layout(f"{opener}\n<function={{name}}>\n", f"</function>\n{closer}", separator="\n"),
        key_begin="<parameter={key}>" + line,
        after_value="\n",
    )


def _invoke_in(opener: str, closer: str, prefix: str = "", typed: bool = False, *, source: str) -> Markup:
    """``<invoke name="NAME">`` and ``<parameter name="KEY">`` in an outer tag."""
    invoke, parameter = f'<{prefix}invoke name="', f'<{prefix}parameter name="'
    kind = (literal('" string="'), "([a-z]{1,5})") if typed else ()
    call = (SPACE, literal(invoke), NAME, literal('">'))
    return Markup(
        source=source,
        openers=(opener,),
        places=(
            Place(Head(literal(opener), *call), again=(Head(*call),), ends=(Head(SPACE, literal(closer)),)),
        ),
        key=Head(literal(parameter), _KEY, *kind, literal('">')),
        value_ends=(f"</{prefix}parameter>",),
        call_ends=(Head(literal(f"</{prefix}invoke>")),),
        special_tokens=(opener, closer),
        layout=Layout(f'{invoke}{{name}}">\n', f"</{prefix}invoke>\n", sections=[(opener + "\n", closer)]),
        key_begin=parameter + '{key}"' + (' string="{is_string}"' if typed else "") + ">",
        after_value="\n",
    )


def _glm(line: str, source: str, prefix: str = "") -> Markup:
    """The name, then pairs of keys and values."""
    opener, closer = f"<{prefix}tool_call>", f"</{prefix}tool_call>"
    key, value = (
        (f"<{prefix}arg_key>", f"</{prefix}arg_key>"),
        (f"<{prefix}arg_value>", f"</{prefix}arg_value>"),
    )
    return Markup(
        source=source,
        openers=(opener,),
        places=(Place(Head(literal(opener), SPACE, NAME, r"(?=[<\n])")),),
        key=Head(literal(key[0]), _KEY, literal(key[1]), SPACE, literal(value[0])),
        value_ends=(value[1],),
        call_ends=(Head(literal(closer)),),
        special_tokens=(opener, closer, *key, *value),
        layout=Layout(opener + "{name}" + line, closer, separator=line),
        key_begin=f"{key[0]}{{key}}{key[1]}{line}{value[0]}",
        after_value=line,
    )


def _step(source: str) -> Markup:
    """As ``_invoke_in``, each in tokens of its own within those of the section."""
    section, call = (
        ("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
        ("<｜tool_call_begin｜>", "<｜tool_call_end｜>"),
    )
    sep, invoke, parameter = "<｜tool_sep｜>", '<steptml:invoke name="', '<steptml:parameter name="'
    head = (
        SPACE,
        literal(call[0]),
        r"[\w\s]{0,64}",
        literal(sep),
        SPACE,
        literal(invoke),
        NAME,
        literal('">'),
    )
    return Markup(
        source=source,
        openers=section[:1],
        places=(
            Place(
                Head(literal(section[0]), *head),
                again=(Head(*head),),
                between=(Head(SPACE, literal(call[1])),),
                ends=(Head(SPACE, literal(section[1])),),
            ),
        ),
        key=Head(literal(parameter), _KEY, literal('">')),
        value_ends=("</steptml:parameter>",),
        call_ends=(Head(literal("</steptml:invoke>")),),
        special_tokens=(*section, *call, sep),
        layout=Layout(
            f'{call[0]}function{sep}{invoke}{{name}}">\n',
            f"</steptml:invoke>{call[1]}\n",
            sections=[(section[0] + "\n", section[1])],
        ),
        key_begin=parameter + '{key}">',
        after_value="\n",
    )


_TEMPLATES = "ggml-org/llama.cpp: models/templates/"

FORMATS: dict[str, ToolFormat] = {
    "qwen3_coder": _function_in(
        "<tool_call>", "</tool_call>", newline=True, source=_TEMPLATES + "Qwen3-Coder.jinja"
    ),
    "seed_oss": _function_in(
        "<seed:tool_call>",
        "</seed:tool_call>",
        newline=False,
        source=_TEMPLATES + "ByteDance-Seed-OSS.jinja",
    ),
    "minimax_m2": _invoke_in(
        "<minimax:tool_call>", "</minimax:tool_call>", source=_TEMPLATES + "MiniMax-M2.jinja"
    ),
    "deepseek_v32": _invoke_in(
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        "｜DSML｜",
        typed=True,
        source=_TEMPLATES + "deepseek-ai-DeepSeek-V3.2.jinja",
    ),
    "deepseek_v4": _invoke_in(
        "<｜DSML｜tool_calls>",
        "</｜DSML｜tool_calls>",
        "｜DSML｜",
        typed=True,
        source=_TEMPLATES + "deepseek-ai-DeepSeek-V4.jinja",
    ),
    "glm45": _glm("\n", source=_TEMPLATES + "GLM-4.6.jinja"),
    "glm47": _glm("", source=_TEMPLATES + "GLM-4.7-Flash.jinja"),
    "longcat_xml": _glm("\n", "ml-explore/mlx-lm: mlx_lm/tool_parsers/longcat.py", "longcat_"),
    "step3": _step("sgl-project/sglang: python/sglang/srt/function_call/step3_detector.py"),
}
