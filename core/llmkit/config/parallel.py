"""Processes and devices."""

from __future__ import annotations

from dataclasses import dataclass

from llmkit.config.fields import option


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """Where the model runs."""

    executor: str = option(
        "auto",
        "executor",
        kind="executor",
        aliases=("--distributed-executor-backend",),
        synonyms={"mp": "multiproc", "uni": "uniproc"},
    )
    attn: str = option(
        "auto",
        "attention backend",
        kind="attention",
        aliases=("--attention-backend",),
        synonyms={"CPU_ATTN": "paged-cpu", "TORCH_SDPA": "reference"},
    )
    device: str = option("auto", "where to run", choices=("auto", "cpu", "cuda"))
    tensor_parallel_size: int = option(
        1, "ranks that share each layer; more than 1 need an executor plugin", minimum=1, aliases=("-tp",)
    )
    threads: int | None = option(
        None,
        "threads of the model's arithmetic; default: the cores this process may use",
        minimum=1,
        maximum=1024,
    )
