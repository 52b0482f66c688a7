"""The FastAPI application: health, the routes of plugins, and what stands in front of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from fastapi import APIRouter, FastAPI, routing
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from llmkit.config import Config
from llmkit.contracts import FailureWords, Services
from llmkit.errors import LlmkitError, PluginError
from llmkit.registry import Entry, Registry
from llmkit.server import access_log, errors
from llmkit.server.asgi import LimitBody, NoteRoute, RequestIds, RootPath, TellRequests
from llmkit.server.auth import RequireKey
from llmkit.server.callers import LimitCallers
from llmkit.server.failures import WordFailures
from llmkit.server.front import Front
from llmkit.server.health import RequireReady, health_router
from llmkit.server.json_body import StrictJson
from llmkit.server.keys import Keys
from llmkit.version import VERSION


class Plugins(Protocol):
    """What the server needs of the loaded plugins."""

    @property
    def registry(self) -> Registry: ...


def build_app(front: Front, plugins: Plugins, config: Config, keys: Keys | None = None) -> FastAPI:
    """An application that serves ``front``; it answers before the engine does.

    A request passes, in this order: what a trusted proxy says of it, the access log, the wording of its
    failure, its id and the last catch of exceptions, its record for observers, CORS where origins were
    allowed, the API key where one is set, the bound on its caller's requests, readiness, the size and the
    form of its body, the route.

    :param keys: whom to serve where ``config`` asks for a key; made of ``config`` if None.

    :raises PluginError: a plugin's routes failed to build or take a path that is served already.
    :raises StartupError: there are no keys to be read.
    """
    words: dict[str, FailureWords] = {}
    app = FastAPI(
        title="llmkit",
        version=VERSION,
        redoc_url=None,
        middleware=_middleware(front, config, words, keys or Keys(config.server)),
        responses={"4XX": errors.DOCUMENTED, "5XX": errors.DOCUMENTED},
    )
    errors.install(app)
    app.include_router(health_router(front))
    served = {"/docs": "llmkit", "/openapi.json": "llmkit"}
    served |= dict.fromkeys(("/live", "/health", "/ping", "/version"), "llmkit")
    for entry in plugins.registry.entries("routes"):
        if entry.auto:
            router = _router(entry, plugins.registry, front.services)
            _claim(router, entry.owner, served)
            own_words = entry.traits.get("failures")
            if own_words is not None:
                words |= dict.fromkeys(_paths(router), own_words)
            app.include_router(router)
    return app


def _middleware(
    front: Front, config: Config, words: Mapping[str, FailureWords], keys: Keys
) -> list[Middleware]:
    server, limits = config.server, config.limits
    stack = []
    if server.forwarded_allow_ips:
        stack.append(Middleware(ProxyHeadersMiddleware, trusted_hosts=list(server.forwarded_allow_ips)))
    if server.access_log != "off":
        stack.append(Middleware(access_log.AccessLog, form=access_log.FORMS[server.access_log]))
    if server.root_path:
        stack.append(Middleware(RootPath, root_path=server.root_path))
    stack.append(Middleware(WordFailures, words=words))
    stack.append(Middleware(RequestIds))
    stack.append(Middleware(TellRequests, tell=front.services.observers.tell_http))
    if server.allowed_origins:
        stack.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(server.allowed_origins),
                allow_methods=list(server.allowed_methods),
                allow_headers=list(server.allowed_headers),
                allow_credentials=server.allow_credentials,
                expose_headers=["X-Request-Id", "Retry-After"],
            )
        )
    if server.needs_key:
        stack.append(Middleware(RequireKey, keys=keys))
    if limits.max_concurrent_requests_per_key is not None:
        stack.append(Middleware(LimitCallers, limit=limits.max_concurrent_requests_per_key))
    stack.append(Middleware(RequireReady, front=front))
    stack.append(Middleware(LimitBody, limit=limits.max_request_bytes))
    stack.append(Middleware(StrictJson))
    stack.append(Middleware(NoteRoute))
    return stack


def _router(entry: Entry, registry: Registry, services: Services) -> APIRouter:
    try:
        router = registry.create("routes", entry.name, services)
    except LlmkitError:
        raise
    except Exception as error:
        raise PluginError(
            f"routes {entry.name!r} of plugin {entry.owner!r} failed to build: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(router, APIRouter):
        raise PluginError(
            f"routes {entry.name!r} of plugin {entry.owner!r}: the factory must return a fastapi.APIRouter, "
            f"not {type(router).__name__}"
        )
    return router


def _claim(router: APIRouter, owner: str, served: dict[str, str]) -> None:
    """Note the paths of a router. :raises PluginError: one belongs to another plugin."""
    for path in _paths(router):
        holder = served.setdefault(path, owner)
        if holder != owner:
            raise PluginError(f"plugin {owner!r} offers the path {path}, which {holder!r} serves already")


def _paths(router: APIRouter) -> Iterator[str]:
    # FastAPI used to copy the routes of an included router; newer ones keep it and walk it so.
    flatten: Callable[[Iterable[Any]], Iterator[Any]] = getattr(routing, "iter_route_contexts", iter)
    for route in flatten(router.routes):
        path = getattr(route, "path", None)
        if path is not None:
            yield path
