"""What routes get to serve with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmkit.config import Config
from llmkit.contracts import (
    ChatRenderer,
    Choice,
    EngineClient,
    EngineControl,
    EngineReady,
    EngineStats,
    Generator,
    HttpRecord,
    Pooler,
    RequestRecord,
    ServedModel,
    StepRecord,
    Tokenizer,
)
from llmkit.errors import CheckpointError, EngineError, RequestError
from llmkit.frontend.chat_template import ChatTemplate
from llmkit.frontend.control import Door, FrontControl
from llmkit.frontend.fields import check_text
from llmkit.frontend.observers import Observers
from llmkit.frontend.parsing import Formats
from llmkit.frontend.stages import Stages

MAX_REQUEST_TEMPLATE_CHARS = 1 << 16


@dataclass(frozen=True, slots=True)
class FrontModel:
    """The front process's part of a model: everything but its weights."""

    tokenizer: Tokenizer
    chat: ChatRenderer | None
    generation_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields of SamplingParams that a silent request takes. ``max_tokens`` the generator fills in
    itself: a default is cut to the context where it does not fit, a request's own is refused."""
    eos_ids: tuple[int, ...] = ()
    formats: Formats | None = None
    """How the model writes calls and reasoning; None: neither is parsed."""
    stages: Stages = Stages()
    """What answers go through behind the parsers."""
    choices: tuple[Choice, ...] = ()
    """How formats and stages were found, for the summary."""


class FrontServices:
    """``contracts.Services``: made before the engine starts, completed once it is ready.

    Owned by the front. What is only known of a running engine raises EngineError until then.
    """

    config: Config
    generator: Generator
    pooler: Pooler | None
    tokenizer: Tokenizer
    chat: ChatRenderer | None
    model: ServedModel
    generation_defaults: Mapping[str, Any]
    tool_parser: str | None
    reasoning_parser: str | None
    concealing_stage: str | None
    control: EngineControl
    ready: EngineReady

    def __init__(self, config: Config) -> None:
        self.config = config
        self.observers = Observers()
        self._client: EngineClient | None = None

    def complete(
        self,
        front_model: FrontModel,
        generator: Door,
        served: ServedModel,
        client: EngineClient,
        pooler: Pooler | None = None,
    ) -> None:
        """The engine is ready."""
        self.tokenizer = front_model.tokenizer
        self.chat = front_model.chat
        self.generation_defaults = front_model.generation_defaults
        formats = front_model.formats
        self.tool_parser = None if formats is None else formats.tool_name
        self.reasoning_parser = None if formats is None else formats.reasoning_name
        self.concealing_stage = front_model.stages.concealing
        self.generator = generator
        self.pooler = pooler
        self.model = served
        self.control = FrontControl(client, generator, self.config.observability.profiler_dir)
        assert client.ready is not None, "the engine is ready"
        self.ready = client.ready
        self._client = client

    def stats(self) -> EngineStats:
        """The latest; zeros before the first step."""
        return EngineStats() if self._client is None else self._client.stats

    def renderer(self, template: str) -> ChatRenderer:
        """As ``contracts.Services.renderer``."""
        if not self.config.server.trust_request_chat_template:
            raise RequestError(
                "chat_template is not taken from requests here; start the server with"
                " --trust-request-chat-template, or leave it out",
                param="chat_template",
                code="unsupported_parameter",
            )
        if len(template) > MAX_REQUEST_TEMPLATE_CHARS:
            raise RequestError(
                f"chat_template has {len(template)} characters; at most {MAX_REQUEST_TEMPLATE_CHARS} are"
                " read",
                param="chat_template",
                code="string_above_max_length",
            )
        check_text("chat_template", template)
        try:
            return ChatTemplate(
                template, self.tokenizer, content_format=self.config.model.chat_template_content_format
            )
        except CheckpointError as error:
            raise RequestError(str(error), param="chat_template", code="invalid_value") from None

    async def reset_prefix_cache(self) -> bool:
        """As ``contracts.Services.reset_prefix_cache``."""
        return bool(await self._engine().call("engine", "reset_prefix_cache"))

    async def call_workers(self, method: str, *args: Any) -> list[Any]:
        """As ``contracts.Services.call_workers``."""
        answers: list[Any] = await self._engine().call("workers", method, *args)
        return answers

    def observe(self, observer: Callable[[RequestRecord], None]) -> None:
        """As ``contracts.Services.observe``."""
        self.observers.of_ends.append(observer)

    def observe_steps(self, observer: Callable[[StepRecord], None]) -> None:
        """As ``contracts.Services.observe_steps``."""
        self.observers.of_steps.append(observer)

    def observe_http(self, observer: Callable[[HttpRecord], None]) -> None:
        """As ``contracts.Services.observe_http``."""
        self.observers.of_http.append(observer)

    def _engine(self) -> EngineClient:
        if self._client is None:
            raise EngineError("the engine is not ready: it takes no calls yet")
        return self._client

    def __getattr__(self, name: str) -> Any:
        # Only reached for what is not set: names of the class before the engine is ready.
        if name in FrontServices.__annotations__:
            raise EngineError(f"the engine is not ready: there is no {name} yet")
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")


def served_model(config: Config, name: str, root: str, max_model_len: int) -> ServedModel:
    """What clients see; ``name`` is the model's own where ``--served-model-name`` gives none."""
    return ServedModel(
        names=config.model.served_model_name or (name,),
        root=root,
        max_model_len=max_model_len,
        created_s=int(time.time()),
    )
