"""Entry point: which command, its errors as one line, and commands that plugins add.

A command's module is imported when it is typed, so that ``llmkit --help`` answers at once.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from llmkit import LlmkitError, __version__
from llmkit_cli.init import stay_behind_as_init


@dataclass(frozen=True, slots=True)
class Command:
    """A built-in command and where it is."""

    module: str
    attribute: str
    help: str


COMMANDS: Mapping[str, Command] = {
    "serve": Command("llmkit_cli.serve", "serve", "Serve MODEL through an OpenAI-compatible API."),
    "run-batch": Command(
        "llmkit_cli.batch.command", "run_batch_file", "Answer a file of requests in OpenAI's batch format."
    ),
    "chat": Command("llmkit_cli.generate", "chat", "Chat with MODEL in the terminal, or ask one question."),
    "complete": Command("llmkit_cli.generate", "complete", "Continue a text."),
    "tokenize": Command("llmkit_cli.tokens", "tokenize", "Print a text's or a conversation's tokens."),
    "detokenize": Command("llmkit_cli.tokens", "detokenize", "Print the text behind token ids."),
    "pull": Command("llmkit_cli.pull", "pull", "Fetch a model, so that it can be served offline."),
    "plugins": Command("llmkit_cli.plugins", "plugins", "What is installed, loaded or refused, and why."),
    "top": Command("llmkit_cli.top.command", "top", "Show live what a server does."),
    "bench": Command("llmkit_cli.bench.command", "bench", "Measure a server or a scheduler."),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0, 1 for a failure, 2 for usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    try:
        name = next((word for word in words if not word.startswith("-")), None)
        if name == "serve":
            stay_behind_as_init()
        app = build_app(name)
        if name is not None and not {"-h", "--help"} & set(words):
            place = words.index(name) + 1
            words = [*words[:place], *_adapted(name, words[place:])]
        app(args=words, prog_name="llmkit")
    except LlmkitError as error:
        if debug:
            traceback.print_exc()
        typer.echo(f"llmkit: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if debug:
            traceback.print_exc()
        typer.echo(f"llmkit: {error}", err=True)
        sys.exit(1)


def build_app(typed: str | None) -> typer.Typer:
    """The program; only the typed command, or all while a shell completes, is more than its help line."""
    app = typer.Typer(
        name="llmkit",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def program(
        debug: bool = typer.Option(False, "--debug", help="show tracebacks (any command)"),
        version: bool = typer.Option(
            False, "--version", help="print llmkit's version and exit", is_eager=True, callback=_print_version
        ),
    ) -> None:
        """Serve large language models; every part is a plugin."""

    completing = "_LLMKIT_COMPLETE" in os.environ
    for name, command in COMMANDS.items():
        if completing or name == typed:
            _add(app, name, _load(command), command.help)
        else:
            app.command(name, help=command.help)(_not_loaded)
    app.command("version")(version)
    _add_plugin_commands(app, typed)
    return app


def version() -> None:
    """Print llmkit's version."""
    typer.echo(__version__)


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


def _not_loaded() -> None:
    raise AssertionError("a command that was not typed ran")


def _load(command: Command) -> Any:
    return getattr(importlib.import_module(command.module), command.attribute)


def _add(app: typer.Typer, name: str, command: typer.Typer | Callable[..., Any], help: str) -> None:
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, help=help)
    else:
        app.command(name, help=help)(command)


def _adapted(name: str, words: Sequence[str]) -> Sequence[str]:
    """With flags of other engines looked at first, where the command takes config flags."""
    from llmkit_cli.arguments import adapt, known_flags, takes_config

    loaded = _load(COMMANDS[name]) if name in COMMANDS else None
    if isinstance(loaded, typer.Typer):
        commands = {command.name: command.callback for command in loaded.registered_commands}
        place = next((place for place, word in enumerate(words) if word in commands), None)
        if place is None:
            return words
        loaded, before, words = commands[words[place]], words[: place + 1], words[place + 1 :]
    else:
        before = ()
    if loaded is None or not takes_config(loaded):
        return (*before, *words)
    return (*before, *adapt(words, *known_flags(loaded)))


def _add_plugin_commands(app: typer.Typer, typed: str | None) -> None:
    """Commands of plugins: the typed one if no built-in has its name, those of enabled ones for help."""
    if typed in COMMANDS or typed == "version" or (typed is None and "LLMKIT_PLUGIN" not in os.environ):
        return
    from llmkit.config import sources
    from llmkit.plugins import load_plugins

    config = sources.load({}, os.environ).config
    loaded = load_plugins(config.plugins, {} if typed is None else {"command": typed})
    for entry in loaded.registry.entries("command"):
        _add(app, entry.name, entry.factory, str(entry.traits.get("help", "")))


if __name__ == "__main__":
    main()
