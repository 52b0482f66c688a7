"""From an engine's step outputs to what a client sees of one choice.

StepOutput -> Detokenizer -> reasoning parser -> tool parser -> StopMatcher -> output stages -> events. Each
has ``feed`` and ``finish``; what one gives goes to the next. Streamed and whole responses are made of the
same events (``llmkit/fold.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from llmkit.contracts import Delta, Event, Finished, PromptLogprobs, StepOutput, Tokenizer, Tokens
from llmkit.events import PositionLogprobs
from llmkit.frontend.detokenizer import Detokenizer
from llmkit.frontend.parsing import AnswerParsers, PlainText, joined
from llmkit.frontend.reasoning_tokens import ReasoningTokens
from llmkit.frontend.stages import StageChain, StageFailed
from llmkit.frontend.stop import StopMatcher
from llmkit.messages import NOTHING_ALLOWED
from llmkit.types import FinishReason, SamplingParams

UNSATISFIABLE = "unsatisfiable"
"""``Finished.error_code`` where the request itself leaves no token to sample."""


class OutputPipeline:
    """One choice's output; owns its stages, its token count and its end.

    Tokens go through one by one, so the result is the same however the engine groups them in steps:
    what follows the token that completes a stop string, or the one call there is to be, neither counts nor
    shows.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        parsers: AnswerParsers | None = None,
        stages: StageChain | None = None,
    ) -> None:
        """Without ``parsers`` all text is content."""
        self._spelt_out = frozenset[int]() if parsers is None else parsers.spelt_out
        self._detokenizer = Detokenizer(
            tokenizer,
            prompt_ids,
            skip_special_tokens=params.skip_special_tokens,
            spelt_out=self._spelt_out,
        )
        matcher = StopMatcher(params.stop, include_in_output=params.include_stop_str_in_output)
        self._text = PlainText(matcher) if parsers is None else parsers.machine(matcher)
        self._reasoning = ReasoningTokens() if parsers is not None and parsers.tells_reasoning else None
        self._stages = stages
        self._called_by_name = parsers is not None and parsers.by_name
        self._one_by_one = parsers is not None and params.logprobs is not None
        """Tokens stand next to their text, so that each part of an answer gets its own."""
        self._shows_stop_token = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._awaited = None if params.prompt_logprobs is None else len(prompt_ids) - 1
        """Prompt positions whose logprobs come first; None once they are passed on, or not asked for."""
        self._prompt_logprobs: list[PositionLogprobs] = []
        self.num_tokens = 0
        """Generated tokens so far, as usage counts them."""
        self.cached_tokens = 0
        """Prompt tokens that came from the prefix cache."""
        self.finished = False
        self.abort_needed = False
        """The text ended the choice while the engine is still at it: abort it there."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Of ``num_tokens``; zero where nobody tells reasoning from the rest."""
        return 0 if self._reasoning is None else self._reasoning.count

    def feed(self, output: StepOutput) -> list[Event]:
        """The events of one step: its tokens first, ``Finished`` last where the choice ends."""
        assert not self.finished, "an output after the end"
        try:
            if not self._one_by_one or len(output.token_ids) < 2:
                return self._events(output)
            events: list[Event] = []
            for part in _single_tokens(output):
                events += self._events(part)
                if self.finished:
                    break
            self.abort_needed = self.abort_needed and output.finish is None
            return events
        except StageFailed as failure:
            self.finished, self.abort_needed = True, output.finish is None
            return [Finished(FinishReason.ERROR, error=str(failure))]

    def fail(self, error: str, code: str | None = None) -> list[Event]:
        """The engine can give no more: show what is held back and end with an error."""
        assert not self.finished, "a failure after the end"
        self.finished = True
        try:
            rest = self._shown(self._rest(FinishReason.ERROR), FinishReason.ERROR)
        except StageFailed:
            rest = []  # what it might have taken out is not shown
        return [*rest, Finished(FinishReason.ERROR, error=error, error_code=code)]

    def _events(self, output: StepOutput) -> list[Event]:
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        events: list[Event] = []
        if self._awaited is not None:
            events += self._prompt(output, self._awaited)
        deltas, used = self._deltas(output)
        if used:
            self.num_tokens += used
            events.append(_tokens(output.token_ids[:used], (output.logprobs or [])[:used]))
        if not self._text.ended:
            if output.finish is None:
                return events + self._shown(deltas)
            deltas += self._rest(output.finish)
        else:
            self.abort_needed = output.finish is None
        self.finished = True
        end = self._end(output)
        return [*events, *self._shown(deltas, end.reason), end]

    def _shown(self, deltas: list[Delta], ended: FinishReason | None = None) -> list[Delta]:
        """What the client gets of them, all that the stages hold where the choice has ended."""
        if self._stages is not None:
            deltas = self._stages.feed(joined(deltas))
            if ended is not None:
                deltas += self._stages.finish(ended)
        return joined(deltas) if len(deltas) > 1 else deltas

    def _prompt(self, output: StepOutput, awaited: int) -> list[Event]:
        self._prompt_logprobs += output.prompt_logprobs or ()
        if len(self._prompt_logprobs) < awaited:
            return []
        positions, self._prompt_logprobs, self._awaited = self._prompt_logprobs, [], None
        return [PromptLogprobs(tuple(positions))]

    def _deltas(self, output: StepOutput) -> tuple[list[Delta], int]:
        """What the step shows and how many of its tokens count: those up to the end that the text has."""
        deltas: list[Delta] = []
        ids = output.token_ids
        if output.finish is FinishReason.STOP and self._hides_last(output):
            ids = ids[:-1]
        text, reasoning = self._text, self._reasoning
        for used, token_id in enumerate(ids, start=1):
            piece = self._detokenizer.feed(token_id)
            if piece:
                deltas += text.feed(piece, armed=self.num_tokens + used > self._min_tokens)
            if reasoning is not None:
                reasoning.token(text.judged if piece else ())
            if text.ended:
                return deltas, used
        return deltas, len(output.token_ids)

    def _hides_last(self, output: StepOutput) -> bool:
        """The token that ended it is no text, unless a parser knows it or it was asked for."""
        if output.complete or self._shows_stop_token:
            return False
        return output.token_ids[-1:] == [] or output.token_ids[-1] not in self._spelt_out

    def _rest(self, reason: FinishReason) -> list[Delta]:
        """What the stages still hold."""
        armed = self.num_tokens > self._min_tokens
        deltas = self._text.finish(self._detokenizer.finish(), reason, armed=armed)
        if self._reasoning is not None:
            self._reasoning.end(self._text.judged)
        return deltas

    def _end(self, output: StepOutput) -> Finished:
        """As the text has it, else the engine. An answer that was not cut off and has calls ends for them,
        unless the client knew that there would be one, as OpenAI has it."""
        reason = FinishReason.STOP if self._text.ended else output.finish
        assert reason is not None
        if reason is FinishReason.STOP and self._text.calls and not self._called_by_name:
            reason = FinishReason.TOOL_CALLS
        if self._text.ended:
            return Finished(reason, self._text.stopped)
        code = UNSATISFIABLE if output.error == NOTHING_ALLOWED else None
        return Finished(reason, output.stop_token, output.error, code)


def params_of_choice(params: SamplingParams, choice: int) -> SamplingParams:
    """What a choice's own outputs hold: the prompt's logprobs come with the first one alone."""
    if choice == 0 or params.prompt_logprobs is None:
        return params
    return msgspec.structs.replace(params, prompt_logprobs=None)


def _single_tokens(output: StepOutput) -> Iterator[StepOutput]:
    """As if each token of a step had come in a step of its own."""
    last = len(output.token_ids) - 1
    for place, token_id in enumerate(output.token_ids):
        logprobs = None if output.logprobs is None else output.logprobs[place : place + 1]
        part = msgspec.structs.replace(output, token_ids=[token_id], logprobs=logprobs)
        if place < last:
            part = msgspec.structs.replace(part, finish=None, stop_token=None, error=None, complete=False)
        if place:
            part = msgspec.structs.replace(part, prompt_logprobs=None)
        yield part


def _tokens(token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs]) -> Tokens:
    return Tokens(tuple(token_ids), tuple(logprobs))
