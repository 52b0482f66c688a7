"""What is told of a running deployment."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmkit.config.fields import option


def parse_prefix(text: str) -> str:
    """:raises ValueError: names of metrics cannot begin so."""
    if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", text):
        raise ValueError("must be letters, digits and underscores, and begin with no digit")
    return text


@dataclass(frozen=True, slots=True)
class ObservabilityConfig:
    """Metrics and traces."""

    metrics_prefix: str = option(
        "llmkit",
        "what names of metrics begin with; dashboards made for vLLM read those of `vllm`",
        parse=parse_prefix,
    )
    profiler_dir: str | None = option(
        None, "where traces of the profiler go; without it none can be recorded", metavar="DIR"
    )
