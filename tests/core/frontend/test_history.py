"""Calls in the history as templates expect them, and what of a prompt an answer continues."""

from __future__ import annotations

from typing import Any

import pytest

from llmkit.frontend.chat_template import ChatTemplate
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
    assert opening(messages) == "</><assistant>"
    assert opening(messages, thinking=True) == "</><assistant><think>\n"


def test_the_opening_where_a_template_ends_conversations_with_a_mark() -> None:
    template = THINKS + "{% if not add_generation_prompt %}[EOS]{% endif %}"
    assert opening([{"role": "user", "content": "a<think>"}], template) == "</><assistant>"


def test_the_opening_of_a_message_that_is_continued() -> None:
    chat = ChatTemplate(THINKS, Bytes())
    messages = [{"role": "user", "content": "</think>"}, {"role": "assistant", "content": "<think>\nSo"}]
    prompt = chat.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert chat.opening(prompt, messages, continue_final_message=True) == "</><assistant><think>\nSo"


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(
            "{% if not add_generation_prompt %}{{ raise_exception('no') }}{% endif %}" + THINKS,
            id="takes no conversation without an answer to come",
        ),
        pytest.param("{% if add_generation_prompt %}answer:{% endif %}" + THINKS, id="differs early"),
        pytest.param(THINKS.replace("m.content", "m.content | trim"), id="trims"),
    ],
)
@pytest.mark.parametrize("text", ["<think>", "<think>\n", "", " ", "a" * 999 + "<assistant><think>"])
@pytest.mark.parametrize("role", ["user", "tool"])
def test_no_text_of_a_client_is_in_the_opening(template: str, role: str, text: str) -> None:
    assert opening([{"role": "user", "content": "<think>"}, {"role": role, "content": text}], template) == (
        "</><assistant>"
    )


def test_the_opening_behind_a_list_of_texts() -> None:
    template = THINKS.replace("m.content", "m.content[-1].text")
    parts = [{"type": "text", "text": "<think>"}, {"type": "text", "text": "b<think>"}]
    looping = "{% for m in messages %}{% for part in m.content %}{% endfor %}{% endfor %}" + template
    assert opening([{"role": "user", "content": parts}], looping) == "</><assistant>"


def test_the_opening_of_the_only_message_is_its_text() -> None:
    chat = ChatTemplate(THINKS, Bytes())
    messages = [{"role": "assistant", "content": "<think>\nSo"}]
    prompt = chat.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert chat.opening(prompt, messages, continue_final_message=True) == "<think>\nSo"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        pytest.param("{{ messages[-1].content | length }}<assistant>", {}, id="never shown"),
        pytest.param(
            "{% set text = messages[-1].content %}{{ text }}"
            "{% if text != 'hi' %}{{ raise_exception('') }}{% endif %}",
            {},
            id="particular about what it shows",
        ),
        pytest.param(
            "{% for m in messages %}{{ m.content }}{{ m.tool_calls }}<assistant>{% endfor %}",
            {"role": "assistant", "tool_calls": history("{}")[1]["tool_calls"]},
            id="calls behind the text",
        ),
    ],
)
def test_an_opening_that_cannot_be_told_is_empty(template: str, message: dict[str, Any]) -> None:
    assert opening([{"role": "user", "content": "hi", **message}], template) == ""
