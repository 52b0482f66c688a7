"""Config fields as options of a command, and the flags of other engines before typer sees them."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from llmkit.config import flags as config_flags
from llmkit.config import sources, vllm_flags
from llmkit.errors import UsageError

_PLACES_VALUES_APART = ("--served-model-name", "--api-key", "--allowed-origins")
"""vLLM takes several values behind one of these; so do we, once MODEL has been given."""


def configurable(*sections: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command every flag of these config sections and ``--config``.

    Where only some settings of a section concern the command each of them is named, as ``cache.block_size``.
    The command's first parameter receives the merged ``sources.Loaded``; its others stay options of its own.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        offered = [flag for flag in config_flags.flags() if {flag.section, flag.path} & {*sections}]
        taken = {parameter.name for parameter in own}
        generated = [
            _parameter(flag) for flag in offered if flag.field not in taken and flag.field != "model"
        ]
        config_file = inspect.Parameter(
            "config",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                Path | None, typer.Option("--config", help="YAML file of flags", rich_help_panel="Config")
            ],
        )

        def run(**given: Any) -> Any:
            config_path = given.pop("config")
            own_values = {name: given.pop(name) for name in taken}
            if own_values.get("model") is not None and "model" in sections:
                given["model"] = own_values["model"]
            chosen = {name: value for name, value in given.items() if value not in (None, [])}
            loaded = sources.load(chosen, os.environ, config_path)
            for line in (*loaded.notes, *loaded.warnings):
                typer.echo(f"llmkit: {line}", err=True)
            return command(loaded, **own_values)

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + [config_file, *generated]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def _parameter(flag: config_flags.Flag) -> inspect.Parameter:
    if flag.is_bool:
        positive = "/".join([flag.names[0], *flag.negative_names[:1]])
        option = typer.Option(positive, *flag.names[1:], help=flag.help, rich_help_panel=_panel(flag))
        annotation: Any = Annotated[bool | None, option]
    else:
        option = typer.Option(*flag.names, help=flag.help, metavar=flag.metavar, rich_help_panel=_panel(flag))
        annotation = Annotated[list[str] | None if flag.repeatable else str | None, option]
    return inspect.Parameter(flag.field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _panel(flag: config_flags.Flag) -> str:
    return flag.section.capitalize()


def takes_config(command: Callable[..., Any]) -> bool:
    """Whether a command is :func:`configurable`."""
    return "config" in inspect.signature(command).parameters


def known_flags(command: Callable[..., Any]) -> tuple[frozenset[str], frozenset[str]]:
    """All flags of a configurable command, and those of them that take no value."""
    known, switches = {"-h", "--help"}, {"-h", "--help"}
    for parameter in inspect.signature(command).parameters.values():
        option = parameter.annotation.__metadata__[0]
        # typer takes the first declaration for a default until it reads the annotation itself
        words = (option.default, *(getattr(option, "param_decls", None) or ()))
        names = {
            name for word in words if isinstance(word, str) and word[:1] == "-" for name in word.split("/")
        }
        if isinstance(option, typer.models.OptionInfo) and not names:
            names = {"--" + parameter.name.replace("_", "-")}
        known |= names
        if parameter.annotation.__origin__ in (bool, bool | None):
            switches |= names | {"--no-" + name[2:] for name in names if name.startswith("--")}
    return frozenset(known | switches), frozenset(switches)


def adapt(argv: Sequence[str], known: frozenset[str], switches: frozenset[str]) -> list[str]:
    """Rewrite arguments that other engines' users type, and stop at those nobody knows.

    ``known`` are all flags of the command, ``switches`` those without a value. Underscores in a
    flag become hyphens; a flag that has no effect here is dropped with one line.

    :raises UsageError: a flag is unknown (names the nearest) or not supported yet.
    """
    rewritten: list[str] = []
    waiting = list(argv)
    model_seen = False
    while waiting:
        word = waiting.pop(0)
        if word == "--":
            return [*rewritten, word, *waiting]
        if not word.startswith("-") or word == "-":
            model_seen = True
            rewritten.append(word)
            continue
        name, equals, value = word.partition("=")
        name = "--" + name[2:].replace("_", "-") if name.startswith("--") else name
        if name in known:
            rewritten.append(name + equals + value)
            if not equals and name not in switches and waiting:
                rewritten.append(waiting.pop(0))
                while name in _PLACES_VALUES_APART and model_seen and waiting and waiting[0][:1] != "-":
                    rewritten += [name, waiting.pop(0)]
            continue
        verdict = vllm_flags.classify(name)
        if verdict.status == "renamed":
            waiting.insert(0, verdict.replacement + equals + value)
            continue
        if verdict.status == "same":
            raise UsageError(_out_of_place(name, known))
        if verdict.status != "no effect":
            raise UsageError(verdict.message)
        sys.stderr.write(f"llmkit: {verdict.message}\n")
        if verdict.takes_value and not equals and waiting and not waiting[0].startswith("-"):
            waiting.pop(0)
    return rewritten


def _out_of_place(name: str, known: frozenset[str]) -> str:
    """For a flag of other commands: what this one takes of the same section."""
    section = next((flag.section for flag in config_flags.flags() if name in flag.names), None)
    taken = [flag.names[0] for flag in config_flags.flags() if flag.section == section]
    taken = [flag for flag in taken if flag in known]
    offered = f"; of the {section} settings it takes {', '.join(taken)}" if taken else ""
    return f"{name} does not apply to this command{offered}"
