"""Who may call: the keys of the configuration and of a file, and a name for each."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Iterable

from llmkit.config import ServerConfig
from llmkit.errors import StartupError

MAX_FILE_BYTES = 1 << 20
_CALLER_CHARS = 16


class Keys:
    """Owns the digests of all keys that are good now; of a key itself nothing is kept."""

    def __init__(self, config: ServerConfig) -> None:
        """:raises StartupError: ``--api-key-file`` cannot be read, or has no key."""
        self._fixed = [_digest(key.encode()) for key in config.api_key]
        self._path = config.api_key_file
        self._digests = self._fixed
        self.read()

    @property
    def paths(self) -> tuple[str, ...]:
        """Files to call :meth:`read` for when they change."""
        return () if self._path is None else (self._path,)

    def read(self) -> None:
        """Take on what the file says now. :raises StartupError: it says nothing; the old keys stay good."""
        if self._path is not None:
            self._digests = [*self._fixed, *map(_digest, _read(self._path))]

    def caller(self, keys: Iterable[bytes]) -> str | None:
        """A name, which does not tell the key, for whoever shows one of ``keys``; None: none is good."""
        found = None
        for key in keys:
            digest = _digest(key)
            if _any_equal(digest, self._digests):
                found = hashlib.sha256(b"llmkit caller\0" + digest).hexdigest()[:_CALLER_CHARS]
        return found


def _read(path: str) -> list[bytes]:
    try:
        with open(path, "rb", opener=_no_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise StartupError(f"--api-key-file {path}: it is no ordinary file")
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise StartupError(f"--api-key-file {path}: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise StartupError(f"--api-key-file {path}: larger than {MAX_FILE_BYTES} bytes")
    lines = [line.strip() for line in content.removeprefix(b"\xef\xbb\xbf").splitlines()]
    keys = [line for line in lines if line and not line.startswith(b"#")]
    if not keys:
        raise StartupError(f"--api-key-file {path}: it has no key; write one a line")
    return keys


def _no_waiting(path: str, flags: int) -> int:
    """Opening a pipe would wait for whoever writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _digest(key: bytes) -> bytes:
    """Digests are of one length, so that comparing tells nothing about the key's."""
    return hashlib.sha256(key).digest()


def _any_equal(digest: bytes, known: Iterable[bytes]) -> bool:
    """Compares with all of them, whichever it is."""
    found = False
    for candidate in known:
        found |= hmac.compare_digest(digest, candidate)
    return found
