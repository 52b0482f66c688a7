"""Model sources: how a MODEL reference becomes local files."""
