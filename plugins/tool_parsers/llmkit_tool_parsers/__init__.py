"""Formats of tool calls: how families of models write them, and parsers that read them as they come."""
