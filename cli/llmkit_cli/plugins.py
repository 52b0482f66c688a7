"""``llmkit plugins``."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from llmkit.config import flags, sources
from llmkit.plugins import load_plugins
from llmkit_cli.arguments import configurable

plugins = typer.Typer(help="What is installed, loaded or refused, and why.", no_args_is_help=True)

STATE_STYLES = {"loaded": "green", "failed": "red", "refused": "yellow", "blocked": "yellow", "idle": "dim"}


@plugins.callback()
def group() -> None:
    """What is installed, loaded or refused, and why."""


@configurable("model", "scheduler", "speculation", "parallel", "plugins")
def list_plugins(
    loaded: sources.Loaded,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    served: Annotated[
        bool, typer.Option("--served", help="import only what serve with the same flags would")
    ] = False,
) -> None:
    """List plugins with state, cause, distribution, version and what they registered.

    Every installed plugin is imported, to see whether it works; ``idle`` is one that ``serve`` with the
    same flags would leave alone.
    """
    needed = flags.needed(loaded.config)
    table = load_plugins(loaded.config.plugins, needed, import_all=not served).table()
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(table)).decode())
        return
    rendered = Table("plugin", "state", "from", "offers", "cause")
    for row in table:
        rendered.add_row(*_cells(row))
    Console().print(rendered)


plugins.command("list")(list_plugins)


def _cells(row: Any) -> tuple[str, str, str, str, str]:
    state = f"[{STATE_STYLES[row.state]}]{row.state}[/]"
    return row.name, state, f"{row.distribution} {row.version}", "\n".join(row.registered), row.cause or ""
