from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest

from llmkit import CheckpointError, RequestError
from llmkit.contracts import CheckpointInfo, ModelFiles, Tokenizer, TokenizerSpec
from llmkit.frontend.chat_template import MAX_PROMPT_CHARS, ChatTemplate
from llmkit.testing import bytes_tokenizer
from llmkit_loaders.fast_tokenizer import open_tokenizer

# In the manner of the well-known families, written for these tests.
TEMPLATES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted(Path(__file__).with_name("templates").glob("*.jinja"))
}
USER = {"role": "user", "content": "What's the <b>weather</b> in Köln & Paris? 🙂 "}
ANSWER = {"role": "assistant", "content": " It's 21 °C.\n"}
SYSTEM = {"role": "system", "content": "Be brief."}
AGAIN = {"role": "user", "content": 'And "tomorrow"?'}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": "Köln", "days": 2}},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": '{"t": 21}'}
THOUGHT = {"role": "assistant", "content": "Sunny.", "reasoning_content": "It is July."}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Looks <up> the weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "array", "items": {"type": "integer"}},
                },
                "required": ["city"],
            },
        },
    }
]
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "one": ([USER], {}),
    "turns": ([USER, ANSWER, AGAIN], {}),
    "system": ([SYSTEM, USER, ANSWER, AGAIN], {}),
    "closed": ([USER, ANSWER], {"add_generation_prompt": False}),
    "tools": ([USER, CALL, RESULT], {"tools": TOOLS}),
    "thinking": ([USER, THOUGHT], {"add_generation_prompt": False}),
    "arguments": ([USER], {"template_args": {"enable_thinking": False, "date_string": "1 May 2025"}}),
    "documents": ([USER], {"template_args": {"documents": [{"title": "t", "text": "facts"}]}}),
    "continued": (
        [USER, {"role": "assistant", "content": "Once there"}],
        {"add_generation_prompt": False, "continue_final_message": True},
    ),
    "continued after space": (
        [USER, {"role": "assistant", "content": "Once there "}],
        {"add_generation_prompt": False, "continue_final_message": True},
    ),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bytes_tokenizer.write(tmp_path_factory.mktemp("bytes"), add_bos=True)


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return open_tokenizer(TokenizerSpec(ModelFiles(str(directory), "m", "test"), CheckpointInfo("X", {})))


