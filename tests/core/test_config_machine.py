"""Memory and cores of a container, from made-up cgroup trees."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from llmkit.config import machine

GIB = 1 << 30
NO_LIMIT_V1 = "9223372036854771712"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def proc(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "proc"
    path.write_text(text)
    return path


V2 = {"memory.max": str(2 * GIB)}


def test_the_limit_of_a_container_is_its_memory(tmp_path: Path) -> None:
    root = tree(tmp_path / "cgroup", V2)
    found = machine.memory(root, proc(tmp_path, "0::/\n"))
    assert found.total_bytes == 2 * GIB
    assert found.source == str(root / "memory.max")


def test_the_smallest_limit_on_the_way_up_holds(tmp_path: Path) -> None:
    root = tree(
        tmp_path / "cgroup",
        {"memory.max": "max", "pod/memory.max": str(GIB), "pod/box/memory.max": str(3 * GIB)},
    )
    assert machine.memory(root, proc(tmp_path, "0::/pod/box\n")).total_bytes == GIB


def test_a_path_of_the_host_falls_back_to_the_mount(tmp_path: Path) -> None:
    root = tree(tmp_path / "cgroup", V2)
    assert machine.memory(root, proc(tmp_path, "0::/kubepods/pod1/box\n")).total_bytes == 2 * GIB


def test_version_1_has_a_tree_for_each_controller(tmp_path: Path) -> None:
    root = tree(
        tmp_path / "cgroup",
        {
            "memory/memory.limit_in_bytes": NO_LIMIT_V1,
            "memory/docker/x/memory.limit_in_bytes": str(GIB),
        },
    )
    lines = proc(tmp_path, "9:name=systemd:/\n4:memory:/docker/x\n1:cpu,cpuacct:/\n0::/\n")
    found = machine.memory(root, lines)
    assert found.total_bytes == GIB


@pytest.mark.parametrize("limit", ["max", NO_LIMIT_V1, "", "0", "nonsense"])
def test_no_limit_means_the_hosts_memory(tmp_path: Path, limit: str) -> None:
    root = tree(tmp_path / "cgroup", {"memory.max": limit})
    found = machine.memory(root, proc(tmp_path, "0::/\n"))
    assert (found.total_bytes, found.source) == (psutil.virtual_memory().total, "host")


def test_a_machine_without_cgroups_is_its_own_limit(tmp_path: Path) -> None:
    found = machine.memory(tmp_path / "nothing", tmp_path / "no-proc")
    assert found.source == "host"
    assert found.total_bytes == psutil.virtual_memory().total
    assert machine.cores(tmp_path / "nothing", tmp_path / "no-proc") >= 1


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        pytest.param("150000 100000", 1, id="rounded-down"),
        pytest.param("50000 100000", 1, id="at-least-one"),
        pytest.param("200000 100000", 2, id="two"),
        pytest.param("max 100000", 4, id="no-quota"),
        pytest.param("800000 100000", 4, id="more-than-the-affinity"),
    ],
)
def test_cores_are_the_affinity_cut_by_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    root = tree(tmp_path / "v2", {"cpu.max": quota})
    assert machine.cores(root, proc(tmp_path, "0::/\n")) == expected
    us, _, period = quota.partition(" ")
    root = tree(
        tmp_path / "v1",
        {
            "cpu,cpuacct/box/cpu.cfs_quota_us": us.replace("max", "-1"),
            "cpu,cpuacct/box/cpu.cfs_period_us": period,
        },
    )
    assert machine.cores(root, proc(tmp_path, "1:cpu,cpuacct:/box\n")) == expected


def test_the_mount_may_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMKIT_CGROUP_ROOT", str(tree(tmp_path / "elsewhere", V2)))
    assert machine.memory(proc=proc(tmp_path, "0::/\n")).total_bytes == 2 * GIB
