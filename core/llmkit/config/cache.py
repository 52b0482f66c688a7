"""The KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from llmkit.config.fields import option, parse_size


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """How much memory KV takes and how it is cut."""

    block_size: int = option(16, "tokens a KV block", choices=("8", "16", "32", "64", "128"))
    kv_cache_memory_bytes: int | None = option(
        None,
        "size of the KV cache, such as 4GiB; default: from the memory at hand",
        parse=parse_size,
        minimum=1,
    )
    num_gpu_blocks_override: int | None = option(
        None, "number of KV blocks, whatever the memory; for tests", minimum=2
    )
    kv_cache_dtype: str = option("auto", "of K and V: auto is the activations' own")
    enable_prefix_caching: bool = option(True, "reuse the KV of prompts that begin alike")
    isolate_prefix_cache: bool = option(
        False, "reuse the KV of prompts within one API key only, so that no key can tell what another sent"
    )
    kv_connector: str | None = option(
        None,
        "where KV blocks go that the cache has no room for, such as offload; default: nowhere",
        kind="connector",
    )
    kv_offload_bytes: int = option(
        4 << 30, "--kv-connector offload: most host memory to use", parse=parse_size, minimum=1
    )
    prefix_cache_salt: str = option("", "part of every prefix-cache key of this deployment", secret=True)
