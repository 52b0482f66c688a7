"""From a configuration to a front that can start. No torch."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Callable
from typing import Any

from llmkit.assemble.grammars import check_grammar_backend, grammar_compiler
from llmkit.assemble.launch import EngineLaunch, write_launch
from llmkit.assemble.model import check_reference, open_frontend, open_model
from llmkit.config import Config
from llmkit.contracts import GrammarSpec, Progress, RequestDraft
from llmkit.frontend.front import Front, ModelAtHand
from llmkit.frontend.grammars import GrammarCompiler
from llmkit.frontend.prepare import CheckArguments, PrepareHook
from llmkit.plugins import Plugins


def build_front(config: Config, plugins: Plugins) -> Front:
    """A front for the configured model; its ``start`` finds the model, then starts the engine.

    The engine process loads exactly this process's plugins.
    """
    engine_config = dataclasses.replace(
        config, plugins=dataclasses.replace(config.plugins, load=plugins.names)
    )
    uds = os.path.abspath(config.server.uds) if config.server.uds else None

    def find_model(progress: Progress) -> ModelAtHand:
        opened = open_model(config, plugins.registry, progress)
        payload = io.BytesIO()
        write_launch(payload, EngineLaunch(engine_config, opened.files, opened.info, uds))
        return ModelAtHand(
            opened.files,
            opened.info,
            launch=payload.getvalue(),
            load_front=lambda: open_frontend(config, opened, plugins.registry),
        )

    def make_grammars(spec: Callable[[], GrammarSpec]) -> GrammarCompiler:
        return grammar_compiler(config, plugins, spec)

    check_reference(config, plugins.registry)
    check_grammar_backend(config, plugins)
    return Front(
        config,
        find_model,
        hooks=prepare_hooks(plugins),
        processors=processor_checks(plugins),
        make_grammars=make_grammars,
    )


def prepare_hooks(plugins: Plugins) -> list[PrepareHook]:
    """The ``prepare_request`` implementations that run, in order."""
    return [
        PrepareHook(implementation.plugin, _call_with_draft(implementation))
        for implementation in plugins.implementations("prepare_request")
    ]


def processor_checks(plugins: Plugins) -> dict[str, CheckArguments]:
    """What checks requests' arguments for each logits processor that runs, by the processor's name."""
    entries = [entry for entry in plugins.registry.entries("processor") if entry.auto]
    return {plugins.registry.name_of(entry): entry.traits["check"] for entry in entries}


def _call_with_draft(implementation: Any) -> Any:
    def prepare(draft: RequestDraft) -> Any:
        return implementation(draft=draft)

    return prepare
