"""From a MODEL reference to files, what they say, and the front process's part of the model. No torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmkit.assemble.parsers import open_formats
from llmkit.assemble.pooling import resolve_runner
from llmkit.assemble.stages import open_stages
from llmkit.config import Config
from llmkit.contracts import (
    CheckpointInfo,
    LoaderSpec,
    ModelFiles,
    ModelSource,
    Progress,
    SamplingParams,
    SourceRequest,
    Tokenizer,
    TokenizerSpec,
    WeightLoader,
)
from llmkit.errors import CheckpointError, ModelNotFound, RequestError, UsageError
from llmkit.frontend.chat_template import ChatTemplate
from llmkit.frontend.check import check_params
from llmkit.frontend.services import FrontModel
from llmkit.registry import Registry
from llmkit.text import listing, nearest

SHIPPED_TEMPLATES = Path(__file__).parent.parent / "chat_templates"
MAX_FILE_BYTES = 1 << 20
"""Of a chat template or a generation config given by hand."""
_PREFIX = re.compile(r"([A-Za-z0-9][\w.+-]*):(.*)", re.DOTALL)
_GENERATION_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""Hugging Face's name -> ours, for what a model's generation config may decide (vLLM's list)."""
_ANY_VOCABULARY = 1 << 31


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model whose files are at hand."""

    files: ModelFiles
    info: CheckpointInfo
    loader_name: str


def open_model(config: Config, components: Registry, progress: Progress) -> OpenedModel:
    """Find the model's files, fetching them if that is its source's business, and read what they say.

    :raises UnknownName: no loader has the name asked for.
    :raises ModelNotFound: nothing is behind the reference. :raises CheckpointError: it is damaged.
    :raises UsageError: ``--runner`` or ``--pooler-config`` does not go with it.
    """
    files = _resolve(config.model.model, config, components, progress)
    spec = LoaderSpec(files, config.model.hf_overrides or {}, config.model.seed)
    name = components.choose("loader", config.model.load_format, spec).name
    return OpenedModel(files, resolve_runner(config, _read_info(name, spec, components)), name)


def open_frontend(config: Config, opened: OpenedModel, components: Registry) -> FrontModel:
    """Tokenizer, chat template, parsers, sampling defaults and ends of sequence; may take a second or two.

    ``--tokenizer`` brings its own chat template where its files have one beside a config.

    :raises UsageError: a flag names what is not there. :raises CheckpointError: a file is damaged.
    """
    files, info = opened.files, opened.info
    if config.model.tokenizer is not None:
        files, info = _tokenizer_files(config, opened, components)
    spec = TokenizerSpec(files, info, config.model.trust_remote_code)
    name = components.choose("tokenizer", config.model.tokenizer_mode, spec).name
    tokenizer: Tokenizer = components.create("tokenizer", name, spec)
    template = info.chat_template or opened.info.chat_template
    if config.model.chat_template is not None:
        template = _template_given(config.model.chat_template)
    model_type = str(opened.info.config.get("model_type", ""))
    formats, choices = open_formats(config, components, tokenizer, template or "", model_type)
    stages, stage_choices = open_stages(config, components)
    return FrontModel(
        tokenizer=tokenizer,
        chat=None
        if template is None
        else ChatTemplate(template, tokenizer, content_format=config.model.chat_template_content_format),
        generation_defaults=_generation_defaults(config, opened.info),
        eos_ids=_eos_ids(_generation_config(config, opened.info), opened.info.config, tokenizer),
        formats=formats,
        stages=stages,
        choices=(*choices, *stage_choices),
    )


# ---- files ----


def check_reference(config: Config, components: Registry) -> None:
    """At once, before anything is looked for. :raises ModelNotFound: no source takes such a reference."""
    _source(config.model.model, components)


def _resolve(reference: str, config: Config, components: Registry, progress: Progress) -> ModelFiles:
    source, rest = _source(reference, components)
    request = SourceRequest(rest, config.model.revision, config.model.trust_remote_code)
    return source.resolve(request, progress)


def _source(reference: str, components: Registry) -> tuple[ModelSource, str]:
    """Who is to find the model, and what to ask it for: less its prefix, where that names the source."""
    prefixed = _PREFIX.fullmatch(reference)
    if prefixed and prefixed[1] in components.names("source") and not Path(reference).exists():
        return components.create("source", prefixed[1]), prefixed[2]
    return _claimant(reference, components), reference


def _claimant(reference: str, components: Registry) -> ModelSource:
    """The first source, among built-ins and enabled plugins, that takes an unprefixed reference."""
    names = components.usable("source", None)
    for name in names:
        source: ModelSource = components.create("source", name)
        if source.claims(reference):
            return source
    prefix = _PREFIX.fullmatch(reference)
    guess = nearest(prefix[1], components.names("source")) if prefix else None
    hint = f"; did you mean {guess}:{prefix[2]}?" if prefix and guess else "."
    raise ModelNotFound(
        f"MODEL {reference!r}: no source knows what this is{hint} Known prefixes: {listing(names)}"
    )


def _read_info(name: str, spec: LoaderSpec, components: Registry) -> CheckpointInfo:
    loader: WeightLoader = components.create("loader", name, spec)
    return loader.info()


def _tokenizer_files(
    config: Config, opened: OpenedModel, components: Registry
) -> tuple[ModelFiles, CheckpointInfo]:
    """Files of ``--tokenizer`` and what they say; where no loader can read them, the model's own info.

    Nobody needs its weights, so ``dummy``, which reads a config alone, is as good as any.
    """
    assert config.model.tokenizer is not None
    files = _resolve(config.model.tokenizer, config, components, lambda phase, fraction: None)
    spec = LoaderSpec(files)
    for entry in components.entries("loader"):
        if entry.auto and (entry.refuses is None or entry.refuses(spec) is None):
            return files, _read_info(components.name_of(entry), spec, components)
    return files, opened.info


# ---- templates and defaults ----


def _template_given(given: str) -> str:
    """``--chat-template``: a file, the template itself, or the name of a shipped one."""
    if "{{" in given or "{%" in given or "\n" in given:
        return given
    shipped = {path.stem: path for path in SHIPPED_TEMPLATES.glob("*.jinja")}
    if given in shipped and not Path(given).exists():
        return shipped[given].read_text(encoding="utf-8")
    if not Path(given).exists() and Path(given).name == given:
        raise UsageError(
            f"--chat-template {given}: there is no such file; llmkit ships {listing(sorted(shipped))}"
        )
    return _read_text("--chat-template", Path(given))


def _generation_config(config: Config, info: CheckpointInfo) -> Mapping[str, Any]:
    """The model's, or that of the directory in ``--generation-config``."""
    where = config.model.generation_config
    if where in ("auto", "vllm"):
        return info.generation_config
    path = Path(where) / "generation_config.json" if Path(where).is_dir() else Path(where)
    text = _read_text("--generation-config", path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--generation-config {path}: it is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"--generation-config {path}: it holds no object")
    return content


