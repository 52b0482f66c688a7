"""The plain torch parts: attention backend ``reference`` and linear method ``torch``."""