@pytest.fixture(scope="module")
def reference(directory: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_what_transformers_renders(
    tokenizer: Tokenizer, reference: Any, name: str, conversation: str
) -> None:
    messages, options = CONVERSATIONS[conversation]
    template = TEMPLATES[name]
    # A template that knows no calls gets empty text, where transformers fails on a turn without any.
    filled = [m | {"content": m["content"] or ""} for m in messages]
    expected = by_transformers(reference, template, messages if "tool_calls" in template else filled, options)
    chat = ChatTemplate(template, tokenizer)
    if conversation == "documents" and "documents" not in template:
        with pytest.raises(RequestError, match="reads none"):
            chat.render(messages, **options)
    elif isinstance(expected, jinja2.TemplateError | ValueError | TypeError):
        with pytest.raises(RequestError, match=r"template|continue") as caught:
            chat.render(messages, **options)
        assert caught.value.status == 400
        assert not isinstance(expected, jinja2.TemplateError) or str(expected) in str(caught.value)
    else:
        assert chat.render(messages, **options) == expected
        assert chat.render_ids(messages, **options) == reference.encode(expected, add_special_tokens=False)


def by_transformers(
    reference: Any, template: str, messages: list[dict[str, Any]], options: dict[str, Any]
) -> str | Exception:
    rest = {key: value for key, value in options.items() if key != "template_args"}
    arguments = {"add_generation_prompt": True, **rest, **options.get("template_args", {})}
    try:
        text: str = reference.apply_chat_template(
            messages, chat_template=template, tokenize=False, **arguments
        )
    except (jinja2.TemplateError, ValueError, TypeError) as error:
        return error
    return text


def test_most_conversations_render(tokenizer: Tokenizer) -> None:
    # Keeps the comparison above from passing because both sides refuse.
    rendered = refused = 0
    for template in TEMPLATES.values():
        for messages, options in CONVERSATIONS.values():
            try:
                ChatTemplate(template, tokenizer).render(messages, **options)
                rendered += 1
            except RequestError:
                refused += 1
    assert rendered > 120 > 40 > refused


# vllm-project/vllm#17119
def test_a_template_s_refusal_is_a_bad_request_in_its_own_words(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="conversation roles must alternate") as caught:
        ChatTemplate(TEMPLATES["mistral"], tokenizer).render([USER, AGAIN])
    assert (caught.value.status, caught.value.param) == (400, "messages")


# ggml-org/llama.cpp#20215
def test_developer_becomes_system_where_the_template_does_not_know_it(tokenizer: Tokenizer) -> None:
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert "<|im_start|>system\nBe brief." in ChatTemplate(TEMPLATES["chatml"], tokenizer).render(messages)
    knows = "{% for m in messages %}{% if m.role == 'developer' %}DEV{% endif %}{{ m.role }} {% endfor %}"
    assert ChatTemplate(knows, tokenizer).render(messages) == "DEVdeveloper user "


# sgl-project/sglang#22595
def test_parts_read_as_text_where_the_template_takes_strings(tokenizer: Tokenizer) -> None:
    chat = ChatTemplate(TEMPLATES["qwen2.5"], tokenizer)
    call = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": "{}"}}
    before = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": [call]}]

    def rendered(content: Any) -> str:
        return chat.render([*before, {"role": "tool", "tool_call_id": "c1", "content": content}])

    text = rendered([{"type": "text", "text": "87 m"}])
    assert text == rendered("87 m")
    assert "87 m" in text
    assert "[{" not in text
    assert "'type'" not in text
    assert rendered([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) == rendered("a\nb")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (TEMPLATES["chatml"], "string"),
        (TEMPLATES["llama3"], "string"),
        (TEMPLATES["qwen3"], "string"),
        (TEMPLATES["deepseek"], "string"),
        (TEMPLATES["parts"], "either"),
        ("{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}", "parts"),
        (
            "{% for m in messages %}{% set c = m.content %}{% for p in c %}{{ p.text }}{% endfor %}"
            "{% endfor %}",
            "parts",
        ),
        (
            "{% for m in messages %}{% for p in m.content | selectattr('type', 'equalto', 'text') %}"
            "{{ p.text }}{% endfor %}{% endfor %}",
            "parts",
        ),
        (
            "{% macro show(content) %}{% if content is string %}{{ content }}{% else %}{% for p in content %}"
            "{{ p.text }}{% endfor %}{% endif %}{% endmacro %}"
            "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
            "either",
        ),
    ],
)
def test_what_a_template_takes_as_content(tokenizer: Tokenizer, template: str, expected: str) -> None:
    chat = ChatTemplate(template, tokenizer)
    assert chat.content_format == expected
    as_text = chat.render([{"role": "user", "content": "hello"}])
    assert "hello" in as_text
    assert chat.render([{"role": "user", "content": [{"type": "text", "text": "hello"}]}]) == as_text


def test_parts_that_are_no_text_are_refused_by_place(tokenizer: Tokenizer) -> None:
    messages = [
        USER,
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]},
    ]
    with pytest.raises(RequestError, match="'image_url'") as caught:
        ChatTemplate(TEMPLATES["chatml"], tokenizer).render(messages)
    assert caught.value.param == "messages[1].content[1]"


# vllm-project/vllm#55288
def test_bos_that_the_template_writes_is_not_added_again(tokenizer: Tokenizer) -> None:
    ids = ChatTemplate(TEMPLATES["llama3"], tokenizer).render_ids([USER])
    assert ids.count(bytes_tokenizer.BOS_ID) == 1
    assert tokenizer.encode("x")[0] == bytes_tokenizer.BOS_ID


# vllm-project/vllm#25794
@pytest.mark.parametrize(
    "name",
    [
        "chat_template",
        "messages",
        "tools",
        "tokenize",
        "add_generation_prompt",
        "bos_token",
        "raise_exception",
        "range",
    ],
)
def test_protected_arguments_are_refused(tokenizer: Tokenizer, name: str) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        ChatTemplate(TEMPLATES["qwen3"], tokenizer).render([USER], template_args={name: "x"})
    assert (caught.value.status, caught.value.param) == (400, f"chat_template_kwargs.{name}")


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in messages[0].name %}{% for b in messages[0].name %}{% for c in messages[0].name %}"
        "{% endfor %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ 'x' * 10**10 }}",
        "{{ [0] * 10**10 }}",
        "{{ 9 ** 999999999 }}",
        "{% for i in range(90000) %}{{ messages[0].content }}{% endfor %}",
        "".join(f"{{% for {name} in {list(range(300))} %}}" for name in "abc")
        + "{% endfor %}{% endfor %}{% endfor %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages.pop() }}",
        "{{ messages[:].append(1) }}",
        "{{ [messages][0].append(1) }}",
        "{{ [1].extend([2]) }}",
        "{{ [].pop() }}",
        "{{ {}.update({1: 2}) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ 1 + 'a' }}",
        "{{ messages[0].content.nothing.more }}",
    ],
)
def test_a_template_cannot_run_grow_or_break_out(tokenizer: Tokenizer, template: str) -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(template, tokenizer).render([{"role": "user", "content": "x" * 400, "name": "y" * 400}])
    assert caught.value.status == 400


