"""Logprobs of generated tokens in the two shapes OpenAI has."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from llmkit.contracts import PositionLogprobs, Tokenizer, TokenLogprob
from llmkit_openai_api.wire import ChatLogprobs, CompletionLogprobs, TokenLogprobs, TopLogprob

FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def chat_logprobs(tokenizer: Tokenizer, positions: Sequence[PositionLogprobs]) -> ChatLogprobs:
    """For ``choices[].logprobs`` of chat completions."""
    return ChatLogprobs(
        [
            TokenLogprobs(
                tokenizer.token_text(position.sampled.token_id),
                _finite(position.sampled),
                list(tokenizer.token_bytes(position.sampled.token_id)),
                [
                    TopLogprob(
                        tokenizer.token_text(other.token_id),
                        _finite(other),
                        list(tokenizer.token_bytes(other.token_id)),
                    )
                    for other in position.top
                ],
            )
            for position in positions
        ]
    )


class CompletionLogprobsWriter:
    """For ``choices[].logprobs`` of plain completions; follows one choice to know text offsets."""

    def __init__(self, tokenizer: Tokenizer, offset: int, skip_special_tokens: bool) -> None:
        """``offset``: characters of the choice's text before the first generated token."""
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, positions: Sequence[PositionLogprobs]) -> CompletionLogprobs:
        """The next tokens of the choice."""
        text = self._tokenizer.token_text
        offsets: list[int] = []
        tops: list[dict[str, float]] = []
        for position in positions:
            offsets.append(self._offset)
            self._advance(position.sampled.token_id)
            # Best first, so that of two tokens with one text the likelier stays; the sampled one
            # is always there.
            top: dict[str, float] = {}
            for other in (*position.top, position.sampled):
                top.setdefault(text(other.token_id), _finite(other))
            tops.append(top)
        return CompletionLogprobs(
            offsets,
            [_finite(position.sampled) for position in positions],
            [text(position.sampled.token_id) for position in positions],
            tops,
        )

    def _advance(self, token_id: int) -> None:
        if token_id not in self._hidden:
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))


def _finite(token: TokenLogprob) -> float:
    return max(token.logprob, FLOOR)
