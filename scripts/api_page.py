"""docs/api.md: every route and every field of its body, from the schemas of the built-in plugins' routes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

from llmkit.config import Config
from llmkit.config.flags import needed
from llmkit.frontend.services import FrontServices
from llmkit.plugins import load_plugins
from llmkit.server.app import build_app
from llmkit.server.front import Front
from llmkit.testing.openapi import BodyField, bodies, fields, objects

INTRODUCTION = """\
Every route of `llmkit serve` and every field of its body. A field is **honoured**, or **ignored** because
it cannot change the answer, or **refused** with a 400 that names it, because ignoring it would; what is
refused may be sent as long as it asks for nothing (null, an empty list, the default). A field that is in no
table is unknown: the log warns of it once, and `--strict-requests` refuses it. `/openapi.json` has the same
with types and bounds. What the fields of chat and completions mean is told at length in
[requests.md](requests.md).

Every failure is an error object, `{"error": {"message", "type", "param", "code"}}`; `param` names the
field."""


def api_page() -> str:
    """The page's text, without its first line."""
    document = _document()
    taking = bodies(document)
    lines = ["# Routes and fields", "", INTRODUCTION, "", "| route | does |", "|---|---|"]
    for route, operation in _operations(document):
        name = f"[`{route}`](#{_anchor(route)})" if route in taking else f"`{route}`"
        lines.append(f"| {name} | {_first_sentence(operation.get('description', ''))} |")
    for schema in dict.fromkeys(taking.values()):
        routes = [route for route, taken in taking.items() if taken == schema]
        lines += ["", *(f"## {route}" for route in routes), "", *_table(document, schema)]
    inner = {name for schema in taking.values() for name in objects(document, schema)[1:]}
    lines += ["", "## Objects within"]
    for name in sorted(inner):
        if fields(document, name):
            lines += ["", f"### {name}", "", *_table(document, name)]
    return "\n".join(lines) + "\n"


def _document() -> dict[str, Any]:
    """As a server with all its routes on would show it; no model is needed for that."""
    config = Config()
    config = dataclasses.replace(config, server=dataclasses.replace(config.server, enable_admin_routes=True))
    front = cast("Front", SimpleNamespace(services=FrontServices(config)))
    return build_app(front, load_plugins(config.plugins, needed(config)), config).openapi()


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield f"{method.upper()} {path}", operation


def _table(document: Mapping[str, Any], schema: str) -> Iterator[str]:
    yield "| field | type | here | |"
    yield "|---|---|---|---|"
    for field in fields(document, schema):
        yield f"| `{field.name}` | {_linked(field, document)} | {field.status} | {_cell(field.about)} |"


def _linked(field: BodyField, document: Mapping[str, Any]) -> str:
    def link(match: re.Match[str]) -> str:
        name = match[0]
        return f"[{name}](#{name.lower()})" if name in document["components"]["schemas"] else name

    return re.sub(r"[A-Z]\w+", link, _cell(field.kind))


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def _first_sentence(description: str) -> str:
    return _cell(" ".join(description.split()).partition(". ")[0].rstrip("."))


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
