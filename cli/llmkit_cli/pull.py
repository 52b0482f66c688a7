"""``llmkit pull``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from llmkit.config import sources
from llmkit_cli import opening
from llmkit_cli.arguments import configurable


@configurable("model", "plugins")
def pull(
    loaded: sources.Loaded,
    model: Annotated[str, typer.Argument(help="what to fetch; as for serve")],
) -> None:
    """Fetch a model's files, so that it can be served offline, and print where they are."""
    plugins = opening.load(loaded.config)
    opened = opening.open_files(loaded.config, plugins, Console(stderr=True))
    typer.echo(opened.files.path)
