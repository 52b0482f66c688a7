"""``/v1/responses``: create, retrieve, follow, cancel, delete, and what their input was."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from llmkit import RequestError
from llmkit.contracts import Services, read_tools
from llmkit_openai_api.chat import conversation_choices, render
from llmkit_openai_api.choices import Choices
from llmkit_openai_api.disconnect import unless_gone
from llmkit_openai_api.event_stream import EventStream
from llmkit_openai_api.fields import FieldRules
from llmkit_openai_api.request import check_model
from llmkit_openai_api.responses.asked import LOGPROBS, as_chat
from llmkit_openai_api.responses.items import Item, input_items
from llmkit_openai_api.responses.run import ResponseRun
from llmkit_openai_api.responses.schema import Asked, InputTokensRequest, ResponsesRequest
from llmkit_openai_api.responses.store import StoredResponse, StoredResponses
from llmkit_openai_api.responses.wire import Response as ResponseBody
from llmkit_openai_api.responses.writer import ResponseWriter, new_id
from llmkit_openai_api.wire import json_response

ROUTE = "/v1/responses"
_PAGE = 20
_LONGEST_PAGE = 100


def router(services: Services, rules: FieldRules) -> APIRouter:
    server = services.config.server
    store = StoredResponses(server.max_stored_responses, server.max_stored_response_bytes)
    responses = APIRouter()

    @responses.post(ROUTE, response_model=None)
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        """Answer a conversation, whole, as a stream of typed events, or in the background."""
        rules.check(body, ROUTE)
        return await _create(body, request, services, store)

    @responses.post(f"{ROUTE}/input_tokens", response_model=None)
    async def count_input_tokens(body: InputTokensRequest, request: Request) -> Response:
        """How many tokens the input of such a response would have."""
        rules.check(body, f"{ROUTE}/input_tokens")
        check_model(services, body.model)
        earlier, given = _conversation(body, request, store)
        count = await _count(body, request, services, earlier, given)
        return json_response({"object": "response.input_tokens", "input_tokens": count})

    @responses.get(f"{ROUTE}/{{response_id}}", response_model=None)
    async def retrieve_response(
        response_id: str,
        request: Request,
        stream: bool = False,
        starting_after: Annotated[int | None, Query(ge=-1, le=2**53)] = None,
    ) -> Response:
        """A stored response as it is now; with ``stream`` its events behind ``starting_after``."""
        run = store.get(response_id, _caller(request)).run
        if not stream:
            if starting_after is not None:
                raise RequestError("starting_after needs stream true", param="starting_after")
            return json_response(run.response)
        if not run.keeps_events:
            raise RequestError(
                "stream: the events of this response are not kept, for it was made whole; make it with stream"
                " or background true",
                param="stream",
            )
        events = run.follow(-1 if starting_after is None else starting_after)
        return EventStream(events, _nothing, keepalive_s=services.config.server.sse_keepalive)

    @responses.delete(f"{ROUTE}/{{response_id}}", response_model=None)
    async def delete_response(response_id: str, request: Request) -> Response:
        """Forget a stored response; one in the background ends."""
        stored = store.get(response_id, _caller(request))
        if not stored.run.ended and stored.task is None:
            raise _driven_by_connection("deleted")
        await store.remove(stored)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @responses.post(f"{ROUTE}/{{response_id}}/cancel", response_model=None)
    async def cancel_response(response_id: str, request: Request) -> Response:
        """End a response in the background; one that has ended stays as it is."""
        stored = store.get(response_id, _caller(request))
        if stored.task is None:
            raise _driven_by_connection("cancelled")
        await store.cancel(stored)
        return json_response(stored.run.response)

    @responses.get(f"{ROUTE}/{{response_id}}/input_items", response_model=None)
    async def list_input_items(
        response_id: str,
        request: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=_LONGEST_PAGE)] = _PAGE,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        """What a stored response answers: items of the conversation before it, page by page."""
        items = list(store.get(response_id, _caller(request)).items)
        if order == "desc":
            items.reverse()
        return json_response(_page(items, after, limit))

    return responses


# ---- below: the steps of a request ----


async def _create(
    body: ResponsesRequest, request: Request, services: Services, store: StoredResponses
) -> Response:
    check_model(services, body.model)
    keepalive_s = services.config.server.sse_keepalive
    stores = body.store is not False and store.enabled
    if body.background and not stores:
        why = "store is false" if store.enabled else "this server stores none (--max-stored-responses 0)"
        raise RequestError(f"background needs a response that is stored, but {why}", param="background")
    earlier, given = _conversation(body, request, store)
    chat = as_chat(body, earlier, given)
    try:
        choices = await unless_gone(request.receive, conversation_choices(chat.body, request, services))
        try:
            patience_s = (keepalive_s or None) if body.stream else None
            waited = choices.submit() if body.background else choices.start(patience_s)
            await unless_gone(request.receive, waited)
        except BaseException:
            await choices.aclose()
            raise
    except RequestError as error:
        chat.name_field(error)
        raise
    run = _run(body, choices, services, stores=stores)
    stored = StoredResponse(run, _caller(request), (*earlier, *given))
    if stores:
        store.add(stored)
    if body.background:
        stored.task = asyncio.create_task(_in_background(stored, store))
    if not body.stream:
        if body.background:
            return json_response(stored.run.response)
        return await _whole(stored, store, request)
    frames = stored.run.follow(-1) if body.background else stored.run.frames()

    async def close() -> None:
        if not body.background:
            await stored.run.aclose()
            store.settle(stored)

    return EventStream(frames, close, keepalive_s=keepalive_s)


async def _whole(stored: StoredResponse, store: StoredResponses, request: Request) -> Response:
    run = stored.run
    try:
        await unless_gone(request.receive, run.run())
        if run.error is not None:
            raise run.error
    except BaseException:
        await store.remove(stored)  # nobody knows its id
        raise
    store.settle(stored)
    return json_response(run.response)


async def _in_background(stored: StoredResponse, store: StoredResponses) -> None:
    try:
        await stored.run.run()
    finally:
        store.settle(stored)


def _conversation(body: Asked, request: Request, store: StoredResponses) -> tuple[list[Item], list[Item]]:
    """Items of the responses before, and those of this request.

    :raises RequestError: one that it refers to is not there, or is under way.
    """
    caller = _caller(request)
    earlier: list[Item] = []
    if body.previous_response_id is not None:
        previous = store.get(body.previous_response_id, caller, "previous_response_id")
        if not previous.run.ended:
            raise RequestError(
                f"previous_response_id: the response {previous.id!r} has not ended yet",
                param="previous_response_id",
            )
        earlier = [*previous.items, *previous.output]
    return earlier, input_items(body.input, lambda name, param: store.item(name, caller, param))


async def _count(
    body: InputTokensRequest, request: Request, services: Services, earlier: list[Item], given: list[Item]
) -> int:
    chat = as_chat(body, earlier, given)
    try:
        asked = read_tools(chat.body.tools, chat.body.tool_choice)
        prompt = await render(services, chat.body, request, with_tools=bool(asked.tools))
        return len(await services.generator.tokenize(prompt.text, add_special_tokens=False))
    except RequestError as error:
        chat.name_field(error)
        raise


def _run(body: ResponsesRequest, choices: Choices, services: Services, *, stores: bool) -> ResponseRun:
    defaults = services.generation_defaults
    shows = LOGPROBS in (body.include or ())
    response = ResponseBody(
        id=new_id("resp"),
        created_at=int(time.time()),
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        model=services.model.names[0],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        prompt_cache_retention=body.prompt_cache_retention,
        reasoning=_shown(body.reasoning, {"effort": None, "summary": None}),
        safety_identifier=body.safety_identifier,
        store=stores,
        temperature=_first(body.temperature, defaults.get("temperature"), 1.0),
        text=_shown(body.text, {"format": {"type": "text"}}),
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        tools=list(body.tools or ()),
        top_logprobs=body.top_logprobs or 0,
        top_p=_first(body.top_p, defaults.get("top_p"), 1.0),
        truncation=body.truncation or "disabled",
        user=body.user,
        metadata=body.metadata or {},
    )
    writer = ResponseWriter(response, services.tokenizer, with_logprobs=shows)
    return ResponseRun(choices, writer, keeps_events=stores and bool(body.stream or body.background))


def _shown(options: Any, silent: dict[str, Any]) -> dict[str, Any]:
    given = {} if options is None else options.model_dump(exclude_none=True, by_alias=True)
    return {**silent, **given}


def _first(*values: float | None) -> float:
    return next(float(value) for value in values if value is not None)


def _caller(request: Request) -> str:
    caller: str = getattr(request.state, "caller", "")
    return caller


def _page(items: list[Item], after: str | None, limit: int) -> dict[str, Any]:
    if after is not None:
        place = next((place for place, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise RequestError(f"after: there is no item {after[:100]!r}", param="after", status=404)
        items = items[place + 1 :]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }


def _driven_by_connection(what: str) -> RequestError:
    return RequestError(
        f"a response under way can only be {what} in the background; to end this one, close its connection",
        param="response_id",
    )


async def _nothing() -> None:
    """Whoever follows a response leaves it as it is."""
