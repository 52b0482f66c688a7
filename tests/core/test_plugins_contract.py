"""What a plugin may register and how: one hook at a time, its options, its names."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmkit import PluginError, StartupError, UnknownName, UsageError
from llmkit.config import PluginConfig
from llmkit.plugins import Plugins, load_plugins
from llmkit.plugins.recorder import BY_NAME_KINDS, KINDS, hook_names
from tests.core.distributions import EXAMPLES, install, install_project

MINE = PluginConfig(plugin=("mine",))


def mine(site: Path, body: str, name: str = "mine") -> None:
    """Install plugin ``name`` whose module is ``body`` after an import of llmkit."""
    module = f"{name}_module"
    install(site, f"{name}-dist", {module: "import llmkit\n" + body}, {name: module})


def cause_of(site: Path, body: str) -> str:
    """Why llmkit does not take a plugin of this source."""
    mine(site, body)
    with pytest.raises(UsageError) as caught:
        load_plugins(MINE)
    return str(caught.value)


# ---- every hook ----

FULL = "refuses=lambda spec: None, priority=3"
RECOGNIZES = "recognizes=lambda hints: 'its template says so', priority=3"
CALLS = {
    "register_commands": ("command", "register('x', make, help='An x.')"),
    "register_model_sources": ("source", "register('x', make)"),
    "register_weight_loaders": ("loader", f"register('x', make, {FULL})"),
    "register_tokenizers": ("tokenizer", f"register('x', make, {FULL})"),
    "register_schedulers": ("scheduler", "register('x', make)"),
    "register_scheduling_policies": ("policy", "register('x', make)"),
    "register_executors": ("executor", f"register('x', make, {FULL})"),
    "register_speculators": ("speculator", "register('x', make, refuses=lambda spec: None)"),
    "register_kv_connectors": ("connector", "register('x', make, refuses=lambda spec: None)"),
    "register_models": ("model", f"register('x', make, architectures=('XForCausalLM',), {FULL})"),
    "register_linear_methods": ("linear", f"register('x', make, {FULL})"),
    "register_ops": ("ops", f"register('x', make, {FULL})"),
    "register_attention_backends": ("attention", f"register('x', make, {FULL})"),
    "register_grammar_backends": ("grammar", f"register('x', make, {FULL})"),
    "register_logits_processors": ("processor", "register('x', make, check=lambda arguments: arguments)"),
    "register_worker_methods": ("worker_method", "register('x', make)"),
    "register_tool_parsers": ("tool_parser", f"register('x', make, {RECOGNIZES})"),
    "register_reasoning_parsers": ("reasoning_parser", f"register('x', make, {RECOGNIZES})"),
    "register_output_stages": ("output_stage", "register('x', make)"),
    "register_routes": ("routes", "register('x', make)"),
}


@pytest.mark.parametrize("hook", list(CALLS))
def test_every_register_hook_registers_its_kind(site: Path, hook: str) -> None:
    kind, call = CALLS[hook]
    mine(
        site,
        f"""
def make(*given):
    return given

@llmkit.hookimpl
def {hook}(register):
    {call}
""",
    )
    plugins = load_plugins(MINE)
    assert plugins.registry.create(kind, "x", "spec") == ("spec", None)
    entry = plugins.registry.get(kind, "x")
    assert entry.priority == (3 if "priority" in call else -1 if kind in BY_NAME_KINDS else 0)
    assert f"{kind}:x" in next(r for r in plugins.table() if r.name == "mine").registered


def test_every_hook_of_the_contract_is_tried_here() -> None:
    assert {*CALLS, "prepare_request", "prepare_model"} == set(hook_names())
    assert {hook: kind for hook, (kind, _) in CALLS.items()} == KINDS


@pytest.mark.parametrize("hook", ["register_logits_processors", "register_worker_methods", "register_routes"])
def test_what_runs_unasked_is_there_only_when_its_plugin_is_enabled(site: Path, hook: str) -> None:
    kind, call = CALLS[hook]
    mine(
        site,
        f"""
from dataclasses import dataclass

@dataclass(frozen=True)
class Options:
    limit: int = 1

def make(*given):
    return given

@llmkit.hookimpl
def {hook}(register):
    {call}
""",
    )
    merely_loaded = load_plugins(PluginConfig(plugin_option=("mine.limit=7",)))
    assert "mine" in merely_loaded.names
    assert merely_loaded.registry.names(kind).count("x") == 0
    assert "x" in load_plugins(MINE).registry.names(kind)


def test_prepare_request_runs_when_enabled_and_gets_the_options(site: Path) -> None:
    body = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Options:
    limit: int = 1

@llmkit.hookimpl
def prepare_request(draft, options):
    draft.append(("mine", options.limit))
"""
    mine(site, body)
    first = body.replace("hookimpl\ndef", "hookimpl(tryfirst=True)\ndef").replace("draft, options", "draft")
    mine(site, first.replace('("mine", options.limit)', '"first"'), name="first")
    config = PluginConfig(plugin=("mine", "first"), plugin_option=("mine.limit=7",))
    implementations = load_plugins(config).implementations("prepare_request")
    assert [implementation.plugin for implementation in implementations] == ["first", "mine"]
    calls: list[object] = []
    for implementation in implementations:
        implementation(draft=calls)
    assert calls == ["first", ("mine", 7)]
    merely_loaded = load_plugins(PluginConfig(plugin_option=("mine.limit=7",)))
    assert "mine" in merely_loaded.names
    assert merely_loaded.implementations("prepare_request") == []


