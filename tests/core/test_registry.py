"""Choosing among registered components."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from llmkit import DuplicateName, StartupError, UnknownName, hookimpl
from llmkit.contracts import Components, RegisterToolParser
from llmkit.plugins.recorder import record
from llmkit.registry import CORE, Entry, Registry


def entry(name: str, owner: str = "mine", **fields: Any) -> Entry:
    return Entry("attention", name, lambda *given: (name, *given), owner, **fields)


def registry(*entries: Entry, **options: Any) -> Registry:
    filled = Registry(**options)
    for one in entries:
        filled.add([one], options=f"options of {one.owner}")
    return filled


def test_it_is_what_contracts_call_components() -> None:
    components: Components = registry(entry("a"))
    assert components.create("attention", "a", 1, 2) == ("a", 1, 2, "options of mine")


def test_auto_takes_the_best_that_does_not_refuse_and_says_why_not_the_others() -> None:
    filled = registry(
        entry("slow"),
        entry("fast", "other", priority=9, refuses=lambda spec: f"no {spec}"),
        entry("hidden", "third", priority=-1),
        entry("idle", "fourth", priority=5, auto=False),
        entry("next", "fifth", priority=3),
    )
    choice = filled.choose("attention", "auto", "gpu")
    assert (choice.name, choice.why) == ("next", "auto")
    assert choice.passed_over == (("fast", "no gpu"), ("idle", "plugin 'fourth' is not enabled"))
    assert filled.usable("attention", "gpu") == ["next", "slow"]
    assert filled.choose("attention", "hidden", "gpu").why == "by name"


def test_a_refusal_lists_what_is_usable() -> None:
    filled = registry(entry("a", refuses=lambda spec: "too small"), entry("b", "other"))
    with pytest.raises(StartupError, match=r"--attn a: mine cannot be used here: too small. Usable: b"):
        filled.choose("attention", "a", None)


def test_auto_with_nothing_usable_gives_each_reason() -> None:
    filled = registry(entry("a", refuses=lambda spec: "too small"))
    with pytest.raises(StartupError, match=r"--attn auto: .*\(a: too small\)"):
        filled.choose("attention", "auto", None)
    with pytest.raises(StartupError, match="none is registered"):
        filled.choose("model", "auto", None)


def test_a_check_that_crashes_is_a_reason_not_a_crash(caplog: pytest.LogCaptureFixture) -> None:
    def crash(spec: Any) -> str | None:
        raise RuntimeError("no driver")

    filled = registry(entry("broken", priority=9, refuses=crash), entry("good", "other"))
    choice = filled.choose("attention", "auto", None)
    assert choice.name == "good"
    assert choice.passed_over == (("broken", "its check failed with RuntimeError: no driver"),)
    assert "mine/broken: its check failed" in caplog.text


def test_what_a_factory_raises_names_the_plugin() -> None:
    def crash(*given: Any) -> Any:
        raise RuntimeError("no driver")

    filled = registry(Entry("attention", "x", crash, "mine"))
    with pytest.raises(RuntimeError, match="no driver") as caught:
        filled.create("attention", "x", None)
    assert caught.value.__notes__ == ["while plugin 'mine' made attention 'x'"]


def test_an_unknown_name_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(
        UnknownName,
        match=r"--attn: no attention backend is called 'papd'; did you mean 'paged'. Known: paged",
    ):
        registry(entry("paged")).get("attention", "papd")


def test_a_name_of_a_later_version_says_so() -> None:
    with pytest.raises(UnknownName, match=r"--executor: executor 'ray' is not supported yet. Known: mine"):
        registry(Entry("executor", "mine", lambda *given: None, "x")).get("executor", "ray")
    assert registry(entry("paged-cuda")).get("attention", "paged-cuda").owner == "mine"


def test_a_plugin_registers_all_or_nothing() -> None:
    filled = registry(entry("taken", "builtin", builtin=True))
    with pytest.raises(
        DuplicateName, match=r"'mine' registers attention backend 'taken'.*built-in plugin 'builtin'"
    ):
        filled.add([entry("free"), entry("taken")])
    assert filled.names("attention") == ["taken"]


def test_what_the_core_registers_is_protected_and_may_be_replaced_by_name() -> None:
    own = Entry("scheduler", "continuous", lambda *given: "core", CORE)
    theirs = Entry("scheduler", "continuous", lambda *given: "theirs", "mine")
    with pytest.raises(DuplicateName, match="llmkit itself"):
        registry(theirs)
    with pytest.raises(DuplicateName):
        registry(own, theirs)
    replaced = registry(theirs, own, overrides={("scheduler", "continuous"): "mine"})
    assert replaced.create("scheduler", "continuous", None) == "theirs"
    assert replaced.create("scheduler", "llmkit/continuous", None) == "core"
    assert replaced.names("scheduler") == ["continuous"]


def recognizer(name: str, why: str | None, **fields: Any) -> Entry:
    return Entry(
        "tool_parser", name, lambda options: name, "mine", traits={"recognizes": lambda _: why}, **fields
    )


def test_auto_takes_the_best_that_recognizes_the_model() -> None:
    filled = registry(
        recognizer("plain", "it has a template", priority=-1), recognizer("other", None, priority=9)
    )
    filled.add(
        [
            Entry("tool_parser", "fails", print, "bad", priority=7, traits={"recognizes": lambda _: 1 / 0}),
            Entry("tool_parser", "idle", print, "bad", priority=6, traits={"recognizes": str}, auto=False),
        ]
    )
    choice = filled.recognized("tool_parser", "auto", "hints")
    assert choice is not None
    assert (choice.name, choice.why) == ("plain", "auto: it has a template")
    named = filled.recognized("tool_parser", "idle", "hints")
    assert named is not None
    assert (named.name, named.why) == ("idle", "by name")
    with pytest.raises(UnknownName, match="--tool-call-parser: no tool-call parser is called 'nobody'"):
        filled.recognized("tool_parser", "nobody", "hints")


def test_auto_takes_none_where_none_recognizes_the_model() -> None:
    assert registry(recognizer("other", None)).recognized("tool_parser", "auto", "hints") is None


def test_parsers_come_through_their_hook() -> None:
    module = ModuleType("mine")

    @hookimpl
    def register_tool_parsers(register: RegisterToolParser) -> None:
        register("calls", lambda options: None, recognizes=lambda hints: f"it is a {hints}", priority=2)

    module.register_tool_parsers = register_tool_parsers  # type: ignore[attr-defined]
    filled = Registry()
    filled.add(record(module, "mine", builtin=False, enabled=True).entries)
    choice = filled.recognized("tool_parser", "auto", "toy")
    assert choice is not None
    assert (choice.name, choice.why) == ("calls", "auto: it is a toy")
