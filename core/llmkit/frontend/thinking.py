"""What the engine is told of an answer's reasoning: a grammar holds behind it, and a budget ends it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from llmkit.contracts import (
    Content,
    Delta,
    FinishReason,
    OutputParser,
    ParserSpec,
    Reasoning,
    ReasoningFormat,
    Thinking,
    Tokenizer,
)
from llmkit.errors import RequestError

PARAM = "thinking_token_budget"
MAX_BLANKS = 4


def unknown_reasoning(budget: int) -> RequestError:
    """Nobody can tell where the reasoning ends that ``budget`` is for."""
    return RequestError(
        f"{PARAM} is {budget}; it holds for conversations with a model whose way of reasoning is known. Start"
        " the server with --reasoning-parser NAME, or leave it out",
        param=PARAM,
        code="unsupported_parameter",
    )


class ThinkingMarks:
    """The texts and tokens that begin and end a model's reasoning; immutable, shared by all requests.

    What they do, its parser knows, and is asked.
    """

    def __init__(self, tokenizer: Tokenizer, reasoning: ReasoningFormat, name: str | None) -> None:
        self._tokenizer = tokenizer
        self._reasoning = reasoning
        self._name = name
        starts = [_ids(tokenizer, text) for text in reasoning.starts]
        self._start = next((ids[0] for ids in starts if len(ids) == 1), None)
        self._end = _ids(tokenizer, reasoning.ends[0]) if reasoning.ends else ()
        self._spelt = self._special([*reasoning.starts, *reasoning.ends])
        self._again = bool(reasoning.starts and reasoning.ends) and _ends_thinking(
            reasoning.parser(ParserSpec()), f"{reasoning.ends[0]}a{reasoning.starts[0]}a"
        )
        self._answering = [end for end in reasoning.ends if self._leads_to_the_answer(end)]
        self._blanks = _passed_over(reasoning)

    def of(self, spec: ParserSpec, budget: int | None, *, grammar: bool) -> Thinking | None:
        """For answers that are parsed so; None where nothing of it concerns the engine.

        :raises RequestError: there is a budget, and nothing to end the reasoning with.
        """
        ends = self._reasoning.ends
        if budget is not None:
            self._check_end()
        first = self._first(spec, grammar=grammar)
        if not ends or (first == "answer" and (grammar or not self._again)):
            return None
        openers = [opener for opener in spec.openers if self._is_ended_by(opener)]
        return Thinking(
            first=first,
            end=self._end,
            ends=_encoded([*self._answering, *(end for end in ends if end not in self._answering), *openers]),
            answering=len(self._answering),
            starts=_encoded(self._reasoning.starts),
            start=self._start,
            again=self._again,
            blanks=self._blanks,
            spelt=self._spelt | self._special(openers),
            budget=budget,
        )

    def _first(self, spec: ParserSpec, *, grammar: bool) -> Literal["reasoning", "either", "answer"]:
        if _ends_thinking(self._reasoning.parser(spec), "a"):
            return "reasoning"
        if grammar and self._start is None:
            return "answer"  # nothing but one token may come before a grammar
        starts = self._reasoning.starts
        begin = any(_ends_thinking(self._reasoning.parser(spec), f"{start}a") for start in starts)
        return "either" if begin else "answer"

    def _leads_to_the_answer(self, end: str) -> bool:
        """The first does; another one, if thinking cannot go on behind it as behind a part of it."""
        if end == self._reasoning.ends[0] or not self._reasoning.starts:
            return end == self._reasoning.ends[0]
        start = self._reasoning.starts[0]
        return not _ends_thinking(self._reasoning.parser(ParserSpec()), f"{start}a{end}{start}a")

    def _is_ended_by(self, opener: str) -> bool:
        thinking = f"{self._reasoning.starts[0]}a" if self._reasoning.starts else "a"
        return not _ends_thinking(
            self._reasoning.parser(ParserSpec(openers=(opener,))), f"{thinking}{opener}a"
        )

    def _check_end(self) -> None:
        if not self._reasoning.ends:
            why = "has nothing that ends reasoning"
        elif self._reasoning.ends[0].encode() not in b"".join(map(self._tokenizer.token_bytes, self._end)):
            why = f"ends reasoning with {self._reasoning.ends[0]!r}, which this model has no tokens for"
        else:
            return
        raise RequestError(
            f"{PARAM} cannot be kept: the format {self._name or 'of this model'} {why}",
            param=PARAM,
            code="unsupported_parameter",
        )

    def _special(self, texts: Iterable[str]) -> dict[int, bytes]:
        ids = {token_id for text in texts for token_id in _ids(self._tokenizer, text)}
        return {
            token_id: self._tokenizer.token_bytes(token_id) for token_id in ids & self._tokenizer.special_ids
        }


def check_writable(thinking: Thinking | None, eos_ids: Sequence[int], vocab_size: int) -> None:
    """:raises RequestError: writing the end of reasoning would end the answer, or there is no row for it."""
    if thinking is None or thinking.budget is None:
        return
    for token_id in thinking.end:
        if token_id in eos_ids or token_id >= vocab_size:
            why = "ends the answer" if token_id in eos_ids else "is none of the model's"
            raise RequestError(
                f"{PARAM} cannot be kept: token {token_id}, with which reasoning ends, {why}",
                param=PARAM,
                code="unsupported_parameter",
            )


def _ends_thinking(parser: OutputParser, text: str) -> bool:
    """Whether the last character of ``text`` is reasoning."""
    deltas: list[Delta] = [*parser.feed(text), *parser.finish(FinishReason.LENGTH)]
    return bool(deltas) and isinstance(deltas[-1], Reasoning)


def _passed_over(reasoning: ReasoningFormat) -> int:
    """So many newlines behind the end of reasoning are no content."""
    before = f"{reasoning.starts[0]}a{reasoning.ends[0]}" if reasoning.starts and reasoning.ends else ""
    for count in range(MAX_BLANKS):
        parser = reasoning.parser(ParserSpec())
        text = before + "\n" * (count + 1) + "a"
        deltas: list[Delta] = [*parser.feed(text), *parser.finish(FinishReason.LENGTH)]
        if not before or "".join(delta.text for delta in deltas if isinstance(delta, Content)) != "a":
            return count
    return MAX_BLANKS


def _ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def _encoded(texts: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in texts)
