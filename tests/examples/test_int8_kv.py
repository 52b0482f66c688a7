"""``examples/int8-kv``: a third party's attention backend in the attention suite, and what it stores."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmkit.contracts import AttentionSpec, BackendSpec
from llmkit.testing.attention import AttentionSuite
from llmkit.testing.components import create
from tests.core.distributions import EXAMPLES, install_project

PER_HEAD = {"per_head": "true"}


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    install_project(folder, EXAMPLES / "int8-kv")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder
        for name in [name for name in sys.modules if name.startswith("llmkit_int8_kv")]:
            del sys.modules[name]


class TestAScalePerHead(AttentionSuite):
    backend = plugin = "int8-kv"
    plugin_options = PER_HEAD
    block_sizes = (16, 8)
    tolerances = {"float32": 0.1, "bfloat16": 0.1}


class TestAScalePerToken(AttentionSuite):
    backend = plugin = "int8-kv"
    tolerances = {"float32": 0.12}


def test_a_block_is_about_a_quarter_of_float32() -> None:
    per_token, per_head = (
        create("attention", "int8-kv", spec(), plugin="int8-kv", options=options).kv_cache_spec(0)
        for options in ({}, PER_HEAD)
    )
    dense = 16 * 3 * (64 + 64) * 4
    assert per_token.block_bytes == dense // 4 + 2 * 16 * 4
    assert per_head.block_bytes == dense // 4 + 2 * 16 * 4 * 3
    assert per_token.encoding != per_head.encoding, "or the prefix cache would mix them up"


def test_refuses_what_it_cannot_do() -> None:
    with pytest.raises(pytest.skip.Exception, match="kv_cache_dtype is float16; it stores int8"):
        create("attention", "int8-kv", spec(kv_cache_dtype="float16"), plugin="int8-kv")
    with pytest.raises(pytest.skip.Exception, match="layer 0 caps its scores"):
        create("attention", "int8-kv", spec(soft_cap=30.0), plugin="int8-kv")


def test_imports_only_llmkit_and_torch(site: Path) -> None:
    """And no torch in its entry module."""
    code = "import sys, llmkit_int8_kv.plugin; print('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(site)}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "False\n"
    imported: set[str] = set()
    for path in (EXAMPLES / "int8-kv").glob("*/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                imported.add((node.module or "").split(".")[0])
    assert imported == {"__future__", "dataclasses", "llmkit", "llmkit_int8_kv", "math", "torch"}


def spec(*, kv_cache_dtype: str = "auto", soft_cap: float | None = None) -> BackendSpec:
    layer = AttentionSpec(9, 3, 64, 64, 0.125, soft_cap=soft_cap)
    return BackendSpec((layer,), "float32", kv_cache_dtype, 16, "cpu", False)
