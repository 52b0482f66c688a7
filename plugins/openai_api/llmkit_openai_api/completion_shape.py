"""How ``POST /v1/completions`` words its answers, whole or streamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmkit.contracts import (
    Content,
    Finished,
    FoldedChoice,
    PositionLogprobs,
    PromptLogprobs,
    Services,
    Tokens,
    Usage,
)
from llmkit_openai_api.answer import Answer, finish_reason
from llmkit_openai_api.choices import Choices, Prompt
from llmkit_openai_api.logprobs import CompletionLogprobsWriter, joined, names, prompt_logprobs
from llmkit_openai_api.schema import CompletionRequest
from llmkit_openai_api.stream import Shown
from llmkit_openai_api.wire import CompletionChoice, CompletionLogprobs, Envelope


class CompletionShape:
    """See :class:`llmkit_openai_api.stream.AnswerShape`."""

    hides_reasoning = False

    def __init__(
        self, services: Services, body: CompletionRequest, prompts: Sequence[Prompt], choices: Choices
    ) -> None:
        """``choices`` have started: their prompts are known as the model gets them."""
        self._answer = Answer(services, "cmpl", "text_completion", body.request_id)
        self._tokenizer = services.tokenizer
        self._choices = choices
        self._with_ids = bool(body.return_token_ids)
        self._with_prompt_logprobs = body.prompt_logprobs is not None
        self.shows_tokens = self._with_ids or body.logprobs is not None
        self._echoes = [
            _Echo(services, body, prompts[choices.place(index)], choices.prompt_ids(index))
            for index in range(choices.count)
        ]
        self._writers: list[CompletionLogprobsWriter] | None = None
        if body.logprobs is not None:
            skip = True if body.skip_special_tokens is None else body.skip_special_tokens
            name = names(services.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
            self._writers = [CompletionLogprobsWriter(services.tokenizer, skip, name) for _ in self._echoes]

    def opening(self, index: int, prompt: PromptLogprobs | None) -> Envelope | None:
        """The echo, and what was asked about the prompt."""
        asked = self._about_prompt(index)
        echo = self._echoes[index].text
        positions = None if prompt is None else prompt.positions
        logprobs = self._of_prompt(index, positions)
        if not (echo or asked or logprobs):
            return None
        return self._answer.wrap([CompletionChoice(index=index, text=echo, logprobs=logprobs, **asked)])

    def piece(self, index: int, delta: Shown, tokens: Tokens) -> Envelope:
        assert isinstance(delta, Content), "nobody parses a plain completion"
        logprobs = self._of_answer(index, tokens.logprobs)
        ids = self._ids(tokens.token_ids)
        return self._answer.wrap([CompletionChoice(index=index, text=delta.text, logprobs=logprobs, **ids)])

    def ending(self, index: int, finished: Finished) -> Envelope:
        return self._answer.wrap([self._ended(index, "", None, finished)])

    def usage(self, usage: Usage) -> Envelope:
        return self._answer.wrap([], usage)

    def whole(self, folded: Sequence[FoldedChoice], usage: Usage) -> Envelope:
        return self._answer.wrap([self._whole(index, choice) for index, choice in enumerate(folded)], usage)

    def _whole(self, index: int, choice: FoldedChoice) -> CompletionChoice:
        of_prompt = self._of_prompt(index, choice.prompt_logprobs)
        logprobs = self._of_answer(index, choice.logprobs)
        if of_prompt is not None and logprobs is not None:
            logprobs = joined(of_prompt, logprobs)
        asked = {**self._about_prompt(index), **self._ids(choice.token_ids)}
        if self._with_prompt_logprobs and choice.prompt_logprobs is not None:
            asked["prompt_logprobs"] = prompt_logprobs(self._tokenizer, choice.prompt_logprobs)
        return self._ended(index, self._echoes[index].text + choice.text, logprobs, choice.finish, **asked)

    def _ended(
        self, index: int, text: str, logprobs: CompletionLogprobs | None, finished: Finished, **more: Any
    ) -> CompletionChoice:
        return CompletionChoice(
            index=index,
            text=text,
            logprobs=logprobs,
            finish_reason=finish_reason(finished),
            stop_reason=finished.stop_reason,
            **more,
        )

    # ---- what was asked for ----

    def _about_prompt(self, index: int) -> dict[str, Any]:
        return {"prompt_token_ids": list(self._choices.prompt_ids(index))} if self._with_ids else {}

    def _ids(self, token_ids: Sequence[int]) -> dict[str, Any]:
        return {"token_ids": list(token_ids)} if self._with_ids else {}

    def _of_prompt(
        self, index: int, positions: Sequence[PositionLogprobs] | None
    ) -> CompletionLogprobs | None:
        """Of an echoed prompt; the answer's offsets count from its end either way."""
        echo = self._echoes[index]
        if self._writers is None:
            return None
        if not echo.shown or positions is None:
            self._writers[index].skip(len(echo.text))
            return None
        return self._writers[index].prompt(self._choices.prompt_ids(index), positions, echo.hidden)

    def _of_answer(self, index: int, positions: Sequence[PositionLogprobs]) -> CompletionLogprobs | None:
        return self._writers[index].feed(positions) if self._writers is not None else None


class _Echo:
    """What stands before the text of a choice."""

    def __init__(
        self, services: Services, body: CompletionRequest, prompt: Prompt, prompt_ids: Sequence[int]
    ) -> None:
        self.shown = bool(body.echo)
        self.text = ""
        self.hidden = 0
        """How many tokens at the front of the prompt the text says nothing of."""
        if not body.echo:
            return
        if isinstance(prompt, str) and body.truncate_prompt_tokens is None:
            self.text = prompt
            self.hidden = int(_is_added(services, prompt, prompt_ids[0]))
        else:
            self.text = services.tokenizer.decode(prompt_ids)


def _is_added(services: Services, prompt: str, first: int) -> bool:
    """Whether the tokenizer put the prompt's first token before its text."""
    tokenizer = services.tokenizer
    return first in tokenizer.special_ids and not prompt.startswith(tokenizer.token_text(first))
