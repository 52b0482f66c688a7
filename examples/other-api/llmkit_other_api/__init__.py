"""A plugin that does not work, used by the tests of llmkit."""
