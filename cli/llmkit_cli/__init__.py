"""The ``llmkit`` program: a thin typer app over the core."""
