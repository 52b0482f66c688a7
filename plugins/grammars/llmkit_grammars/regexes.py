"""Regular expressions that mean the same in JavaScript, Python and Rust, and those that do not.

A schema's author and whoever validates an answer may use either dialect, the backends have one of their own:
what they would read differently is refused.
"""

from __future__ import annotations

import re

from llmkit_grammars.limits import shown

MAX_CHARS = 16_384
MAX_REPEAT = 10_000

_GROUP = re.compile(r"\(\?(?::|P?<[A-Za-z_]\w*>)")
_REPEAT = re.compile(r"\{(\d{1,9})(?:(,)(\d{1,9})?)?\}")
_HEX = re.compile(r"x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}")
_PROPERTY = re.compile(r"[pP]\{[A-Za-z_=]+\}")
_CLASSES = frozenset("dDwWsS")
_CONTROLS = frozenset("nrtfv")
_SET_OPERATIONS = ("&&", "--", "~~")
_LOOKAROUND = ("(?=", "(?!", "(?<=", "(?<!")


def check(pattern: str) -> None:
    """:raises ValueError: in one clause, why ``pattern`` cannot be honoured exactly."""
    if len(pattern) > MAX_CHARS:
        raise ValueError(f"the expression has {len(pattern)} characters; at most {MAX_CHARS} are read")
    try:
        _check(pattern)
    except ValueError as error:
        raise ValueError(f"{error}, in {shown(pattern)}") from None


def _check(pattern: str) -> None:
    at, depth, repeatable, repeated = 0, 0, False, False
    while at < len(pattern):
        char = pattern[at]
        if char in "*+?{":
            at, lazy = _quantifier(pattern, at), char == "?" and repeated
            if not repeatable and not lazy:
                raise ValueError(f"{char!r} at {at} repeats nothing, or what is repeated already")
            repeatable, repeated = False, not lazy
            continue
        repeatable, repeated = True, False
        if char == "(":
            at = _group(pattern, at)
            depth, repeatable = depth + 1, False
        elif char == ")":
            if not depth:
                raise ValueError(f"')' at {at} closes nothing")
            at, depth = at + 1, depth - 1
        elif char == "[":
            at = _class(pattern, at)
        elif char == "\\":
            at = _escape(pattern, at)
        else:
            repeatable = char not in "^$|"
            at += 1
    if depth:
        raise ValueError("a '(' is not closed")


def beyond_xgrammar(pattern: str) -> str | None:
    """What in a checked ``pattern`` xgrammar reads differently, or None."""
    inner = pattern.removeprefix("^").removesuffix("$")
    bare = re.sub(r"\\.", "", inner, flags=re.DOTALL)
    outside = re.sub(r"\[[^\]]*\]", "", bare)
    if "." in outside:
        return "'.'"
    if "^" in outside or "$" in outside or (pattern.endswith(r"\$") and not pattern.endswith(r"\\$")):
        return "an anchor within it"
    if "(?P<" in outside:
        return "a named group"
    if any(re.search(r"\\[dws]", found[0]) for found in re.finditer(r"\[\^(?:\\.|[^\]])*\]", inner)):
        return "an escape in a negated class"
    negated = re.search(r"(?:^|[^\\])(?:\\\\)*(\\[DWSpP])", inner)
    return negated[1] if negated else None


def _quantifier(pattern: str, at: int) -> int:
    if pattern[at] != "{":
        return at + 1
    found = _REPEAT.match(pattern, at)
    if not found:
        raise ValueError(f"'{{' at {at} is no repeat count; write \\{{ for the character")
    least, comma, most = int(found[1]), found[2], found[3]
    if max(least, int(most or 0)) > MAX_REPEAT:
        raise ValueError(f"it repeats more than {MAX_REPEAT} times")
    if comma and most and int(most) < least:
        raise ValueError(f"{found[0]} repeats from {least} to {most}")
    return found.end()


def _group(pattern: str, at: int) -> int:
    if not pattern.startswith("(?", at):
        return at + 1
    if any(pattern.startswith(mark, at) for mark in _LOOKAROUND):
        raise ValueError(f"look-around at {at} is not supported")
    found = _GROUP.match(pattern, at)
    if not found:
        raise ValueError(
            f"{pattern[at : at + 4]!r} at {at} is not supported; only (?:...) and named groups are"
        )
    return found.end()


def _escape(pattern: str, at: int) -> int:
    """The place behind the escape at ``at``."""
    rest = pattern[at + 1 : at + 2]
    if rest in _CLASSES or rest in _CONTROLS:
        return at + 2
    for shape in (_HEX, _PROPERTY):
        found = shape.match(pattern, at + 1)
        if found:
            if found[0].startswith("u") and 0xD800 <= int(found[0][1:], 16) <= 0xDFFF:
                raise ValueError(f"half a surrogate pair at {at}; write the character itself")
            return found.end()
    if rest and rest.isascii() and not rest.isalnum() and rest not in "<>":
        return at + 2
    raise ValueError(f"the escape {pattern[at : at + 2]!r} at {at} is not supported")


def _class(pattern: str, at: int) -> int:
    start, at = at, at + 1
    if pattern.startswith("^", at):
        at += 1
    first = at
    while at < len(pattern):
        char = pattern[at]
        if char == "]":
            if at == first:
                raise ValueError(f"an empty class at {start}; write \\] for the character")
            return at + 1
        if char == "[" or pattern[at : at + 2] in _SET_OPERATIONS:
            raise ValueError(
                f"{pattern[at : at + 2]!r} in the class at {start} differs among dialects; escape it"
            )
        at = _escape(pattern, at) if char == "\\" else at + 1
    raise ValueError(f"the class at {start} is not closed")
