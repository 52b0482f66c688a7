"""Chat templates: messages and tools to a prompt, in a sandbox of our own.

Renders what transformers' ``apply_chat_template`` renders, without importing it, and adds what a server
needs: requests are normalised to what the template understands, a template's refusal is a
:class:`RequestError`, and a template cannot run or grow without bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import jinja2
from jinja2 import meta, nodes

from llmkit.contracts.tokenizer import Tokenizer
from llmkit.errors import CheckpointError, RequestError
from llmkit.frontend.fields import check_text, shown
from llmkit.frontend.history import CallForm, as_calls
from llmkit.frontend.template_limits import budget
from llmkit.frontend.template_sandbox import TEMPLATE_FAULTS, Sandbox
from llmkit.text import listing

MAX_TEMPLATE_CHARS = 1 << 20
MAX_PROMPT_CHARS = 1 << 24
MAX_FAULT_CHARS = 500
"""Of a template's own words in an error."""

ContentFormat = Literal["string", "parts", "either"]
"""What a template takes as a message's ``content``: text, a list of parts, or it looks which."""

_PROTECTED = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "messages",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
    }
)
MAX_DEPTH = 64
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""Of what a message or an argument nests."""
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
_END_MARK = "END_OF_LAST_MESSAGE_TAG"
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


class ChatTemplate:
    """One model's chat template, compiled once; implements ``ChatRenderer``.

    Immutable, so safe in several threads.
    """

    def __init__(self, template: str, tokenizer: Tokenizer, *, content_format: str = "auto") -> None:
        """``content_format``: ``string`` or ``openai`` where the template is not to be asked.

        :raises CheckpointError: it is no valid Jinja, or far too long or deep.
        """
        if len(template) > MAX_TEMPLATE_CHARS:
            raise CheckpointError(
                f"the chat template has {len(template)} characters; at most {MAX_TEMPLATE_CHARS} are read"
            )
        sandbox = Sandbox()
        try:
            with budget():  # what is constant is computed now
                tree = sandbox.parse(template)
                self._template = sandbox.from_string(template)
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(
                f"the chat template is not valid Jinja: line {error.lineno}: {error.message}"
            ) from None
        except (*TEMPLATE_FAULTS, SyntaxError, MemoryError) as error:
            raise CheckpointError(
                f"the chat template does not compile: {_words(error)[:MAX_FAULT_CHARS]}"
            ) from None
        self._tokenizer = tokenizer
        self._protected = _PROTECTED | set(tokenizer.special_tokens) | set(sandbox.globals)
        self._knows_developer = "developer" in template
        self._reads_documents = "documents" in meta.find_undeclared_variables(tree)
        forced: dict[str, ContentFormat] = {"string": "string", "openai": "parts"}
        self.content_format: ContentFormat = forced.get(content_format) or _content_format(tree)
        self._call_form = CallForm.of(template, tree)
        self._no_content = None if _wants_none(tree) else ""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_args: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text.

        ``continue_final_message`` leaves the last message open and needs ``add_generation_prompt=False``.
        :raises RequestError: in the template's own words, or a protected argument was given.
        """
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other: one leaves the last "
                "message open, the other begins a new one",
                param="continue_final_message",
            )
        chat = self._chat(messages)
        final = _mark_final(chat) if continue_final_message else ""
        text = self._run(chat, tools, add_generation_prompt, template_args)
        check_text("messages", text)
        return _cut_at_mark(text, final) if continue_final_message else text

    def render_ids(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """As :meth:`render`, encoded without adding special tokens: the template writes its own BOS."""
        return self._tokenizer.encode(self.render(messages, **options), add_special_tokens=False)

    def opening(
        self,
        prompt: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        template_args: Mapping[str, Any] | None = None,
    ) -> str:
        """What of ``prompt`` the answer continues, as ``contracts.ChatRenderer.opening``.

        Told by rendering once more with a mark at the end of the last message, so that no marker in a
        client's own text can be mistaken for one that the template wrote.
        """
        chat = self._chat(messages)
        final = _mark_final(chat) if continue_final_message else ""
        earlier = chat[:-1] if continue_final_message else chat
        if not earlier:
            return final if prompt.endswith(final) else ""
        if earlier[-1].get("tool_calls") or _append(earlier[-1], _END_MARK) is None:
            return ""  # it does not end with a text
        try:
            text = self._run(chat, tools, not continue_final_message, template_args)
            marked = _cut_at_mark(text, final) if continue_final_message else text
        except RequestError:  # a template that looks at what messages end with
            return ""
        _, found, behind = marked.rpartition(_END_MARK)
        return behind if found and prompt.endswith(behind) else ""

    def _refuse_protected(self, arguments: Mapping[str, Any]) -> None:
        taken = sorted(self._protected & arguments.keys())
        if taken:
            raise RequestError(
                f"chat_template_kwargs may not set {listing(taken)}: the server sets it",
                param=f"chat_template_kwargs.{taken[0]}",
            )

    def _prepared(self, message: Mapping[str, Any], where: str) -> dict[str, Any]:
        """A fresh copy in the shape this template understands."""
        if not isinstance(message, Mapping):
            raise RequestError(f"{where} is {type(message).__name__}; a message is an object", param=where)
        # A missing key reads better than None: templates print `None` or fail on it.
        fresh = {key: _plain(value, where) for key, value in message.items() if value is not None}
        if fresh.get("role") not in ROLES:
            raise RequestError(
                f"{where}.role is {shown(fresh.get('role'))}; it may be {listing(ROLES)}",
                param=f"{where}.role",
            )
        if fresh.get("role") == "assistant":
            if not fresh.get("content") and isinstance(fresh.get("refusal"), str):
                fresh["content"] = fresh["refusal"]
            # A turn of calls alone has no content; templates read it, most as text, some ask if it is none.
            fresh.setdefault("content", self._no_content)
        if fresh.get("role") == "developer" and not self._knows_developer:
            fresh["role"] = "system"
        content = fresh.get("content")
        if isinstance(content, list):
            _check_parts(content, f"{where}.content")
            if self.content_format == "string":
                fresh["content"] = "\n".join(_part_text(part) for part in content)
        elif isinstance(content, str) and self.content_format == "parts":
            fresh["content"] = [{"type": "text", "text": content}]
        reasoning = next((fresh[key] for key in _REASONING_FIELDS if key in fresh), None)
        if reasoning is not None:
            # Clients use three names; templates read the first, gpt-oss the second.
            fresh = {"thinking": reasoning, **fresh, "reasoning_content": reasoning}
        return fresh

    def _chat(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Fresh copies in the shape this template understands."""
        chat = [self._prepared(message, f"messages[{i}]") for i, message in enumerate(messages)]
        as_calls(chat)
        self._call_form.apply(chat)
        return chat

    def _run(
        self,
        chat: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        template_args: Mapping[str, Any] | None,
    ) -> str:
        arguments = dict(template_args or {})
        self._refuse_protected(arguments)
        if arguments.get("documents") and not self._reads_documents:
            raise RequestError(
                "documents: this model's chat template reads none; put them in a message",
                param="documents",
                code="unsupported_parameter",
            )
        variables = {
            **self._tokenizer.special_tokens,
            "documents": None,
            **_plain(arguments, "chat_template_kwargs"),
            "messages": chat,
            "tools": None if tools is None else _plain(tools, "tools"),
            "add_generation_prompt": add_generation_prompt,
        }
        pieces: list[str] = []
        size = 0
        try:
            with budget():
                for piece in self._template.generate(variables):
                    pieces.append(piece)
                    size += len(piece)
                    if size > MAX_PROMPT_CHARS:
                        raise RequestError(
                            f"the rendered prompt passes {MAX_PROMPT_CHARS} characters", param="messages"
                        )
        except TEMPLATE_FAULTS as error:
            # A conversation the template refuses or cannot handle; its words say which.
            raise RequestError(
                f"chat template: {_words(error)[:MAX_FAULT_CHARS]}", param="messages"
            ) from error
        return "".join(pieces)


def _words(error: BaseException) -> str:
    if isinstance(error, jinja2.TemplateError):
        return error.message or type(error).__name__
    if isinstance(error, RecursionError):
        return "the template recurses without end"
    return f"{type(error).__name__}: {error}"


def _plain(value: Any, param: str, depth: int = 0) -> Any:
    """A deep copy of JSON data: a template sees no object with methods of its own."""
    if depth > MAX_DEPTH:
        raise RequestError(f"{param} is nested more than {MAX_DEPTH} deep", param=param)
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, param, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(item, param, depth + 1) for item in value]
    raise RequestError(
        f"{param} has a {type(value).__name__}, which is no JSON value; a chat template takes only those",
        param=param,
    )


def _check_parts(parts: list[Any], where: str) -> None:
    for i, part in enumerate(parts):
        kind = part.get("type", "text") if isinstance(part, dict) else type(part).__name__
        field = _TEXT_PARTS.get(kind)
        if field is None:
            raise RequestError(
                f"{where}[{i}] is {kind!r}; this model takes text parts only", param=f"{where}[{i}]"
            )
        if not isinstance(part.get(field), str):
            raise RequestError(
                f"{where}[{i}].{field} must be a string in a part of type {kind!r}",
                param=f"{where}[{i}].{field}",
            )


def _part_text(part: dict[str, Any]) -> str:
    text: str = part[_TEXT_PARTS[part.get("type", "text")]]
    return text


def _mark_final(chat: list[dict[str, Any]]) -> str:
    """Mark the end of the last message's text; gives the text without the mark."""
    if not chat:
        raise RequestError("continue_final_message needs a message to continue", param="messages")
    calls = chat[-1].get("tool_calls")
    text = None if calls else _append(chat[-1], _CONTINUE_MARK)
    if text is None:
        why = "calls behind its text" if calls else "no text to continue"
        raise RequestError(
            f"continue_final_message: the last message has {why}",
            param=f"messages[{len(chat) - 1}].content",
        )
    return text


def _append(message: dict[str, Any], mark: str) -> str | None:
    """Lengthen a message's last text; gives what it was, None where the message has none."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + mark
        return content
    for part in reversed(content if isinstance(content, list) else []):
        if isinstance(part.get("text"), str):
            text: str = part["text"]
            part["text"] = text + mark
            return text
    return None


def _cut_at_mark(text: str, final: str) -> str:
    """The prompt up to the end of the message that is continued."""
    mark = _CONTINUE_MARK.strip()
    at = text.rfind(mark)
    if at < 0 or final.strip() not in text:
        raise RequestError(
            "continue_final_message: the chat template changes or drops the last message, so it cannot be "
            "continued",
            param="continue_final_message",
        )
    # A template that trims the message took the mark's own space away, and the message's.
    return text[:at] if text.startswith(_CONTINUE_MARK, at) else text[:at].rstrip()


def _content_format(tree: nodes.Template) -> ContentFormat:
    """A template that loops over ``content`` takes parts; one that tests it for a string takes either."""
    names = {"content"}
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, names):
            names.add(assign.target.name)
    if not any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For)):
        return "string"
    looks = any(
        test.name in ("string", "iterable", "sequence", "mapping") and _is_content(test.node, names)
        for test in tree.find_all(nodes.Test)
    )
    return "either" if looks else "parts"


def _wants_none(tree: nodes.Template) -> bool:
    """Whether a turn without content has none for this template, rather than an empty text."""
    content = {"content"}
    tests = (test for test in tree.find_all(nodes.Test) if test.name == "none")
    empties = (
        compared
        for compared in tree.find_all(nodes.Compare)
        if any(isinstance(other.expr, nodes.Const) and other.expr.value == "" for other in compared.ops)
    )
    return any(_is_content(test.node, content) for test in tests) and not any(
        _is_content(compared.expr, content) for compared in empties
    )


def _is_content(node: nodes.Node, names: set[str]) -> bool:
    for inner in _alternatives(node):
        if isinstance(inner, nodes.Name) and inner.name in names:
            return True
        if isinstance(inner, nodes.Getattr) and inner.attr == "content":
            return True
        if (
            isinstance(inner, nodes.Getitem)
            and isinstance(inner.arg, nodes.Const)
            and inner.arg.value == "content"
        ):
            return True
    return False


def _alternatives(node: nodes.Node) -> Iterator[nodes.Node]:
    """The expressions whose value ``node`` may be, through filters, slices and conditions."""
    if isinstance(node, nodes.Filter) and node.node is not None:
        yield from _alternatives(node.node)
    elif isinstance(node, nodes.CondExpr):
        yield from _alternatives(node.expr1)
        if node.expr2 is not None:
            yield from _alternatives(node.expr2)
    elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        yield from _alternatives(node.node)
    else:
        yield node
