"""Reasoning formats that ship with llmkit."""
