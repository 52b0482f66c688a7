"""A live view of a server's metrics."""
