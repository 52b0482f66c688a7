"""The Jinja environment of chat templates: transformers' globals and filters, and a bound on work.

Templates come with checkpoints, so they are somebody else's code. Jinja's immutable sandbox keeps them
from Python; the budget here keeps them from running for minutes or filling the memory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_STEPS = 2_000_000
"""Loop iterations and calls of one rendering; the longest real conversations take thousands."""
MAX_SECONDS = 2.0
"""Of the rendering thread's own time, so that a busy machine refuses nothing."""
MAX_VALUE_CHARS = 1 << 24
"""Longest string or list that multiplication or a call may make."""

TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template raises on a conversation it cannot handle."""

_CHARGE = "charge loop"  # no identifier, so no template can name it


class _Budget:
    """What one rendering may still spend; owned by that rendering."""

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._deadline = time.thread_time() + MAX_SECONDS

    def spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0 or time.thread_time() > self._deadline:
            raise jinja2.TemplateRuntimeError(
                f"rendering took more than {MAX_STEPS} steps or {MAX_SECONDS:g} seconds"
            )


_current: ContextVar[_Budget | None] = ContextVar("chat_template_budget", default=None)


@contextmanager
def budget() -> Iterator[None]:
    """Bound what a sandbox's template does inside the block."""
    token = _current.set(_Budget())
    try:
        yield
    finally:
        _current.reset(token)


class Sandbox(ImmutableSandboxedEnvironment):
    """As transformers sets it up, with loops and calls charged to the current :func:`budget`."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters["tojson"] = _tojson
        self.filters[_CHARGE] = _charge
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["dict"] = _DictMaker()
        self.globals["namespace"] = _SafeNamespace

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(
                loop.iter, _CHARGE, [], [], None, None, lineno=loop.lineno, environment=self
            )
        return tree

    def call(self, context: jinja2.runtime.Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        _spend(1)
        return _bounded(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        _spend(1)
        if operator == "**" and (abs(left) > 1 << 32 or abs(right) > 64):
            raise jinja2.TemplateRuntimeError("numbers this large are not computed in a chat template")
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Sized) and isinstance(other, int) and len(one) * other > MAX_VALUE_CHARS:
                raise jinja2.TemplateRuntimeError(f"a value passes {MAX_VALUE_CHARS} characters")
        return super().call_binop(context, operator, left, right)


def _spend(steps: int) -> None:
    current = _current.get()
    if current is not None:
        current.spend(steps)


def _bounded(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_VALUE_CHARS:
        raise jinja2.TemplateRuntimeError(f"a value passes {MAX_VALUE_CHARS} characters")
    return value


def _charge(iterable: Any) -> Any:
    """Charges a loop's whole length as it begins, so nested loops add up to what they will do."""
    if isinstance(iterable, Sized):
        _spend(len(iterable) + 1)
        return iterable
    return _counted(iterable) if isinstance(iterable, Iterable) else iterable


def _counted(iterable: Iterable[Any]) -> Iterator[Any]:
    for item in iterable:
        _spend(1)
        yield item


class _Generation(Extension):
    """``{% generation %}``: marks what the assistant wrote, for training; here it only renders."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Macro) -> str:
        text: str = caller()
        return text


class _DictMaker:
    """``dict`` without the type behind it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _SafeNamespace(Namespace):
    """A namespace that holds no underscored name."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # Jinja's own signature, so that `namespace(self=...)` works.
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace may not hold the underscored name {name!r}")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes HTML characters, which a prompt must not.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
