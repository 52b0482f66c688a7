"""Entry point: never imported, because its distribution asks for plugin API 99.0."""

raise AssertionError("llmkit imported a plugin that was written for another plugin API")
