"""``python -m tests.soak.cuts CUTS``: random cuts of outputs in every format, through the whole front.

Each output goes in pieces, cut between any two bytes, through detokenizer, reasoning parser, tool parser and
stop matcher as a server has them; what comes of it is what parsing the whole text at once gives. Exits with
1 and the smallest cut that shows it if that is ever not so.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from llmkit.config import PluginConfig
from llmkit.contracts import Finished, Parsing, ReasoningFormat, StepOutput, Tokens, ToolFormat
from llmkit.frontend.output import OutputPipeline
from llmkit.frontend.parsing import AnswerParsers, Formats, joined
from llmkit.frontend.stop import StopMatcher
from llmkit.plugins import load_plugins
from llmkit.types import FinishReason, SamplingParams
from tests.soak.outputs import Output, outputs

CORPUS = 300
SHOWN = 5
"""Differences that are shown, the smallest first; the rest is counted."""

Chunk = tuple[bytes, bool]
"""Bytes, and whether they are one special token."""
Places = tuple[int, ...]


class Pieces:
    """A byte-level tokenizer: its tokens are special ones, what stands before an output, and its pieces."""

    bos_token_id: int | None = None
    longest_token: int | None = None
    special_tokens: dict[str, Any] = {}
    BEFORE = b">"

    def __init__(self, special: Sequence[str], pieces: Sequence[bytes] = ()) -> None:
        self._special = special
        self._tokens = [*(text.encode() for text in special), self.BEFORE, *pieces]
        self.vocab_size = len(self._tokens)
        self.special_ids = frozenset(range(len(special)))
        self.eos_token_id = 0
        self.prompt = [len(special)]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Only of a special token is its id of interest."""
        return [self._special.index(text)] if text in self._special else [-1] * len(text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")

    def token_text(self, token_id: int) -> str:
        return self.decode([token_id])

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokens[token_id]


class Tried:
    """One output with the parsers of one request; its markers are text, or tokens of their own."""

    EOS = "<|the end|>"

    def __init__(
        self, output: Output, tool: ToolFormat, reasoning: ReasoningFormat | None, *, as_tokens: bool
    ) -> None:
        self.output = output
        self.name = f"{output.id}, markers are {'tokens' if as_tokens else 'text'}"
        marks = (
            {*tool.special_tokens, *(reasoning.special_tokens if reasoning else ())} if as_tokens else set()
        )
        self._special = [self.EOS, *sorted(marks)]
        self._chunks = list(_chunks(output.text, self._special))
        self.size = sum(len(data) for data, _ in self._chunks)
        asked = Parsing(
            tools=tuple(output.tools),
            parallel=output.parallel,
            prompt_tail=output.prompt_tail,
            template_args=output.template_args,
        )
        self._parsers = AnswerParsers(Formats(Pieces(self._special), tool, reasoning), asked)
        self.whole = self._at_once()

    def streamed(self, places: Places, steps: random.Random) -> list[Any]:
        """What comes of the output cut there, in steps of one token or more."""
        pieces, ids = [], []
        for data, special in self.cut(places):
            if special:
                ids.append(self._special.index(data.decode()))
            else:
                pieces.append(data)
                ids.append(len(self._special) + len(pieces))
        tokenizer = Pieces(self._special, pieces)
        if self.output.finish is FinishReason.STOP:
            ids.append(tokenizer.eos_token_id)
        pipeline = OutputPipeline(
            tokenizer, tokenizer.prompt, SamplingParams(stop=self.output.stops), self._parsers
        )
        deltas, at = [], 0
        while not pipeline.finished:
            end = at + steps.choice((1, 1, 1, 2, 5))
            finish = self.output.finish if end >= len(ids) else None
            events = pipeline.feed(StepOutput("", ids[at:end], finish=finish))
            deltas += [event for event in events if not isinstance(event, Tokens | Finished)]
            at = end
        return [*joined(deltas), *(event.stop_reason for event in events if isinstance(event, Finished))]

    def cut(self, places: Places) -> list[Chunk]:
        return list(_cut(self._chunks, places))

    def _at_once(self) -> list[Any]:
        matcher = StopMatcher(self.output.stops)
        machine = self._parsers.machine(matcher)
        deltas = machine.feed(self.output.text, armed=True)
        if not machine.ended:
            deltas += machine.finish("", self.output.finish, armed=True)
        return [*joined(deltas), matcher.matched]


@dataclass(frozen=True, slots=True)
class Difference:
    """A cut of which comes something else than of the whole."""

    output: str
    pieces: list[bytes]
    streamed: list[Any]
    whole: list[Any]

    def __str__(self) -> str:
        return f"{self.output}\n  pieces   {self.pieces}\n  streamed {self.streamed}\n  whole    {self.whole}"


@dataclass
class Report:
    """What the cuts showed."""

    cuts: int = 0
    outputs: int = 0
    formats: set[str] = field(default_factory=set)
    differences: list[Difference] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.cuts:,} cuts of {self.outputs} outputs in {len(self.formats)} formats: "
            f"{len(self.differences)} differences"
        )