def _generation_defaults(config: Config, info: CheckpointInfo) -> dict[str, Any]:
    if config.model.generation_config == "vllm":
        return {}
    source = _generation_config(config, info)
    defaults = {
        ours: source[theirs] for theirs, ours in _GENERATION_FIELDS.items() if source.get(theirs) is not None
    }
    try:
        check_params(SamplingParams(**defaults), _ANY_VOCABULARY, config.limits)
    except RequestError as error:
        raise CheckpointError(
            f"the model's generation config cannot be used: {error}; --generation-config vllm ignores it"
        ) from None
    return defaults


def _eos_ids(
    generation_config: Mapping[str, Any], config: Mapping[str, Any], tokenizer: Tokenizer
) -> tuple[int, ...]:
    """Every token that ends a sequence: the generation config's, else the config's; and the tokenizer's."""
    named = generation_config.get("eos_token_id")
    if named is None:
        named = config.get("eos_token_id")
    ids = named if isinstance(named, list) else [named]
    wrong = [eos for eos in ids if eos is not None and type(eos) is not int]
    if wrong:
        raise CheckpointError(f"eos_token_id is {named!r}; it must be a token id or a list of them")
    return tuple(dict.fromkeys(eos for eos in (*ids, tokenizer.eos_token_id) if eos is not None))


def _read_text(flag: str, path: Path) -> str:
    """:raises UsageError: it is not there, too large or no UTF-8."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise UsageError(f"{flag} {path}: larger than {MAX_FILE_BYTES} bytes")
        return data.decode()
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}; give a file that exists") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{flag} {path}: it is no UTF-8: {error}") from None
