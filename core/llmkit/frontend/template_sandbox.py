"""The Jinja environment of chat templates: transformers' globals and filters, and a bound on work.

Templates come with checkpoints, so they are somebody else's code. Jinja's immutable sandbox keeps them
from Python; the budget of ``template_limits.py`` keeps them from running for minutes or filling the memory.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import BuiltinMethodType, MethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

from llmkit.frontend import template_limits as limits

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

MAX_INDENT = 64
MAX_COLUMNS = 1 << 16
"""Rows that ``batch`` and ``slice`` make."""
MAX_TIME_FORMAT = 256

# No identifiers, so no template can name them.
_CHARGE, _CONCAT, _MADE, _WEIGHED = "charge loop", "join texts", "note value", "look through"
_OWN = "note own list"

OWN_LIST_METHODS = frozenset({"append", "pop"})
"""What templates do with a list of their own, such as a queue of ids that tool messages answer."""

_NUMBERS = re.compile(r"[0-9]+")


class Sandbox(ImmutableSandboxedEnvironment):
    """As transformers sets it up, with what loops, calls or makes a value charged to the budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            finalize=_written,
        )
        self.filters["tojson"] = _tojson
        for name, function in self.filters.items():
            self.filters[name] = _bounded(name, function)
        self.filters[_CHARGE] = _charge
        self.filters[_CONCAT] = _concat
        self.filters[_MADE] = limits.made
        self.filters[_OWN] = _OwnList
        self.filters[_WEIGHED] = _weighed
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["dict"] = _DictMaker()
        self.globals["namespace"] = _SafeNamespace

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """What a macro or a block wrote."""
        many = list(pieces)
        limits.allow(sum(map(len, many)))
        return limits.made("".join(many))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Bounds(self).visit(super()._parse(source, name, filename))
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Also methods that change a list which the template wrote itself; all else stays as it came."""
        if isinstance(obj, _OwnList) and attr in OWN_LIST_METHODS:
            return True
        return super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        limits.spend(1)
        args = _checked_arguments(function, args, kwargs)
        return limits.made(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        limits.spend(1)
        if operator == "**":
            limits.allow_power(left, right)
        elif operator == "*":
            limits.allow_product(left, right)
        elif operator == "+":
            limits.allow_sum(left, right)
        elif isinstance(left, str):
            limits.allow_printf(left, right)
        return limits.made(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format`` whose fields are charged as they are written."""
        if super().wrap_str_format(value) is None:
            return None
        text, takes_map = str(value.__self__), value.__name__ == "format_map"

        def format(*args: Any, **kwargs: Any) -> str:
            if takes_map:
                (kwargs,) = args
                args = ()
            return _Formatter(self).vformat(text, args, kwargs)

        return format


class _Formatter(SandboxedFormatter):
    def convert_field(self, value: Any, conversion: Any) -> Any:
        limits.weigh(value)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> Any:
        for digits in _NUMBERS.findall(format_spec):
            limits.number(digits)
        limits.weigh(value)
        return limits.made(super().format_field(value, format_spec))


