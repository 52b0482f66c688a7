"""``examples/hello``: a whole third-party package with one route and one command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from llmkit.config import PluginConfig
from llmkit.contracts import ServedModel
from llmkit.plugins import load_plugins
from tests.core.distributions import EXAMPLES, install_project


class Served:
    """Of ``Services``, what the example uses."""

    model = ServedModel(("tiny",), "/models/tiny", 64, 0)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    install_project(tmp_path, EXAMPLES / "hello")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "llmkit_hello", raising=False)
    monkeypatch.delitem(sys.modules, "llmkit_hello.plugin", raising=False)
    return tmp_path


def test_the_route_answers_with_the_greeting_of_its_options(site: Path) -> None:
    config = PluginConfig(plugin=("hello",), plugin_option=("hello.greeting=Bonjour",))
    app = FastAPI()
    app.include_router(load_plugins(config).registry.create("routes", "hello", Served()))
    answer = TestClient(app).get("/hello", params={"name": "Ada"})
    assert answer.json() == {"message": "Bonjour, Ada!", "model": "tiny"}


def test_the_entry_module_imports_nothing_heavy(site: Path) -> None:
    code = (
        "import sys, llmkit_hello.plugin as plugin; plugin.hello('Ada'); "
        "print(sorted({'torch', 'fastapi', 'transformers'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "Hello, Ada!\n[]\n"
