"""What both backends hold to."""

MAX_WHITESPACE = 20
"""Characters in a row between two JSON tokens: enough for ordinary indentation, too little to run away in."""
