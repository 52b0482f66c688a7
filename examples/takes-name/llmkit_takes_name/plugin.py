"""Entry point: offers an attention backend under a built-in's name, and one under its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import llmkit

if TYPE_CHECKING:
    from llmkit.contracts import AttentionBackend, BackendSpec, RegisterAttention


@llmkit.hookimpl
def register_attention_backends(register: RegisterAttention) -> None:
    register("of-its-own", make, refuses=refuses)
    register("paged-cpu", make, refuses=refuses, priority=1000)


def refuses(spec: BackendSpec) -> str | None:
    return "it is an example without a kernel"


def make(spec: BackendSpec, options: Any) -> AttentionBackend:
    raise llmkit.StartupError("an example without a kernel cannot be made")
