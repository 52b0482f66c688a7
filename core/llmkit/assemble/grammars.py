"""Grammars of a deployment: who compiles them for the front, who loads them in the engine. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec

from llmkit.assemble.grammar_main import GrammarLaunch
from llmkit.assemble.model import OpenedModel, open_frontend
from llmkit.config import Config
from llmkit.contracts import CheckpointInfo, GrammarBackend, GrammarSpec, ModelFiles
from llmkit.engine.grammars import GrammarManager
from llmkit.frontend.grammars import GrammarCompiler, grammar_spec
from llmkit.plugins import Plugins
from llmkit.registry import Registry


def check_grammar_backend(config: Config, plugins: Plugins) -> None:
    """:raises UnknownName: a backend was asked for that nobody has: known before the first grammar comes."""
    if config.model.grammar_backend != "auto":
        plugins.registry.get("grammar", config.model.grammar_backend)


def grammar_compiler(config: Config, plugins: Plugins, spec: Callable[[], GrammarSpec]) -> GrammarCompiler:
    """For the front; ``spec`` is called with the first grammar. Its process loads this one's plugins."""
    loaded = dataclasses.replace(config.plugins, load=plugins.names)

    def launch() -> bytes:
        return msgspec.msgpack.encode(GrammarLaunch(loaded, config.model.grammar_backend, spec()))

    return GrammarCompiler(launch, config.limits)


def grammar_manager(
    config: Config, files: ModelFiles, info: CheckpointInfo, components: Registry, vocab_size: int
) -> GrammarManager:
    """For the engine. It opens the tokenizer with the first grammar: most engines never need one."""

    def spec() -> GrammarSpec:
        opened = OpenedModel(files, info, config.model.load_format)
        front = open_frontend(config, opened, components)
        return grammar_spec(front.tokenizer, front.eos_ids, vocab_size, front.formats)

    def backend(name: str, spec: GrammarSpec) -> GrammarBackend:
        made: GrammarBackend = components.create("grammar", name, spec)
        return made

    return GrammarManager(spec, backend)
