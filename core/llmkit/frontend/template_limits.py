"""What one rendering of a chat template may spend: steps, time, and characters.

Whatever makes a value says beforehand how large it will be (:func:`allow`), and afterwards that it is there
(:func:`made`), so that neither one value nor all together fill the memory.
"""

from __future__ import annotations

import re
import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, Sized, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import jinja2
from jinja2.utils import Namespace

MAX_STEPS = 2_000_000
"""Loop iterations, calls and elements looked at; the longest conversations take thousands."""
MAX_SECONDS = 2.0
"""Of the rendering thread's own time, so that a busy machine refuses nothing."""
MAX_VALUE_CHARS = 1 << 24
"""Of one value; an element of a list counts as ELEMENT_CHARS."""
MAX_MADE_CHARS = 1 << 28
"""Of all values made in one rendering, whether or not they are kept."""
ELEMENT_CHARS = 64
MAX_BITS = 1 << 12
"""Of a product; longer numbers Python does not print."""

_CONTAINERS = (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)
_SPEC = re.compile(r"%(?:\([^()]*\))?[#0\- +]*([0-9]+|\*)?(?:\.([0-9]+|\*)?)?")
"""A conversion of a ``%`` format, up to its type: width and precision."""
_NESTED_KEY = re.compile(r"%\([^)]*\(")
T = TypeVar("T")


class _Budget:
    """What one rendering may still spend; owned by that rendering."""

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._chars = MAX_MADE_CHARS
        self._deadline = time.thread_time() + MAX_SECONDS

    def spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0 or time.thread_time() > self._deadline:
            raise jinja2.TemplateRuntimeError(
                f"rendering took more than {MAX_STEPS} steps or {MAX_SECONDS:g} seconds"
            )

    def make(self, chars: int) -> None:
        self._chars -= chars
        if self._chars < 0:
            raise jinja2.TemplateRuntimeError(f"rendering made more than {MAX_MADE_CHARS} characters")


_current: ContextVar[_Budget | None] = ContextVar("chat_template_budget", default=None)


@contextmanager
def budget() -> Iterator[None]:
    """Bound what a sandbox's template does inside the block."""
    token = _current.set(_Budget())
    try:
        yield
    finally:
        _current.reset(token)


def spend(steps: int) -> None:
    """:raises TemplateRuntimeError: the budget is used up."""
    current = _current.get()
    if current is not None:
        current.spend(steps)


def allow(chars: int) -> None:
    """:raises TemplateRuntimeError: a value of so many characters would be too large."""
    if chars > MAX_VALUE_CHARS:
        raise jinja2.TemplateRuntimeError(f"a value passes {MAX_VALUE_CHARS} characters")


def number(value: Any, most: int = MAX_VALUE_CHARS) -> int:
    """A width or count. :raises TemplateRuntimeError: it is too large."""
    count = int(value)
    if abs(count) > most:
        raise jinja2.TemplateRuntimeError(f"{count} is more than the {most} that a chat template may ask for")
    return count


def charge(chars: int) -> None:
    """Note characters that come into being. :raises TemplateRuntimeError: the budget is used up."""
    current = _current.get()
    if current is not None:
        current.make(chars)


def made(value: T) -> T:
    """A value that has just been made, charged. :raises TemplateRuntimeError: it is too large."""
    if isinstance(value, str | bytes):
        chars = len(value)
    elif isinstance(value, list | tuple | dict):
        chars = ELEMENT_CHARS * len(value)
    else:
        return value
    allow(chars)
    charge(chars)
    return value


def weigh(value: Any) -> int:
    """Characters of ``value`` as text, roughly; what stands in several places counts in each.

    :raises TemplateRuntimeError: they are too many, or looking took too long.
    """
    chars, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str | bytes):
            chars += len(one)
            continue
        chars += ELEMENT_CHARS
        if isinstance(one, Namespace):
            one = object.__getattribute__(one, "_Namespace__attrs")
        if isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, _CONTAINERS):
            waiting += one
        else:
            continue
        spend(len(one))
        allow(chars)
    allow(chars)
    return chars


def counted(iterable: Any) -> Any:
    """Charges a loop's whole length as it begins, so nested loops add up to what they will do."""
    if isinstance(iterable, Sized):
        spend(len(iterable) + 1)
        return iterable
    return _counted(iterable) if isinstance(iterable, Iterable) else iterable


def _counted(iterable: Iterable[Any]) -> Iterator[Any]:
    for item in iterable:
        spend(1)
        yield item


def weighed(value: Any) -> Any:
    """``value``, an iterator as a list, looked through: it is small enough to be written or compared."""
    if isinstance(value, Iterator):
        value = made(list(_counted(value)))
    weigh(value)
    return value


# ---- how large it will be ----


def allow_product(left: Any, right: Any) -> None:
    """Of ``left * right``."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Sized) and isinstance(other, int):
            allow(len(one) * other * (1 if isinstance(one, str | bytes) else ELEMENT_CHARS))
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MAX_BITS:
        raise jinja2.TemplateRuntimeError("numbers this large are not computed in a chat template")


def allow_power(left: Any, right: Any) -> None:
    """Of ``left ** right``."""
    if abs(left) > 1 << 32 or abs(right) > 64:
        raise jinja2.TemplateRuntimeError("numbers this large are not computed in a chat template")


def allow_sum(left: Any, right: Any) -> None:
    """Of ``left + right``."""
    if isinstance(left, Sized) and isinstance(right, Sized):
        each = 1 if isinstance(left, str | bytes) else ELEMENT_CHARS
        allow((len(left) + len(right)) * each)


def allow_element(values: Sequence[Any]) -> None:
    """One more of ``values``, which is charged as well."""
    allow((len(values) + 1) * ELEMENT_CHARS)
    charge(ELEMENT_CHARS)


def allow_printf(template: str, values: Any) -> None:
    """Of ``template % values``."""
    if _NESTED_KEY.search(template):
        raise jinja2.TemplateRuntimeError("a format's key may hold no parentheses")
    widths = [size for spec in _SPEC.findall(template) for size in spec if size]
    fixed = sum(number(size) for size in widths if size != "*")
    if "*" in widths:
        given = values if isinstance(values, tuple) else (values,)
        fixed += sum(number(value) for value in given if isinstance(value, int))
    allow(len(template) + fixed + template.count("%") * weigh(values))


def allow_replace(text: Any, old: Any, new: Any, count: Any = -1) -> None:
    """Of ``text.replace(old, new, count)``."""
    times = text.count(old) if old else len(text) + 1
    if count is not None and count >= 0:
        times = min(times, count)
    allow(len(text) + times * max(0, len(new) - len(old)))


def allow_join(separator: Any, items: Sequence[Any]) -> None:
    """Of ``separator.join(items)``."""
    allow(weigh(items) + len(separator) * len(items))
