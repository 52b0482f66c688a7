"""Formats whose calls are JSON objects, between markers or bare."""

from __future__ import annotations

from llmkit.contracts import ToolFormat

FORMATS: dict[str, ToolFormat] = {}
