"""The Grafana board asks for nothing that is not exported."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from llmkit.config import Config, ObservabilityConfig
from tests.core.server.local_front import LocalFront, serving

BOARD = json.loads((Path(__file__).parents[3] / "docs/grafana/llmkit.json").read_text())
NAMED = re.compile(r'__name__="\$prefix:(\w+)"|\b(http_\w+)[\[{]')


def queries() -> dict[str, str]:
    """Query -> the panel or variable that asks."""
    variables = BOARD["templating"]["list"]
    asked = {v["query"]["query"]: v["name"] for v in variables if v["type"] == "query"}
    for panel in BOARD["panels"]:
        asked |= {target["expr"]: panel["title"] for target in panel["targets"]}
    return asked


async def series(prefix: str) -> dict[str, set[str]]:
    """Name without prefix -> its labels."""
    front = LocalFront(Config(observability=ObservabilityConfig(metrics_prefix=prefix)))
    async with serving(front) as client:
        await client.post("/v1/completions", json={"prompt": "hi"})
        await client.post("/v1/completions", json={})
        text = (await client.get("/metrics")).text
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^([\w:]+)\{(.*)\} ", text, re.MULTILINE):
        found.setdefault(name.removeprefix(f"{prefix}:"), set()).update(re.findall(r'(\w+)="', labels))
    return found


@pytest.mark.parametrize("prefix", ["llmkit", "vllm"])
async def test_every_metric_and_label_that_it_asks_for_is_exported(prefix: str) -> None:
    exported = await series(prefix)
    assert len(queries()) > 20
    for query, title in queries().items():
        names = [of_model or of_http for of_model, of_http in NAMED.findall(query)]
        assert names, f"{title}: {query} asks for nothing"
        assert len(names) == query.count("__name__") + query.count("http_")
        for name in names:
            assert name in exported, f"{title}: {name} is not exported"
            grouped = re.findall(r"by \(([^)]*)\)", query)
            wanted = {label.strip() for group in grouped for label in group.split(",")}
            wanted |= set(re.findall(r"(\w+)=~", query))
            assert wanted <= exported[name], f"{title}: {name} has no {wanted - exported[name]}"


def test_it_can_be_imported_anywhere() -> None:
    variables = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "prefix", "model"]
    assert variables["datasource"]["type"] == "datasource"
    for panel in BOARD["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in BOARD["panels"]}
    ids = {panel["id"] for panel in BOARD["panels"]}
    assert len(places) == len(ids) == len(BOARD["panels"])
