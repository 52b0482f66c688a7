"""Where compiled kernels are kept."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

import llmkit_cpu_paged

CODE = """
import logging
logging.basicConfig(format="%(message)s")
import numpy as np
from llmkit_cpu_paged.jit import compile_for, kernel
from llmkit_cpu_paged.kernels import store_kv
import numba
heads, cache = numba.types.Array(numba.float32, 3, "A"), numba.types.Array(numba.float32, 2, "A")
compile_for(store_kv, (heads, heads, numba.types.Array(numba.int32, 1, "A"), cache, *[numba.int64] * 4))
print(sum(store_kv.stats.cache_hits.values()), repr(numba.config.CACHE_DIR))
"""


def start(cache_dir: Path | str, before: str = "", **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", before + CODE],
        env=os.environ | {"LLMKIT_CACHE_DIR": str(cache_dir)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(cache_dir: Path | str, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """One start: prints whether the kernel came from disk, and numba's own setting afterwards."""
    process = start(cache_dir, before, **environment)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return subprocess.CompletedProcess(process.args, 0, out, err)


def test_kernels_are_kept_under_the_cache_directory_and_found_again(tmp_path: Path) -> None:
    assert run(tmp_path).stdout == "0 ''\n", "numba's own setting is as it was"
    assert list(tmp_path.glob("cpu-paged/*/*/kernels.store_kv*.nbc"))
    assert run(tmp_path).stdout == "1 ''\n"


def test_nothing_is_written_beside_the_sources(tmp_path: Path) -> None:
    run(tmp_path)
    assert not list(Path(llmkit_cpu_paged.__file__).parent.rglob("*.nb[ic]"))


def test_numbas_own_variable_holds(tmp_path: Path) -> None:
    run(tmp_path / "llmkit", NUMBA_CACHE_DIR=str(tmp_path / "numba"))
    assert list(tmp_path.glob("numba/cpu-paged/*/*/kernels.store_kv*.nbc"))
    assert not list((tmp_path / "llmkit").rglob("*.nbc"))


@pytest.mark.parametrize("variable", ["LLMKIT_CACHE_DIR", "NUMBA_CACHE_DIR"])
def test_a_change_in_any_source_is_noticed(tmp_path: Path, variable: str) -> None:
    """numba looks at the kernel's own file only; what it calls may be in another."""
    package = tmp_path / "site" / "llmkit_cpu_paged"
    copytree(Path(llmkit_cpu_paged.__file__).parent, package, ignore=ignore_patterns("__pycache__"))
    environment = {"PYTHONPATH": str(package.parent), variable: str(tmp_path / "cache")}
    assert run(tmp_path / "cache", **environment).stdout.startswith("0 ")
    assert run(tmp_path / "cache", **environment).stdout.startswith("1 ")
    with (package / "simd.py").open("a") as source:
        source.write("# changed\n")
    assert run(tmp_path / "cache", **environment).stdout.startswith("0 ")


def test_without_a_writable_directory_it_compiles_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = run(tmp_path / "file" / "cache")
    assert ran.stdout == "0 ''\n"
    assert "set LLMKIT_CACHE_DIR" in ran.stderr
    ran = run(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert ran.stdout.startswith("0 ")
    assert "set NUMBA_CACHE_DIR" in ran.stderr


def test_without_a_home_it_compiles_and_says_so(tmp_path: Path) -> None:
    no_home = "import os, pwd; os.environ.pop('HOME', None); pwd.getpwuid = lambda uid: {}[uid]"
    ran = run("", XDG_CACHE_HOME="", before=no_home)
    assert ran.stdout == "0 ''\n"
    assert "there is no home folder; set LLMKIT_CACHE_DIR" in ran.stderr


def test_folders_are_this_users_alone(tmp_path: Path) -> None:
    run(tmp_path)
    (state,) = (tmp_path / "cpu-paged").iterdir()
    for folder in (state, state.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("which", "mode"), [("cpu-paged", 0o702), ("state", 0o720)], ids=["world", "group"])
def test_what_others_could_have_written_is_not_read(tmp_path: Path, which: str, mode: int) -> None:
    """numba unpickles its index."""
    run(tmp_path)
    (folder,) = (tmp_path / "cpu-paged").iterdir() if which == "state" else [tmp_path / "cpu-paged"]
    folder.chmod(mode)
    for index in folder.rglob("*.nbi"):
        index.write_bytes(b"not to be read")
    ran = run(tmp_path)
    assert ran.stdout == "0 ''\n"
    assert f"{folder} can be written by others: mode {mode:o}" in ran.stderr


def test_another_users_folder_is_not_read(tmp_path: Path) -> None:
    run(tmp_path)
    ran = run(tmp_path, before="import os; os.geteuid = lambda: 54321")
    assert ran.stdout == "0 ''\n"
    assert re.search(r"cpu-paged belongs to user \d+, not 54321", ran.stderr)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(0o700)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "cpu-paged").symlink_to(tmp_path / "elsewhere")
    assert "is not a folder" in run(tmp_path / "cache").stderr
    assert not list((tmp_path / "elsewhere").iterdir())


def test_the_folders_of_old_states_go(tmp_path: Path) -> None:
    """The last used stay: two installations may take turns. What is not ours stays too."""
    folder = tmp_path / "cpu-paged"
    for age in range(9):
        old = folder / f"{age:016x}" / "llmkit_cpu_paged_0"
        old.mkdir(parents=True)
        (old / "kernels.attend.nbc").touch()
        os.utime(old.parent, (1e9 - age, 1e9 - age))
    (folder / "notes").mkdir()
    folder.chmod(0o700)
    run(tmp_path)
    left = {path.name for path in folder.iterdir()}
    assert {f"{age:016x}" for age in range(9)} & left == {f"{age:016x}" for age in range(4)}
    assert "notes" in left
    assert len(left) == 4 + 2


def test_two_processes_may_start_at_once(tmp_path: Path) -> None:
    both = [start(tmp_path) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")
        assert out.endswith("''\n")
    assert run(tmp_path).stdout == "1 ''\n"


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("content", [b"", b"\x80\x04\x95", b"no pickle at all"], ids=["empty", "cut", "junk"])
def test_damaged_files_are_written_anew(tmp_path: Path, suffix: str, content: bytes) -> None:
    run(tmp_path)
    (damaged,) = tmp_path.glob(f"cpu-paged/*/*/kernels.store_kv*.{suffix}")
    damaged.write_bytes(content)
    mended = run(tmp_path)
    assert mended.stdout.startswith("0 "), "it was compiled"
    assert mended.stderr.count("is of no use") == 1
    assert "Traceback" not in mended.stderr
    again = run(tmp_path)
    assert again.stdout.startswith("1 "), "and kept"
    assert again.stderr == ""


def test_a_full_disk_costs_the_cache_and_not_the_start(tmp_path: Path) -> None:
    no_room = (
        "import numba.core.caching as caching\n"
        "def save(self, *rest): raise OSError(28, 'No space left on device')\n"
        "caching.IndexDataCacheFile._save_data = caching.IndexDataCacheFile._save_index = save\n"
    )
    ran = run(tmp_path, no_room)
    assert "cannot be written" in ran.stderr
    assert "No space left" in ran.stderr
    assert "Traceback" not in ran.stderr
