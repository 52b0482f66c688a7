"""An example plugin: a logits processor that marks text, and the detector of its mark."""

from llmkit_watermark.green import detect

__all__ = ["detect"]
