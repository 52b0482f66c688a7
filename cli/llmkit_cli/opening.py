"""From a merged configuration to plugins, model files and a running engine: what commands share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.console import Console

from llmkit.assemble.front import build_front
from llmkit.assemble.model import OpenedModel, open_model
from llmkit.config import Config, flags
from llmkit.contracts import Services
from llmkit.frontend.front import Front
from llmkit.plugins import Plugins, load_plugins


def load(config: Config) -> Plugins:
    """Load plugins, including those that a flag asks for by a component's name."""
    return load_plugins(config.plugins, flags.needed(config))


def open_files(config: Config, plugins: Plugins, console: Console) -> OpenedModel:
    """Find the model, with a bar while something is fetched."""
    with console.status("looking for the model") as status:

        def progress(phase: str, fraction: float) -> None:
            status.update(f"{phase} {fraction:.0%}")

        return open_model(config, plugins.registry, progress)


@asynccontextmanager
async def running(config: Config, console: Console) -> AsyncIterator[Services]:
    """An engine for one command: started, awaited, stopped whatever happens."""
    async with running_front(config, load(config), console) as front:
        yield front.services


@asynccontextmanager
async def running_front(config: Config, plugins: Plugins, console: Console) -> AsyncIterator[Front]:
    """As :func:`running`, with all that a server needs."""
    front = build_front(config, plugins)
    try:
        await front.start()
        with console.status("starting") as status:
            while front.state.phase == "starting":
                fraction = front.state.fraction
                status.update(front.state.detail + ("" if fraction is None else f" {fraction:.0%}"))
                await asyncio.sleep(0.05)
        if front.error is not None:
            raise front.error
        yield front
    finally:
        await front.stop()
