"""``llmkit bench serve``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console

from llmkit.errors import LlmkitError, UsageError
from llmkit_cli.bench.figures import STDOUT, check_writable, write_json
from llmkit_cli.bench.load import Load, run_load
from llmkit_cli.bench.prompts import make_prompts
from llmkit_cli.bench.report import print_report, summarize
from llmkit_cli.bench.scheduler import bench_scheduler

bench = typer.Typer(help="Measure a server, or a scheduler without a model.", no_args_is_help=True)
bench.command("scheduler")(bench_scheduler)


@bench.callback()
def group() -> None:
    """Measure a server, or a scheduler without a model."""


@bench.command("serve")
def bench_serve(
    base_url: Annotated[
        str, typer.Option(help="root of any OpenAI-compatible server")
    ] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="model name; default: the server's first")] = None,
    num_prompts: Annotated[int, typer.Option(min=1, max=1_000_000, help="requests to send")] = 32,
    concurrency: Annotated[int, typer.Option(min=1, max=4096, help="requests in flight at once")] = 8,
    request_rate: Annotated[
        float | None, typer.Option(min=0.001, help="requests a second instead of a fixed concurrency")
    ] = None,
    input_len: Annotated[
        int,
        typer.Option(min=1, max=1 << 20, help="prompt tokens, with --chat those of the template included"),
    ] = 128,
    output_len: Annotated[int, typer.Option(min=1, max=1 << 20, help="tokens to generate")] = 64,
    prefix_len: Annotated[int, typer.Option(min=0, help="prompt tokens that all requests share")] = 0,
    chat: Annotated[bool, typer.Option("--chat", help="use the chat route")] = False,
    ignore_eos: Annotated[bool, typer.Option(help="always generate all tokens")] = True,
    temperature: Annotated[float, typer.Option(min=0.0)] = 0.0,
    warmup: Annotated[int, typer.Option(min=0, help="requests before the clock starts")] = 1,
    seed: Annotated[int, typer.Option(help="of the prompts' words")] = 0,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="seconds a request may take")] = 600.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write the figures here, - for stdout")
    ] = None,
) -> None:
    """Send streaming requests and report throughput, TTFT and inter-token times."""
    check_writable("--json", json_file)
    if prefix_len >= input_len:
        raise UsageError(f"--prefix-len is {prefix_len}; it must be below --input-len, {input_len}")
    base_url = base_url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(base_url=base_url, headers=headers, timeout=timeout) as client:
        served = model or _first_model(client)
        counter = _token_counter(client, served)
        of_template = _template_tokens(client, served) if chat and counter else 0
        own_len = input_len - of_template
        if prefix_len >= own_len:
            raise UsageError(
                f"--input-len is {input_len}, of which the chat template takes {of_template}; what is left"
                f" must be above --prefix-len, {prefix_len}"
            )
        prompts = make_prompts(num_prompts + warmup, own_len, prefix_len, seed, counter)
    load = Load(
        base_url=base_url,
        model=served,
        chat=chat,
        output_len=output_len,
        ignore_eos=ignore_eos,
        temperature=temperature,
        concurrency=concurrency,
        rate=request_rate,
        api_key=api_key,
        seed=seed,
        timeout_s=timeout,
    )
    if warmup:
        asyncio.run(run_load(load, prompts[:warmup]))
    figures = summarize(asyncio.run(run_load(load, prompts[warmup:])))
    figures["prompt_lengths"] = "exact to within a word" if counter else "one word taken for one token"
    write_json(figures, json_file)
    if json_file != STDOUT:
        print_report(Console(), figures)
    if figures["failed"]:
        raise typer.Exit(1)


def _first_model(client: httpx.Client) -> str:
    try:
        answer = client.get("/v1/models").raise_for_status().json()
        return str(answer["data"][0]["id"])
    except (httpx.HTTPError, KeyError, IndexError, ValueError) as error:
        raise LlmkitError(f"--base-url {client.base_url}: no model list from there ({error})") from error


def _token_counter(client: httpx.Client, model: str) -> Callable[[str], int] | None:
    """How the server counts a text's tokens; None where it does not say."""

    def count(text: str) -> int:
        return _count(client, {"model": model, "prompt": text, "add_special_tokens": False})

    try:
        count("probe")
    except (httpx.HTTPError, KeyError, ValueError):
        return None
    return count


def _template_tokens(client: httpx.Client, model: str) -> int:
    """What the chat template writes around one message of a user."""
    conversation = {"model": model, "messages": [{"role": "user", "content": "probe"}]}
    text = {"model": model, "prompt": "probe", "add_special_tokens": False}
    try:
        return _count(client, conversation) - _count(client, text)
    except (httpx.HTTPError, KeyError, ValueError) as error:
        raise LlmkitError(f"--chat: the server tokenizes no conversation ({error})") from error


def _count(client: httpx.Client, body: Mapping[str, object]) -> int:
    return int(client.post("/tokenize", json=body).raise_for_status().json()["count"])
