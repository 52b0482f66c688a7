"""How much memory the KV cache gets."""

from __future__ import annotations

from llmkit.config import CacheConfig
from llmkit.config.machine import Memory
from llmkit.errors import OutOfMemory

CPU_SHARE = 0.25
"""Of what the weights leave."""
CPU_MOST = 4 << 30


def kv_budget(cache: CacheConfig, memory: Memory, weight_bytes: int) -> tuple[int, str]:
    """Bytes for the KV pool on a CPU, and how they came about.

    :raises OutOfMemory: what was asked for is more than there is, or the weights leave nothing.
    """
    left = memory.total_bytes - weight_bytes
    total = f"{_size(memory.total_bytes)} ({memory.source})"
    asked = cache.kv_cache_memory_bytes
    if asked is not None:
        if asked > left:
            raise OutOfMemory(
                f"--kv-cache-memory-bytes: {_size(asked)} is asked for, but of {total} the weights "
                f"leave {_size(max(left, 0))}; set it lower"
            )
        return asked, "--kv-cache-memory-bytes"
    if left <= 0:
        raise OutOfMemory(
            f"the weights take {_size(weight_bytes)} and there are {total}; serve a smaller model"
        )
    share = int(left * CPU_SHARE)
    if share > CPU_MOST:
        return CPU_MOST, f"at most {_size(CPU_MOST)} unless --kv-cache-memory-bytes says more"
    return share, f"{CPU_SHARE:.0%} of the {_size(left)} that the weights leave of {total}"


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
