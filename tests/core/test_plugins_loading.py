"""Which plugins are imported, in what order, and what a broken one costs."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmkit import PluginError, UnknownName, UsageError
from llmkit.config import PluginConfig
from llmkit.plugins import PluginRow, Plugins, load_plugins
from tests.core.distributions import API, EXAMPLES, install, install_project

POLICY = """
import llmkit

@llmkit.hookimpl
def register_scheduling_policies(register):
    register({name!r}, lambda config, options: ({name!r}, options))
"""
POLICY_KIND = (API, "llmkit-kind:policy")


def offer(site: Path, plugin: str, policy: str | None = None, **options: object) -> None:
    """Install distribution ``plugin-dist`` with plugin ``plugin`` that offers one policy."""
    module = plugin.replace("-", "_") + "_module"
    source = POLICY.format(name=policy or plugin)
    install(site, f"{plugin}-dist", {module: source}, {plugin: module}, **options)  # type: ignore[arg-type]


def row(plugins: Plugins, name: str) -> PluginRow:
    return next(row for row in plugins.table() if row.name == name)


def make(plugins: Plugins, policy: str) -> object:
    return plugins.registry.create("policy", policy, None)


def test_built_ins_load_and_a_merely_installed_plugin_is_not_imported(site: Path) -> None:
    offer(site, "quiet")
    plugins = load_plugins(PluginConfig())
    assert row(plugins, "quiet") == PluginRow(
        "quiet", "idle", None, "quiet-dist", "1.0", builtin=False, enabled=False, registered=()
    )
    assert "quiet_module" not in sys.modules
    builtins = [r for r in plugins.table() if r.builtin]
    assert {r.state for r in builtins} == {"loaded"}
    assert "quiet" not in plugins.names
    assert set(plugins.names) == {r.name for r in builtins}


def test_loading_twice_gives_the_same(site: Path) -> None:
    offer(site, "mine")
    config = PluginConfig(plugin=("mine",))
    first, second = load_plugins(config), load_plugins(config)
    assert first.names == second.names
    assert first.table() == second.table()
    assert first.registry is not second.registry


# ---- needed by a component's name ----


def test_a_name_no_built_in_has_imports_those_who_may_offer_it(site: Path) -> None:
    offer(site, "says-so", "wanted", keywords=POLICY_KIND)
    offer(site, "says-nothing", "other")
    offer(site, "another-kind", "third", keywords=(API, "llmkit-kind:attention"))
    plugins = load_plugins(PluginConfig(), {"policy": "wanted"})
    assert make(plugins, "wanted") == ("wanted", None)
    assert [row(plugins, n).state for n in ("says-so", "says-nothing", "another-kind")] == [
        "loaded",
        "loaded",
        "idle",
    ]
    assert not row(plugins, "says-so").enabled


def test_a_built_ins_name_and_auto_import_nobody(site: Path) -> None:
    offer(site, "eager")
    needed = {"policy": "fcfs", "scheduler": "continuous", "attention": "auto", "loader": "gguf"}
    assert row(load_plugins(PluginConfig(), needed), "eager").state == "idle"


def test_a_plugins_own_address_imports_just_that_one(site: Path) -> None:
    offer(site, "one", "same")
    offer(site, "two", "same")
    plugins = load_plugins(PluginConfig(), {"policy": "two/same"})
    assert (row(plugins, "one").state, row(plugins, "two").state) == ("idle", "loaded")
    assert make(plugins, "two/same") == ("same", None)


def test_auto_takes_only_enabled_third_parties(site: Path) -> None:
    source = """
        import llmkit

        @llmkit.hookimpl
        def register_executors(register):
            register("fast", lambda spec, options: None, refuses=lambda spec: None, priority=1000)
    """
    install(site, "fast-dist", {"fast_module": source}, {"fast": "fast_module"})
    needed = load_plugins(PluginConfig(), {"executor": "fast"}).registry
    assert needed.get("executor", "fast").owner == "fast"
    entry = needed.entries("executor")[0]
    assert (entry.name, entry.auto) == ("fast", False)
    assert (
        load_plugins(PluginConfig(plugin=("fast",))).registry.choose("executor", "auto", None).name == "fast"
    )


def test_a_plugin_file_is_loaded_before_names_are_resolved(
    site: Path,
) -> None:  # B132, B142: vllm#53072, #21881
    (site / "by_path").mkdir()
    (site / "by_path" / "mod.py").write_text(POLICY.format(name="from-path"))
    plugins = load_plugins(PluginConfig(plugin=("by_path.mod",)), {"policy": "from-path"})
    assert make(plugins, "from-path") == ("from-path", None)
    assert row(plugins, "by_path.mod").state == "loaded"
    assert plugins.registry.find("policy", "by_path.mod/from-path") is not None


def test_an_unknown_component_lists_built_in_and_plugin_names(site: Path) -> None:  # B142: vllm#21881
    offer(site, "mine", "shortest")
    with pytest.raises(
        UnknownName, match=r"'shortes'.*did you mean 'shortest'.*Known: fair, fcfs, .*shortest"
    ) as caught:
        load_plugins(PluginConfig(plugin=("mine",)), {"policy": "shortes"})
    assert caught.value.exit_code == 2


def test_named_twice_it_is_registered_once(site: Path) -> None:  # B138: pytest#4718
    offer(site, "twice")
    plugins = load_plugins(PluginConfig(plugin=("twice_module", "twice", "twice_module")))
    assert plugins.names.count("twice") == 1
    assert [e.owner for e in plugins.registry.entries("policy") if e.name == "twice"] == ["twice"]
    assert row(plugins, "twice").enabled


# ---- broken plugins ----


def test_a_broken_plugin_costs_nobody_else_anything(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:  # B126: llm#1351
    offer(site, "good", "g")
    install(
        site,
        "bad-import-dist",
        {"bad_import_module": "import no_such_thing"},
        {"bad-import": "bad_import_module"},
    )
    half = POLICY.format(name="h") + "    raise RuntimeError('half way')\n"
    install(site, "bad-register-dist", {"bad_register_module": half}, {"bad-register": "bad_register_module"})
    with caplog.at_level(logging.WARNING):
        plugins = load_plugins(PluginConfig(), {"policy": "g"})
    assert make(plugins, "g") == ("g", None)
    assert plugins.registry.find("policy", "h") is None
    assert plugins.registry.find("policy", "bad-register/h") is None
    warned = [record.getMessage() for record in caplog.records]
    assert any("'bad-import' (bad-import-dist 1.0) failed: ModuleNotFoundError" in line for line in warned)
    assert any("'bad-register'" in line and "RuntimeError: half way" in line for line in warned)
    assert row(plugins, "bad-register").cause == "RuntimeError: half way"
    with pytest.raises(PluginError, match=r"2 of the plugins.*bad-import.*bad-register") as strict:
        load_plugins(PluginConfig(strict_plugins=True), {"policy": "g"})
    assert strict.value.exit_code != 0


def test_one_asked_for_by_name_that_fails_is_fatal(site: Path) -> None:  # B127: vllm#48277
    source = POLICY.format(name="p") + "    raise RuntimeError('no device')\n"
    install(site, "p-dist", {"p_module": source}, {"p": "p_module"}, keywords=POLICY_KIND)
    for config, needed in (
        (PluginConfig(), {"policy": "p"}),
        (PluginConfig(), {"policy": "p/p"}),
        (PluginConfig(plugin=("p",)), {}),
        (PluginConfig(plugin_option=("p.x=1",)), {}),
    ):
        with pytest.raises(UsageError, match=r"'p' \(p-dist 1.0\) failed: RuntimeError: no device") as caught:
            load_plugins(config, needed)
        assert caught.value.exit_code == 2


def test_one_that_exits_when_imported_does_not_take_the_process_along(site: Path) -> None:
    install(site, "exit-dist", {"exit_module": "raise SystemExit(3)"}, {"exits": "exit_module"})
    plugins = load_plugins(PluginConfig(), import_all=True)
    assert row(plugins, "exits").cause == "SystemExit: 3"


@pytest.mark.parametrize(
    ("keywords", "cause"),
    [
        pytest.param(
            ("llmkit-api:99.0",), "plugin API 99.0; this llmkit offers 0.1: it needs a newer llmkit", id="new"
        ),
        pytest.param(("llmkit-api:0.0",), "plugin API 0.0; .* newer release of other-dist", id="old"),
        pytest.param(("llmkit-api:0.2",), "plugin API 0.2; .* newer llmkit", id="minor-below-1.0"),
        pytest.param((), "does not say which plugin API .* keyword llmkit-api:0.1", id="none"),
        pytest.param(("llmkit-api:latest",), "takes MAJOR.MINOR", id="unreadable"),
    ],
)
def test_another_api_version_is_refused_without_import(
    site: Path, keywords: tuple[str, ...], cause: str
) -> None:  # B134: vllm#42065
    offer(site, "other", keywords=keywords)
    plugins = load_plugins(PluginConfig(), {"policy": "fcfs"})
    assert row(plugins, "other").state == "refused"
    with pytest.raises(UsageError, match=f"--plugin other: plugin 'other' .* refused: .*{cause}"):
        load_plugins(PluginConfig(plugin=("other",)))
    with pytest.raises(PluginError, match=cause):
        load_plugins(PluginConfig(strict_plugins=True))
    assert "other_module" not in sys.modules


def test_one_release_may_serve_several_api_versions(site: Path) -> None:  # B134: vllm#42065
    offer(site, "both", keywords=("llmkit-api:0.1", "llmkit-api:0.2"))
    assert row(load_plugins(PluginConfig(plugin=("both",))), "both").state == "loaded"


def test_a_distribution_without_metadata_is_refused(site: Path) -> None:
    offer(site, "bare")
    (site / "bare_dist-1.0.dist-info" / "METADATA").unlink()
    assert row(load_plugins(PluginConfig()), "bare").state == "refused"


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        pytest.param("shortst", PluginConfig(plugin=("shortst",)), "did you mean 'shortest'", id="plugin"),
        pytest.param("nope", PluginConfig(plugin_option=("nope.x=1",)), "Installed: .*shortest", id="option"),
        pytest.param(
            "nope", PluginConfig(override=("policy:fcfs=nope",)), "--override policy:fcfs=nope", id="override"
        ),
    ],
)
def test_one_asked_for_and_not_installed_is_fatal(
    site: Path, name: str, config: PluginConfig, message: str
) -> None:
    offer(site, "shortest")
    with pytest.raises(UsageError, match=message) as caught:
        load_plugins(config)
    assert repr(name) in str(caught.value)


def test_blocked_means_not_imported_and_asking_for_it_is_an_error(site: Path) -> None:
    offer(site, "mine")
    plugins = load_plugins(PluginConfig(block_plugin=("mine", "observability")), import_all=True)
    assert row(plugins, "mine").state == row(plugins, "observability").state == "blocked"
    assert "mine_module" not in sys.modules
    assert plugins.registry.find("routes", "metrics") is None
    with pytest.raises(UsageError, match=r"--plugin mine: .* blocked"):
        load_plugins(PluginConfig(plugin=("mine",), block_plugin=("mine",)))


def test_blocking_what_is_not_there_is_said(caplog: pytest.LogCaptureFixture) -> None:
    load_plugins(PluginConfig(block_plugin=("nobody",)))
    assert "--block-plugin nobody" in caplog.text


def test_two_distributions_with_one_plugin_name_are_told_apart_by_module(site: Path) -> None:
    for letter in "ab":
        source = POLICY.format(name=letter)
        install(
            site, f"dist-{letter}", {f"{letter}_module.plugin": source}, {"same": f"{letter}_module.plugin"}
        )
    with pytest.raises(UsageError, match="dist-a, dist-b all call a plugin so"):
        load_plugins(PluginConfig(plugin=("same",)))
    plugins = load_plugins(PluginConfig(plugin=("b_module.plugin",)))
    assert make(plugins, "b") == ("b", None)
    assert row(plugins, "b_module.plugin").distribution == "dist-b"


def test_a_plugin_named_like_a_built_in_one_is_refused(site: Path) -> None:
    offer(site, "schedulers", "mine")
    plugins = load_plugins(PluginConfig(), import_all=True)
    rows = [r for r in plugins.table() if r.name == "schedulers"]
    assert [(r.builtin, r.state) for r in rows] == [(True, "loaded"), (False, "refused")]
    assert plugins.registry.find("policy", "mine") is None


# ---- order, and the other processes ----


def test_third_parties_load_in_the_order_of_the_command_line(site: Path) -> None:
    for name in ("a", "b", "c"):
        offer(site, name)
    for order in (("c", "a", "b"), ("b", "c", "a")):
        plugins = load_plugins(PluginConfig(plugin=order))
        assert plugins.names[-3:] == order
        assert [n for n in plugins.registry.names("policy") if n in order] == list(order)
        assert plugins.registry.names("policy")[0] == "fcfs"


def test_tryfirst_and_trylast_change_the_order(site: Path) -> None:
    for name, mark in (("a", "trylast=True"), ("b", ""), ("c", "tryfirst=True")):
        source = POLICY.format(name=name).replace("hookimpl\n", f"hookimpl({mark})\n", 1) if mark else None
        install(
            site,
            f"{name}-dist",
            {f"{name}_module": source or POLICY.format(name=name)},
            {name: f"{name}_module"},
        )
    names = load_plugins(PluginConfig(plugin=("a", "b", "c"))).registry.names("policy")
    assert (names[0], names[-1]) == ("c", "a")
    assert names.index("fcfs") < names.index("b")


CHILD = """
import json, sys
from llmkit.config import PluginConfig
from llmkit.plugins import load_plugins
config = PluginConfig(**{key: tuple(value) for key, value in json.loads(sys.argv[1]).items()})
plugins = load_plugins(config)
kinds = ["policy", "attention", "routes", "executor"]
print(json.dumps([plugins.names, {kind: plugins.registry.names(kind) for kind in kinds},
                  "idle_module" in sys.modules]))
