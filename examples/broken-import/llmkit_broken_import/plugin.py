"""Entry point: its import fails, as a plugin's does when a library of its own is missing."""

import a_library_that_is_not_installed  # noqa: F401
