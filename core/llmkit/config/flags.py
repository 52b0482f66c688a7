"""Config fields as flags: what the command line, the environment and YAML may set."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from llmkit.config import Config
from llmkit.config.convert import type_name

PREFIX = "LLMKIT_"


@dataclass(frozen=True, slots=True)
class Flag:
    """One config field as somebody sets it."""

    section: str
    field: str
    names: tuple[str, ...]
    """The flag, then its aliases."""
    negative_names: tuple[str, ...]
    """Of a boolean: what switches it off."""
    help: str
    metavar: str
    annotation: Any
    default: Any
    repeatable: bool
    is_bool: bool
    choices: tuple[str, ...] | None
    kind: str | None
    """Component kind whose registered names are the values, besides ``auto``."""
    parse: Callable[[str], Any] | None
    synonyms: Mapping[str, str]
    minimum: float | None
    maximum: float | None
    separator: str | None
    secret: bool

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.field.upper()

    @property
    def key(self) -> str:
        """The YAML key; underscores do as well."""
        return self.field.replace("_", "-")

    @property
    def path(self) -> str:
        """``section.field``"""
        return f"{self.section}.{self.field}"


@functools.cache
def flags() -> tuple[Flag, ...]:
    """Every flag, by section, in the order of the dataclasses."""
    found: list[Flag] = []
    for section, section_class in sections().items():
        types = get_type_hints(section_class)
        for field in dataclasses.fields(section_class):
            if "help" in field.metadata:
                found.append(_flag(section, field, types[field.name]))
    names = [name for flag in found for name in (*flag.names, *flag.negative_names)]
    assert len(set(names)) == len(names), "two config fields claim one flag"
    assert len({flag.field for flag in found}) == len(found), "two sections have a field of one name"
    return tuple(found)


def sections() -> Mapping[str, type[Any]]:
    """Section name -> its dataclass."""
    types = get_type_hints(Config)
    return {field.name: types[field.name] for field in dataclasses.fields(Config)}


def shown_config(config: Config) -> dict[str, dict[str, Any]]:
    """Every setting by section, as JSON has it; of secrets only whether there is one."""
    shown: dict[str, dict[str, Any]] = {}
    for flag in flags():
        value = getattr(getattr(config, flag.section), flag.field)
        shown.setdefault(flag.section, {})[flag.field] = bool(value) if flag.secret else value
    return shown


def needed(config: Config) -> dict[str, str | tuple[str, ...]]:
    """Component kind -> what this configuration asks for, for ``load_plugins``; only kinds it uses."""
    named = {
        flag.kind: getattr(getattr(config, flag.section), flag.field)
        for flag in flags()
        if flag.kind is not None
    }
    asked = {kind: name for kind, name in named.items() if name}
    prefix = re.match(r"([A-Za-z0-9][\w.+-]+):", config.model.model)
    if prefix and not Path(config.model.model).exists():
        asked["source"] = prefix[1]
    return asked


def _flag(section: str, field: dataclasses.Field[Any], annotation: Any) -> Flag:
    metadata = field.metadata
    name = metadata["flag"] or "--" + field.name.replace("_", "-")
    names = (name, *metadata["aliases"])
    is_bool = annotation is bool
    return Flag(
        section=section,
        field=field.name,
        names=names,
        negative_names=tuple("--no-" + n.removeprefix("--") for n in names if n[:2] == "--")
        if is_bool
        else (),
        help=metadata["help"],
        metavar=metadata["metavar"] or _metavar(annotation, metadata),
        annotation=annotation,
        default=field.default,
        repeatable=get_origin(annotation) is tuple,
        is_bool=is_bool,
        **{key: metadata[key] for key in _COPIED},
    )


_COPIED = ("choices", "kind", "parse", "synonyms", "minimum", "maximum", "separator", "secret")


def _metavar(annotation: Any, metadata: Mapping[str, Any]) -> str:
    if metadata["choices"]:
        return "|".join(metadata["choices"])
    if metadata["kind"]:
        return "NAME"
    element = get_args(annotation)[0] if get_origin(annotation) is tuple else annotation
    return type_name(element).upper()
