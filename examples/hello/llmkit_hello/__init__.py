"""An example plugin: one route and one command."""
