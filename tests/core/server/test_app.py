"""What stands in front of every route: key, readiness, size, ids, error objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, WebSocket
from fastapi.routing import iter_route_contexts
from starlette._utils import get_route_path

from llmkit import PluginError, RequestError
from llmkit.registry import Entry
from llmkit.server.app import build_app
from llmkit.server.asgi import route_path
from llmkit.server.auth import OPEN_PATHS
from llmkit.testing.http import read_metrics
from tests.core.server.local_front import (
    BUILT_IN,
    LocalFront,
    State,
    limited_config,
    plugins_of,
    server_config,
    serving,
)

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with serving(LocalFront()) as client:
        yield client


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def extra_routes(services: Any, options: Any) -> APIRouter:
    router = APIRouter()

    @router.get("/extra/boom")
    async def boom() -> None:
        raise RuntimeError("the secret is 42")

    @router.get("/extra/refused")
    async def refused() -> None:
        raise RequestError("not today", param="day", code="closed", status=418)

    @router.get("/metrics/extra")
    async def beneath_an_open_path() -> str:
        return "ok"

    @router.websocket("/extra/socket")
    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()

    return router


EXTRA = Entry("routes", "extra", extra_routes, "extra")


async def test_health_says_the_phase() -> None:
    front = LocalFront()
    async with serving(front) as client:
        assert (await client.get("/health")).status_code == 200
        for state in (State("starting", "loading weights", 0.4), State("draining"), State("dead", "gone")):
            front.state = state
            for answer in (
                await client.get("/health"),
                await client.get("/ping"),
                await client.post("/ping"),
            ):
                assert answer.status_code == 503
                assert answer.headers["retry-after"]
                assert answer.json() == {
                    "phase": state.phase,
                    "detail": state.detail,
                    "fraction": state.fraction,
                }
            assert (await client.get("/live")).status_code == 200
            assert (await client.get("/version")).json()["version"]
            assert (await client.get("/metrics")).status_code == 200
            assert (await client.get("/openapi.json")).status_code == 200
            for answer in (await client.post(CHAT, json=HI), await client.get("/v1/models")):
                error = error_of(answer, 503)
                assert error["code"] == state.phase
                assert state.detail in error["message"]
                assert answer.headers["retry-after"]


async def test_every_route_but_five_needs_the_key() -> None:
    front = LocalFront(server_config(api_key=("secret", "other")))
    plugins = plugins_of(*BUILT_IN, EXTRA)
    routes = [
        (method, route.path)
        for route in iter_route_contexts(build_app(front, plugins, front.config).routes)
        for method in route.methods or ()
    ]
    assert (("POST", CHAT)) in routes
    assert (("GET", "/docs")) in routes
    async with serving(front, plugins) as client:
        for method, path in [*routes, ("GET", "/nowhere"), ("OPTIONS", CHAT), ("GET", "/health/")]:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
                answer = await client.request(method, path, headers=headers)
                if path in OPEN_PATHS:
                    assert answer.status_code != 401, path
                else:
                    assert answer.status_code == 401, (method, path)
                    if path.startswith("/v1/messages"):  # in the words of that API
                        assert answer.json()["error"]["type"] == "authentication_error"
                    elif method != "HEAD":
                        assert error_of(answer, 401)["code"] == "invalid_api_key"
                    assert answer.headers["www-authenticate"] == "Bearer"
            for key in ("Bearer secret", "bearer secret", "BEARER  other"):
                answer = await client.request(method, path, headers={"Authorization": key})
                assert answer.status_code != 401, (method, path, key)


async def test_a_websocket_needs_the_key() -> None:
    front = LocalFront(server_config(api_key=("k",)))
    app = build_app(front, plugins_of(EXTRA), front.config)
    for headers, expected in (
        ([], "websocket.close"),
        ([(b"authorization", b"Bearer k")], "websocket.accept"),
    ):
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        scope = {
            "type": "websocket",
            "path": "/extra/socket",
            "headers": headers,
            "query_string": b"",
            "subprotocols": [],
            "scheme": "ws",
        }
        await app(scope, receive, send)
        assert sent[0]["type"] == expected


@pytest.mark.parametrize(
    ("path", "root"),
    [("/health", ""), ("/api/health", "/api"), ("/apihealth", "/api"), ("/api", "/api"), ("/x", "/api")],
)
def test_the_guard_reads_the_path_as_the_router_does(path: str, root: str) -> None:
    scope = {"type": "http", "path": path, "root_path": root}
    assert route_path(scope) == get_route_path(scope)


async def test_a_root_path_opens_nothing() -> None:
    front = LocalFront(server_config(api_key=("k",), root_path="/health"))
    async with serving(front) as client:
        assert (await client.get("/health/health")).status_code == 200
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/health/v1/models")).status_code == 401
        right = {"Authorization": "Bearer k"}
        assert (await client.get("/v1/models", headers=right)).status_code == 200


@pytest.mark.parametrize("root_path", ["/llm", "llm/"])
async def test_a_proxy_may_strip_the_root_path_or_not(root_path: str) -> None:
    async with serving(LocalFront(server_config(root_path=root_path))) as client:
        for prefix in ("", "/llm"):
            assert (await client.get(prefix + "/health")).status_code == 200
            assert (await client.get(prefix + "/v1/models")).status_code == 200
            assert (await client.post(prefix + CHAT, json=HI)).status_code == 200
        assert (await client.get("/other/v1/models")).status_code == 404
        assert (await client.get("/openapi.json")).json()["servers"] == [{"url": "/llm"}]


async def test_an_integer_too_long_to_read_is_said_so(client: httpx.AsyncClient) -> None:
    json = {"Content-Type": "application/json"}
    body = b'{"messages": [{"role": "user", "content": "a"}], "seed": %s}'
    for digits, words in ((4400, "more than 4300 digits"), (4000, "seed")):
        answer = await client.post(CHAT, content=body % (b"9" * digits), headers=json)
        assert words in error_of(answer, 400)["message"]


async def test_cors_is_off_unless_an_origin_is_allowed(client: httpx.AsyncClient) -> None:
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in (await client.options(CHAT, headers=preflight)).headers
    front = LocalFront(server_config(api_key=("k",), allowed_origins=("https://a.example",)))
    async with serving(front) as other:
        answer = await other.options(CHAT, headers=preflight)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        foreign = await other.options(CHAT, headers={**preflight, "Origin": "https://b.example"})
        assert "access-control-allow-origin" not in foreign.headers
        assert (await other.post(CHAT, json=HI)).status_code == 401


async def test_a_body_has_a_bound() -> None:
    front = LocalFront(limited_config(max_request_bytes=2048))
    async with serving(front) as client:
        big = b'{"messages": [{"role": "user", "content": "' + b"a" * 3000 + b'"}]}'
        headers = {"Content-Type": "application/json"}
        assert "2048" in error_of(await client.post(CHAT, content=big, headers=headers), 413)["message"]

        async def chunks(data: bytes) -> AsyncIterator[bytes]:
            for start in range(0, len(data), 100):
                yield data[start : start + 100]

        error_of(await client.post(CHAT, content=chunks(big), headers=headers), 413)
        small = big.replace(b"a" * 3000, b"a" * 300)
        assert (await client.post(CHAT, content=chunks(small), headers=headers)).status_code == 200
        assert (await client.post(CHAT, content=small, headers=headers)).status_code == 200


async def test_request_ids_are_echoed_or_made(client: httpx.AsyncClient) -> None:
    given = await client.get("/v1/models", headers={"X-Request-Id": "mine-1"})
    assert given.headers.get_list("x-request-id") == ["mine-1"]
    made = [(await client.get("/nowhere")).headers["x-request-id"] for _ in range(2)]
    assert len({*made}) == 2
    unfit = await client.get("/v1/models", headers={"X-Request-Id": "a" * 200})
    assert len(unfit.headers["x-request-id"]) == 32


async def test_every_error_is_an_object(client: httpx.AsyncClient) -> None:
    assert error_of(await client.get("/nowhere"), 404)["code"] == "not_found"
    assert "POST" in error_of(await client.get(CHAT), 405)["message"]
    headers = {"Content-Type": "application/json"}
    for body, words in (
        (b"{", "JSON"),
        (b'{"messages": "\xb4\xf3"}', "UTF-8"),
        (b"", "body"),
        (b"[]", "body"),
        (b'"x"', "body"),
        (b"null", "body"),
        (b"[" * 100_000, "nested"),
        (b'{"messages": [], "temperature": NaN}', "temperature"),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', "temperature"),
        (b'{"messages": [{"role": "user", "content": "x"}], "top_p": 1e999}', "top_p"),
    ):
        error = error_of(await client.post(CHAT, content=body, headers=headers), 400)
        assert words in error["message"], (body[:80], error)
    plain = await client.post(CHAT, content=b"{}", headers={"Content-Type": "text/plain"})
    assert "application/json" in error_of(plain, 400)["message"]


async def test_an_unforeseen_exception_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(LocalFront(), plugins_of(EXTRA)) as client:
        answer = await client.get("/extra/boom", headers={"X-Request-Id": "r-7"})
        error = error_of(answer, 500)
        assert "42" not in error["message"]
        assert answer.headers["x-request-id"] == "r-7"
        logged = next(record for record in caplog.records if record.exc_info)
        assert "r-7" in logged.getMessage()
        assert error_of(await client.get("/extra/refused"), 418) == {
            "message": "not today",
            "type": "invalid_request_error",
            "param": "day",
            "code": "closed",
        }


async def test_a_path_has_one_owner() -> None:
    for path in ("/health", "/v1/models"):

        def squat(services: Any, options: Any, path: str = path) -> APIRouter:
            router = APIRouter()
            router.add_api_route(path, lambda: "mine")
            return router

        front = LocalFront()
        with pytest.raises(PluginError, match=f"'squatter'.*{path}"):
            build_app(front, plugins_of(*BUILT_IN, Entry("routes", "squat", squat, "squatter")), front.config)


@pytest.mark.parametrize("factory", [lambda s, o: 1 / 0, lambda s, o: "no router"])
async def test_routes_that_do_not_build_name_their_plugin(factory: Any) -> None:
    front = LocalFront()
    with pytest.raises(PluginError, match="bad-plugin"):
        build_app(front, plugins_of(Entry("routes", "bad", factory, "bad-plugin")), front.config)


async def test_an_installed_but_not_enabled_plugin_has_no_routes() -> None:
    idle = Entry("routes", "extra", extra_routes, "extra", auto=False)
    async with serving(LocalFront(), plugins_of(*BUILT_IN, idle)) as client:
        error_of(await client.get("/extra/refused"), 404)


async def test_two_apps_share_a_process() -> None:
    one, other = LocalFront(), LocalFront()
    async with serving(one) as first, serving(other) as second:
        await first.post(CHAT, json=HI)
        counts = [(await client.get("/metrics")).text for client in (first, second)]
    assert [read_metrics(text)["request_success_total"] for text in counts] == [1, 0]


async def test_draining_refuses_new_work_and_finishes_old() -> None:
    front = LocalFront()
    async with serving(front) as client:
        front.says("a", "b", "c", pause_s=0.05)
        task = asyncio.create_task(client.post(CHAT, json=HI))
        while not front.engine.running:
            await asyncio.sleep(0.005)
        await front.drain(1)
        error_of(await client.post(CHAT, json=HI), 503)
        answer = await task
        assert answer.json()["choices"][0]["message"]["content"] == "abc"
