"""Filling a plugin's ``Options`` from ``--plugin-option NAME.key=value``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_type_hints

from llmkit.config.convert import convert, type_name
from llmkit.errors import PluginError, UsageError
from llmkit.text import nearest


def options_class_of(plugin: Any) -> type[Any] | None:
    """A plugin's ``Options``; :raises PluginError: it is not a frozen dataclass."""
    options_class = getattr(plugin, "Options", None)
    if options_class is None:
        return None
    parameters = getattr(options_class, "__dataclass_params__", None)
    if not isinstance(options_class, type) or parameters is None or not parameters.frozen:
        raise PluginError("its 'Options' is not a frozen dataclass")
    return options_class


def fill_options(owner: str, options_class: type[Any] | None, given: Mapping[str, str]) -> Any:
    """The frozen options object of plugin ``owner``; None if it declares none.

    :raises UsageError: an unknown key, a value that does not fit, one that is needed and missing.
    """
    if options_class is None:
        if given:
            raise UsageError(f"--plugin-option {owner}.{next(iter(given))}: plugin {owner!r} has no options")
        return None
    types = get_type_hints(options_class)
    fields = {field.name: types[field.name] for field in dataclasses.fields(options_class) if field.init}
    values = {key: _value(owner, key, text, fields) for key, text in given.items()}
    missing = [
        field.name
        for field in dataclasses.fields(options_class)
        if field.init
        and field.name not in values
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UsageError(
            f"plugin {owner!r} needs "
            + ", ".join(f"--plugin-option {owner}.{name}=<{type_name(fields[name])}>" for name in missing)
        )
    try:
        return options_class(**values)
    except ValueError as error:
        shown = ", ".join(f"{key}={text}" for key, text in given.items()) or "the defaults"
        raise UsageError(f"--plugin-option {owner}: plugin {owner!r} refuses {shown}: {error}") from error


def _value(owner: str, key: str, text: str, fields: Mapping[str, Any]) -> Any:
    if key not in fields:
        guess = nearest(key, fields)
        hint = f"; did you mean {guess!r}?" if guess else "."
        allowed = ", ".join(f"{name} ({type_name(kind)})" for name, kind in fields.items()) or "none"
        raise UsageError(
            f"--plugin-option {owner}.{key}: plugin {owner!r} has no option {key!r}{hint} It has: {allowed}"
        )
    try:
        return convert(text, fields[key], separator=",")
    except ValueError as error:
        raise UsageError(f"--plugin-option {owner}.{key}: {error}; want {type_name(fields[key])}") from None
