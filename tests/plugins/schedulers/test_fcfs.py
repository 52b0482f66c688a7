"""The policy ``fcfs``: the shipped suite, its order, and the plugin manager's view of it."""

from __future__ import annotations

import subprocess
import sys

from llmkit.config import PluginConfig, SchedulerConfig
from llmkit.contracts import SchedulingPolicy
from llmkit.plugins import load_plugins
from llmkit.testing.policies import PolicyContract, View
from llmkit_schedulers.fcfs import FirstComeFirstServed


class TestFirstComeFirstServed(PolicyContract):
    def make_policy(self) -> SchedulingPolicy:
        return FirstComeFirstServed()


def test_the_first_goes_first_and_the_last_gives_way() -> None:
    policy = FirstComeFirstServed()
    early, late = View("early", 1, priority=9), View("late", 2, priority=-9)
    assert policy.key(early) < policy.key(late)
    assert policy.victim([late, early]) == policy.victim([early, late]) == late


def test_the_plugin_manager_makes_it() -> None:
    registry = load_plugins(PluginConfig()).registry
    config = SchedulerConfig()
    choice = registry.choose("policy", config.scheduling_policy, config)
    assert isinstance(registry.create("policy", choice.name, config), FirstComeFirstServed)


def test_the_entry_module_imports_no_torch() -> None:
    code = "import sys, llmkit_schedulers.plugin; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
