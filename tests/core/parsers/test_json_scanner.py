"""The JSON scanner ends where a value does and takes what json takes, however its text is cut."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.parsers.json_scanner import JsonScanner
from llmkit.testing.tool_parsers import VALUES, cut

PLACES = st.lists(st.integers(0, 400), max_size=6)


def scan(pieces: Sequence[str]) -> tuple[bool, bool, str]:
    """Done, failed, and the text that was read."""
    scanner, read = JsonScanner(), ""
    for piece in pieces:
        if not scanner.done and not scanner.failed:
            read += scanner.scan(piece)[1]
    return scanner.done, scanner.failed, read


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.text(max_size=5), VALUES, max_size=4),
    st.booleans(),
    st.sampled_from([None, 2]),
    PLACES,
)
def test_a_value_is_read_to_its_end(
    value: object, ascii_only: bool, indent: int | None, at: list[int]
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    followed = text + ' {"more"]'
    pieces = cut(followed, [min(place, len(followed)) for place in at])
    assert scan(pieces) == scan([followed]) == scan(list(followed)) == (True, False, text)


@settings(max_examples=300, deadline=None)
@given(VALUES, st.integers(0, 400), st.sampled_from(list("{}[],:\"\\ 0a.-e'\n")), st.booleans(), PLACES)
def test_what_is_almost_json_is_told_from_json(
    value: object, place: int, char: str, inserted: bool, at: list[int]
) -> None:
    text = json.dumps([value])
    place %= len(text)
    text = text[:place] + char + text[place + (not inserted) :]
    done, failed, read = scan([text])
    assert scan(list(text)) == (done, failed, read)
    assert scan(cut(text, [min(place, len(text)) for place in at])) == (done, failed, read)
    try:
        decoded, _ = json.JSONDecoder(strict=False).raw_decode(text.lstrip())
    except ValueError:
        assert not done
    else:
        assert done
        assert json.loads(read) == decoded


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('{"a": tru]}', '{"a": tru'),
        ('{"a": [1}', '{"a": [1'),
        ('["\\u12g4"]', '["\\u12'),
        ('["\\u123"]', '["\\u123'),
        ('["\\u12345"]', None),
        ('["\\x"]', '["\\'),
        ("[01]", "[0"),
        ("[1.]", "[1."),
        ("[1e+]", "[1e+"),
        ("[-]", "[-"),
        ("[.5]", "["),
        ("[1,]", "[1,"),
        ('{"a": 1,}', '{"a": 1,'),
        ("{'a': 1}", "{"),
        ("[NaN]", "["),
        ('{"a" 1}', '{"a" '),
        ("{1: 2}", "{"),
        ('["it\'s"]', None),
    ],
)
def test_it_stops_where_json_ends_to_be_json(text: str, read: str | None) -> None:
    """``read`` is what comes before the character that is wrong; None if none is."""
    done, failed, taken = scan(list(text))
    if read is None:
        assert (done, failed) == (True, False)
    else:
        assert (done, failed, taken) == (False, True, read)


def test_control_characters_in_strings_are_escaped() -> None:
    assert scan(list('{"a\tb": "x\n\r\x00y"}\n')) == (True, False, '{"a\\u0009b": "x\\u000a\\u000d\\u0000y"}')


def test_a_number_alone_ends_before_what_follows() -> None:
    scanner = JsonScanner()
    assert scanner.scan("12") == (2, "12")
    assert not scanner.done
    assert scanner.scan("3}") == (1, "3")
    assert scanner.done