# ---- hooks done wrongly ----

REGISTER = "@llmkit.hookimpl\ndef register_scheduling_policies(register):\n    register('{}', print)\n"


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        pytest.param(
            REGISTER.replace("register_scheduling_policies", "register_scheduling_polices").format("x"),
            "'register_scheduling_polices', which is no hook .* did you mean 'register_scheduling_policies'",
            id="misspelt-hook",
        ),
        pytest.param(
            "def register_routes(register): pass",
            "'register_routes' lacks the mark @llmkit.hookimpl",
            id="unmarked",
        ),
        pytest.param(
            "@llmkit.hookimpl\ndef register_routes(registrar): pass", "registrar", id="unknown-argument"
        ),
        pytest.param(
            "@llmkit.hookimpl(wrapper=True)\ndef register_routes(register): return (yield)",
            "hook wrapper",
            id="wrapper",
        ),
        pytest.param("", "implements no hook", id="no-hook"),
        pytest.param(REGISTER.format("auto"), "not 'auto'", id="auto"),
        pytest.param(REGISTER.format("a/b"), "a name is letters", id="slash"),
        pytest.param(REGISTER.format(""), "a name is letters", id="empty"),
        pytest.param(REGISTER.replace("print", "3").format("x"), "factory 3 cannot be called", id="factory"),
        pytest.param(REGISTER.format("x") + "    register('x', print)\n", "'x' more than once", id="twice"),
        pytest.param(
            REGISTER.replace("scheduling_policies", "executors").format("x"),
            "missing 1 required keyword-only argument: 'refuses'",
            id="no-refuses",
        ),
        pytest.param(
            "@llmkit.hookimpl\ndef register_models(register):\n"
            "    register('x', print, architectures='Llama', refuses=print)\n",
            "architectures is 'Llama', not a tuple",
            id="architectures",
        ),
        pytest.param("Options = dict\n" + REGISTER.format("x"), "not a frozen dataclass", id="options"),
    ],
)
def test_a_hook_done_wrongly_fails_with_its_cause(site: Path, body: str, cause: str) -> None:
    assert re.search(cause, cause_of(site, body))


def test_registering_after_start_up_is_an_error(site: Path) -> None:
    mine(site, "def register(): pass\n" + REGISTER.format("x") + "    global late\n    late = register\n")
    plugins = load_plugins(MINE)
    with pytest.raises(PluginError, match="after the hook had returned"):
        __import__("mine_module").late("y", print)
    assert plugins.registry.find("policy", "y") is None


def test_a_hook_for_a_newer_llmkit_may_be_marked_optional(site: Path) -> None:
    mine(site, REGISTER.format("x") + "@llmkit.hookimpl(optionalhook=True)\ndef on_tomorrow(): pass\n")
    assert load_plugins(MINE).registry.find("policy", "x") is not None


# ---- options ----

OPTIONS = """
from dataclasses import dataclass
from typing import Literal

@dataclass(frozen=True)
class Options:
    size: int
    ratio: float = 0.5
    fast: bool = False
    mode: Literal["a", "b"] = "a"
    names: tuple[str, ...] = ()
    limit: int | None = None

    def __post_init__(self):
        if self.size == 13:
            raise ValueError("13 is unlucky")

@llmkit.hookimpl
def register_scheduling_policies(register):
    register("x", lambda config, options: options)
"""


def with_options(*given: str) -> Plugins:
    return load_plugins(PluginConfig(plugin=("mine",), plugin_option=given))


def test_options_are_typed_and_reach_the_factory(site: Path) -> None:
    mine(site, OPTIONS)
    plugins = with_options(
        "mine.size=3", "mine.fast=yes", "mine.ratio=2", "mine.mode=b", "mine.names=p,q", "mine.size=4"
    )
    options = plugins.registry.create("policy", "x", None)
    assert dataclasses.asdict(options) == {
        "size": 4,
        "ratio": 2.0,
        "fast": True,
        "mode": "b",
        "names": ("p", "q"),
        "limit": None,
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.size = 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param("mine.sise=3", "'sise'; did you mean 'size'. It has: size .integer., ratio", id="key"),
        pytest.param("mine.size=big", "--plugin-option mine.size: 'big' is not an integer", id="value"),
        pytest.param("mine.mode=c", "'c' is not one of a, b", id="choice"),
        pytest.param("mine.ratio=nan", "'nan' is not a number", id="nan"),
        pytest.param("mine.fast=true", "'mine' needs --plugin-option mine.size=<integer>", id="missing"),
        pytest.param("mine.size=13", "refuses size=13: 13 is unlucky", id="own-check"),
        pytest.param("mine", "write NAME.key=value", id="syntax"),
        pytest.param("=mine.size", "write NAME.key=value", id="no-name"),
    ],
)
def test_a_wrong_option_names_plugin_key_and_what_is_allowed(site: Path, given: str, message: str) -> None:
    mine(site, OPTIONS)
    with pytest.raises(UsageError, match=message):
        with_options(given)


