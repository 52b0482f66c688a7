"""What both backends hold to."""

MAX_WHITESPACE = 20
"""Characters in a row between two JSON tokens: enough for ordinary indentation, too little to run away in."""


def whitespace(most: int) -> str:
    """As an expression that llguidance reads."""
    return rf"[\x20\x0A\x0D\x09]{{0,{most}}}"
