"""How numba compiles this package's kernels, and where it keeps them.

Machine code goes under llmkit's cache directory (``LLMKIT_CACHE_DIR``), never beside the sources, so a
read-only installation works. ``NUMBA_CACHE_DIR``, where set, holds as everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numba

from llmkit.contracts import cache_dir

config: Any = numba.config
log = logging.getLogger(__name__)


def kernel(function: Callable[..., Any]) -> Any:
    """A function that Python calls: releases the GIL, is compiled once and kept on disk."""
    directory = _directory()
    before = config.CACHE_DIR
    config.CACHE_DIR = before or str(directory or "")
    try:
        return numba.njit(nogil=True, cache=directory is not None)(function)
    finally:
        config.CACHE_DIR = before


def compile_for(dispatcher: Any, signature: tuple[Any, ...]) -> None:
    """Compile a kernel for these argument types, or take it from disk.

    Calls convert their arguments to a type compiled for; they never compile.
    """
    dispatcher.disable_compile(False)
    dispatcher.compile(signature)
    dispatcher.disable_compile()


def inline(function: Callable[..., Any]) -> Any:
    """A function that kernels call, made part of each."""
    return numba.njit(forceinline=True)(function)


@cache
def _directory() -> Path | None:
    """Where kernels are kept, or None where nothing can be written.

    numba notices a change of a kernel's own file only, hence a directory for each state of the sources.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    state = blake2b(b"".join(source.read_bytes() for source in sources), digest_size=8).hexdigest()
    directory = cache_dir() / "cpu-paged" / state
    try:
        directory.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=directory).close()
    except OSError as error:
        log.warning(
            "CPU kernels compile anew at every start: %s cannot be written (%s); set LLMKIT_CACHE_DIR",
            directory,
            error.strerror,
        )
        return None
    return directory
