"""What is served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmkit.config.fields import option, parse_context, parse_parser


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The model, its tokenizer and how its weights are read."""

    model: str = option(
        "smollm2-135m",
        "what to serve: a directory, a .gguf file, pkg:DIST[/FILE], a hub id, ORG/REPO:QUANT or an alias",
    )
    revision: str | None = option(None, "branch, tag or commit on the hub")
    served_model_name: tuple[str, ...] = option((), "names clients may use; the first is in responses")
    tokenizer: str | None = option(None, "take the tokenizer from here instead")
    tokenizer_mode: str = option("auto", "tokenizer implementation", kind="tokenizer")
    trust_remote_code: bool = option(False, "run Python code that a checkpoint ships")
    dtype: str = option(
        "auto",
        "of activations; auto is float32 on a CPU, the checkpoint's own on a GPU",
        choices=("auto", "float32", "bfloat16", "float16"),
        synonyms={"float": "float32", "half": "float16"},
    )
    max_model_len: int | None = option(
        None,
        "longest prompt and answer together, tokens; default: the largest that fits",
        parse=parse_context,
        minimum=1,
    )
    runner: str = option(
        "auto",
        "generate text, or pool: embed, classify, score; auto tells by architecture and checkpoint",
        choices=("auto", "generate", "pooling"),
    )
    pooler_config: dict[str, Any] | None = option(
        None, "JSON: how to pool: pooling_type (CLS, LAST, MEAN), normalize, dimensions"
    )
    load_format: str = option("auto", "weight format", kind="loader")
    model_impl: str = option("auto", "model implementation", kind="model")
    quantization: str = option("auto", "linear method", kind="linear", aliases=("--linear-method",))
    hf_overrides: dict[str, Any] | None = option(None, "JSON laid over the checkpoint's config")
    generation_config: str = option(
        "auto", "where sampling defaults come from: auto (the model), vllm (none) or a directory"
    )
    grammar_backend: str = option(
        "auto",
        "what constrains answers; auto asks xgrammar, then llguidance",
        kind="grammar",
        synonyms={"guidance": "llguidance"},
    )
    tool_call_parser: str | None = option(
        "auto",
        "format in which the model calls tools; auto tells by its template and tokens; none parses no calls",
        kind="tool_parser",
        parse=parse_parser,
    )
    reasoning_parser: str | None = option(
        "auto",
        "format in which the model reasons; auto tells by its template and tokens; none parses no reasoning",
        kind="reasoning_parser",
        parse=parse_parser,
    )
    output_stage: tuple[str, ...] = option(
        (), "what answers go through after the parsers, in this order; may be repeated", kind="output_stage"
    )
    chat_template: str | None = option(
        None, "a Jinja file, the template itself, or the name of a shipped one, such as chatml"
    )
    chat_template_content_format: str = option(
        "auto",
        "what the template takes as content: a string, or openai's parts; auto reads the template",
        choices=("auto", "string", "openai"),
    )
    seed: int = option(0, "of dummy weights, and of requests that give none where it is not 0", minimum=0)
    logprobs_mode: str = option(
        "raw",
        "logprobs of the model's own distribution, or of the processed one that tokens are drawn from",
        choices=("raw", "processed"),
        synonyms={"raw_logprobs": "raw", "processed_logprobs": "processed"},
    )
    deterministic: bool = option(
        False, "only parts whose results do not depend on batching; bitwise equal, somewhat slower"
    )
