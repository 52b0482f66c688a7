"""The HTTP server around a front: routes of plugins behind one key check, health, signals, exit codes."""
