"""From choices to an HTTP response, whole or streamed; the same for every route."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastapi import Request, Response

from llmkit.contracts import Services, fold_generation
from llmkit_openai_api.choices import Choices
from llmkit_openai_api.disconnect import unless_gone
from llmkit_openai_api.event_stream import EventStream
from llmkit_openai_api.request import UsageAsked
from llmkit_openai_api.stream import AnswerShape, StreamWriter, frames
from llmkit_openai_api.wire import json_response


async def respond(
    services: Services,
    request: Request,
    choices: Choices,
    shape: Callable[[], AnswerShape],
    *,
    stream: bool,
    usage: UsageAsked,
) -> Response:
    """Start ``choices`` and answer with them; they are closed whatever happens.

    A stream's headers are sent with its first event, so that a failure before it has a status. Where that
    takes longer than ``--sse-keepalive``, they are sent then, and comments until it comes.

    :raises RequestError: the request is wrong.
    :raises EngineError: the engine failed before the answer began, or at any time of a whole one.
    """
    keepalive_s = services.config.server.sse_keepalive
    began_s = asyncio.get_running_loop().time()
    try:
        await unless_gone(request.receive, choices.start((keepalive_s or None) if stream else None))
        worded = shape()
        if stream:
            writer = StreamWriter(
                worded,
                include_usage=usage.at_end,
                usage_so_far=choices.usage_so_far if usage.in_chunks else None,
            )
            return EventStream(
                frames(choices, writer), choices.aclose, keepalive_s=keepalive_s, silent_since_s=began_s
            )
        folded = await unless_gone(request.receive, fold_generation(choices, choices.count))
        return json_response(worded.whole(folded, choices.usage))
    except BaseException:
        await choices.aclose()
        raise
