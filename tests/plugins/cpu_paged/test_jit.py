"""Where compiled kernels are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def run(cache_dir: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CODE],
        env=os.environ | {"LLMKIT_CACHE_DIR": str(cache_dir)} | environment,
        capture_output=True,
        text=True,
        check=True,
    )


def test_kernels_are_kept_under_the_cache_directory_and_found_again(tmp_path: Path) -> None:
    assert run(tmp_path).stdout == "0 ''\n", "numba's own setting is as it was"
    assert list(tmp_path.glob("cpu-paged/*/*/kernels.store_kv*.nbc"))
    assert run(tmp_path).stdout == "1 ''\n"


def test_nothing_is_written_beside_the_sources(tmp_path: Path) -> None:
    run(tmp_path)
    assert not list(Path(llmkit_cpu_paged.__file__).parent.rglob("*.nb[ic]"))


def test_numbas_own_variable_holds(tmp_path: Path) -> None:
    run(tmp_path / "llmkit", NUMBA_CACHE_DIR=str(tmp_path / "numba"))
    assert list(tmp_path.glob("numba/*/kernels.store_kv*.nbc"))
    assert not list((tmp_path / "llmkit").rglob("*.nbc"))


def test_without_a_writable_directory_it_compiles_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = run(tmp_path / "file" / "cache")
    assert ran.stdout == "0 ''\n"
    assert "set LLMKIT_CACHE_DIR" in ran.stderr
