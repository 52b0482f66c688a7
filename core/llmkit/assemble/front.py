"""From a configuration and a model at hand to a front that can start. No torch."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmkit.assemble.launch import EngineLaunch, write_launch
from llmkit.assemble.model import OpenedModel, open_frontend
from llmkit.config import Config
from llmkit.contracts import RequestDraft
from llmkit.frontend.front import Front, ModelAtHand
from llmkit.frontend.prepare import PrepareHook
from llmkit.plugins import Plugins


def build_front(config: Config, opened: OpenedModel, plugins: Plugins) -> Front:
    """A front for ``opened``; nothing starts before its ``start``.

    The engine process loads exactly this process's plugins.
    """
    engine_config = dataclasses.replace(
        config, plugins=dataclasses.replace(config.plugins, load=plugins.names)
    )

    def launch(directory: Path) -> bytes:
        unlink = (os.path.abspath(config.server.uds),) if config.server.uds else ()
        payload = io.BytesIO()
        write_launch(payload, EngineLaunch(engine_config, opened.files, opened.info, str(directory), unlink))
        return payload.getvalue()

    def plugin_table() -> Sequence[Mapping[str, Any]]:
        return [dataclasses.asdict(row) for row in plugins.table()]

    return Front(
        config,
        ModelAtHand(
            name=opened.files.name,
            root=opened.files.path,
            launch=launch,
            load_front=lambda: open_frontend(config, opened, plugins.registry),
        ),
        hooks=prepare_hooks(plugins),
        plugin_table=plugin_table,
    )


def prepare_hooks(plugins: Plugins) -> list[PrepareHook]:
    """The ``prepare_request`` implementations that run, in order."""
    return [
        PrepareHook(implementation.plugin, _call_with_draft(implementation))
        for implementation in plugins.implementations("prepare_request")
    ]


def _call_with_draft(implementation: Any) -> Any:
    def prepare(draft: RequestDraft) -> Any:
        return implementation(draft=draft)

    return prepare
