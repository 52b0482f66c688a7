"""``llmkit tokenize`` and ``llmkit detokenize``: no server, no GPU, no torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from llmkit.assemble.model import open_frontend
from llmkit.config import Config, sources
from llmkit.errors import UsageError
from llmkit.frontend.services import FrontModel
from llmkit_cli import opening
from llmkit_cli.arguments import configurable

COLOURS = ("on dark_blue", "on dark_green", "on dark_red", "on purple4", "on grey30")
Output = Annotated[
    Literal["ids", "pieces", "json", "colours", "count"], typer.Option("--output", "-o", help="what to print")
]
MODEL = Annotated[str, typer.Argument(help="whose tokenizer")]


@configurable("model", "plugins")
def tokenize(
    loaded: sources.Loaded,
    model: MODEL,
    text: Annotated[str | None, typer.Argument(help="the text; default: standard input")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="read the text from here")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help='the text is JSON: messages, or {"messages": ..., "tools": ...}')
    ] = False,
    add_special_tokens: Annotated[bool, typer.Option(help="begin with BOS where the model wants it")] = True,
    generation_prompt: Annotated[bool, typer.Option(help="with --chat: open the assistant's turn")] = True,
    output: Output = "ids",
) -> None:
    """Print the tokens of a text, or of messages rendered by the model's chat template."""
    front = _frontend(loaded.config)
    given = _read(text, file)
    if chat:
        rendered = _render(front, given, generation_prompt)
        ids = front.tokenizer.encode(rendered, add_special_tokens=False)
    else:
        ids = front.tokenizer.encode(given, add_special_tokens=add_special_tokens)
    _print_tokens(front, ids, output)


@configurable("model", "plugins")
def detokenize(
    loaded: sources.Loaded,
    model: MODEL,
    ids: Annotated[list[str] | None, typer.Argument(help="ids; default: standard input")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="read the ids from here")] = None,
    skip_special_tokens: Annotated[bool, typer.Option(help="leave special tokens out")] = False,
    as_json: Annotated[bool, typer.Option("--json", help='print {"text": ...}')] = False,
) -> None:
    """Print the text behind token ids (separated by blanks or commas, or a JSON list)."""
    given = " ".join(ids) if ids else _read(None, file)
    words = given.replace(",", " ").replace("[", " ").replace("]", " ").split()
    front = _frontend(loaded.config)
    numbers = [_token_id(word, front.tokenizer.vocab_size) for word in words]
    text = front.tokenizer.decode(numbers, skip_special_tokens=skip_special_tokens)
    typer.echo(msgspec.json.encode({"text": text}).decode() if as_json else text)


def _frontend(config: Config) -> FrontModel:
    plugins = opening.load(config)
    opened = opening.open_files(config, plugins, Console(stderr=True))
    return open_frontend(config, opened, plugins.registry)


def _read(text: str | None, file: Path | None) -> str:
    if text is not None and file is not None:
        raise UsageError("--file: the text was given as an argument too; give one of them")
    if text is not None:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"the text argument is not UTF-8 ({error.reason})") from error
        return text
    try:
        raw = sys.stdin.buffer.read() if file is None else file.read_bytes()
        return raw.decode()
    except OSError as error:
        raise UsageError(f"--file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--file {file or 'standard input'}: not UTF-8 ({error.reason})") from error


def _render(front: FrontModel, given: str, generation_prompt: bool) -> str:
    if front.chat is None:
        raise UsageError("--chat: the model has no chat template; give one with --chat-template")
    try:
        conversation: Any = msgspec.json.decode(given)
    except msgspec.DecodeError as error:
        raise UsageError(
            f'--chat: the text is no JSON ({error}); give [{{"role": "user", "content": "hi"}}]'
        ) from error
    if isinstance(conversation, list):
        conversation = {"messages": conversation}
    if not isinstance(conversation, dict) or not isinstance(conversation.get("messages"), list):
        raise UsageError('--chat: want a list of messages, or {"messages": [...], "tools": [...]}')
    return front.chat.render(
        conversation["messages"],
        tools=conversation.get("tools"),
        add_generation_prompt=generation_prompt,
        template_args=conversation.get("chat_template_kwargs"),
    )


def _token_id(word: str, vocab_size: int) -> int:
    if not word.isascii() or not word.isdigit() or int(word) >= vocab_size:
        raise UsageError(f"{word!r} is no token id; this tokenizer's are 0 to {vocab_size - 1}")
    return int(word)


def _print_tokens(front: FrontModel, ids: list[int], output: str) -> None:
    pieces = [front.tokenizer.token_text(token_id) for token_id in ids]
    if output == "ids":
        typer.echo(" ".join(map(str, ids)))
    elif output == "count":
        typer.echo(str(len(ids)))
    elif output == "pieces":
        for token_id, piece in zip(ids, pieces, strict=True):
            typer.echo(f"{token_id}\t{piece!r}")
    elif output == "json":
        typer.echo(msgspec.json.encode({"count": len(ids), "tokens": ids, "pieces": pieces}).decode())
    else:
        text = Text()
        for place, piece in enumerate(pieces):
            text.append(piece, style=COLOURS[place % len(COLOURS)])
        Console(highlight=False).print(text, soft_wrap=True)
