"""Keys of cached blocks: what was computed, under which model, for whom.

A key is a chain of BLAKE3 hashes. Every field goes in with a tag and its length, so no field can be
taken for another: not a salt for a plugin's key, not the end of one for the beginning of the next.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum

from blake3 import blake3

from llmkit.kv import KVCacheSpec
from llmkit.messages import AddRequest


class _Tag(IntEnum):
    DEPLOYMENT = 1
    MODEL = 2
    ENCODING = 3
    PARENT = 4
    SALT = 5
    PLUGIN = 6
    PLUGIN_KEY = 7
    TOKENS = 8


def cache_root(deployment_salt: str, identity: str, layers: Sequence[KVCacheSpec]) -> bytes:
    """Root of all keys of one engine: its salt, its weights and how its layers store KV."""
    fields = [(_Tag.DEPLOYMENT, deployment_salt.encode()), (_Tag.MODEL, identity.encode())]
    fields += [(_Tag.ENCODING, repr(spec).encode()) for spec in layers]
    return _digest(fields)


def request_root(root: bytes, request: AddRequest) -> bytes:
    """Root of one request's keys; requests with other salts or plugin keys share no block."""
    fields = [(_Tag.PARENT, root)]
    if request.cache_salt is not None:
        fields.append((_Tag.SALT, request.cache_salt.encode()))
    for plugin, key in request.cache_keys:
        fields += [(_Tag.PLUGIN, plugin.encode()), (_Tag.PLUGIN_KEY, key)]
    return _digest(fields)


def block_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Key of a full block after ``parent``, the key of the block before it or the request's root."""
    tokens = struct.pack(f"<{len(token_ids)}q", *token_ids)
    return _digest([(_Tag.PARENT, parent), (_Tag.TOKENS, tokens)])


def group_key(key: bytes, group: int) -> bytes:
    """The same block in one group: chain keys are 32 bytes, so the group's number stands apart."""
    return key + group.to_bytes(2, "little")


def _digest(fields: Iterable[tuple[_Tag, bytes]]) -> bytes:
    parts = bytearray()
    for tag, value in fields:
        parts += struct.pack("<BQ", tag, len(value))
        parts += value
    return blake3(parts).digest()
