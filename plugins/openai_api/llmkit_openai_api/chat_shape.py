"""How ``POST /v1/chat/completions`` words its answers, whole or streamed."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from llmkit.contracts import (
    ArgumentsDelta,
    Content,
    Finished,
    FoldedChoice,
    PositionLogprobs,
    PromptLogprobs,
    Reasoning,
    Services,
    Tokens,
    ToolCallOpened,
    Usage,
)
from llmkit_openai_api.answer import Answer, finish_reason
from llmkit_openai_api.choices import Choices
from llmkit_openai_api.logprobs import chat_logprobs, names, prompt_logprobs
from llmkit_openai_api.schema import ChatRequest
from llmkit_openai_api.stream import Shown
from llmkit_openai_api.wire import (
    CallDelta,
    CalledFunction,
    CalledTool,
    ChatChoice,
    ChatChunkChoice,
    ChatLogprobs,
    ChatMessage,
    Delta,
    Envelope,
    FunctionDelta,
)


class ChatShape:
    """A streamed or a whole answer; see :class:`llmkit_openai_api.stream.AnswerShape`."""

    def __init__(
        self, services: Services, body: ChatRequest, choices: Choices, role: str = "assistant"
    ) -> None:
        """``role``: the answer's. ``choices`` have started: the prompt is known as the model gets it."""
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self._answer = Answer(services, "chatcmpl", kind, body.request_id)
        self._role = role
        self._choices = choices
        self._name = names(services.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._with_logprobs = bool(body.logprobs)
        self._with_ids = bool(body.return_token_ids)
        self.shows_tokens = self._with_ids or self._with_logprobs
        self._echo = _echoed(body)
        self.hides_reasoning = body.include_reasoning is False
        self._calls = [0] * choices.count

    def opening(self, index: int, prompt: PromptLogprobs | None) -> Envelope:
        delta = Delta(role=self._role, content=self._echo)
        return self._answer.wrap([ChatChunkChoice(index=index, delta=delta)], **self._about_prompt(None))

    def piece(self, index: int, delta: Shown, tokens: Tokens) -> Envelope:
        choice = ChatChunkChoice(
            index=index,
            delta=self._delta(index, delta),
            logprobs=self._shown(tokens.logprobs),
            **self._ids(tokens.token_ids),
        )
        return self._answer.wrap([choice])

    def ending(self, index: int, finished: Finished) -> Envelope:
        return self._answer.wrap(
            [
                ChatChunkChoice(
                    index=index,
                    delta=Delta(),
                    finish_reason=finish_reason(finished),
                    stop_reason=finished.stop_reason,
                )
            ]
        )

    def usage(self, usage: Usage) -> Envelope:
        return self._answer.wrap([], usage)

    def whole(self, folded: Sequence[FoldedChoice], usage: Usage) -> Envelope:
        choices = [self._choice(index, choice) for index, choice in enumerate(folded)]
        return self._answer.wrap([*choices], usage, **self._about_prompt(folded[0].prompt_logprobs))

    def _choice(self, index: int, choice: FoldedChoice) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=self._message(choice),
            logprobs=self._shown(choice.logprobs),
            finish_reason=finish_reason(choice.finish),
            stop_reason=choice.finish.stop_reason,
            **self._ids(choice.token_ids),
        )

    def _delta(self, index: int, delta: Shown) -> Delta:
        match delta:
            case Content():
                return Delta(content=delta.text)
            case Reasoning():
                return Delta(reasoning_content=delta.text, reasoning=delta.text)
            case ToolCallOpened():
                self._calls[index] += 1
                function = FunctionDelta("", delta.name)
                call = CallDelta(self._calls[index] - 1, function, _call_id(), "function")
                return Delta(tool_calls=[call])
            case ArgumentsDelta():
                return Delta(tool_calls=[CallDelta(self._calls[index] - 1, FunctionDelta(delta.text))])

    def _message(self, choice: FoldedChoice) -> ChatMessage:
        text: str | None = self._echo + choice.text
        parsed: dict[str, Any] = {}
        if choice.reasoning and not self.hides_reasoning:
            parsed |= {"reasoning_content": choice.reasoning, "reasoning": choice.reasoning}
        if choice.calls:
            parsed["tool_calls"] = [
                CalledTool(_call_id(), CalledFunction(call.name, call.arguments)) for call in choice.calls
            ]
        if not text and (choice.reasoning or choice.calls):
            text = None
        return ChatMessage(text, self._role, **parsed)

    def _shown(self, logprobs: Sequence[PositionLogprobs]) -> ChatLogprobs | None:
        if not self._with_logprobs:
            return None
        return chat_logprobs(self._answer.tokenizer, logprobs, self._name)

    def _ids(self, token_ids: Sequence[int]) -> dict[str, Any]:
        return {"token_ids": list(token_ids)} if self._with_ids else {}

    def _about_prompt(self, logprobs: Sequence[PositionLogprobs] | None) -> dict[str, Any]:
        asked: dict[str, Any] = {}
        if self._with_ids:
            asked["prompt_token_ids"] = list(self._choices.prompt_ids(0))
        if logprobs is not None:
            asked["prompt_logprobs"] = prompt_logprobs(self._answer.tokenizer, logprobs)
        return asked


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _echoed(body: ChatRequest) -> str:
    """vLLM's ``echo``: the assistant's message that the answer continues."""
    last = body.messages[-1]
    if not body.echo or last.role != "assistant" or last.content is None:
        return ""
    if isinstance(last.content, str):
        return last.content
    return "\n".join(part.text or "" for part in last.content)
