"""The front process: checks, text, and the client of the engine. No torch."""
