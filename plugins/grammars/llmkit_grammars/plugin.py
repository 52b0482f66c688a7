"""Entry point: the grammar backends that ship with llmkit."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

from llmkit import hookimpl
from llmkit.contracts import GrammarBackend, GrammarSpec, RegisterGrammar


@hookimpl
def register_grammar_backends(register: RegisterGrammar) -> None:
    register("xgrammar", _xgrammar, refuses=partial(_refuses, "xgrammar"), priority=10)
    register("llguidance", _llguidance, refuses=partial(_refuses, "llguidance"))


def _xgrammar(spec: GrammarSpec, options: Any) -> GrammarBackend:
    from llmkit_grammars.xgrammar_backend import XgrammarBackend

    return XgrammarBackend(spec)


def _llguidance(spec: GrammarSpec, options: Any) -> GrammarBackend:
    from llmkit_grammars.llguidance_backend import LlguidanceBackend

    return LlguidanceBackend(spec)


def _refuses(package: str, spec: GrammarSpec) -> str | None:
    if not spec.eos_ids:
        return "the model has no end token, so that no answer could end where its grammar does"
    if find_spec(package) is None:
        return f"the package {package!r} is not installed"
    return None