def run(cuts: int, corpus: Sequence[Output], create: Callable[[str, str], Any], seed: int = 0) -> Report:
    """So many cuts, as many of each output.

    :param create: makes the format of a kind, ``tool_parser`` or ``reasoning_parser``, and a name.
    """
    source = random.Random(seed)
    tried = []
    for output in corpus:
        tool = create("tool_parser", output.tool)
        reasoning = create("reasoning_parser", output.reasoning) if output.reasoning else None
        tried.append([Tried(output, tool, reasoning, as_tokens=as_tokens) for as_tokens in (False, True)])
    report = Report(outputs=len(corpus))
    report.formats = {f"tool {o.tool}" for o in corpus} | {
        f"reasoning {o.reasoning}" for o in corpus if o.reasoning
    }
    for number in range(cuts):
        one = source.choice(tried[number % len(tried)])
        report.cuts += 1
        places = _places(one.size, source)
        if one.streamed(places, random.Random(number)) != one.whole:
            report.differences.append(_smallest(one, places, number))
    report.differences.sort(key=lambda difference: len(difference.pieces))
    return report


def main(cuts: int) -> int:
    registry = load_plugins(PluginConfig()).registry
    report = run(cuts, outputs(CORPUS), registry.create)
    print(", ".join(sorted(report.formats)))
    for difference in report.differences[:SHOWN]:
        print("DIFFERENCE", difference)
    print(report)
    return 1 if report.differences else 0


def _chunks(text: str, special: Sequence[str]) -> Iterator[Chunk]:
    # Of two that begin alike, a tokenizer takes the longer one.
    longest_first = sorted(special, key=len, reverse=True)
    for part in re.split(f"({'|'.join(map(re.escape, longest_first))})", text):
        if part:
            yield part.encode(), part in special


def _cut(chunks: Sequence[Chunk], places: Places) -> Iterator[Chunk]:
    """The chunks, and those that are text cut at the places that fall into them."""
    begin = 0
    for data, special in chunks:
        end = begin + len(data)
        edges = [0, *(place - begin for place in places if not special and begin < place < end), len(data)]
        for start, stop in pairwise(edges):
            yield data[start:stop], special
        begin = end


def _places(size: int, source: random.Random) -> Places:
    """Any number of them, few as often as many."""
    most = max(1, size - 1)
    return tuple(sorted(source.sample(range(size), min(size, int(most ** source.random())))))


def _smallest(one: Tried, places: Places, seed: int) -> Difference:
    """As many places left out as can be with a difference left."""
    for place in places:
        fewer = tuple(other for other in places if other != place)
        if one.streamed(fewer, random.Random(seed)) != one.whole:
            places = fewer
    pieces = [data for data, _ in one.cut(places)]
    return Difference(one.name, pieces, one.streamed(places, random.Random(seed)), one.whole)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
