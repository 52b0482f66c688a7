"""Entry point: which command, its errors as one line, and commands that plugins add."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from llmkit.plugins import load_plugins

from llmkit import LlmkitError, __version__
from llmkit.config import PluginConfig, flags
from llmkit_cli.arguments import adapt
from llmkit_cli.bench.command import bench
from llmkit_cli.generate import chat, complete
from llmkit_cli.plugins import plugins
from llmkit_cli.pull import pull
from llmkit_cli.serve import serve
from llmkit_cli.tokens import detokenize, tokenize

CONFIGURABLE = {
    "serve": serve,
    "chat": chat,
    "complete": complete,
    "tokenize": tokenize,
    "detokenize": detokenize,
    "pull": pull,
}


def version() -> None:
    """Print llmkit's version."""
    typer.echo(__version__)


def build_app() -> typer.Typer:
    """The program with its built-in commands."""
    app = typer.Typer(
        name="llmkit",
        help="Serve large language models; every part is a plugin.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def program(
        debug: bool = typer.Option(False, "--debug", help="show tracebacks (any command)"),
    ) -> None:
        """Serve large language models; every part is a plugin."""

    for name, command in CONFIGURABLE.items():
        app.command(name)(command)
    app.add_typer(bench, name="bench")
    app.add_typer(plugins, name="plugins")
    app.command("version")(version)
    return app


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0, 1 for a failure, 2 for usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        app = build_app()
        name = next((word for word in words if not word.startswith("-")), None)
        if name in CONFIGURABLE and not {"-h", "--help"} & set(words):
            place = words.index(name)
            words = [*words[: place + 1], *adapt(words[place + 1 :], *_known_flags(name))]
        _add_plugin_commands(app, name)
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


def _known_flags(command: str) -> tuple[frozenset[str], frozenset[str]]:
    """All flags of a configurable command, and those of them that take no value."""
    known, switches = {"--config", "-h", "--help"}, {"-h", "--help"}
    for flag in flags.flags():
        names = {*flag.names, *flag.negative_names}
        known |= names
        if flag.is_bool:
            switches |= names
    for parameter in CONFIGURABLE[command].__signature__.parameters.values():  # type: ignore[attr-defined]
        option = getattr(parameter.annotation, "__metadata__", (None,))[0]
        for name in getattr(option, "param_decls", None) or ():
            names = set(name.split("/"))
            known |= names
            if parameter.annotation.__origin__ in (bool, bool | None):
                switches |= names
    return frozenset(known), frozenset(switches)


def _add_plugin_commands(app: typer.Typer, typed: str | None) -> None:
    """Commands of plugins: the typed one if no built-in has its name, all of enabled ones for help."""
    builtin = {*CONFIGURABLE, "bench", "plugins", "version"}
    enabled = tuple(name for name in os.environ.get("LLMKIT_PLUGIN", "").split(",") if name)
    if typed in builtin or (typed is None and not enabled):
        return
    needed = {} if typed is None else {"command": typed}
    loaded = load_plugins(PluginConfig(plugin=enabled), needed)
    for entry in loaded.registry.entries("command"):
        _add(app, entry.name, entry.factory, str(entry.traits.get("help", "")))


def _add(app: typer.Typer, name: str, command: Any, help: str) -> None:
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, help=help)
    else:
        app.command(name, help=help)(command)


if __name__ == "__main__":
    main()
