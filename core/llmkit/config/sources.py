"""One merge: default < YAML file < environment < command line, each value checked, its origin kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from llmkit.config import Config, environment, vllm_speculation
from llmkit.config.convert import convert, type_name
from llmkit.config.flags import Flag, flags, sections
from llmkit.config.vllm_flags import classify
from llmkit.errors import UsageError
from llmkit.text import nearest

MAX_FILE_BYTES = 1 << 20

Source = Literal["default", "file", "environment", "command line"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from."""

    source: Source
    where: str = ""
    """The flag, the variable, or the file and its key."""

    def __str__(self) -> str:
        return self.where or self.source


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked configuration."""

    config: Config
    origins: Mapping[str, Origin]
    """``section.field`` -> origin, for every flag."""
    notes: tuple[str, ...]
    """What was accepted without effect; a line each."""
    warnings: tuple[str, ...]
    """What was ignored and may be a mistake; a line each."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of ``--show-config``."""

    name: str
    """``section.field``"""
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class _Given:
    raw: Any
    origin: Origin


def load(
    command_line: Mapping[str, Any],
    environ: Mapping[str, str],
    config_path: Path | str | None = None,
) -> Loaded:
    """Merge and check.

    :param command_line: config field -> what was typed: text, a list of texts for a repeatable flag, or
        a value of its type. A field that is missing or None was not given.

    :raises UsageError: naming the flag, variable or key, its value and what is allowed.
    """
    by_field = {flag.field: flag for flag in flags()}
    unknown = [name for name in command_line if name not in by_field]
    if unknown:
        guess = nearest(unknown[0], by_field)
        raise UsageError(
            f"{unknown[0]!r} is no setting"
            + (f"; did you mean {guess!r}?" if guess else f": {sorted(by_field)}")
        )
    notes: list[str] = []
    given: dict[str, _Given] = {}
    if config_path is not None:
        given |= _from_file(Path(config_path), notes)
    variables = environment.read(environ, flags())
    for field, text in variables.values.items():
        given[field] = _Given(text, Origin("environment", by_field[field].variable))
    for field, raw in command_line.items():
        if raw is not None:
            given[field] = _Given(raw, Origin("command line", by_field[field].names[0]))
    _expand_speculation(given, by_field)
    config, origins = _build(given)
    _check_lookup(config)
    return Loaded(config, origins, (*notes, *variables.notes), variables.warnings)


def show(loaded: Loaded) -> list[Row]:
    """Every setting with its value and origin; of secrets only whether there is one."""
    rows = []
    for flag in flags():
        value = getattr(getattr(loaded.config, flag.section), flag.field)
        rows.append(Row(flag.path, _shown(flag, value), str(loaded.origins[flag.path])))
    return rows


def check(flag: Flag, raw: Any) -> Any:
    """One value, converted and inside its bounds.

    :raises ValueError: it is not; the message continues ``WHERE: ``.
    """
    if isinstance(raw, str):
        raw = flag.synonyms.get(raw, raw)
    if flag.parse is not None and isinstance(raw, str):
        value = flag.parse(raw)
    else:
        value = convert(raw, flag.annotation, separator=flag.separator)
    if flag.choices is not None and str(value) not in flag.choices:
        guess = nearest(str(value), flag.choices)
        hint = f"; did you mean {guess!r}?" if guess else ""
        raise ValueError(f"{raw!r} is not one of {', '.join(flag.choices)}{hint}")
    if flag.repeatable and any(part == "" for part in value):
        raise ValueError("an empty value")
    _check_bounds(flag, raw, value)
    return value


def _check_bounds(flag: Flag, raw: Any, value: Any) -> None:
    if value is None:
        return
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError(f"{str(raw)[:40]!r} is out of range; it takes more than 64 bits")
    too_small = flag.minimum is not None and value < flag.minimum
    too_large = flag.maximum is not None and value > flag.maximum
    if too_small or too_large:
        raise ValueError(f"{raw!r} is out of range; allowed: {bounds(flag)}")


def bounds(flag: Flag) -> str:
    """The allowed range in words, empty if there is none."""
    if flag.minimum is not None and flag.maximum is not None:
        return f"{flag.minimum:g} to {flag.maximum:.10g}"
    if flag.minimum is not None:
        return f"{flag.minimum:g} or more"
    return "" if flag.maximum is None else f"{flag.maximum:g} or less"


