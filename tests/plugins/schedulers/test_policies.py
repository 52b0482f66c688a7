"""The policies: the shipped suite for each, and the plugin manager's view of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from llmkit import UsageError
from llmkit.config import PluginConfig, SchedulerConfig
from llmkit.contracts import SchedulingPolicy
from llmkit.plugins import load_plugins
from llmkit.testing.policies import PolicyContract, View
from llmkit_schedulers.fair import Fair
from llmkit_schedulers.fcfs import FirstComeFirstServed
from llmkit_schedulers.priority import Priority


class TestFirstComeFirstServed(PolicyContract):
    def make_policy(self) -> SchedulingPolicy:
        return FirstComeFirstServed()


class TestPriority(PolicyContract):
    def make_policy(self) -> SchedulingPolicy:
        return Priority(aging_s=60)


class TestFair(PolicyContract):
    def make_policy(self) -> SchedulingPolicy:
        return Fair()


def test_the_first_goes_first_and_the_last_gives_way() -> None:
    policy = FirstComeFirstServed()
    early, late = View("early", 1, priority=9), View("late", 2, priority=-9)
    assert policy.key(early) < policy.key(late)
    assert policy.victim([late, early]) == policy.victim([early, late]) == late


@pytest.mark.parametrize(
    ("name", "kind"), [("fcfs", FirstComeFirstServed), ("priority", Priority), ("fair", Fair)]
)
def test_the_plugin_manager_makes_them(name: str, kind: type) -> None:
    registry = load_plugins(PluginConfig()).registry
    config = SchedulerConfig(scheduling_policy=name)
    choice = registry.choose("policy", config.scheduling_policy, config)
    assert isinstance(registry.create("policy", choice.name, config), kind)


def test_a_second_of_waiting_must_be_worth_something() -> None:
    config = PluginConfig(plugin_option=("schedulers.aging_s=0",))
    with pytest.raises(UsageError, match=r"aging_s is 0.0; it must be"):
        load_plugins(config, {"policy": "priority"})


def test_the_entry_module_imports_no_torch() -> None:
    code = "import sys, llmkit_schedulers.plugin; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