"""


def test_every_process_has_the_same_components(site: Path) -> None:  # B129: vllm#18326
    for name in ("z", "a", "needed", "idle"):
        offer(site, name, keywords=POLICY_KIND if name != "idle" else (API, "llmkit-kind:linear"))
    parent = load_plugins(PluginConfig(plugin=("z", "a")), {"policy": "needed"})
    given = json.dumps({"plugin": ["z", "a"], "load": parent.names})
    child = subprocess.run(
        [sys.executable, "-c", CHILD, given],
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    names, registered, idle_imported = json.loads(child.stdout)
    assert tuple(names) == parent.names
    assert registered == {kind: parent.registry.names(kind) for kind in registered}
    assert "needed" in registered["policy"]
    assert not idle_imported
    assert child.stderr == ""


def test_what_the_parent_loaded_and_a_child_cannot_is_fatal(site: Path) -> None:
    offer(site, "here")
    with pytest.raises(UsageError, match="loaded by the parent process: no plugin 'gone'"):
        load_plugins(PluginConfig(load=("here", "gone")))


# ---- the example packages ----


@pytest.fixture
def examples(site: Path) -> Path:
    for name in ("hello", "broken-import", "other-api", "takes-name"):
        install_project(site, EXAMPLES / name)
    return site


def test_example_plugins_are_listed_with_their_causes(examples: Path) -> None:
    rows = {r.name: r for r in load_plugins(PluginConfig(), import_all=True).table()}
    assert rows["hello"].state == "idle"
    assert rows["hello"].registered == ("command:hello",)
    assert rows["broken-import"].state == "failed"
    assert "a_library_that_is_not_installed" in (rows["broken-import"].cause or "")
    assert rows["other-api"].state == "refused"
    assert "99.0" in (rows["other-api"].cause or "")
    assert rows["takes-name"].state == "refused"
    assert "'paged-cpu'" in (rows["takes-name"].cause or "")


def test_routes_exist_only_when_enabled(examples: Path) -> None:
    by_need = load_plugins(PluginConfig(), {"command": "hello"}).registry
    assert by_need.get("command", "hello").traits["help"] == "Greet somebody."
    assert by_need.find("routes", "hello") is None
    enabled = load_plugins(PluginConfig(plugin=("hello",)))
    assert enabled.registry.get("routes", "hello").owner == "hello"


def test_a_command_nobody_has_is_left_to_the_command_line(examples: Path) -> None:
    assert load_plugins(PluginConfig(), {"command": "helo"}).registry.find("command", "helo") is None
