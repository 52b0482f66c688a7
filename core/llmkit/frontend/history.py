"""Calls in a conversation's history, in the form that a chat template expects them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import nodes

IdForm = Literal["any", "nine", "function"]
"""``any``: as the client has them. ``nine``: nine letters and digits, as Mistral's templates demand.
``function``: ``functions.NAME:N``, which Kimi's models know calls by."""

_NINE = 9


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a template writes the calls of earlier turns."""

    arguments_as_text: bool
    """It prints arguments as they are; others take an object, or look which it is."""
    ids: IdForm

    @staticmethod
    def of(template: str, tree: nodes.Template) -> CallForm:
        """Told from the template's code; it is not run."""
        return CallForm(_prints_arguments(tree), _id_form(template))

    def apply(self, chat: Sequence[dict[str, Any]]) -> None:
        """Change the calls, and the ids that results name, in place; what has another shape stays."""
        ids: dict[str, str] = {}
        count = 0
        for message in chat:
            for call in _calls(message):
                self._shape_arguments(call["function"])
                if isinstance(call.get("id"), str):
                    ids[call["id"]] = call["id"] = self._id(call, count)
                count += 1
            if isinstance(message.get("tool_call_id"), str):
                message["tool_call_id"] = ids.get(message["tool_call_id"], message["tool_call_id"])

    def _id(self, call: dict[str, Any], place: int) -> str:
        given: str = call["id"]
        if self.ids == "nine":
            kept = re.sub(r"[^A-Za-z0-9]", "", given)[-_NINE:]
            return kept.rjust(_NINE, "0")
        if self.ids == "function" and not re.fullmatch(r"functions\..+:\d+", given):
            return f"functions.{call['function'].get('name')}:{place}"
        return given

    def _shape_arguments(self, function: dict[str, Any]) -> None:
        """Clients send JSON text, some an object; text that is no object stays text: a model wrote it."""
        given = function.get("arguments")
        if self.arguments_as_text:
            if not isinstance(given, str):
                function["arguments"] = json.dumps(given or {}, ensure_ascii=False)
            return
        if not isinstance(given, str):
            return
        try:
            arguments = json.loads(given or "{}")
        except (ValueError, RecursionError):
            return
        if isinstance(arguments, dict):
            function["arguments"] = arguments


def as_calls(chat: Sequence[dict[str, Any]]) -> None:
    """The older form of one call a turn, in place: a ``function_call`` is a call, a ``function`` turn behind
    it its result. No template of today reads that form.
    """
    latest = ""
    for place, message in enumerate(chat):
        called = message.pop("function_call", None)
        if isinstance(called, dict) and not message.get("tool_calls"):
            latest = f"call_{place}"
            message["tool_calls"] = [{"id": latest, "type": "function", "function": called}]
        if message.get("role") == "function":
            message["role"] = "tool"
            message.setdefault("tool_call_id", latest)


def _calls(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict) and isinstance(call.get("function"), dict):
            yield call


def _id_form(template: str) -> IdForm:
    if re.search(r"length\s*(!=|==)\s*9\b", template):
        return "nine"
    return "function" if "<|tool_call_argument_begin|>" in template else "any"


def _prints_arguments(tree: nodes.Template) -> bool:
    """Whether arguments are printed or joined to text without a look at what they are."""
    names = {"arguments"}
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and _is_arguments(assign.node, names):
            names.add(assign.target.name)
    if any(_is_arguments(test.node, names) for test in tree.find_all(nodes.Test) if test.name != "defined"):
        return False
    filters = list(tree.find_all(nodes.Filter))
    filtered = [found.node for found in filters if not _is_ours(found)]
    read = [found.node for found in tree.find_all(nodes.Getattr)]
    read += [found.node for found in tree.find_all(nodes.Getitem)]
    if any(node is not None and _is_arguments(node, names) for node in (*filtered, *read)):
        return False
    printed = [node for output in tree.find_all(nodes.Output) for node in output.nodes]
    tuples = [found.node for found in filters if _is_ours(found) and isinstance(found.node, nodes.Tuple)]
    joined = [node for parts in tuples for node in parts.items]  # what ``~`` joins
    added = [side for add in tree.find_all(nodes.Add) for side in (add.left, add.right)]
    return any(_is_arguments(node, names) for node in (*printed, *joined, *added))


def _is_ours(found: nodes.Filter) -> bool:
    """The sandbox put it there: the names of its own filters are no identifiers."""
    return not found.name.isidentifier()


def _is_arguments(node: nodes.Node, names: set[str]) -> bool:
    if isinstance(node, nodes.Filter) and node.node is not None and _is_ours(node):
        return _is_arguments(node.node, names)
    if isinstance(node, nodes.Name):
        return node.name in names
    if isinstance(node, nodes.Getattr):
        return node.attr == "arguments"
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return bool(node.arg.value == "arguments")
    return False
