"""Keyword by keyword: no backend accepts a text that a validator refuses; what neither honours is refused.

``keywords.jsonl`` has schemas, texts to try, and which backends honour the schema: one that begins to honour
more changes the table knowingly.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from llmkit.contracts import GrammarBackend, StructuredOutput
from llmkit.testing.components import create
from llmkit.testing.grammars import SPEC, accepts
from llmkit_grammars import json_schema

BACKENDS = ("xgrammar", "llguidance")
CASES = [
    json.loads(line) for line in (Path(__file__).parent / "keywords.jsonl").read_text().strip().split("\n")
]
VALIDATOR = jsonschema.Draft202012Validator


def is_valid(schema: Any, text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return bool(VALIDATOR(schema, format_checker=VALIDATOR.FORMAT_CHECKER).is_valid(value))


def judged(schema: Any) -> bool:
    """Python's validator knows fewer expressions than the standard: named groups and classes by property."""
    try:
        VALIDATOR.check_schema(schema, format_checker=VALIDATOR.FORMAT_CHECKER)
    except jsonschema.SchemaError:
        return False
    return True


@pytest.fixture(scope="module")
def backends() -> dict[str, GrammarBackend]:
    return {name: create("grammar", name, SPEC) for name in BACKENDS}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_what_is_accepted_is_valid(backends: dict[str, GrammarBackend], case: dict[str, Any]) -> None:
    schema = case["schema"]
    honoured = []
    for name, backend in backends.items():
        try:
            grammar = backend.load(backend.compile(StructuredOutput("json", json.dumps(schema))))
        except ValueError:
            continue
        honoured.append(name)
        accepted = [text for text in case["texts"] if accepts(grammar, text)]
        if judged(schema):
            assert [text for text in accepted if not is_valid(schema, text)] == []
        assert accepted or not any(is_valid(schema, text) for text in case["texts"] if judged(schema)), (
            f"{name} accepts none of the valid texts"
        )
    assert honoured == case["honoured_by"]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "no JSON"),
        ("3", "# is 3; it must be an object, true or false"),
        ("false", "no answer satisfies"),
        ('{"type": "objekt"}', '#/type is "objekt"'),
        ('{"type": []}', "#/type is []"),
        ('{"properties": {"a": {"minLength": -1}}}', "#/properties/a/minLength is -1"),
        ('{"minLength": true}', "#/minLength is true"),
        ('{"maxItems": 9999999}', "may be at most 100000"),
        ('{"multipleOf": 0}', "a number above 0"),
        ('{"items": [{}]}', "write it as prefixItems"),
        ('{"anyOf": []}', "at least one schema"),
        ('{"not": {}}', "#/not: 'not' cannot be honoured"),
        ('{"allOf": [{"uniqueItems": true}]}', "#/allOf/0/uniqueItems"),
        ('{"format": "regex"}', "#/format: 'regex' cannot be honoured"),
        ('{"pattern": "(?=a)"}', "#/pattern: look-around"),
        ('{"patternProperties": {"(": {}}}', "#/patternProperties: a '(' is not closed"),
        ('{"maxlength": 3}', "did you mean 'maxLength'?"),
        ('{"$ref": "other.json"}', "only references within the schema"),
        ('{"$ref": "#/$defs/a"}', "there is nothing of that name"),
        ('{"$defs": {"a": {"$id": "b"}}}', "an id within the schema"),
        ('{"minProperties": 2}', "needs every property to be listed"),
        ('{"items": ' * 70 + "{}" + "}" * 70, "nested more than 64 deep"),
    ],
)
def test_a_wrong_schema_is_refused_with_the_place(schema: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        json_schema.parse(schema)


def test_a_schema_of_too_many_parts_is_refused() -> None:
    wide = {"properties": {str(name): {} for name in range(json_schema.MAX_NODES)}}
    with pytest.raises(ValueError, match="more than 20000 schemas"):
        json_schema.parse(json.dumps(wide))


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("schema", ["{}", '{"type": "object", "properties": {"a": {"type": "integer"}}}'])
def test_whitespace_between_tokens_is_bounded(
    backends: dict[str, GrammarBackend], name: str, schema: str
) -> None:
    grammar = backends[name].load(backends[name].compile(StructuredOutput("json", schema)))
    for places in ('{%s"a":1}', '{"a"%s:1}', '{"a":%s1}', '{"a":1%s}'):
        for space in " \n":
            assert accepts(grammar, places % (space * 20))
            assert not accepts(grammar, places % (space * 21))
