"""Every hook of llmkit, in order of a server's and a request's life.

The name says the calling rule: ``register_*`` all are called, once, at start; ``prepare_*`` may change or
refuse what it is given. No hook is called per token, layer or step. Order: built-ins, then third
parties in the order of ``--plugin``; ``tryfirst`` comes before all others, ``trylast`` after. A plugin module
implements a hook as a function of its name marked ``@llmkit.hookimpl`` (it may leave arguments out), and may
declare ``Options``, a frozen dataclass that ``--plugin-option NAME.key=value`` fills and every factory gets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from llmkit.contracts import (
        ModelDraft,
        RegisterAttention,
        RegisterCommand,
        RegisterExecutor,
        RegisterGrammar,
        RegisterKVConnector,
        RegisterLinearMethod,
        RegisterLoader,
        RegisterLogitsProcessor,
        RegisterModel,
        RegisterOps,
        RegisterOutputStage,
        RegisterPolicy,
        RegisterReasoningParser,
        RegisterRoutes,
        RegisterScheduler,
        RegisterSource,
        RegisterSpeculator,
        RegisterTokenizer,
        RegisterToolParser,
        RegisterWorkerMethod,
        RequestDraft,
    )

hookspec = pluggy.HookspecMarker("llmkit")


# ---- every process, at start ----


@hookspec
def register_commands(register: RegisterCommand) -> None:
    """Offer commands of the ``llmkit`` program.

    Called once in every process; a plugin that is only installed is imported when a command that
    is not built in is typed. Must not import torch.

    :param register: ``register(name, command, help=...)``; ``command`` is a typed function as typer
        takes it, or a ``typer.Typer`` for a group.
    :raises DuplicateName: the name is taken.

    Chosen by: typing it. Since 0.1.
    """


@hookspec
def register_model_sources(register: RegisterSource) -> None:
    """Offer ways to turn a MODEL reference into local files.

    Called once in every process. Must not import torch. ``factory(options)`` runs in the process
    that resolves the model, before the engine starts.

    :param register: ``register(name, factory)``; ``name:`` is the prefix that asks for this source.
    :raises DuplicateName: the name is taken.

    Chosen by: the prefix of MODEL, else the first whose ``claims`` says yes. Since 0.1.
    """


@hookspec
def register_weight_loaders(register: RegisterLoader) -> None:
    """Offer readers of checkpoint formats.

    Called once in every process. Must not import torch; ``factory(spec, options)`` may once
    ``weights`` is called.

    :param register: ``register(name, factory, refuses=refuses, priority=0)``.
    :raises DuplicateName: the name is taken.

    Chosen by: ``--load-format``. Since 0.1.
    """


@hookspec
def register_tokenizers(register: RegisterTokenizer) -> None:
    """Offer tokenizers.

    Called once in every process; factories run in the front process. Must not import torch.

    :param register: ``register(name, factory, refuses=refuses, priority=0)``.
    :raises DuplicateName: the name is taken.

    Chosen by: ``--tokenizer-mode``. Since 0.1.
    """


# ---- the engine process ----


@hookspec
def register_schedulers(register: RegisterScheduler) -> None:
    """Offer whole schedulers, for experts: most plugins want a policy.

    Called once in every process; ``factory(spec, options)`` runs in the engine process once the KV
    pool is cut. Must not import torch, ever.

    :param register: ``register(name, factory)``.
    :raises DuplicateName: the name is taken.

    Chosen by: ``--scheduler``. Since 0.1.
    """


@hookspec
def register_scheduling_policies(register: RegisterPolicy) -> None:
    """Offer orders of requests for the ``continuous`` scheduler.

    Called once in every process; ``factory(config, options)`` runs in the engine process.

    :param register: ``register(name, factory)``.
    :raises DuplicateName: the name is taken.

    Chosen by: ``--scheduling-policy``. Since 0.1.
    """


@hookspec
def register_executors(register: RegisterExecutor) -> None:
    """Offer executors.

    Called once in every process; ``factory(spec, options)`` runs in the engine process.

    :param register: ``register(name, factory, refuses=refuses, priority=0)``.
    :raises DuplicateName: the name is taken.

    Chosen by: ``--executor``. Since 0.1.
    """


@hookspec
def register_speculators(register: RegisterSpeculator) -> None:
    """Offer proposers of draft tokens, which the model then verifies several at a time.

    Called once in every process; ``factory(spec, options)`` runs in the engine process once the KV pool
    is cut. Must not import torch: a model drafts through ``spec.open_draft``.

    :param register: ``register(name, factory, refuses=refuses)``.
    :raises DuplicateName: the name is taken.

    Chosen by: ``--speculator``. Since 0.1.
    """


@hookspec
def register_kv_connectors(register: RegisterKVConnector) -> None:
    """Offer places outside the KV pool for blocks that the pool needs for others.

    Called once in every process. ``factory(spec, options)`` runs once the KV pool is cut, in the engine
    process and in each worker. Must not import torch; the worker's side may.

    :param register: ``register(name, factory, refuses=refuses)``.
    :raises DuplicateName: the name is taken.

    Chosen by: ``--kv-connector``. Since 0.1.
    """


# ---- worker start, before weights load ----


@hookspec
def register_models(register: RegisterModel) -> None:
    """Offer model implementations by architecture.

    Called once in every process. Must not import torch; ``factory(spec, parts, options)`` may, and
    runs in each worker. ``refuses`` runs in the front process too.

    :param register: ``register(name, factory, architectures=(...), refuses=refuses, priority=0)``.
    :raises DuplicateName: the name is taken.

    Chosen by: the checkpoint's architecture and ``--model-impl``. Since 0.1.
    """


@hookspec
def register_linear_methods(register: RegisterLinearMethod) -> None:
    """Offer ways to store and apply the weights of linear layers.

    Called once in every process; ``factory(env, options)`` runs in each worker.

    :param register: ``register(name, factory, refuses=refuses, priority=0)``.
    :raises DuplicateName: the name is taken.

    Chosen by: ``--quantization``. Since 0.1.
    """


@hookspec
def register_ops(register: RegisterOps) -> None:
    """Offer faster versions of the operations in ``llmkit.contracts.OP_NAMES``.

    Called once in every process; ``factory(env, options)`` runs in each worker, once, before the
    model is built.

    :param register: ``register(name, factory, refuses=refuses, priority=0)``.
    :raises DuplicateName: the name is taken.

    Chosen by: device and priority, an operation at a time; torch's is the default. Since 0.1.
    """


@hookspec
def register_attention_backends(register: RegisterAttention) -> None:
    """Offer attention backends.

    Called once in every process. Must not import torch or open a CUDA context; ``refuses`` and
    ``factory(spec, options)`` may, and run in each worker.

    :param register: ``register(name, factory, refuses=refuses, priority=0)``.
    :raises DuplicateName: the name is taken.

    Chosen by: ``--attn``. Since 0.1.
    """


@hookspec
def prepare_model(draft: ModelDraft, options: Any) -> None:
    """Change or refuse a model that has its weights.

    Called once in each worker, after the weights are read and before warm-up, for built-ins and plugins
    enabled by ``--plugin``, in order. One that raises ends the start.

    :param draft: the model; ``tap`` and ``refuse`` are all it may do to it.
    :param options: the plugin's frozen options, None if it declares none.
    :raises StartupError: through ``draft.refuse``.

    Chosen by: ``--plugin``. Since 0.1.
    """


@hookspec
def register_logits_processors(register: RegisterLogitsProcessor) -> None:
    """Offer logits processors: what happens to the logits of requests that ask for it.

    Called once in every process, for built-ins and plugins enabled by ``--plugin``. Must not import
    torch; ``factory(env, options)`` may, and runs once in each worker. A processor that raises fails the
    requests that use it, and no others.

    :param register: ``register(name, factory, check=check)``; ``check(arguments)`` runs in the front process,
        returns what the workers get, and raises ``ValueError`` in words for the client.
    :raises DuplicateName: the name is taken.

    Chosen by: the request's ``plugin_args``. Since 0.1.
    """


@hookspec
def register_worker_methods(register: RegisterWorkerMethod) -> None:
    """Offer methods that run on every rank, between steps.

    Called once in every process, for built-ins and plugins enabled by ``--plugin``. Must not import
    torch; ``factory(worker, options)`` may, and runs once in each worker, after ``prepare_model``. A method
    that raises fails its caller alone.

    :param register: ``register(name, factory)``.
    :raises DuplicateName: the name is taken.

    Chosen by: ``--plugin``. Since 0.1.
    """


# ---- the front process ----


@hookspec
def register_grammar_backends(register: RegisterGrammar) -> None:
    """Offer backends that constrain an answer to a schema, an expression, a grammar or a list.

    Called once in every process. Must not import torch, nor the backend's library: ``factory(spec, options)``
    does, and runs in the process that compiles and in the engine process, never in the front process.

    :param register: ``register(name, factory, refuses=refuses, priority=0)``.
    :raises DuplicateName: the name is taken.

    Chosen by: ``--grammar-backend``; ``auto`` asks them in turn until one honours the request. Since 0.1.
    """


@hookspec
def register_tool_parsers(register: RegisterToolParser) -> None:
    """Offer formats of tool calls.

    Called once in every process; ``factory(options)`` runs in the front process. Must not import torch, ever.

    :param register: ``register(name, factory, recognizes=recognizes, priority=0)``.
    :raises DuplicateName: the name is taken.

    Chosen by: ``--tool-call-parser``; ``auto`` asks which recognizes the model. Since 0.1.
    """


@hookspec
def register_reasoning_parsers(register: RegisterReasoningParser) -> None:
    """Offer formats of reasoning.

    Called once in every process; ``factory(options)`` runs in the front process. Must not import torch, ever.

    :param register: ``register(name, factory, recognizes=recognizes, priority=0)``.
    :raises DuplicateName: the name is taken.

    Chosen by: ``--reasoning-parser``; ``auto`` asks which recognizes the model. Since 0.1.
    """


@hookspec
def register_output_stages(register: RegisterOutputStage) -> None:
    """Offer stages that answers go through between their parsers and the route.

    Called once in every process; ``factory(options)`` runs in the front process. Must not import torch, ever.

    :param register: ``register(name, factory)``.
    :raises DuplicateName: the name is taken.

    Chosen by: ``--output-stage``, in the order given. Since 0.1.
    """


@hookspec
def register_routes(register: RegisterRoutes) -> None:
    """Offer HTTP routes.

    Called once in every process, for built-ins and plugins enabled by ``--plugin``. Must not import
    fastapi: ``factory(services, options) -> fastapi.APIRouter`` does, and runs in the front
    process. Every route needs the API key where one is set.

    :param register: ``register(name, factory)``.
    :raises DuplicateName: the name is taken.

    Chosen by: ``--plugin``. Since 0.1.
    """


@hookspec
def prepare_request(draft: RequestDraft, options: Any) -> None:
    """Change or refuse a request before it is checked and queued.

    Called in the front process once a request, for built-ins and plugins enabled by ``--plugin``, in
    order. May be a coroutine. It has five seconds; one that raises or is late refuses the
    request.

    :param draft: the tokenized prompt and its parameters; ``set``, ``attach``, ``cache_key`` and
        ``refuse`` are all it may do to it.
    :param options: the plugin's frozen options, None if it declares none.
    :raises RequestError: through ``draft.refuse``.

    Chosen by: ``--plugin``. Since 0.1.
    """
