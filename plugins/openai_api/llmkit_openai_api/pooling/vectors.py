"""Numbers as clients want them: JSON floats, or bytes in base64."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from llmkit.contracts import PooledText
from llmkit_openai_api.pooling.bodies import VectorFormat

_BYTES = {"float32": "f4", "float16": "f2"}
_ORDER = {"native": "=", "little": "<", "big": ">"}


def numbers(result: PooledText) -> np.ndarray[Any, np.dtype[np.float32]]:
    """float32 [width], or [tokens, width] where it was asked for each token."""
    return np.frombuffer(result.data, np.float32)


def written(result: PooledText, body: VectorFormat, *, by_token: bool = False) -> Any:
    """A list of floats (of such lists with ``by_token``), or a text in base64."""
    values = numbers(result)
    if body.encoding_format == "base64":
        wanted = _ORDER[body.endianness or "native"] + _BYTES[body.embed_dtype or "float32"]
        return base64.b64encode(values.astype(wanted).tobytes()).decode("ascii")
    return values.reshape(-1, result.width).tolist() if by_token else values.tolist()
