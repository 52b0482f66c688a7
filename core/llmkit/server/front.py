"""What the HTTP server needs of a front; ``llmkit.frontend.front.Front`` is the one that serves."""

from __future__ import annotations

import asyncio
from typing import Literal, Protocol

from llmkit.contracts import EngineReady
from llmkit.errors import LlmkitError
from llmkit.frontend.services import FrontServices

Phase = Literal["starting", "ready", "draining", "dead"]


class FrontState(Protocol):
    """Where a front is in its life."""

    @property
    def phase(self) -> Phase: ...
    @property
    def detail(self) -> str:
        """What it is doing, or what it died of, in a sentence."""

    @property
    def fraction(self) -> float | None:
        """Of the start, from 0 to 1; None where there is no telling."""


class Front(Protocol):
    """The process's side of the engine, from spawn to stop."""

    @property
    def state(self) -> FrontState: ...
    @property
    def services(self) -> FrontServices: ...
    @property
    def ready(self) -> EngineReady | None:
        """None until the engine answers."""

    @property
    def died(self) -> asyncio.Event:
        """Set once the engine is gone, or could not start, without having been asked to go."""

    @property
    def exit_code(self) -> int:
        """What the program ends with once ``died`` is set."""

    @property
    def error(self) -> LlmkitError | None:
        """What it died of."""

    async def start(self) -> None:
        """Begin to find the model and start the engine; returns at once."""

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, wait for those under way, abort what is left after ``timeout_s``."""

    async def stop(self) -> None:
        """End the engine and clean up; idempotent."""
