"""``llmkit bench``: how fast a server answers."""
