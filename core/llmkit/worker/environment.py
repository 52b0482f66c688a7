"""Environment of a process that will do a model's arithmetic; set before torch is imported."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SPIN = {
    # Loop turns that an idle thread of libgomp (torch's on Linux, numba's) waits awake: a few us.
    # Its default of milliseconds takes whole cores from the other process of this server, and on a
    # busy machine even tens of microseconds add up: a step has hundreds of parallel regions.
    "GOMP_SPINCOUNT": "2000",
    # The same for LLVM's and Intel's runtimes (macOS), in milliseconds.
    "KMP_BLOCKTIME": "0",
}
DECIDES = ("OMP_WAIT_POLICY",)
"""Whoever sets one of these has chosen already."""


def limit_spinning(environ: MutableMapping[str, str] = os.environ) -> None:
    """Keep idle OpenMP threads from spinning, unless the user's environment says how they wait.

    OpenMP runtimes read this once, when they are loaded: call it before anything imports torch.
    """
    if any(name in environ for name in DECIDES):
        return
    for name, value in SPIN.items():
        environ.setdefault(name, value)
