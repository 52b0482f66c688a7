"""``llmkit serve``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from llmkit.assemble.front import build_front
from llmkit.config import sources
from llmkit_cli import opening
from llmkit_cli.arguments import configurable
from llmkit_cli.summary import Reporter

MODEL = Annotated[
    str | None,
    typer.Argument(help="a directory, .gguf file, pkg:DIST[/FILE], hub id, ORG/REPO:QUANT or alias"),
]


@configurable(
    "model",
    "cache",
    "scheduler",
    "speculation",
    "parallel",
    "server",
    "tls",
    "limits",
    "observability",
    "plugins",
)
def serve(
    loaded: sources.Loaded,
    model: MODEL = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="print every setting and where it comes from, then exit")
    ] = False,
) -> None:
    """Serve MODEL through an OpenAI-compatible API."""
    from llmkit.server.run import run

    if show_config:
        _print_config(loaded)
        return
    config = loaded.config
    console = Console(stderr=True)
    plugins = opening.load(config)
    reporter = Reporter(console, config)
    raise typer.Exit(run(build_front(config, plugins), plugins, config, on_state=reporter.show))


def _print_config(loaded: sources.Loaded) -> None:
    table = Table("setting", "value", "from")
    for row in sources.show(loaded):
        table.add_row(row.name, row.value, row.origin)
    Console().print(table)
