"""Where the figures of a measurement go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import typer

from llmkit.errors import UsageError

STDOUT = Path("-")


def check_writable(flag: str, path: Path | None) -> None:
    """Before a measurement that may take long. :raises UsageError: no file can be written there."""
    if path is None or path == STDOUT:
        return
    try:
        path.open("ab").close()
    except OSError as error:
        raise UsageError(f"{flag} {path}: no file can be written there ({error.strerror})") from error


def write_json(figures: Mapping[str, object], path: Path | None) -> None:
    """To a file or to stdout, where ``path`` says so."""
    if path is None:
        return
    text = msgspec.json.format(msgspec.json.encode(figures)).decode()
    if path == STDOUT:
        typer.echo(text)
    else:
        path.write_text(text + "\n")
