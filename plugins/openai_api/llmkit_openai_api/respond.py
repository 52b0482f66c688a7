"""From choices to an HTTP response, whole or streamed; the same for every route."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request, Response

from llmkit.contracts import fold_generation
from llmkit_openai_api.choices import Choices
from llmkit_openai_api.disconnect import EventStream, unless_gone
from llmkit_openai_api.stream import AnswerShape, StreamWriter, frames
from llmkit_openai_api.wire import json_response


async def respond(
    request: Request,
    choices: Choices,
    shape: Callable[[], AnswerShape],
    *,
    stream: bool,
    include_usage: bool,
) -> Response:
    """Start ``choices`` and answer with them; they are closed whatever happens.

    :raises RequestError: the request is wrong.
    :raises EngineError: the engine failed before the answer began, or at any time of a whole one.
    """
    try:
        await unless_gone(request.receive, choices.start())
        worded = shape()
        if stream:
            writer = StreamWriter(worded, include_usage=include_usage)
            return EventStream(frames(choices, writer), choices.aclose)
        folded = await unless_gone(request.receive, fold_generation(choices, choices.count))
        return json_response(worded.whole(folded, choices.usage))
    except BaseException:
        await choices.aclose()
        raise
