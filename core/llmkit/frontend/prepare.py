"""What plugins may change in a request before it is checked: ``prepare_request`` hooks; and the arguments of
their logits processors.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from llmkit.contracts import RequestContext, RequestDraft, SamplingParams
from llmkit.errors import RequestError
from llmkit.frontend.check import check_plugin_args
from llmkit.frontend.requests import Attachments
from llmkit.frontend.threads import in_daemon_thread
from llmkit.text import listing, nearest

DEADLINE_S = 5.0
MAX_ATTACHED_BYTES = 1 << 20
"""Of one plugin to one request."""
MAX_THREADS = 8
CheckArguments = Callable[[Any], Any]
"""A logits processor's ``check``: what its workers get of a request's arguments, or a ValueError."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PrepareHook:
    """One plugin's ``prepare_request``."""

    plugin: str
    function: Callable[[RequestDraft], Any]
    """May return an awaitable."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request as the hooks left it."""

    params: SamplingParams
    attachments: Attachments


class Preparer:
    """Runs every hook in order, under a deadline each, and fails closed.

    Functions are called in threads of their own, so that a slow one delays nobody else's request; what
    is a coroutine then runs on the event loop. A function that never returns keeps its thread, and
    when ``MAX_THREADS`` are taken requests are refused. Belongs to one event loop.
    """

    def __init__(
        self,
        hooks: Sequence[PrepareHook],
        deadline_s: float = DEADLINE_S,
        processors: Mapping[str, CheckArguments] | None = None,
    ) -> None:
        """``processors``: logits processors by the name that requests ask for them with."""
        self._hooks = tuple(hooks)
        self._processors = dict(processors or {})
        self._deadline_s = deadline_s
        self._threads = asyncio.Semaphore(MAX_THREADS)

    async def run(
        self, prompt_ids: Sequence[int], params: SamplingParams, context: RequestContext
    ) -> Prepared:
        """:raises RequestError: a hook or a logits processor refused the request, failed (500) or was late
        (500); or the request has wrong arguments for plugins, or some for one that has neither here.
        """
        check_plugin_args(params.plugin_args)
        self._check_addressees(params.plugin_args)
        keys: list[tuple[str, bytes]] = []
        data: dict[str, bytes] = {}
        for hook in self._hooks:
            draft = _Draft(hook.plugin, prompt_ids, params, context)
            await self._call(hook.plugin, functools.partial(hook.function, draft))
            params = draft.params
            check_plugin_args(params.plugin_args)  # it may have set them
            keys += draft.keys
            if draft.data is not None:
                data[hook.plugin] = draft.data
        for name in [name for name in self._processors if name in params.plugin_args]:
            if name in data:
                raise RequestError(
                    f"plugin {name!r} attached data under the name of a logits processor, whose arguments are"
                    " its data",
                    code="plugin_failed",
                    status=500,
                )
            data[name] = await self._checked(name, params.plugin_args[name])
        return Prepared(params, Attachments(tuple(keys), data))

    def _check_addressees(self, plugin_args: Mapping[str, Any]) -> None:
        known = {hook.plugin for hook in self._hooks} | self._processors.keys()
        for name in plugin_args:
            if name not in known:
                raise RequestError(
                    f"plugin_args has {name!r:.80}; no plugin of this name prepares requests here. Known:"
                    f" {listing(known)} (--plugin enables one)",
                    param="plugin_args",
                    code="invalid_value",
                )

    async def _checked(self, processor: str, arguments: Any) -> bytes:
        check = self._processors[processor]

        def checked() -> bytes:
            try:
                wanted = check(arguments)
            except ValueError as error:
                raise RequestError(
                    f"plugin_args[{processor!r}]: {error}", param="plugin_args", code="invalid_value"
                ) from error
            return _Draft.bounded("its arguments", msgspec.msgpack.encode(wanted))

        data: bytes = await self._call(processor, checked)
        return data

    async def _call(self, plugin: str, function: Callable[[], Any]) -> Any:
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._threads.acquire()
                result = await in_daemon_thread(function, f"prepare-{plugin}", on_end=self._threads.release)
                return await result if inspect.isawaitable(result) else result
        except RequestError:
            raise
        except TimeoutError as error:
            message = f"plugin {plugin!r} did not prepare the request within {self._deadline_s:g} s"
            _log.error("%s", message)
            raise RequestError(message, code="plugin_failed", status=500) from error
        except Exception as error:  # a plugin's code: the request is refused, whatever it was
            message = f"plugin {plugin!r} failed to prepare the request: {type(error).__name__}: {error}"
            _log.exception("%s", message)
            raise RequestError(message, code="plugin_failed", status=500) from error


class _Draft(RequestDraft):
    """One plugin's view of a request; it goes out of use with the hook's call."""

    def __init__(
        self, plugin: str, prompt_ids: Sequence[int], params: SamplingParams, context: RequestContext
    ) -> None:
        self.prompt_ids = tuple(prompt_ids)
        self.params = params
        self.context = context
        self.plugin_args: Mapping[str, Any] = params.plugin_args.get(plugin, {})
        self.keys: list[tuple[str, bytes]] = []
        self.data: bytes | None = None
        self._plugin = plugin

    def set(self, field: str, value: Any, why: str) -> None:
        fields = SamplingParams.__struct_fields__
        if field not in fields:
            guess = nearest(field, fields)
            raise ValueError(
                f"set: requests have no field {field!r}{f'; did you mean {guess!r}?' if guess else '.'}"
                f" Known: {listing(fields)}"
            )
        _log.info("plugin %r sets %s to %r: %s", self._plugin, field, value, why)
        self.params = msgspec.structs.replace(self.params, **{field: value})

    def attach(self, data: bytes) -> None:
        self.data = self.bounded("attach", data)

    def cache_key(self, key: bytes) -> None:
        self.keys.append((self._plugin, self.bounded("cache_key", key)))

    def refuse(self, message: str, *, status: int = 400) -> NoReturn:
        if not 400 <= status <= 499:
            raise ValueError(f"refuse: status is {status}; a refusal has 400 to 499")
        raise RequestError(message, code="refused_by_plugin", status=status)

    @staticmethod
    def bounded(method: str, data: bytes) -> bytes:
        """:raises TypeError, ValueError: a plugin's fault."""
        if not isinstance(data, bytes):
            raise TypeError(f"{method} takes bytes, not {type(data).__name__}")
        if len(data) > MAX_ATTACHED_BYTES:
            raise ValueError(
                f"{method}: {len(data)} bytes; at most {MAX_ATTACHED_BYTES} may go with a request"
            )
        return data
