"""Parsers of answers: what a server has, what a request makes of them, and one choice's state machine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from llmkit.contracts import (
    ArgumentsDelta,
    Content,
    Delta,
    OutputParser,
    ParserSpec,
    Parsing,
    Reasoning,
    ReasoningFormat,
    SamplingParams,
    Thinking,
    Tokenizer,
    ToolCallClosed,
    ToolFormat,
)
from llmkit.errors import RequestError
from llmkit.frontend.check import check_budget
from llmkit.frontend.either import calls_or
from llmkit.frontend.stop import StopMatcher
from llmkit.frontend.thinking import ThinkingMarks, unknown_reasoning
from llmkit.types import FinishReason, StructuredOutput


class Formats:
    """How a model writes calls and reasoning, as far as it is known; immutable, shared by all requests."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        tool: ToolFormat | None = None,
        reasoning: ReasoningFormat | None = None,
        *,
        tool_name: str | None = None,
        reasoning_name: str | None = None,
    ) -> None:
        self.tool_name = tool_name
        self.reasoning_name = reasoning_name
        self.tool = tool
        self.reasoning = reasoning
        self.tool_ids = frozenset[int]()
        """Special tokens that the parser must see, whatever a request shows of them."""
        self.marks: dict[str, int] = {}
        """Texts around calls that are one token each."""
        if tool is not None:
            marks = (*tool.special_tokens, *tool.openers)
            self.tool_ids = _special(tokenizer, marks)
            self.marks = _single(tokenizer, marks)
        self.reasoning_ids = frozenset[int]()
        self.thinking: ThinkingMarks | None = None
        if reasoning is not None:
            tags = (*reasoning.special_tokens, *reasoning.starts, *reasoning.ends)
            self.reasoning_ids = _special(tokenizer, tags)
            self.thinking = ThinkingMarks(tokenizer, reasoning, reasoning_name)

    def answer(self, asked: Parsing | None) -> AnswerParsers | None:
        """None where there is nothing to parse.

        :raises RequestError: there are tools and nobody knows how the model calls them.
        """
        if asked is None:
            return None
        if asked.tools and self.tool is None:
            raise RequestError(
                "tools: it is not known how this model writes calls, so its answers cannot be parsed; start"
                " the server with --tool-call-parser NAME, or set tool_choice to none",
                param="tools",
                code="unsupported_parameter",
            )
        parsers = AnswerParsers(self, asked)
        return parsers if parsers.any else None


class AnswerParsers:
    """What one request's answers are parsed with; immutable, shared by its choices."""

    def __init__(self, formats: Formats, asked: Parsing) -> None:
        self._formats = formats
        self._asked = asked
        self._tool = formats.tool if asked.tools else None
        self._reasoning = formats.reasoning if asked.reasoning else None
        self.any = self._tool is not None or self._reasoning is not None
        # A constraint begins behind the end of reasoning: a call that opened within it would not be held.
        openers = self._tool.openers if self._tool is not None and asked.calls == "free" else ()
        self._spec = ParserSpec(
            tools=asked.tools,
            prompt_tail=asked.prompt_tail,
            template_args=asked.template_args,
            openers=tuple(openers),
        )
        self.spelt_out = frozenset[int]()
        """Special tokens that the parsers must see, whatever the request shows of them."""
        if self._tool is not None:
            self.spelt_out |= formats.tool_ids
        if self._reasoning is not None:
            self.spelt_out |= formats.reasoning_ids

    @property
    def tells_reasoning(self) -> bool:
        return self._reasoning is not None

    @property
    def by_name(self) -> bool:
        """The one call was chosen by the client, who need not be told that there is one."""
        return self._asked.calls == "named"

    def machine(self, matcher: StopMatcher) -> ParsedText:
        """For one choice; ``matcher`` looks at its content."""
        return ParsedText(
            None if self._reasoning is None else self._reasoning.parser(self._spec),
            None if self._tool is None else self._tool.parser(self._spec),
            matcher,
            one_call=self.by_name or not self._asked.parallel,
        )

    def constrained(self, params: SamplingParams) -> SamplingParams:
        """``params`` that hold the answer to the calls that were asked for, or to calls and the form of an
        answer that is none.

        :raises RequestError: the format cannot be held to them, or the answer must be something else.
        """
        answer = params.structured
        if self._tool is None or (self._asked.calls == "free" and answer is None):
            return params
        nothing_else = self._asked.calls in ("required", "named")
        if nothing_else and answer is not None:
            raise RequestError(
                "structured says what the text must be, and tool_choice that there must be calls and no text;"
                " give only one of them",
                param="structured",
                code="invalid_value",
            )
        calls = self._calls(required=nothing_else or answer is not None)
        if answer is None:
            return msgspec.structs.replace(params, structured=calls)
        try:
            return msgspec.structs.replace(params, structured=calls_or(calls, answer))
        except ValueError as error:
            raise RequestError(f"structured: {error}", param="structured", code="invalid_value") from None

    def _calls(self, *, required: bool) -> StructuredOutput:
        assert self._tool is not None, "there are tools"
        parallel = self._asked.parallel and not self.by_name
        try:
            return self._tool.constraint(self._asked.tools, required=required, parallel=parallel)
        except ValueError as error:
            raise RequestError(f"tools: {error}", param="tools", code="invalid_value") from None

    def thinking(self, budget: int | None, *, grammar: bool) -> Thinking | None:
        """What the engine must know of the reasoning, to end it or to hold a grammar back until it has.

        :raises RequestError: there is a ``budget``, and the reasoning is not parsed or cannot be ended.
        """
        marks = self._formats.thinking if self._asked.reasoning else None
        if marks is None and budget is not None:
            raise unknown_reasoning(budget)
        return None if marks is None else marks.of(self._spec, budget, grammar=grammar)


