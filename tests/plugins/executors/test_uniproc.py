from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from llmkit.config import ParallelConfig
from llmkit.contracts import Executor
from llmkit.testing.executors import ExecutorContract
from llmkit_executors.plugin import make_uniproc, refuses_uniproc
from tests.core.worker.toy import toy_spec


class TestUniproc(ExecutorContract):
    def make(self, tmp_path: Path) -> Executor:
        return make_uniproc(toy_spec(), None)


def test_several_ranks_are_refused_with_the_flag_and_its_value() -> None:
    spec = toy_spec()
    config = replace(spec.config, parallel=ParallelConfig(tensor_parallel_size=2))
    assert refuses_uniproc(spec) is None
    assert "--tensor-parallel-size is 2" in (refuses_uniproc(replace(spec, config=config)) or "")


def test_the_entry_module_imports_no_torch() -> None:
    code = "import sys, llmkit_executors.plugin; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