def test_options_for_a_plugin_without_any(site: Path) -> None:
    mine(site, REGISTER.format("x"))
    with pytest.raises(UsageError, match="plugin 'mine' has no options"):
        with_options("mine.x=1")


# ---- names ----


def test_a_built_ins_name_is_protected(site: Path) -> None:  # B135: vllm-tt-plugin#73
    install_project(site, EXAMPLES / "takes-name")
    plugins = load_plugins(PluginConfig(), import_all=True)
    taken = next(r for r in plugins.table() if r.name == "takes-name")
    assert taken.state == "refused"
    assert "'takes-name'" in (taken.cause or "")
    assert "'cpu-paged'" in (taken.cause or "")
    assert "--override attention:paged-cpu=takes-name" in (taken.cause or "")
    assert plugins.registry.get("attention", "paged-cpu").owner == "cpu-paged"
    assert plugins.registry.find("attention", "of-its-own") is None  # all or nothing
    with pytest.raises(UsageError, match="takes-name"):
        load_plugins(PluginConfig(plugin=("takes-name",)))


def test_override_gives_it_away_and_the_list_says_so(site: Path) -> None:  # B135: vllm-tt-plugin#73
    install_project(site, EXAMPLES / "takes-name")
    plugins = load_plugins(PluginConfig(override=("attention:paged-cpu=takes-name",)))
    registry = plugins.registry
    assert registry.get("attention", "paged-cpu").owner == "takes-name"
    assert registry.get("attention", "paged-cpu").auto
    assert registry.get("attention", "cpu-paged/paged-cpu").owner == "cpu-paged"
    assert registry.names("attention").count("paged-cpu") == 1
    rows = {r.name: r.registered for r in plugins.table()}
    assert "attention:paged-cpu (override)" in rows["takes-name"]
    assert "attention:paged-cpu (overridden)" in rows["cpu-paged"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        pytest.param("policy=mine", "write KIND:NAME=PLUGIN", id="syntax"),
        pytest.param("polcy:fcfs=mine", "did you mean 'policy'", id="kind"),
        pytest.param(
            "policy:fcfs=mine", "registers no policy 'fcfs'; of this kind it registers: x", id="name"
        ),
    ],
)
def test_a_wrong_override_is_an_error(site: Path, override: str, message: str) -> None:
    mine(site, REGISTER.format("x"))
    with pytest.raises(UsageError, match=message):
        load_plugins(PluginConfig(override=(override,)))


def test_an_override_given_to_two_is_an_error() -> None:
    with pytest.raises(UsageError, match="policy:fcfs is given to both a and b"):
        load_plugins(PluginConfig(override=("policy:fcfs=a", "policy:fcfs=b")))


def test_the_name_of_the_cores_own_scheduler_is_protected(site: Path) -> None:
    cause = cause_of(site, REGISTER.replace("scheduling_policies", "schedulers").format("continuous"))
    assert "llmkit itself" in cause


def test_two_third_parties_with_one_name_stay_reachable(site: Path) -> None:
    for name in ("one", "two"):
        mine(site, REGISTER.format("same").replace("print", f"lambda config, options: {name!r}"), name=name)
    both = PluginConfig(plugin=("one", "two"))
    registry = load_plugins(both).registry
    for name in ("one", "two"):
        assert registry.create("policy", f"{name}/same", None) == name
    assert {"one/same", "two/same"} <= set(registry.names("policy"))
    with pytest.raises(
        UnknownName, match="several plugins offer scheduling policy 'same'; write one of one/same, two/same"
    ):
        load_plugins(both, {"policy": "same"})
    given = load_plugins(dataclasses.replace(both, override=("policy:same=two",))).registry
    assert given.create("policy", "same", None) == "two"
    assert given.create("policy", "one/same", None) == "one"


def test_a_model_says_which_architectures_it_implements(site: Path) -> None:
    mine(
        site,
        """
@llmkit.hookimpl
def register_models(register):
    register("x", print, architectures=("A", "B"), refuses=lambda spec: spec.why, priority=10**6)
""",
    )
    registry = load_plugins(MINE).registry

    def spec(architecture: str, why: str | None = None) -> SimpleNamespace:
        return SimpleNamespace(info=SimpleNamespace(architecture=architecture), why=why)

    assert registry.choose("model", "x", spec("B")).name == "x"
    with pytest.raises(StartupError, match="it implements A, B, not C"):
        registry.choose("model", "x", spec("C"))
    with pytest.raises(StartupError, match="too wide"):
        registry.choose("model", "x", spec("A", "too wide"))