def thinking_of(parsers: AnswerParsers | None, params: SamplingParams) -> Thinking | None:
    """What the engine must know of the reasoning in answers to a request; ``parsers`` as its answers have.

    :raises RequestError: as :meth:`AnswerParsers.thinking`.
    """
    budget = params.thinking_token_budget
    check_budget(budget)
    if budget is None and params.structured is None:
        return None
    if parsers is not None:
        return parsers.thinking(budget, grammar=params.structured is not None)
    if budget is not None:
        raise unknown_reasoning(budget)
    return None


class PlainText:
    """An answer that nobody parses: all of it is content. One choice's; owns the stop matcher."""

    calls = 0
    judged: Sequence[Delta] = ()

    def __init__(self, matcher: StopMatcher) -> None:
        self._matcher = matcher
        self.ended = False

    @property
    def stopped(self) -> str | None:
        return self._matcher.matched

    def feed(self, text: str, *, armed: bool) -> list[Delta]:
        """As :meth:`ParsedText.feed`."""
        shown = self._matcher.feed(text, armed=armed)
        if self._matcher.matched is not None:
            self.ended = True
        return [Content(shown)] if shown else []

    def finish(self, rest: str, reason: FinishReason, *, armed: bool) -> list[Delta]:
        """As :meth:`ParsedText.finish`. A half character is no match for a stop string."""
        shown = self._matcher.finish() + rest
        return [Content(shown)] if shown else []


class ParsedText:
    """One choice's way from reasoning over content to calls; owns its parsers and its stop matcher.

    What the reasoning parser calls content goes to the tool parser, and what that calls content to the stop
    matcher: stop strings act on nothing else. What the matcher holds back comes out before anything that is
    not content, so that no stop string is found across a call.
    """

    def __init__(
        self,
        reasoning: OutputParser | None,
        tools: OutputParser | None,
        matcher: StopMatcher,
        *,
        one_call: bool,
    ) -> None:
        """``one_call``: the answer ends where its first call does."""
        self._reasoning = reasoning
        self._tools = tools
        self._matcher = matcher
        self._one_call = one_call
        self.judged: Sequence[Delta] = ()
        """What the reasoning parser made of the last piece, or of the end."""
        self.calls = 0
        """Complete ones so far."""
        self.ended = False
        """By a stop string or the one call; nothing may be fed after that."""

    @property
    def stopped(self) -> str | None:
        """The stop string that ended it."""
        return self._matcher.matched

    def feed(self, text: str, *, armed: bool) -> list[Delta]:
        """What became certain with this piece; ``armed``: a stop string may end here."""
        if self._reasoning is None:
            return self._content(text, armed)
        self.judged = self._reasoning.feed(text)
        return self._reasoned(self.judged, armed)

    def finish(self, rest: str, reason: FinishReason, *, armed: bool) -> list[Delta]:
        """The end, with what the detokenizer still had: all that is held back."""
        self.judged = ()
        deltas = self.feed(rest, armed=armed) if rest else []
        if self._reasoning is not None and not self.ended:
            last = self._reasoning.finish(reason)
            self.judged = [*self.judged, *last]
            deltas += self._reasoned(last, armed)
        if self._tools is not None and not self.ended:
            deltas += self._checked(self._tools.finish(reason), armed)
        if not self.ended:
            deltas += self._held()
        return deltas

    def _reasoned(self, deltas: Sequence[Delta], armed: bool) -> list[Delta]:
        """After the reasoning parser."""
        given: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, Content):
                given += self._content(delta.text, armed)
            else:
                given += [*self._held(), delta]
            if self.ended:
                break
        return given

    def _content(self, text: str, armed: bool) -> list[Delta]:
        if self._tools is None:
            return self._checked([Content(text)], armed)
        return self._checked(self._tools.feed(text), armed)

    def _checked(self, deltas: Sequence[Delta], armed: bool) -> list[Delta]:
        """After the tool parser."""
        given: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, Content):
                shown = self._matcher.feed(delta.text, armed=armed)
                if shown:
                    given.append(Content(shown))
                self.ended = self._matcher.matched is not None
            else:
                given += [*self._held(), delta]
                if isinstance(delta, ToolCallClosed):
                    self.calls += 1
                    self.ended = self._one_call
            if self.ended:
                break
        return given

    def _held(self) -> list[Delta]:
        rest = self._matcher.finish()
        return [Content(rest)] if rest else []


def joined(deltas: list[Delta]) -> list[Delta]:
    """Neighbours of one kind as one."""
    whole: list[Delta] = []
    for kind, group in itertools.groupby(deltas, type):
        if issubclass(kind, Content | Reasoning | ArgumentsDelta):
            whole.append(kind("".join(delta.text for delta in group if isinstance(delta, kind))))
        else:
            whole += group
    return whole


def _special(tokenizer: Tokenizer, texts: Sequence[str]) -> frozenset[int]:
    """Ids of those of ``texts`` that are special tokens of this tokenizer."""
    found = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
    return frozenset(ids[0] for ids in found if len(ids) == 1 and ids[0] in tokenizer.special_ids)


def _single(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, int]:
    """Those of ``texts`` that are one token, with its id; one character, such as a bracket, is no mark."""
    found = {text: tokenizer.encode(text, add_special_tokens=False) for text in texts if len(text) > 1}
    return {
        text: ids[0]
        for text, ids in found.items()
        if len(ids) == 1 and tokenizer.token_bytes(ids[0]) == text.encode()
    }