def test_a_template_may_keep_a_queue_of_its_own(tokenizer: Tokenizer) -> None:
    template = (
        "{% set ns = namespace(ids=['c0']) %}{% for m in messages %}{% set _ = ns.ids.append(m.content) %}"
        "{% endfor %}{{ ns.ids.pop(0) }} {{ ns.ids }} {{ ns.ids | tojson }} {{ ns.ids == ['hi'] }}"
    )
    chat = ChatTemplate(template, tokenizer)
    for _ in range(2):  # what one rendering kept, the next has not
        assert chat.render([{"role": "user", "content": "hi"}]) == "c0 ['hi'] [\"hi\"] True"


DOUBLE = "{%% set ns = namespace(v=%s, w=%s) %%}{%% for i in range(40) %%}%s{%% endfor %%}%s"
LONG = "{% set x = 'xy' * 4000000 %}{% set ns = namespace(v=[]) %}"
BOMBS = [
    *(
        DOUBLE % ("'xy'", "0", "{% set ns.v = " + doubled + " %}", "")
        for doubled in (
            "ns.v + ns.v",
            "ns.v ~ ns.v",
            "ns.v * 2",
            "'%s%s' % (ns.v, ns.v)",
            "'{0}{0}'.format(ns.v)",
            "'{v}{v}'.format_map({'v': ns.v})",
            "'%s%s' | format(ns.v, ns.v)",
            "[ns.v, ns.v] | join",
            "''.join([ns.v, ns.v])",
            "ns.v | replace('x', 'xx')",
            "ns.v.replace('', 'x')",
            "ns.v.translate({120: 'xx', 121: 'yy'})",
            "(ns.v | safe) + (ns.v | safe)",
            "ns.v | indent(ns.v | length, true)",
        )
    ),
    DOUBLE % ("'x'", "0", "{% set ns.v %}{{ ns.v }}{{ ns.v }}{% endset %}", ""),
    DOUBLE % ("[0]", "0", "{% set ns.v = ns.v + ns.v %}", ""),
    DOUBLE % ("3", "0", "{% set ns.v = ns.v * ns.v %}", ""),
    "{% set x = [1] %}{% for a in x %}{% set _ = x.append(a) %}{% endfor %}",
    *(
        "{% set x = [] %}{% set _ = x.append(x) %}{{ x " + use + " }}"
        for use in ("", "| tojson", "| join", "| string | length", "== [x]")
    ),
    *(
        DOUBLE % ("[]", "[]", "{% set ns.v = [ns.v, ns.v] %}{% set ns.w = [ns.w, ns.w] %}", use)
        for use in (
            "{{ ns.v }}",
            "{{ ns }}",
            "{{ ns.v == ns.w }}",
            "{{ ns.v | string | length }}",
            "{{ ns.v | tojson | length }}",
            "{{ ns.v | pprint | length }}",
            "{{ '{}'.format(ns.v) | length }}",
            "{{ '{!r}'.format(ns.v) | length }}",
            "{{ ('%s' % (ns.v,)) | length }}",
            "{{ (ns.v ~ '') | length }}",
        )
    ),
    *(
        "{% set x = " + value + " %}"
        for value in (
            "'a'.ljust(9999999999)",
            "'a'.rjust(width=9999999999)",
            "('a' | safe).center(9999999999)",
            "'a'.zfill(9999999999)",
            "'\\t'.expandtabs(9999999999)",
            "'a' | center(9999999999)",
            "['a'] | map('center', 9999999999) | join",
            "'a' | indent(9999999999, true)",
            "'%9999999999d' % 1",
            "'%.9999999999f' % 1",
            "'%*d' % (9999999999, 1)",
            "'%((a))9999999999d' % {'(a)': 1}",
            "'%9999999999s' | format('a')",
            "'{:9999999999}'.format('a')",
            "'{:{}}'.format('a', 9999999999)",
            "[1] | batch(9999999999, 'x') | list",
            "[1] | slice(9999999999) | list",
            "[[1]] | tojson(indent=9999999999)",
            "1.5 | round(999999999, 'ceil')",
            "(1).to_bytes(9999999999, 'big')",
            "'a' * 9999999999",
            "([range(50000) | list] * 5000) | sum(start=[])",
        )
    ),
    LONG + "{% for i in range(9999) %}{% set ns.v = [ns.v, x[i:]] %}{% endfor %}",
    LONG + "{% for i in range(9999) %}{% set ns.v = [ns.v, x | upper] %}{% endfor %}",
    LONG + "{% set y %}{% for i in range(99999) %}{{ x }}{% endfor %}{% endset %}",
    "{% set y %}{% for i in range(99999) %}" + "x" * 99_999 + "{% endfor %}{% endset %}",
]


