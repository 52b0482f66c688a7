"""One response under way: reads its choice, keeps its events, and lets others follow them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence

from llmkit import EngineError, RequestError
from llmkit_openai_api.choices import Choices
from llmkit_openai_api.responses.wire import Failed, Response, StreamEvent
from llmkit_openai_api.responses.writer import ResponseWriter
from llmkit_openai_api.sse import named_frame

logger = logging.getLogger(__name__)


class ResponseRun:
    """Owns a writer, and its choices until they have ended."""

    def __init__(self, choices: Choices, writer: ResponseWriter, *, keeps_events: bool) -> None:
        """``keeps_events``: :meth:`follow` may be called."""
        self._choices: Choices | None = choices
        self._writer = writer
        self.keeps_events = keeps_events
        self._frames: list[bytes] = []
        """Of the events so far, by sequence number."""
        self._more = asyncio.Event()
        self.error: Exception | None = None
        """What it failed of."""

    @property
    def response(self) -> Response:
        """As it is now."""
        return self._writer.response

    @property
    def ended(self) -> bool:
        return self._writer.ended

    @property
    def size(self) -> int:
        """Bytes of the events that are kept."""
        return sum(map(len, self._frames))

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Drive it to its end; once. One that is closed before the end is cancelled."""
        choices = self._choices
        assert choices is not None, "a run runs once"
        try:
            yield self._written(self._writer.begin())
            async for _, event in choices:
                events = self._writer.feed(event)
                if events:
                    yield self._written(events)
            yield self._written(self._writer.finish(choices.usage))
        except (RequestError, EngineError) as error:
            wrong = isinstance(error, RequestError)
            yield self._failed(error, Failed("invalid_prompt" if wrong else "server_error", str(error)))
        except Exception as error:
            logger.exception("response %s failed", self.response.id)
            message = "the server failed on this request; its log says why"
            yield self._failed(error, Failed("server_error", message))
        finally:
            await self.aclose()

    async def run(self) -> None:
        """Drive it with nobody reading."""
        async for _ in self.frames():
            pass

    async def follow(self, after: int) -> AsyncGenerator[bytes, None]:
        """The events behind the one with the number ``after``, those to come, too."""
        at = after + 1
        while True:
            more = self._more
            frames = self._frames[at:]
            if frames:
                at += len(frames)
                yield b"".join(frames)
            elif self.ended:
                return
            else:
                await more.wait()

    async def aclose(self) -> None:
        """End it if it has not ended, and let go of the engine; idempotent."""
        choices, self._choices = self._choices, None
        if not self.ended:
            self._written(self._writer.cancel())
        if choices is not None:
            await choices.aclose()

    def _failed(self, error: Exception, failed: Failed) -> bytes:
        self.error = error
        return self._written(self._writer.fail(failed))

    def _written(self, events: Sequence[StreamEvent]) -> bytes:
        frames = [named_frame(event.type, event) for event in events]
        if self.keeps_events:
            self._frames += frames
            more, self._more = self._more, asyncio.Event()
            more.set()
        return b"".join(frames)
