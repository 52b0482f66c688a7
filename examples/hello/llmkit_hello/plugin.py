"""Entry point: imported by every llmkit process, so it imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import llmkit

if TYPE_CHECKING:
    from fastapi import APIRouter

    from llmkit.contracts import RegisterCommand, RegisterRoutes, Services


@dataclass(frozen=True)
class Options:
    """Set by ``--plugin-option hello.greeting=...``."""

    greeting: str = "Hello"


@llmkit.hookimpl
def register_routes(register: RegisterRoutes) -> None:
    register("hello", make_router)


@llmkit.hookimpl
def register_commands(register: RegisterCommand) -> None:
    register("hello", hello, help="Greet somebody.")


def make_router(services: Services, options: Options) -> APIRouter:
    """``GET /hello``; it needs the API key like every other route."""
    from fastapi import APIRouter

    router = APIRouter()

    @router.get("/hello")
    def greet(name: str = "world") -> dict[str, str]:
        return {"message": greeting(name, options), "model": services.model.names[0]}

    return router


def hello(name: str = "world") -> None:
    """Greet somebody."""
    print(greeting(name, Options()))


def greeting(name: str, options: Options) -> str:
    return f"{options.greeting}, {name}!"
