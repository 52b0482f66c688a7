"""``llmkit run-batch``."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.progress import Progress

from llmkit.config import Config, sources
from llmkit.config.server import ServerConfig
from llmkit_cli import opening
from llmkit_cli.arguments import configurable
from llmkit_cli.batch.lines import check_ids, read_lines
from llmkit_cli.batch.output import Output
from llmkit_cli.batch.run import run_batch

MODEL = Annotated[str | None, typer.Argument(help="what to run; as for serve. Not with --url")]


@configurable("model", "cache", "scheduler", "speculation", "parallel", "limits", "plugins")
def run_batch_file(
    loaded: sources.Loaded,
    input_file: Annotated[
        Path, typer.Option("--input-file", "-i", help="JSON lines with custom_id, method, url and body")
    ],
    output_file: Annotated[
        Path, typer.Option("--output-file", "-o", help="where answers are appended, a line each")
    ],
    model: MODEL = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="leave out what the output file has answers to")
    ] = False,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=4096, help="requests in flight at once")
    ] = 64,
    url: Annotated[str | None, typer.Option("--url", help="a running server instead of MODEL")] = None,
    server_key: Annotated[
        str | None, typer.Option("--server-key", envvar="OPENAI_API_KEY", help="for --url")
    ] = None,
) -> None:
    """Answer a file of requests in OpenAI's batch format.

    Exits with 1 if any request failed, once all are answered.
    """
    total = check_ids(input_file)
    console = Console(stderr=True)
    with Output(output_file, resume=resume) as output:
        clients = _local(loaded.config, console) if url is None else _remote(url, server_key)
        asyncio.run(_run(clients, input_file, output, concurrency, total, console))
        console.print(f"{total - output.failed} of {total} requests succeeded; answers in {output_file}")
        if output.failed:
            raise typer.Exit(1)


async def _run(
    clients: AbstractAsyncContextManager[httpx.AsyncClient],
    input_file: Path,
    output: Output,
    concurrency: int,
    total: int,
    console: Console,
) -> None:
    async with clients as client:
        with Progress(console=console) as progress:
            task = progress.add_task("requests", total=total)
            await run_batch(
                client, read_lines(input_file), output, concurrency, lambda: progress.advance(task)
            )


@asynccontextmanager
async def _local(config: Config, console: Console) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app itself, around an engine of its own; nothing listens, so no key is asked for."""
    from llmkit.server.app import build_app

    config = dataclasses.replace(config, server=ServerConfig())
    plugins = opening.load(config)
    async with opening.running_front(config, plugins, console) as front:
        transport = httpx.ASGITransport(build_app(front, plugins, config))
        async with httpx.AsyncClient(transport=transport, base_url="http://llmkit", timeout=None) as client:
            yield client


@asynccontextmanager
async def _remote(url: str, key: str | None) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    base = url.rstrip("/").removesuffix("/v1")
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=None) as client:
        yield client
