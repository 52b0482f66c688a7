"""The engine: who runs next, which blocks they hold, and the loop that drives the workers. No torch."""