def _build(given: Mapping[str, _Given]) -> tuple[Config, dict[str, Origin]]:
    values: dict[str, dict[str, Any]] = {section: {} for section in sections()}
    origins: dict[str, Origin] = {}
    for flag in flags():
        source = given.get(flag.field)
        origins[flag.path] = Origin("default") if source is None else source.origin
        if source is None:
            continue
        try:
            values[flag.section][flag.field] = check(flag, source.raw)
        except ValueError as error:
            raise UsageError(f"{source.origin.where}: {_wanted(flag, str(error))}") from None
    made = {name: section_class(**values[name]) for name, section_class in sections().items()}
    return dataclasses.replace(Config(), **made), origins


def _check_lookup(config: Config) -> None:
    least, most = config.speculation.prompt_lookup_min, config.speculation.prompt_lookup_max
    if least > most:
        raise UsageError(f"--prompt-lookup-min is {least}; it must not be above --prompt-lookup-max, {most}")


def _expand_speculation(given: dict[str, _Given], by_field: Mapping[str, Flag]) -> None:
    """Put the settings that ``speculative_config`` stands for beside the others."""
    source = given.get("speculative_config")
    if source is None:
        return
    try:
        settings = vllm_speculation.settings(check(by_field["speculative_config"], source.raw))
    except ValueError as error:
        raise UsageError(f"{source.origin.where}: {error}") from None
    for field, value in settings.items():
        if field in given:
            raise UsageError(f"{source.origin.where} sets what {given[field].origin.where} sets too")
        given[field] = _Given(value, source.origin)


def _wanted(flag: Flag, message: str) -> str:
    """A conversion's message, with what is allowed where it does not say."""
    if flag.secret:
        return f"want {type_name(flag.annotation)}, not empty"
    if flag.choices is not None or flag.parse is not None or "allowed:" in message:
        return message
    allowed = ", ".join(filter(None, (type_name(flag.annotation), bounds(flag))))
    return f"{message}; want {allowed}"


# ---- the file ----


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML in which a key given twice is an error, not a silent choice."""


def _mapping_without_twins(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        key = str(key_node.value)
        line = key_node.start_mark.line + 1
        if key in seen:
            raise yaml.MarkedYAMLError(problem=f"{key!r} stands in lines {seen[key]} and {line}")
        seen[key] = line
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_without_twins)


def _from_file(path: Path, notes: list[str]) -> dict[str, _Given]:
    by_key = {flag.key: flag for flag in flags()}
    by_key |= {name.removeprefix("--"): flag for flag in flags() for name in flag.names if name[:2] == "--"}
    off = {name.removeprefix("--"): flag for flag in flags() for name in flag.negative_names}
    given: dict[str, _Given] = {}
    for written, raw in _read_yaml(path).items():
        key = str(written).replace("_", "-")
        flag = by_key.get(key) or off.get(key)
        if flag is None:
            _explain_unknown(path, str(written), key, by_key, notes)
            continue
        if flag.field in given:
            raise UsageError(f"{path}: {written!r} sets what {given[flag.field].origin.where} sets already")
        origin = Origin("file", f"{path}: {written}")
        given[flag.field] = _Given(_negated(raw, origin) if key in off else raw, origin)
    return given


def _negated(raw: Any, origin: Origin) -> bool:
    """What ``no-x: raw`` says of ``x``."""
    try:
        return not convert(raw, bool)
    except ValueError as error:
        raise UsageError(f"{origin.where}: {error}; want true|false") from None


def _explain_unknown(
    path: Path, written: str, key: str, by_key: Mapping[str, Flag], notes: list[str]
) -> None:
    """Note a key of vLLM's that has no effect here; :raises UsageError: for any other."""
    verdict = classify(f"--{key}")
    if verdict.status == "no effect":
        notes.append(f"{path}: {verdict.message}")
    elif verdict.status == "unknown":
        guess = nearest(key, by_key)
        hint = f"; did you mean {guess!r}?" if guess else ". Keys are flags without their hyphens in front"
        raise UsageError(f"{path}: no setting is called {written!r}{hint}")
    else:
        raise UsageError(f"{path}: {verdict.message}")


def _read_yaml(path: Path) -> dict[Any, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from error
    if len(text) > MAX_FILE_BYTES:
        raise UsageError(f"--config {path}: larger than {MAX_FILE_BYTES} bytes")
    try:
        content = yaml.load(text, _StrictLoader)  # a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"--config {path}: not readable as YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"--config {path}: want a mapping of settings, such as 'port: 8000'")
    return content


def _shown(flag: Flag, value: Any) -> str:
    if flag.secret:
        return "(set)" if value else ""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
