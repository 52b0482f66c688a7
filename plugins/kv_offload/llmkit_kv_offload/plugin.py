"""Entry point of the KV offload; imports no torch."""

from __future__ import annotations

from typing import Any

from llmkit import hookimpl
from llmkit.contracts import KVConnector, KVConnectorSpec, RegisterKVConnector


@hookimpl
def register_kv_connectors(register: RegisterKVConnector) -> None:
    register("offload", make, refuses=refuses)


def make(spec: KVConnectorSpec, options: Any) -> KVConnector:
    from llmkit_kv_offload.offload import Offload

    return Offload(num_places(spec))


def refuses(spec: KVConnectorSpec) -> str | None:
    if not spec.bytes_a_block:
        return "the model keeps no KV in blocks"
    if num_places(spec) < 1:
        given = spec.config.cache.kv_offload_bytes
        return f"--kv-offload-bytes is {given}; one block takes {spec.bytes_a_block} bytes"
    return None


def num_places(spec: KVConnectorSpec) -> int:
    """Blocks that fit the host memory it may use."""
    return spec.config.cache.kv_offload_bytes // spec.bytes_a_block
