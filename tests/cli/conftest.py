"""The program as a user runs it: a process, its output and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llmkit.testing import bytes_tokenizer

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def llmkit(tmp_path: Path) -> Run:
    def run(*words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LLMKIT_")}
        return subprocess.run(
            [sys.executable, "-m", "llmkit_cli.main", *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env={**clean, "COLUMNS": "200", **environment},
        )

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with a byte tokenizer, a chat template and a config, without weights."""
    directory = tmp_path_factory.mktemp("bytes-model")
    bytes_tokenizer.write(directory)
    return str(directory)
