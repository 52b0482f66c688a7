"""Sampling noise as a pure function of (seed, choice, position): no generator, no state, no neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np

UInt64Array = np.ndarray[Any, np.dtype[np.uint64]]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_UNIT = np.float64(2.0**-53)


def stream_keys(seeds: UInt64Array, choices: UInt64Array) -> UInt64Array:
    """Start of each (seed, choice)'s stream, uint64 like its inputs; computed once a request."""
    return _mix(_mix(seeds) + choices * _GOLDEN)


def uniforms(keys: UInt64Array, positions: UInt64Array) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One number in [0, 1) for each key at its position: splitmix64, entered at any point."""
    return (_mix(keys + positions * _GOLDEN) >> np.uint64(11)) * _UNIT


def _mix(x: UInt64Array) -> UInt64Array:
    """The finalizer of splitmix64; arrays of uint64 wrap silently, which is what it wants."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))
