"""Requests of other routes in the words of chat, and the way back for their errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from llmkit import RequestError
from llmkit_openai_api.chat import name_chat_field
from llmkit_openai_api.request import not_yet
from llmkit_openai_api.schema import ChatRequest

Harmless = Callable[[Any], bool]
"""Whether a value, not null, of a field that cannot be honoured asks for nothing."""


@dataclass(frozen=True, slots=True)
class AsChat:
    """A request in the words of chat."""

    body: ChatRequest
    names: tuple[str, ...]
    """Message of the chat -> what the request calls where it comes from."""
    rename: Callable[[str], str]
    """A field of chat, but its messages -> what the request calls it."""

    @staticmethod
    def of(
        fields: Mapping[str, Any], messages_name: str, names: list[str], rename: Callable[[str], str]
    ) -> AsChat:
        """``messages_name``: what the request calls all of its messages.

        :raises RequestError: there is more of something than a chat may have.
        """
        try:
            return AsChat(ChatRequest(**fields), tuple(names), rename)
        except ValidationError as error:
            raise RequestError(f"{messages_name}: {error.errors()[0]['msg']}", param=messages_name) from None

    def name_field(self, error: RequestError) -> None:
        """Put in an error about the chat what the request calls the field."""
        name_chat_field(error, self.body)
        if error.param is None:
            return
        name = self._name(error.param)
        error.args = (str(error).replace(error.param, name, 1),)
        error.param = name

    def _name(self, param: str) -> str:
        message = re.match(r"messages\[(\d+)\]", param)
        if message is not None and int(message[1]) < len(self.names):
            return self.names[int(message[1])] + param[message.end() :]
        return self.rename(param)


def refuse_inner(held: Any, where: str, fields: Mapping[str, Harmless]) -> None:
    """:raises RequestError: an object that the body calls ``where`` asks for something with one of these."""
    for name, harmless in fields.items():
        value = held.get(name) if isinstance(held, Mapping) else getattr(held, name, None)
        if value is not None and not harmless(value):
            raise not_yet(f"{where}.{name}")


def never(_value: Any) -> bool:
    return False


def falsy(value: Any) -> bool:
    return not value
