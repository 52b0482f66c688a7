"""Structural tags of tool calls in llguidance: what an answer may be, with schemas beyond xgrammar."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from llmkit.contracts import GrammarBackend, GrammarSpec, StructuredOutput, Tool
from llmkit_grammars.llguidance_backend import LlguidanceBackend
from llmkit_grammars.xgrammar_backend import XgrammarBackend
from llmkit_tool_parsers.json_formats import FORMATS

EOS = 256
SPEC = GrammarSpec([*(bytes([byte]) for byte in range(256)), b""], frozenset({EOS}), (EOS,), 257)
SHORT = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 3}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS = [Tool("w", parameters=SHORT), Tool("z")]
CALL = '<tool_call>\n{"name": "w", "arguments": {"a": "xyz"}}\n</tool_call>'
LONG = CALL.replace("xyz", "wxyz")


@pytest.fixture(scope="module")
def backend() -> LlguidanceBackend:
    return LlguidanceBackend(SPEC)


def fits(
    backend: GrammarBackend, text: str, *, required: bool, parallel: bool, tools: Sequence[Tool] = TOOLS
) -> bool:
    """Whether ``text`` may be a whole answer."""
    wanted = FORMATS["hermes"].constraint(tools, required=required, parallel=parallel)
    matcher = backend.load(backend.compile(wanted)).matcher()
    if not all(matcher.accept(byte) for byte in text.encode()):
        return False
    mask = np.zeros(-(-SPEC.vocab_size // 32), np.int32)
    matcher.fill_mask(mask)
    return bool(np.unpackbits(mask.view(np.uint8), bitorder="little")[EOS])


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        pytest.param(CALL, "required parallel, required, parallel, free", id="one"),
        pytest.param(f"{CALL}\n{CALL}", "required parallel, parallel", id="two"),
        pytest.param(f"é {CALL}", "parallel, free", id="text-before"),
        pytest.param(f"é {CALL} and {CALL} x", "parallel", id="text-around"),
        pytest.param("no <tool call", "parallel, free", id="none"),
        pytest.param("", "parallel, free", id="nothing"),
        pytest.param(LONG, "", id="against-the-schema"),
        pytest.param(f"é {LONG}", "", id="against-the-schema-behind-text"),
        pytest.param("<tool_call>\nx", "", id="no-call-behind-its-mark"),
    ],
)
def test_what_an_answer_may_be(backend: LlguidanceBackend, text: str, ways: str) -> None:
    for required in (True, False):
        for parallel in (True, False):
            way = " ".join(["required"] * required + ["parallel"] * parallel) or "free"
            assert fits(backend, text, required=required, parallel=parallel) == (way in ways.split(", ")), way


def test_a_part_that_has_no_form_here_is_named(backend: LlguidanceBackend) -> None:
    tag = '{"type": "structural_tag", "format": {"type": "any_text"}}'
    with pytest.raises(ValueError, match="no form for 'any_text'"):
        backend.compile(StructuredOutput("structural_tag", tag))


@pytest.mark.parametrize("make", [LlguidanceBackend, XgrammarBackend])
@pytest.mark.parametrize(
    ("arguments", "may"),
    [
        ('{"a": 1}', True),
        ('{"a":1}', True),
        ('{"a":\n1 }', True),
        ('{"a":  1}', False),
        ('{"a": 1\n }', False),
        ('{\n\n"a": 1}', False),
    ],
)
def test_arguments_have_one_blank_in_a_row_at_most(
    make: type[LlguidanceBackend | XgrammarBackend], arguments: str, may: bool
) -> None:
    tools = [Tool("w", parameters={"properties": {"a": {"type": "integer"}}, "required": ["a"]})]
    text = CALL.replace('{"a": "xyz"}', arguments)
    assert fits(make(SPEC), text, required=True, parallel=False, tools=tools) == may
