"""Logprobs of generated tokens in the two shapes OpenAI has, and of the prompt in vLLM's."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from llmkit.contracts import PositionLogprobs, Tokenizer, TokenLogprob
from llmkit_openai_api.wire import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptToken,
    TokenLogprobs,
    TopLogprob,
)

FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot say."""
Names = Callable[[int], str]
"""How a token is called in an answer."""
PromptShape = list[dict[str, PromptToken] | None]


def names(tokenizer: Tokenizer, *, as_ids: bool) -> Names:
    """``as_ids``: vLLM's ``return_tokens_as_token_ids``, for what text cannot tell apart."""
    return (lambda token_id: f"token_id:{token_id}") if as_ids else tokenizer.token_text


def chat_logprobs(tokenizer: Tokenizer, positions: Sequence[PositionLogprobs], name: Names) -> ChatLogprobs:
    """For ``choices[].logprobs`` of chat completions."""
    return ChatLogprobs(
        [
            TokenLogprobs(
                name(position.sampled.token_id),
                _finite(position.sampled),
                list(tokenizer.token_bytes(position.sampled.token_id)),
                [
                    TopLogprob(
                        name(other.token_id), _finite(other), list(tokenizer.token_bytes(other.token_id))
                    )
                    for other in position.top
                ],
            )
            for position in positions
        ]
    )


def prompt_logprobs(tokenizer: Tokenizer, positions: Sequence[PositionLogprobs]) -> PromptShape:
    """vLLM's ``prompt_logprobs``: an object from token ids a prompt token, null for the first."""
    return [None, *(_by_id(tokenizer, position) for position in positions)]


class CompletionLogprobsWriter:
    """For ``choices[].logprobs`` of plain completions; follows one choice to know text offsets."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, name: Names) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._name = name
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def prompt(
        self, prompt_ids: Sequence[int], positions: Sequence[PositionLogprobs], hidden: int
    ) -> CompletionLogprobs:
        """The prompt where it is echoed; its first token has no logprob. The text shows nothing of the first
        ``hidden`` tokens. Comes before :meth:`feed`.
        """
        first = CompletionLogprobs([self._offset], [None], [self._name(prompt_ids[0])], [None])
        self._advance(prompt_ids[0], shown=not hidden)
        return joined(first, self._written(positions, lambda index: index + 1 >= hidden))

    def skip(self, characters: int) -> None:
        """So much text comes before what is fed next."""
        self._offset += characters

    def feed(self, positions: Sequence[PositionLogprobs]) -> CompletionLogprobs:
        """The next tokens of the choice."""
        return self._written(positions, lambda index: positions[index].sampled.token_id not in self._hidden)

    def _written(
        self, positions: Sequence[PositionLogprobs], shown: Callable[[int], bool]
    ) -> CompletionLogprobs:
        offsets: list[int] = []
        tops: list[dict[str, float] | None] = []
        for index, position in enumerate(positions):
            offsets.append(self._offset)
            self._advance(position.sampled.token_id, shown=shown(index))
            # Best first, so that of two tokens with one text the likelier stays; the sampled one
            # is always there.
            top: dict[str, float] = {}
            for other in (*position.top, position.sampled):
                top.setdefault(self._name(other.token_id), _finite(other))
            tops.append(top)
        return CompletionLogprobs(
            offsets,
            [_finite(position.sampled) for position in positions],
            [self._name(position.sampled.token_id) for position in positions],
            tops,
        )

    def _advance(self, token_id: int, *, shown: bool) -> None:
        if shown:
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))


def joined(first: CompletionLogprobs, then: CompletionLogprobs) -> CompletionLogprobs:
    """Of tokens that follow each other."""
    return CompletionLogprobs(
        first.text_offset + then.text_offset,
        first.token_logprobs + then.token_logprobs,
        first.tokens + then.tokens,
        first.top_logprobs + then.top_logprobs,
    )


def _by_id(tokenizer: Tokenizer, position: PositionLogprobs) -> dict[str, PromptToken]:
    return {
        str(token.token_id): PromptToken(_finite(token), token.rank, tokenizer.token_text(token.token_id))
        for token in (position.sampled, *position.top)
    }


def _finite(token: TokenLogprob) -> float:
    return max(token.logprob, FLOOR)
