"""An example attention backend: K and V in int8, with a layout of its own."""