class _Bounds(NodeTransformer):
    """Puts a check around what Jinja compiles to plain Python."""

    def __init__(self, environment: Sandbox) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = self._through(_CHARGE, node.iter)  # type: ignore[arg-type]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._through(_CONCAT, nodes.Tuple(node.nodes, "load", lineno=node.lineno))

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._through(_OWN, self.visit_Dict(node))

    def visit_Dict(self, node: nodes.List | nodes.Dict | nodes.Tuple) -> nodes.Filter:
        self.generic_visit(node)
        return self._through(_MADE, node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self.visit_Dict(node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return self._through(_MADE, node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        holders: list[nodes.Compare | nodes.Operand] = [node, *node.ops]
        for holder in holders:
            if not isinstance(holder.expr, nodes.Const):
                holder.expr = self._through(_WEIGHED, holder.expr)
        return node

    def _through(self, name: str, node: nodes.Expr) -> nodes.Filter:
        environment = self._environment
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=environment)


@pass_context  # so that a constant's loop is not charged when the template is compiled
def _charge(context: Context, iterable: Any) -> Any:
    return limits.counted(iterable)


def _concat(values: tuple[Any, ...]) -> str:
    limits.allow(sum(map(limits.weigh, values)))
    return limits.made("".join(map(str, values)))


def _weighed(value: Any) -> Any:
    """For a comparison; flat values cost nothing."""
    if isinstance(value, list | tuple | dict):
        items = value.values() if isinstance(value, dict) else value
        limits.weigh([item for item in items if isinstance(item, list | tuple | dict)])
    return value


def _written(value: Any) -> Any:
    """What an expression puts into the prompt."""
    if not isinstance(value, str):
        limits.charge(limits.weigh(value))
    return value


# ---- methods ----


class _OwnList(list[Any]):
    """A list that is written in the template: nobody else's, and made anew in each rendering."""


def _checked_arguments(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of a call, once a text's or a number's method is known to make nothing too large."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, _OwnList) and function.__name__ == "append":
        limits.allow_element(owner)
    if not isinstance(function, BuiltinMethodType | MethodType) or not isinstance(owner, str | bytes | int):
        return args
    numbers = [limits.number(value) for value in (*args, *kwargs.values()) if isinstance(value, int)]
    if isinstance(owner, int):
        return args
    if function.__name__ == "expandtabs":
        limits.allow(len(owner) * max(numbers, default=8))
    elif args and function.__name__ == "join":
        items = limits.weighed(args[0])
        limits.allow_join(owner, list(items))
        return (items, *args[1:])
    elif len(args) > 1 and function.__name__ == "replace":
        limits.allow_replace(owner, *args)
    elif args and function.__name__ == "translate" and isinstance(args[0], Mapping):
        limits.allow(len(owner) * max(map(limits.weigh, args[0].values()), default=1))
    return args


# ---- filters ----


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose arguments are checked before it runs and whose result is charged."""
    check = _CHECKS.get(name)
    first = int(hasattr(function, "jinja_pass_arg"))  # before the value: a context or environment

    @functools.wraps(function)
    def filter(*args: Any, **kwargs: Any) -> Any:
        if check is not None:
            value = check(*args[first:], **kwargs)
            args = (*args[:first], value, *args[first + 1 :])
        return limits.made(function(*args, **kwargs))

    return filter


def _check_batch(value: Any, count: Any, fill_with: Any = None) -> Any:
    limits.number(count, MAX_COLUMNS)
    return value


def _check_center(value: Any, width: Any = 80) -> Any:
    limits.number(width)
    return limits.weighed(value)


def _check_format(value: Any, *args: Any, **kwargs: Any) -> Any:
    limits.allow_printf(str(limits.weighed(value)), kwargs or args)
    return value


def _check_indent(value: Any, width: Any = 4, first: Any = False, blank: Any = False) -> Any:
    unit = len(width) if isinstance(width, str) else limits.number(width)
    text = str(limits.weighed(value))
    limits.allow(len(text) + (len(text.splitlines()) + 1) * unit)
    return value


def _check_join(value: Any, d: Any = "", attribute: Any = None) -> Any:
    items = limits.weighed(value)
    limits.allow_join(str(d), list(items))
    return items


def _check_replace(value: Any, old: Any, new: Any, count: Any = None) -> Any:
    limits.allow_replace(str(limits.weighed(value)), str(old), str(new), count)
    return value


def _check_round(value: Any, precision: Any = 0, method: Any = "common") -> Any:
    limits.number(precision, MAX_INDENT)
    return value


def _check_sum(value: Any, attribute: Any = None, start: Any = 0) -> Any:
    items = limits.weighed(value)
    if not isinstance(start, int | float):  # each addition copies what there is
        limits.charge(len(items) * limits.weigh(items))
    return items


def _check_wordwrap(
    value: Any, width: Any = 79, break_long_words: Any = True, wrapstring: Any = None, *rest: Any, **more: Any
) -> Any:
    limits.allow(limits.weigh(value) * (1 + len(wrapstring or "\n")))
    return value


def _check_structure(value: Any, *args: Any, **kwargs: Any) -> Any:
    return limits.weighed(value)


_CHECKS: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(
        "dictsort e escape forceescape groupby list max min pprint sort string striptags tojson unique "
        "urlencode urlize xmlattr".split(),
        _check_structure,
    ),
    "batch": _check_batch,
    "center": _check_center,
    "format": _check_format,
    "indent": _check_indent,
    "join": _check_join,
    "replace": _check_replace,
    "round": _check_round,
    "slice": _check_batch,
    "sum": _check_sum,
    "wordwrap": _check_wordwrap,
}
"""Filters that may make much of little, or look through all of a value."""


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes HTML characters, which a prompt must not.
    for given in (indent, *(separators or ())):
        limits.number(len(given) if isinstance(given, str) else given or 0, MAX_INDENT)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None:
        return encoder.encode(value)
    pieces, chars = [], 0
    for piece in encoder.iterencode(value):
        pieces.append(piece)
        chars += len(piece)
        limits.allow(chars)
    return "".join(pieces)


# ---- what else a template finds ----


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


def _strftime_now(format: str) -> str:
    if len(format) > MAX_TIME_FORMAT:
        raise jinja2.TemplateRuntimeError(f"a time format passes {MAX_TIME_FORMAT} characters")
    return datetime.now().strftime(format)
