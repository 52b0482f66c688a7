"""The table of formats: each can be made, and models are told by their templates."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from llmkit.contracts import ParserHints, ParserSpec, Tool
from llmkit.testing.components import create
from llmkit.testing.tool_parsers import parse
from llmkit_tool_parsers.plugin import OFFERED, recognizes

NAMES = [offered.name for offered in OFFERED]


def chosen(template: str, model_type: str = "", special_tokens: tuple[str, ...] = ()) -> str | None:
    """As ``auto`` chooses: the highest priority that recognizes the model; two of one are a fault here."""
    hints = ParserHints(template, frozenset(special_tokens), model_type)
    known = [offered for offered in OFFERED if recognizes(offered, hints) is not None]
    highest = [o.name for o in known if o.priority == max(k.priority for k in known)]
    assert len(highest) <= 1, highest
    return highest[0] if highest else None


@pytest.mark.parametrize("name", NAMES)
def test_each_can_be_made_and_reads_text(name: str) -> None:
    made = create("tool_parser", name)
    assert made.source == "" or ": " in made.source, "a repository or model, and a path or what it is"
    assert all(made.openers)
    assert parse(made, ["Some ", "text."], [Tool("f")]).content == "Some text."
    assert made.parser(ParserSpec()) is not made.parser(ParserSpec())


@pytest.mark.parametrize(
    ("name", "template", "model_type", "special_tokens"),
    [
        ("hermes", '<tool_call>\\n{"name": <name>, "arguments": <args>}\\n</tool_call>', "qwen2", ()),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call>', "llama", ("<|python_tag|>",)),
        ("llama3_json", '{"name": name, "parameters": dictionary}', "llama", ("<|python_tag|>",)),
        ("llama3_json", "<|python_tag|> {{- '\"parameters\": ' }}", "mllama", ()),
        ("mistral", '"[TOOL_CALLS]" + name + "[ARGS]" + arguments', "mistral", ()),
        ("mistral_list", '"[TOOL_CALLS][" + calls', "mistral", ("[TOOL_CALLS]",)),
        ("granite", "respond only with <|tool_call|> followed by a JSON list", "granite", ()),
        ("granite4", '<tool_call>\n{"name": <n>, "arguments": <a>}\n</tool_call>', "granitemoehybrid", ()),
        ("jamba", "<tool_calls>[", "jamba", ()),
        ("hunyuan_a13b", "<tool_calls>[", "hunyuan_v1_moe", ()),
        ("minimax_m1", "<tool_calls>\n{", "minimax_m1", ()),
        ("phi4_mini_json", "<|tool|>{{ tools }}<|/tool|>", "phi3", ()),
        ("internlm2", "{{ messages }}", "internlm2", ("<|action_start|>", "<|plugin|>")),
        ("longcat", '<longcat_tool_call>\n{"name": <n>, "arguments": <a>}', "longcat_flash", ()),
        ("longcat_xml", "<longcat_tool_call>{n}\n<longcat_arg_key>", "longcat_flash", ()),
        ("functiongemma", "<start_function_call>call:{name}{a:<escape>", "gemma3_text", ()),
        ("gemma4", "'<|tool_call>call:' + name + '{' + '<|\"|>'", "gemma4", ()),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=p> arguments", "qwen3_moe", ()),
        (None, "{{ messages }}", "llama", ("<|python_tag|>",)),
        (None, "", "", ()),
    ],
)
def test_a_model_is_told_by_its_template(
    name: str | None, template: str, model_type: str, special_tokens: tuple[str, ...]
) -> None:
    assert chosen(template, model_type, special_tokens) == name


def test_the_reason_says_what_was_seen() -> None:
    (granite,) = (offered for offered in OFFERED if offered.name == "granite")
    reason = recognizes(granite, ParserHints("<|tool_call|>", frozenset(), "granite"))
    assert reason == "the model type is granite, its template or tokens have <|tool_call|>"


def test_no_format_needs_torch() -> None:
    code = (
        "import json, sys\n"
        "from llmkit_tool_parsers.plugin import OFFERED, make\n"
        "made = [make(offered, None) for offered in OFFERED]\n"
        "print(json.dumps(sorted({'torch', 'transformers'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == []
