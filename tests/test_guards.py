"""What keeps the layout true: exports, documented hooks, torch-free modules, current documents."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from llmkit import hookspecs
from llmkit.plugins.recorder import hook_names
from llmkit.registry import FLAGS

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENTRY_MODULES = sorted(PROJECT["project"]["entry-points"]["llmkit"].values())
TORCH_PARTS = ("llmkit.worker", "llmkit.nn", "llmkit.testing")
"""Of core, what may import torch at import."""


def modules_under(folder: Path) -> list[str]:
    """Every module of the packages in ``folder``, by name."""
    names = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [name for name in names if not name.endswith("__main__")]


TORCH_FREE = [
    name
    for name in (*modules_under(ROOT / "core"), *modules_under(ROOT / "cli"))
    if not any(name == part or name.startswith(part + ".") for part in TORCH_PARTS)
]


def imported_with_torch(modules: list[str]) -> list[str]:
    """Those after whose import, in this order and one process, torch is loaded."""
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules:\n"
        "        print(name)\n"
        "        break\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, *modules], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def test_no_plugins_entry_module_imports_torch() -> None:
    assert imported_with_torch(ENTRY_MODULES) == []


def test_the_torch_free_part_of_core_and_the_cli_are() -> None:
    assert imported_with_torch(TORCH_FREE) == []


@pytest.mark.parametrize("plugin", ["llmkit_openai_api", "llmkit_observability", "llmkit_schedulers"])
def test_plugins_of_the_front_never_import_torch(plugin: str) -> None:
    spec = importlib.util.find_spec(plugin)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent.parent
    assert imported_with_torch([name for name in modules_under(folder) if name.startswith(plugin)]) == []


# ---- exports ----

PUBLIC = ("llmkit", "llmkit.contracts", "llmkit.parsers", "llmkit.nn", "llmkit.worker", "llmkit.testing")


@pytest.mark.parametrize("name", PUBLIC)
def test_exports_exist_and_are_sorted(name: str) -> None:
    module = importlib.import_module(name)
    exported = list(getattr(module, "__all__", []))
    assert len(exported) == len(set(exported))
    assert all(hasattr(module, export) for export in exported)
    constants = [e for e in exported if e.isupper()]
    classes = [e for e in exported if e[0].isupper() and not e.isupper()]
    rest = [e for e in exported if not e[0].isupper()]
    assert exported == sorted(constants) + sorted(classes) + sorted(rest)


def test_contracts_export_whatever_a_hook_names_and_their_signatures_use() -> None:
    contracts = importlib.import_module("llmkit.contracts")
    exported = set(contracts.__all__)
    for hook in hook_names():
        annotation = next(iter(inspect.signature(getattr(hookspecs, hook)).parameters.values())).annotation
        assert annotation in exported, hook
    assert public_names(contracts) <= exported


def public_names(module: ModuleType) -> set[str]:
    """Classes that the files of a package define for others."""
    folder = Path(inspect.getfile(module)).parent
    trees = [ast.parse(path.read_text()) for path in folder.glob("*.py")]
    return {
        node.name
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }


def test_examples_use_what_is_public_alone() -> None:
    used = {
        node.module
        for path in (ROOT / "examples").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "llmkit"
    }
    assert used
    assert [name for name in used if ".".join(name.split(".")[:2]) not in PUBLIC] == []


# ---- hooks ----

SOURCES = {path: path.read_text() for root in ("plugins", "examples") for path in (ROOT / root).rglob("*.py")}
TESTS = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)}
PAGES = {path: path.read_text() for path in (ROOT / "docs").glob("*.md")}


@pytest.mark.parametrize("hook", hook_names())
def test_every_hook_is_documented_tested_and_shown(hook: str) -> None:
    page = PAGES[ROOT / "docs" / "hooks.md"]
    arguments = inspect.signature(getattr(hookspecs, hook)).parameters.values()
    heading = f"## `{hook}({', '.join(f'{a.name}: {a.annotation}' for a in arguments)})`"
    assert heading in page.splitlines()
    assert any(hook in text for text in TESTS.values())
    implementation = re.compile(rf"@(?:llmkit\.)?hookimpl\S*\ndef {hook}\(")
    assert any(implementation.search(text) for text in (*SOURCES.values(), *PAGES.values()))


@pytest.mark.parametrize("hook", hook_names())
def test_every_hook_says_who_chooses_and_since_when(hook: str) -> None:
    text = " ".join((getattr(hookspecs, hook).__doc__ or "").split())
    assert re.search(r"Chosen by: .+\. Since \d+\.\d+\.$", text)
    assert "Called" in text
    assert ":param " in text


def test_every_kind_has_something_that_chooses_it() -> None:
    from llmkit.plugins.recorder import KINDS

    assert set(KINDS.values()) == set(FLAGS)


# ---- documents ----


def test_generated_documents_are_current() -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "docs.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
