"""From an engine's step outputs to what a client sees of one choice.

StepOutput -> Detokenizer -> StopMatcher -> events. Each stage has ``feed`` and ``finish``; what one
gives goes to the next. Streamed and whole responses are made of the same events (``llmkit/fold.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from llmkit.contracts import Content, Delta, Event, Finished, PromptLogprobs, StepOutput, Tokenizer, Tokens
from llmkit.events import PositionLogprobs
from llmkit.frontend.detokenizer import Detokenizer
from llmkit.frontend.stop import StopMatcher
from llmkit.messages import NOTHING_ALLOWED
from llmkit.types import FinishReason, SamplingParams

UNSATISFIABLE = "unsatisfiable"
"""``Finished.error_code`` where the request itself leaves no token to sample."""


class OutputPipeline:
    """One choice's output; owns its stages, its token count and its end.

    Tokens go through one by one, so the result is the same however the engine groups them in steps:
    what follows the token that completes a stop string neither counts nor shows.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt_ids, skip_special_tokens=params.skip_special_tokens)
        self._matcher = StopMatcher(params.stop, include_in_output=params.include_stop_str_in_output)
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
        """A stop string ended the choice while the engine is still at it: abort it there."""

    def feed(self, output: StepOutput) -> list[Event]:
        """The events of one step: its tokens first, ``Finished`` last where the choice ends."""
        assert not self.finished, "an output after the end"
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        events: list[Event] = []
        if self._awaited is not None:
            events += self._prompt(output, self._awaited)
        text, used = self._text(output)
        if used:
            self.num_tokens += used
            events.append(_tokens(output.token_ids[:used], (output.logprobs or [])[:used]))
        if self._matcher.matched is not None:
            self.abort_needed = output.finish is None
            end = Finished(FinishReason.STOP, self._matcher.matched)
        elif output.finish is not None:
            text += self._rest()
            end = self._end(output)
        else:
            return events + _deltas(text)
        self.finished = True
        return [*events, *_deltas(text), end]

    def fail(self, error: str, code: str | None = None) -> list[Event]:
        """The engine can give no more: show what is held back and end with an error."""
        assert not self.finished, "a failure after the end"
        self.finished = True
        return [*_deltas(self._rest()), Finished(FinishReason.ERROR, error=error, error_code=code)]

    def _prompt(self, output: StepOutput, awaited: int) -> list[Event]:
        self._prompt_logprobs += output.prompt_logprobs or ()
        if len(self._prompt_logprobs) < awaited:
            return []
        positions, self._prompt_logprobs, self._awaited = self._prompt_logprobs, [], None
        return [PromptLogprobs(tuple(positions))]

    def _text(self, output: StepOutput) -> tuple[str, int]:
        """The step's text and how many of its tokens count: those up to the end of a stop string."""
        pieces: list[str] = []
        shown = len(output.token_ids)
        if output.finish is FinishReason.STOP and not (output.complete or self._shows_stop_token):
            shown -= 1
        for used, token_id in enumerate(output.token_ids[:shown], start=1):
            piece = self._detokenizer.feed(token_id)
            if piece:
                armed = self.num_tokens + used > self._min_tokens
                pieces.append(self._matcher.feed(piece, armed=armed))
                if self._matcher.matched is not None:
                    return "".join(pieces), used
        return "".join(pieces), len(output.token_ids)

    def _rest(self) -> str:
        """What the stages still hold. A half character is no match for a stop string."""
        return self._matcher.finish() + self._detokenizer.finish()

    def _end(self, output: StepOutput) -> Finished:
        assert output.finish is not None
        code = UNSATISFIABLE if output.error == NOTHING_ALLOWED else None
        return Finished(output.finish, output.stop_token, output.error, code)


def params_of_choice(params: SamplingParams, choice: int) -> SamplingParams:
    """What a choice's own outputs hold: the prompt's logprobs come with the first one alone."""
    if choice == 0 or params.prompt_logprobs is None:
        return params
    return msgspec.structs.replace(params, prompt_logprobs=None)


def _tokens(token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs]) -> Tokens:
    return Tokens(tuple(token_ids), tuple(logprobs))


def _deltas(text: str) -> list[Delta]:
    return [Content(text)] if text else []