def test_no_template_fills_the_memory(directory: Path) -> None:
    """In a process that may take a gibibyte, so that a hole is a failure and not the machine's end."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.core.frontend.template_bombs", str(directory)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        timeout=300,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


def test_what_the_bounds_watch_still_works(tokenizer: Tokenizer) -> None:
    template = (
        "{{ 'a' | center(5) }}|{{ 'a'.ljust(3) }}|{{ '%-3s%02d' % ('b', 7) }}|"
        "{{ '{:>3}{}'.format('c', [1]) }}|"
        "{{ 'x\ny' | indent(2) }}|{{ [1, 'b'] | join(', ') }}|{{ 'aba' | replace('a', 'cc', 1) }}|"
        "{{ [[1], [2]] | sum(start=[]) }}|{{ {'k': [1]} | tojson(indent=1) }}|{{ 2.45 | round(1) }}|"
        "{{ [1, 2, 3][1:] }}|{{ 'a' ~ 1 ~ none }}|{{ [1] + [2] == [1, 2] }}|{{ 2 ** 10 * 3 }}|{{ 7 % 4 }}|"
        "{{ range(5) | batch(2, 'x') | list }}|{{ ', '.join(messages | map(attribute='role')) }}"
    )
    assert ChatTemplate(template, tokenizer).render([USER]) == (
        '  a  |a  |b  07|  c[1]|x\n  y|1, b|ccba|[1, 2]|{\n "k": [\n  1\n ]\n}|2.5|'
        "[2, 3]|a1None|True|3072|3|[[0, 1], [2, 3], [4, 'x']]|user"
    )


def test_a_prompt_has_a_largest_size(tokenizer: Tokenizer) -> None:
    long = [{"role": "user", "content": "x" * (MAX_PROMPT_CHARS + 1)}]
    with pytest.raises(RequestError, match=str(MAX_PROMPT_CHARS)):
        ChatTemplate(TEMPLATES["chatml"], tokenizer).render(long)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": [1, 2]}', '{"a": [1, 2]}'),
        ("", "{}"),
        ({"a": 1}, '{"a": 1}'),
        ("{broken", '"{broken"'),
        ("[1]", '"[1]"'),
    ],
)
def test_arguments_reach_the_template_as_an_object(
    tokenizer: Tokenizer, arguments: Any, expected: str
) -> None:
    template = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "tool_calls": [call]}
    assert ChatTemplate(template, tokenizer).render([message]) == expected
    assert call["function"]["arguments"] == arguments, "the caller's message was changed"


def test_continuing_and_beginning_exclude_each_other(tokenizer: Tokenizer) -> None:
    chat = ChatTemplate(TEMPLATES["chatml"], tokenizer)
    with pytest.raises(RequestError, match="exclude each other"):
        chat.render([USER, ANSWER], continue_final_message=True)
    with pytest.raises(RequestError, match="no text to continue"):
        chat.render([{"role": "user"}], continue_final_message=True, add_generation_prompt=False)
    with pytest.raises(RequestError, match="calls behind its text"):
        chat.render([USER, CALL], continue_final_message=True, add_generation_prompt=False)
    drops = ChatTemplate("{{ messages[0].content }}", tokenizer)
    with pytest.raises(RequestError, match="changes or drops"):
        drops.render([USER, ANSWER], continue_final_message=True, add_generation_prompt=False)


def test_a_broken_template_is_refused_at_start(tokenizer: Tokenizer) -> None:
    with pytest.raises(CheckpointError, match="line 2"):
        ChatTemplate("\n{% for %}", tokenizer)
    with pytest.raises(CheckpointError, match="characters"):
        ChatTemplate("x" * (1 << 21), tokenizer)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        pytest.param("{{ m.content ~ '|' ~ m.tool_calls[0].function.name }}", "|f", id="text"),
        pytest.param("{{ m.content is none }} {{ m.tool_calls|length }}", "True 1", id="asks-for-none"),
        pytest.param(
            "{{ m.content is none or m.content == '' }} {{ m.content|length }} {{ m.tool_calls|length }}",
            "True 0 1",
            id="takes-both",
        ),
    ],
)
@pytest.mark.parametrize("content", [{}, {"content": None}], ids=["absent", "null"])
def test_a_turn_of_calls_alone_has_the_content_that_the_template_reads(
    tokenizer: Tokenizer, template: str, expected: str, content: dict[str, Any]
) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat = ChatTemplate("{% for m in messages %}" + template + "{% endfor %}", tokenizer)
    shown = chat.render([{"role": "assistant", "tool_calls": [call], **content}], add_generation_prompt=False)
    assert expected in shown
