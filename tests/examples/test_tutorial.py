"""docs/plugins.md: what it says to type works as it stands."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmkit import UsageError
from llmkit.config import PluginConfig
from llmkit.plugins import load_plugins
from tests.core.distributions import install, install_project

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugins.md"
BLOCKS = re.findall(r"```(toml|python)\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The tutorial's package, made by following it, and installed."""
    (pyproject,) = [text for language, text in BLOCKS if language == "toml"]
    first, second, rarer = [text for language, text in BLOCKS if language == "python"]
    project = tmp_path / "project"
    package = project / tomllib.loads(pyproject)["tool"]["setuptools"]["packages"][0]
    package.mkdir(parents=True)
    (project / "pyproject.toml").write_text(pyproject)
    (package / "__init__.py").touch()
    (package / "plugin.py").write_text(first + "\n\n" + second)
    folder = tmp_path / "site"
    folder.mkdir()
    install_project(folder, project)
    install(folder, "rarer", {"rarer_module": rarer}, {"rarer": "rarer_module"})
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in ("llmkit_shortest_first", "llmkit_shortest_first.plugin", "rarer_module"):
        sys.modules.pop(name, None)


def test_the_policy_is_found_by_its_name(site: Path) -> None:
    plugins = load_plugins(PluginConfig(), {"policy": "shortest-first"})
    policy = plugins.registry.create("policy", "shortest-first", None)
    requests = [SimpleNamespace(num_prompt_tokens=n, order=i) for i, n in enumerate([5, 2, 9])]
    assert [r.num_prompt_tokens for r in sorted(requests, key=policy.key)] == [2, 5, 9]
    assert policy.victim(requests).num_prompt_tokens == 9
    assert plugins.registry.find("policy", "shortest-first/shortest-first") is not None


def test_the_rule_runs_once_the_plugin_is_enabled(site: Path) -> None:
    class Draft:
        prompt_ids = range(600)
        refusal = ""

        def refuse(self, message: str) -> None:
            self.refusal = message

    option = ("shortest-first.max_prompt_tokens=512",)
    (rule,) = load_plugins(PluginConfig(plugin=("shortest-first",), plugin_option=option)).implementations(
        "prepare_request"
    )
    draft = Draft()
    rule(draft=draft)
    assert draft.refusal == "prompts have at most 512 tokens here, this one has 600"


def test_a_wrong_option_is_an_error(site: Path) -> None:
    with pytest.raises(UsageError, match="'max_prompt'; did you mean 'max_prompt_tokens'"):
        load_plugins(PluginConfig(plugin_option=("shortest-first.max_prompt=1",)))


def test_the_rarer_hooks_register(site: Path) -> None:
    registry = load_plugins(PluginConfig(plugin=("rarer",))).registry
    assert "one-at-a-time" in registry.names("scheduler")
    assert registry.usable("ops", SimpleNamespace(device="cpu"))[0] == "fast-silu"
    assert "fast-silu" not in registry.usable("ops", SimpleNamespace(device="cuda"))
