"""``llmkit top``."""

from __future__ import annotations

import time
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.live import Live

from llmkit.errors import LlmkitError, UsageError
from llmkit_cli.top.figures import compare
from llmkit_cli.top.frame import frame
from llmkit_cli.top.snapshot import Snapshot, read

TIMEOUT_S = 10.0


def top(
    url: Annotated[
        str, typer.Option(help="root of a server with /metrics, ours or vLLM's")
    ] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="where something in front asks for one")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="seconds that a frame covers")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="print one frame and end")] = False,
) -> None:
    """Show live what a server does: requests, tokens, caches and latencies."""
    url = url.rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--url {url}: write http://HOST:PORT or https://HOST:PORT")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(headers=headers, timeout=TIMEOUT_S, follow_redirects=True) as client:
        try:
            _show(client, url, interval, once)
        except KeyboardInterrupt:
            raise typer.Exit from None  # as everybody ends it


def _show(client: httpx.Client, url: str, interval: float, once: bool) -> None:
    console = Console()
    latest = _scrape(client, url)
    if once:
        time.sleep(interval)
        console.print(frame(url, compare(latest, _scrape(client, url))))
        return
    figures, trouble = compare(latest, latest), None
    with Live(f"{url}: the first frame comes in {interval:g} s", console=console, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            try:
                now = _scrape(client, url)
            except LlmkitError as error:
                trouble = str(error)  # it may come back
            else:
                figures, latest, trouble = compare(latest, now), now, None
            live.update(frame(url, figures, trouble), refresh=True)


def _scrape(client: httpx.Client, url: str) -> Snapshot:
    """:raises LlmkitError: in one line, why there is nothing to show."""
    try:
        answer = client.get(f"{url}/metrics")
    except httpx.InvalidURL as error:
        raise UsageError(f"--url {url}: {error}") from error
    except httpx.HTTPError as error:
        raise LlmkitError(f"--url {url}: nothing answers there ({error or type(error).__name__})") from error
    if answer.status_code != httpx.codes.OK:
        raise LlmkitError(f"--url {url}: /metrics answers {answer.status_code} {answer.reason_phrase}")
    try:
        return read(answer.text, time.monotonic())
    except LlmkitError as error:
        raise LlmkitError(f"--url {url}: {error}") from error
