"""Memory that Python itself would keep."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected() -> Iterator[None]:
    """Collect the cycles of what is let go of within, those that ``gc.freeze`` has set aside too.

    Objects of a process that has frozen its own are frozen again afterwards.
    """
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    try:
        yield
        gc.collect()
    finally:
        if frozen:
            gc.freeze()
