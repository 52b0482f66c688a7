"""``llmkit run-batch``: OpenAI batch files."""
