"""What a model may write so that its calls fit their tools, as structural tags."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from llmkit.contracts import StructuredOutput, Tool
from llmkit.parsers.tags import Part, in_text, json_of, regex, sequence, structural, tag, text_of


@dataclass(frozen=True, slots=True)
class Layout:
    """How calls with JSON arguments are written: the same for every tool but for name and arguments.

    ``{name}`` in ``head`` stands for the name, as JSON text where ``quoted``; ``{number}`` before it for any
    number.
    """

    before: str = ""
    """Before each call, or before the list of all."""
    after: str = ""
    between: str = ""
    """Between calls, each with its own ``before`` and ``after`` unless they are listed."""
    listed: bool = False
    head: str = '{{"name": {name}, "arguments": '
    tail: str = "}"
    quoted: bool = True

    def constraint(
        self, tools: Sequence[Tool], openers: Sequence[str], *, required: bool, parallel: bool
    ) -> StructuredOutput:
        """As ``ToolFormat.constraint``; ``openers`` are all of the format."""
        if not tools:
            raise ValueError("there are no tools to call")
        each = [self._call(tool) for tool in tools]
        calls: Part = {
            "type": "tags_with_separator",
            "tags": each,
            "separator": self.between,
            "at_least_one": True,
            "stop_after_first": not parallel,
        }
        all_listed = tag(self.before, calls, self.after)
        if required:
            form = all_listed if self.listed else calls
        else:
            blocks = [all_listed] if self.listed else each
            form = in_text(blocks, [self.trigger], openers, parallel=parallel)
        return structural(form)

    def call(self, name: str) -> str:
        """One without arguments as it is written, from what stands before it on."""
        return self.before + self._head(name, "0") + "{}" + self.tail + self.after

    def _head(self, name: str, number: str) -> str:
        written = json.dumps(name, ensure_ascii=False) if self.quoted else name
        return self.head.format(name=written, number=number)

    def _call(self, tool: Tool) -> Part:
        begin, *after_number = self._head(tool.name, "\0").split("\0")
        end = self.tail
        if not self.listed:
            begin, end = self.before + begin, end + self.after
        content = json_of(arguments_schema(tool))
        if after_number:
            content = sequence([regex("[0-9]{1,4}"), text_of(after_number[0]), content])
        return tag(begin, content, end)

    @property
    def trigger(self) -> str:
        """What begins a call and nothing else."""
        return self.before or self.head.partition("{name}")[0].replace("{{", "{")


def arguments_schema(tool: Tool) -> Part:
    """The schema of a tool's arguments, which are an object whether it says so or not."""
    if not tool.parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **tool.parameters}
