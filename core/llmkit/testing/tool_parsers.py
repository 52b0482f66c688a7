"""The compliance suite of tool-call formats.

A plugin's tests subclass :class:`ToolParserContract`, give their format, outputs of its models with what is
in them, and a function that writes calls as those models do, and run it with pytest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmkit.contracts import ParserSpec, ToolFormat
from llmkit.events import ArgumentsDelta, Content, Delta, ToolCallClosed, ToolCallOpened
from llmkit.testing.components import create
from llmkit.testing.grammars import SPEC, accepts
from llmkit.types import FinishReason, Tool

Calls = Sequence[tuple[str, Mapping[str, Any]]]
"""Names and arguments."""

LONGER, MOST_TIMES = 16, 64
"""How much longer an output is whose time is compared, and how much more it may take."""

TOOLS = (
    Tool(
        "put",
        parameters={
            "type": "object",
            "properties": {"count": {"type": "integer"}, "text": {"type": "string"}},
            "required": ["count", "text"],
            "additionalProperties": False,
        },
    ),
    Tool("ping"),
)
ALLOWED = [("put", {"count": 12, "text": "a b"}), ("ping", {})]
"""Calls of these tools."""

NAMES = st.text("abcXYZ019_-", min_size=1, max_size=12).map("f".__add__)
TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20),
    st.sampled_from(
        ['a "quoted" \\ word', "line\nline", "{", "}]", "[{", "a, b", "</x>", "é\u2028🙂", "null", "12"]
    ),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)


@dataclass(frozen=True, slots=True)
class Golden:
    """One output of a model and what is in it."""

    id: str
    text: str
    content: str = ""
    calls: Calls = ()
    """The complete ones, in order."""
    cut_off: tuple[str, str] | None = None
    """Name and arguments so far of one more that is not complete."""
    tools: Sequence[Tool] = ()


@dataclass(slots=True)
class ParsedCall:
    """What a client has of one call."""

    name: str
    arguments: str = ""
    closed: bool = False


@dataclass(slots=True)
class Parsed:
    """What a client has of one choice."""

    content: str = ""
    calls: list[ParsedCall] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        match delta:
            case Content():
                assert delta.text, "content without text"
                self.content += delta.text
            case ToolCallOpened():
                self.calls.append(ParsedCall(delta.name))
            case ArgumentsDelta():
                assert delta.text, "arguments without text"
                assert self.calls, "arguments of no call"
                assert not self.calls[-1].closed, "arguments of a call that was closed"
                self.calls[-1].arguments += delta.text
            case ToolCallClosed():
                assert self.calls, "no call to close"
                assert not self.calls[-1].closed, "a call was closed twice"
                self.calls[-1].closed = True
            case _:
                raise AssertionError(f"a tool-call parser gave a {type(delta).__name__}")

    def complete(self) -> list[tuple[str, Any]]:
        return [(call.name, json.loads(call.arguments)) for call in self.calls if call.closed]


def parse(made: ToolFormat, pieces: Iterable[str], tools: Sequence[Tool] = ()) -> Parsed:
    """All that comes of one output that arrives in these pieces."""
    parser = made.parser(ParserSpec(tools=tools))
    parsed = Parsed()
    for piece in pieces:
        _add(parsed, parser.feed(piece))
    _add(parsed, parser.finish(FinishReason.STOP))
    return parsed


def tools_of(calls: Calls) -> list[Tool]:
    """Tools that calls are of: the schema of each argument says its type."""
    properties: dict[str, dict[str, Any]] = {}
    for name, arguments in calls:
        known = properties.setdefault(name, {})
        known.update({key: {"type": _type(value)} for key, value in arguments.items()})
    return [Tool(name, parameters={"type": "object", "properties": of}) for name, of in properties.items()]


def cut(text: str, at: Iterable[int]) -> list[str]:
    """A text in pieces, cut at these places."""
    return [text[start:end] for start, end in pairwise([0, *sorted(at), len(text)])]


class ToolParserContract:
    """What every format of tool calls must hold to."""

    goldens: Sequence[Golden] = ()
    streams_strings = True
    """A string argument goes out as it comes."""
    constrains = True
    """It can say what its calls must be."""
    parallel = True
    """Its models may write several calls."""

    def make_format(self) -> ToolFormat:
        """The format, the way its factory makes it."""
        raise NotImplementedError

    def write(self, calls: Calls) -> str:
        """An output with these calls and nothing else, as the format's models write it."""
        raise NotImplementedError

    def arguments(self) -> st.SearchStrategy[dict[str, Any]]:
        """What the models of this format can write."""
        return st.dictionaries(NAMES, VALUES, max_size=3)

    def written_calls(self) -> st.SearchStrategy[list[tuple[str, dict[str, Any]]]]:
        """Calls whose arguments of one name have one type."""
        most = 3 if self.parallel else 1
        calls = st.lists(st.tuples(NAMES, self.arguments()), min_size=1, max_size=most)
        return calls.filter(lambda made: len({name for name, _ in made}) == len(made))

    def test_goldens_are_of_every_kind(self) -> None:
        goldens = self.goldens
        assert len(goldens) >= 8
        assert len({golden.id for golden in goldens}) == len(goldens)
        assert any(not golden.calls and golden.content for golden in goldens), "none without a call"
        assert any(len(golden.calls) == 1 for golden in goldens), "none with one call"
        assert any(len(golden.calls) > 1 for golden in goldens) or not self.parallel, "none with several"
        assert any(golden.calls and golden.content for golden in goldens), "none with text around a call"
        assert any(golden.cut_off for golden in goldens), "none that is cut off"
        every = [arguments for golden in goldens for _, arguments in golden.calls]
        assert {} in every, "none without arguments"
        text = json.dumps(every, ensure_ascii=False)
        assert not text.isascii(), "none with other than ASCII"
        assert '\\"' in text, "none with a quote in a value"
        assert any(isinstance(v, dict | list) and v for a in every for v in a.values()), "none that is nested"

    def test_goldens(self) -> None:
        for golden in self.goldens:
            parsed = parse(self.make_format(), [golden.text], golden.tools)
            assert (parsed.content, parsed.complete()) == (golden.content, list(golden.calls)), golden.id
            still_open = [(call.name, call.arguments) for call in parsed.calls if not call.closed]
            assert still_open == ([golden.cut_off] if golden.cut_off else []), golden.id

    def test_every_cut_of_the_goldens_gives_the_same(self) -> None:
        made = self.make_format()
        for golden in self.goldens:
            whole = parse(made, [golden.text], golden.tools)
            assert parse(made, golden.text, golden.tools) == whole, (golden.id, "a character a piece")
            for place in range(len(golden.text) + 1):
                pieces = [golden.text[:place], "", golden.text[place:]]
                assert parse(made, pieces, golden.tools) == whole, (golden.id, pieces)

    def test_what_was_sent_stays(self) -> None:
        """After each character what is there is the beginning of what is there in the end."""
        made = self.make_format()
        for golden in self.goldens:
            whole = parse(made, [golden.text], golden.tools)
            parser, parsed = made.parser(ParserSpec(tools=golden.tools)), Parsed()
            for char in golden.text:
                _add(parsed, parser.feed(char))
                assert whole.content.startswith(parsed.content), golden.id
                for sent, all_of_it in zip(parsed.calls, whole.calls[: len(parsed.calls)], strict=True):
                    assert sent.name == all_of_it.name, golden.id
                    assert all_of_it.arguments.startswith(sent.arguments), golden.id

    def test_an_output_may_end_anywhere(self) -> None:
        made = self.make_format()
        for golden in self.goldens:
            whole = parse(made, [golden.text], golden.tools)
            for end in range(len(golden.text)):
                parsed = parse(made, [golden.text[:end]], golden.tools)
                _check_nothing_lost(golden.text[:end], parsed)
                complete = parsed.complete()
                assert complete == whole.complete()[: len(complete)], (golden.id, end)

    @pytest.mark.parametrize("examples", [100, pytest.param(1000, marks=pytest.mark.full)])
    def test_calls_that_are_written_are_read(self, examples: int) -> None:
        made = self.make_format()

        @_property(examples)
        @given(self.written_calls(), st.data())
        def read(calls: Calls, data: st.DataObject) -> None:
            text = self.write(calls)
            pieces = cut(text, data.draw(_places(text)))
            parsed = parse(made, pieces, tools_of(calls))
            assert [(call.name, call.closed) for call in parsed.calls] == [(name, True) for name, _ in calls]
            assert parsed.complete() == list(calls), pieces
            assert parsed.content == ""

        read()

    @pytest.mark.parametrize("examples", [100, pytest.param(1000, marks=pytest.mark.full)])
    def test_whatever_comes_is_read_the_same_however_it_is_cut(self, examples: int) -> None:
        """Outputs made of parts of the goldens and markers, in any order and with anything between."""
        made = self.make_format()
        tools = [tool for golden in self.goldens for tool in golden.tools]

        @_property(examples)
        @given(self._outputs(made), st.data())
        def read(text: str, data: st.DataObject) -> None:
            whole = parse(made, [text], tools)
            _check_nothing_lost(text, whole)
            for call in whole.calls:
                assert call.name
                assert not call.closed or isinstance(json.loads(call.arguments), dict)
            assert parse(made, cut(text, data.draw(_places(text))), tools) == whole
            assert parse(made, text, tools) == whole

        read()

    def test_an_opener_with_no_call_behind_it_is_text(self) -> None:
        made = self.make_format()
        for opener in made.openers:
            text = f'So {opener}"no".'
            assert parse(made, [text]) == Parsed(text), opener

    def test_text_is_not_held_longer_than_a_marker(self) -> None:
        made = self.make_format()
        longest = max(map(len, (*made.openers, *made.special_tokens, "")))
        words = "".join(f"A word, {opener[:-1]} and no more. " for opener in made.openers) or "A word."
        parser, parsed = made.parser(ParserSpec()), Parsed()
        for count, char in enumerate(words * 3, start=1):
            _add(parsed, parser.feed(char))
            assert count - len(parsed.content) <= longest, words[:count]

    def test_arguments_are_sent_as_they_come(self) -> None:
        made = self.make_format()
        if not self.streams_strings:
            pytest.skip("this format's strings are sent when they are complete")
        calls = [("put", {"value": "x" * 200})]
        text = self.write(calls)
        start = text.index("x" * 200)
        parser, parsed = made.parser(ParserSpec(tools=tools_of(calls))), Parsed()
        _add(parsed, parser.feed(text[:start]))
        assert [call.name for call in parsed.calls] == ["put"]
        for count in range(1, 201):
            _add(parsed, parser.feed("x"))
            assert parsed.calls[0].arguments.count("x") == count

    @pytest.mark.parametrize("length", [1 << 16, pytest.param(1 << 20, marks=pytest.mark.full)])
    def test_time_is_linear_in_the_output(self, length: int) -> None:
        """The processor time of a longer output over that of a shorter: 16 is linear, 256 is not."""
        made = self.make_format()
        for kind in ("content", "openers", "begun", "one call", "calls", "space"):
            for size in (length, 7):
                short, long = (
                    self._time(made, self._long(kind, made, many), size)
                    for many in (length // LONGER, length)
                )
                assert long < MOST_TIMES * max(short, 1e-3), (kind, size, short, long)

    def test_a_constraint_lets_calls_of_the_tools_through(self) -> None:
        one, two = self.write(ALLOWED[:1]), self.write(ALLOWED)
        required = self._allows(required=True, parallel=True)
        assert required(one)
        assert required(two) or not self.parallel
        free = self._allows(required=False, parallel=True)
        assert free("No call.")
        assert free(one)
        assert free("So:\n" + one)

    def test_a_constraint_lets_nothing_else_through(self) -> None:
        unknown, unfit = self.write([("other", {})]), self.write([("put", {"count": "many", "text": "x"})])
        required = self._allows(required=True, parallel=True)
        free = self._allows(required=False, parallel=True)
        for output in (unknown, unfit):
            assert not required(output)
            assert not free(output)
        assert not required("")
        assert not required("No call.")

    def test_a_constraint_to_one_call_lets_no_second_through(self) -> None:
        for required in (True, False):
            allows = self._allows(required=required, parallel=False)
            assert allows(self.write(ALLOWED[:1]))
            assert not self.parallel or not allows(self.write(ALLOWED))

    def _allows(self, *, required: bool, parallel: bool) -> Callable[[str], bool]:
        """Whether an output as a whole is what the format's constraint to ``TOOLS`` allows."""
        made = self.make_format()
        if not self.constrains:
            with pytest.raises(ValueError, match=r"\w"):
                made.constraint(TOOLS, required=required, parallel=parallel)
            pytest.skip("this format cannot be constrained")
        wanted = made.constraint(TOOLS, required=required, parallel=parallel)
        backend = create("grammar", "xgrammar", SPEC)
        grammar = backend.load(backend.compile(wanted))
        return lambda output: accepts(grammar, output)

    def _long(self, kind: str, made: ToolFormat, length: int) -> str:
        """About so many characters that a parser could be slow with."""
        call = self.write([("put", {"value": "x"})])
        match kind:
            case "content":
                return "a word " * (length // 7)
            case "openers":
                opener = max((*made.openers, "{"), key=len)
                return (opener + "x") * (length // (len(opener) + 1))
            case "begun":
                half = call[: len(call) // 2]
                return half * (length // len(half))
            case "one call":
                return self.write([("put", {"value": "x\n" * (length // 2)})])
            case "calls":
                return call * (length // len(call))
            case _:
                return call + " " * length + call

    def _time(self, made: ToolFormat, text: str, size: int) -> float:
        taken = []
        for _ in range(2):
            parser = made.parser(ParserSpec(tools=tools_of([("put", {"value": ""})])))
            begun = time.process_time()
            for start in range(0, len(text), size):
                parser.feed(text[start : start + size])
            parser.finish(FinishReason.STOP)
            taken.append(time.process_time() - begun)
        return min(taken)

    def _outputs(self, made: ToolFormat) -> st.SearchStrategy[str]:
        texts = [golden.text for golden in self.goldens]
        parts = st.sampled_from(texts).flatmap(
            lambda text: st.tuples(_place(text), _place(text)).map(lambda ends: text[min(ends) : max(ends)])
        )
        marks = [*made.openers, *made.special_tokens, *'{}[]":,', "\n", " ", "é"]
        pieces = st.one_of(parts, st.sampled_from(texts), st.sampled_from(marks), TEXTS)
        return st.lists(pieces, max_size=6).map("".join)


def _add(parsed: Parsed, deltas: Iterable[Delta]) -> None:
    for delta in deltas:
        parsed.add(delta)


def _check_nothing_lost(text: str, parsed: Parsed) -> None:
    """Content is text of the output in its order; all of it if no call was in it."""
    if not parsed.calls:
        assert parsed.content == text
    rest = iter(text)
    assert all(char in rest for char in parsed.content), "content that did not come, or not in this order"


def _property(examples: int) -> settings:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.differing_executors]
    return settings(max_examples=examples, deadline=None, suppress_health_check=checks)


def _place(text: str) -> st.SearchStrategy[int]:
    return st.integers(0, len(text))


def _places(text: str) -> st.SearchStrategy[list[int]]:
    return st.lists(_place(text), max_size=8)


def _type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


__all__ = [
    "Calls",
    "Golden",
    "Parsed",
    "ParsedCall",
    "ToolParserContract",
    "cut",
    "parse",
    "tools_of",
]
