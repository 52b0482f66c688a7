"""Calls in the history as templates expect them, and what of a prompt an answer continues."""

from __future__ import annotations

from typing import Any

import pytest

from llmkit.frontend.chat_template import OPENING_CHARS, ChatTemplate
from tests.core.frontend.toy_tokenizers import Bytes

CALL_ID = "call_0123456789abcdef"


def history(arguments: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": CALL_ID, "type": "function", "function": {"name": "f", "arguments": arguments}}
            ],
        },
        {"role": "tool", "tool_call_id": CALL_ID, "content": "r"},
    ]


EACH = "{% for m in messages %}{% for c in m.tool_calls or [] %}BODY{% endfor %}{% endfor %}"


@pytest.mark.parametrize("given", ['{"a": "é"}', {"a": "é"}])
@pytest.mark.parametrize(
    ("body", "shown"),
    [
        pytest.param("{{ c.function.arguments }}", '{"a": "é"}', id="printed"),
        pytest.param("{{ 'x' + c['function']['arguments'] }}", 'x{"a": "é"}', id="added"),
        pytest.param("{% set a = c.function.arguments %}{{ 'x' ~ a }}", 'x{"a": "é"}', id="joined"),
        pytest.param("{{ c.function.arguments | tojson }}", '{"a": "é"}', id="written-as-json"),
        pytest.param("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}", "a=é"),
        pytest.param("{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}", "a=é"),
        pytest.param(
            "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}"
            "{{ c.function.arguments | tojson }}{% endif %}",
            '{"a": "é"}',
            id="it-looks",
        ),
    ],
)
def test_arguments_are_what_the_template_takes(body: str, shown: str, given: Any) -> None:
    chat = ChatTemplate(EACH.replace("BODY", body), Bytes())
    assert chat.render(history(given)) == shown


def test_arguments_that_are_no_object_stay_as_the_model_wrote_them() -> None:
    chat = ChatTemplate(EACH.replace("BODY", "{{ c.function.arguments | tojson }}"), Bytes())
    assert chat.render(history("[1")) == '"[1"'


IDS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }} {% endfor %}"
    "{{ m.tool_call_id }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        pytest.param("", CALL_ID, id="any"),
        pytest.param("{% if 'x' | length != 9 %}{% endif %}", "789abcdef", id="nine"),
        pytest.param("{{ '<|tool_call_argument_begin|>'[:0] }}", "functions.f:0", id="function"),
    ],
)
def test_ids_are_what_the_template_takes(more: str, shown: str) -> None:
    chat = ChatTemplate(IDS + more, Bytes())
    assert chat.render(history("{}")) == f"{shown} {shown}"


def test_short_ids_are_filled_up() -> None:
    chat = ChatTemplate(IDS + "{% if 'x' | length != 9 %}{% endif %}", Bytes())
    messages = history("{}")
    messages[1]["tool_calls"][0]["id"] = messages[2]["tool_call_id"] = "c-1"
    assert chat.render(messages) == "0000000c1 0000000c1"


THINKS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if thinking %}<think>\n{% endif %}{% endif %}"
)


def opening(messages: list[dict[str, Any]], template: str = THINKS, **args: Any) -> str:
    chat = ChatTemplate(template, Bytes())
    prompt = chat.render(messages, template_args=args)
    return chat.opening(prompt, messages, template_args=args)


def test_the_opening_is_what_the_template_wrote_behind_the_messages() -> None:
    """Whatever marker a client's own text holds."""
    messages = [{"role": "user", "content": "what is <think>?"}]
    assert opening(messages) == "<assistant>"
    assert opening(messages, thinking=True) == "<assistant><think>\n"


def test_the_opening_where_a_template_ends_conversations_with_a_mark() -> None:
    template = THINKS + "{% if not add_generation_prompt %}[EOS]{% endif %}"
    assert opening([{"role": "user", "content": "a<think>"}], template) == "<assistant>"


def test_the_opening_of_a_message_that_is_continued() -> None:
    chat = ChatTemplate(THINKS, Bytes())
    messages = [{"role": "user", "content": "</think>"}, {"role": "assistant", "content": "<think>\nSo"}]
    prompt = chat.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert chat.opening(prompt, messages, continue_final_message=True) == "<assistant><think>\nSo"


def test_the_opening_where_the_beginning_is_refused() -> None:
    template = "{% if not add_generation_prompt %}{{ raise_exception('no') }}{% endif %}" + THINKS
    assert opening([{"role": "user", "content": "a" * 999}], template) == (
        "a" * (OPENING_CHARS - len("</><assistant>")) + "</><assistant>"
    )
