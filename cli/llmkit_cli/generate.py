"""``llmkit chat`` and ``llmkit complete``: a model in the terminal, without a server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from llmkit import SamplingParams
from llmkit.config import sources
from llmkit.contracts import Content, Finished, FinishReason, Services
from llmkit.errors import EngineError, RequestError, UsageError
from llmkit.frontend.threads import in_daemon_thread
from llmkit_cli import opening
from llmkit_cli.arguments import configurable

MODEL = Annotated[str | None, typer.Argument(help="what to run; as for serve")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="most tokens to generate")]
Temperature = Annotated[
    float | None, typer.Option(min=0.0, help="0 is greedy; default: the model's own, else 0")
]
TopP = Annotated[float | None, typer.Option(min=0.0, max=1.0)]
Seed = Annotated[int | None, typer.Option("--sample-seed", help="same seed, same answer")]


@configurable("model", "cache", "scheduler", "speculation", "parallel", "plugins")
def chat(
    loaded: sources.Loaded,
    model: MODEL = None,
    prompt: Annotated[str | None, typer.Argument(help="one question; without it, a conversation")] = None,
    system: Annotated[str | None, typer.Option(help="system message")] = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    sample_seed: Seed = None,
) -> None:
    """Chat with MODEL: one answer, or a conversation until /bye or end of input."""
    given = _given(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=sample_seed)
    asyncio.run(_chat(loaded, prompt, system, given))


@configurable("model", "cache", "scheduler", "speculation", "parallel", "plugins")
def complete(
    loaded: sources.Loaded,
    model: MODEL = None,
    prompt: Annotated[str | None, typer.Argument(help="text to continue; default: standard input")] = None,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = None,
    top_p: TopP = None,
    sample_seed: Seed = None,
) -> None:
    """Continue a text."""
    given = _given(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=sample_seed)
    asyncio.run(_complete(loaded, sys.stdin.read() if prompt is None else prompt, given))


async def _complete(loaded: sources.Loaded, prompt: str, given: dict[str, Any]) -> None:
    async with opening.running(loaded.config, Console(stderr=True)) as services:
        await _stream(services, prompt, given)


async def _chat(
    loaded: sources.Loaded, prompt: str | None, system: str | None, given: dict[str, Any]
) -> None:
    console = Console(stderr=True)
    async with opening.running(loaded.config, console) as services:
        if services.chat is None:
            raise UsageError("the model has no chat template; give one with --chat-template, or use complete")
        messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
        if prompt is not None:
            await _turn(services, [*messages, {"role": "user", "content": prompt}], given)
            return
        console.print(f"{services.model.names[0]} — /clear starts again, /bye ends", style="dim")
        await _converse(services, messages, given, console)


async def _converse(
    services: Services, messages: list[dict[str, str]], given: dict[str, Any], console: Console
) -> None:
    opening_messages = list(messages)
    while True:
        try:
            line = (await in_daemon_thread(lambda: console.input("[bold green]>[/] "), "prompt")).strip()
        except EOFError:
            return
        if line == "/bye":
            return
        if line == "/clear":
            messages = list(opening_messages)
        elif line:
            asked = [*messages, {"role": "user", "content": line}]
            try:
                answer = await _turn(services, asked, given)
            except RequestError as error:
                console.print(str(error), style="red", markup=False)
                continue
            messages = [*asked, {"role": "assistant", "content": answer}]


async def _turn(services: Services, messages: Sequence[dict[str, str]], given: dict[str, Any]) -> str:
    assert services.chat is not None
    return await _stream(services, services.chat.render_ids(messages), given)


async def _stream(services: Services, prompt: str | Sequence[int], given: dict[str, Any]) -> str:
    """Write the answer as it comes; returns it whole."""
    defaults = {
        name: value
        for name, value in services.generation_defaults.items()
        if name in SamplingParams.__struct_fields__
    }
    params = msgspec.convert({"temperature": 0.0, **defaults, **given}, SamplingParams)
    generation = await services.generator.submit(prompt, params)
    pieces: list[str] = []
    async for _, event in generation:
        if isinstance(event, Content):
            pieces.append(event.text)
            sys.stdout.write(event.text)
            sys.stdout.flush()
        elif isinstance(event, Finished) and event.reason is FinishReason.ERROR:
            raise EngineError(event.error or "the engine failed")
    sys.stdout.write("\n")
    return "".join(pieces)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
