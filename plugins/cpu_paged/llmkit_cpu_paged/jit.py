"""How numba compiles this package's kernels, and where it keeps them.

Machine code goes under llmkit's cache directory (``LLMKIT_CACHE_DIR``), or where ``NUMBA_CACHE_DIR`` says,
never beside the sources, so a read-only installation works. It is code that this user runs, behind an index
that numba unpickles: the folders are this user's alone, and others are not read.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numba
from numba.core.caching import NullCache
from numba.core.errors import NumbaError

from llmkit.contracts import cache_dir

config: Any = numba.config
log = logging.getLogger(__name__)

KEPT_STATES = 4
"""Folders of other states of the sources that stay: two installations may take turns."""


def kernel(function: Callable[..., Any]) -> Any:
    """A function that Python calls: releases the GIL, is compiled once and kept on disk."""
    directory = _directory()
    before = config.CACHE_DIR
    config.CACHE_DIR = str(directory or "")
    try:
        return numba.njit(nogil=True, cache=directory is not None)(function)
    finally:
        config.CACHE_DIR = before


def compile_for(dispatcher: Any, signature: tuple[Any, ...]) -> None:
    """Compile a kernel for these argument types, or take it from disk.

    Calls convert their arguments to a type compiled for; they never compile.
    """
    dispatcher.disable_compile(False)
    _compile(dispatcher, signature)
    dispatcher.disable_compile()


def inline(function: Callable[..., Any]) -> Any:
    """A function that kernels call, made part of each."""
    return numba.njit(forceinline=True)(function)


def _compile(dispatcher: Any, signature: tuple[Any, ...]) -> None:
    """Compile, whatever state the files on disk are in: a start must not depend on a cache.

    Files that a power cut or a full disk has left damaged are forgotten and written anew; where that
    fails too, the kernel stays in memory.
    """
    try:
        dispatcher.compile(signature)
        return
    except NumbaError:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged file makes the unpickler raise anything
        _say(
            f"the cache of compiled CPU kernels is of no use ({type(error).__name__}: {error}); written anew"
        )
    try:
        dispatcher._cache.flush()
        dispatcher.compile(signature)
        return
    except NumbaError:
        raise
    except Exception as error:  # noqa: BLE001 - as above, or there is no room to write
        _say(
            f"CPU kernels compile anew at every start: the cache cannot be written ({error}); "
            "make room, or set LLMKIT_CACHE_DIR"
        )
    dispatcher._cache = NullCache()
    dispatcher.compile(signature)


@cache
def _say(message: str) -> None:
    """Warn once, not for every kernel."""
    log.warning("%s", message)


@cache
def _directory() -> Path | None:
    """Where kernels are kept, or None where nothing can be.

    numba notices a change of a kernel's own file only, hence a directory for each state of the sources.
    """
    base = Path(config.CACHE_DIR) if config.CACHE_DIR else cache_dir()
    variable = "NUMBA_CACHE_DIR" if config.CACHE_DIR else "LLMKIT_CACHE_DIR"
    if base is None:
        log.warning("CPU kernels compile anew at every start: there is no home folder; set %s", variable)
        return None
    sources = sorted(Path(__file__).parent.glob("*.py"))
    state = blake2b(b"".join(source.read_bytes() for source in sources), digest_size=8).hexdigest()
    directory = base / "cpu-paged" / state
    try:
        for folder in (directory.parent, directory):
            _make_private(folder)
        TemporaryFile(dir=directory).close()
        os.utime(directory)
    except OSError as error:
        log.warning(
            "CPU kernels compile anew at every start: %s cannot be used (%s); set %s",
            directory,
            error.strerror,
            variable,
        )
        return None
    _forget_old_states(directory)
    return directory


def _make_private(folder: Path) -> None:
    """Make a folder that only this user enters; an existing one must be safe from others.

    :raises PermissionError: another user owns it or can write to it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()  # a link is not followed: whoever made it could turn it elsewhere
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(0, f"{folder} is not a folder")
    if status.st_uid != os.geteuid():
        raise PermissionError(0, f"{folder} belongs to user {status.st_uid}, not {os.geteuid()}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(0, f"{folder} can be written by others: mode {status.st_mode & 0o777:o}")


def _forget_old_states(current: Path) -> None:
    """Remove folders of other states but those used last. Another process may be doing the same."""
    others: list[tuple[float, Path]] = []
    for folder in current.parent.iterdir():
        if folder != current and re.fullmatch("[0-9a-f]{16}", folder.name):
            try:
                others.append((folder.lstat().st_mtime, folder))
            except FileNotFoundError:
                continue
    for _, folder in sorted(others, reverse=True)[KEPT_STATES:]:
        shutil.rmtree(folder, ignore_errors=True)
