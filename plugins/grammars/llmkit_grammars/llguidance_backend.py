"""llguidance: the fuller reading of JSON schema and regular expressions, and Lark grammars."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from llmkit.contracts import GrammarSpec, MaskRow, StructuredOutput
from llmkit_grammars import json_schema, regexes, structural
from llmkit_grammars.beyond_llguidance import beyond_llguidance
from llmkit_grammars.choices import parse_choices
from llmkit_grammars.lark_tags import lark_of
from llmkit_grammars.limits import MAX_WHITESPACE, whitespace
from llmkit_grammars.marks import Marks

_JSON_OPTIONS: Any = {
    "whitespace_pattern": whitespace(MAX_WHITESPACE),
    # Without \uXXXX: a name spelt with it would be the same name to a reader and another one to the grammar.
    "json_allowed_escapes": 'nrbtf\\"',
}
_WORDS = 400
"""Characters of its own explanations that a client sees."""


class LlguidanceBackend:
    """Its data is the finished grammar text, whose making cost has been found bearable."""

    def __init__(self, spec: GrammarSpec) -> None:
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Vocabulary(spec)), n_vocab=spec.vocab_size, eos_token=list(spec.eos_ids)
        )
        self._marks = Marks(spec)
        self._limits = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)

    def compile(self, wanted: StructuredOutput) -> bytes:
        grammar = _grammar(wanted, self._marks)
        self._matcher(grammar)
        return grammar.encode()

    def load(self, data: bytes) -> LlguidanceGrammar:
        return LlguidanceGrammar(self._matcher(data.decode()))

    def _matcher(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise ValueError(_words(matcher))
        return matcher


class LlguidanceGrammar:
    """One grammar; its matcher at the beginning is copied for each answer."""

    def __init__(self, start: LLMatcher) -> None:
        self._start = start

    def matcher(self) -> LlguidanceMatcher:
        return LlguidanceMatcher(self._start.deep_copy())


class LlguidanceMatcher:
    """One answer's place."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def fill_mask(self, mask: MaskRow) -> None:
        """:raises ValueError: the grammar turned out too costly."""
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            raise ValueError(_words(self._matcher))

    def accept(self, token_id: int) -> bool:
        return int(self._matcher.try_consume_tokens([token_id])) == 1

    def rollback(self, count: int) -> None:
        if not self._matcher.rollback(count):
            raise ValueError(_words(self._matcher))


class _Vocabulary:
    """What the library asks of a tokenizer."""

    def __init__(self, spec: GrammarSpec) -> None:
        self.eos_token_id = spec.eos_ids[0]
        self.bos_token_id = None
        self.special_token_ids = sorted({*spec.special_ids, *spec.eos_ids})
        special = set(self.special_token_ids)
        self.tokens = [
            b"<|%d|>" % token_id if token_id in special else data
            for token_id, data in enumerate(spec.token_bytes)
        ]
        self.tokens += [b""] * (spec.vocab_size - len(self.tokens))

        self._ids = {data: i for i, data in enumerate(self.tokens) if data and i not in special}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: str | bytes) -> Sequence[int]:
        """Forced text in tokens, the longest first: where only one text can follow, masks allow these."""
        data = text.encode() if isinstance(text, str) else bytes(text)
        found: list[int] = []
        at = 0
        while at < len(data):
            for size in range(min(self._longest, len(data) - at), 0, -1):
                token_id = self._ids.get(data[at : at + size])
                if token_id is not None:
                    found.append(token_id)
                    break
            else:
                return found  # bytes that no token stands for: no grammar can ask for them
            at += size
        return found


def _grammar(wanted: StructuredOutput, marks: Marks) -> str:
    """:raises ValueError: there is none that says exactly this."""
    match wanted.kind:
        case "json":
            schema = json_schema.parse(wanted.source)
            beyond = beyond_llguidance(schema)
            if beyond is not None:
                raise ValueError(f"llguidance does not honour {beyond} in a schema")
            return _of_schema(schema)
        case "json_object":
            return _of_schema({"type": "object"})
        case "regex":
            regexes.check(wanted.source)
            return str(LLMatcher.grammar_from_regex(wanted.source))
        case "choice":
            choices = " | ".join(
                json.dumps(choice, ensure_ascii=False) for choice in parse_choices(wanted.source)
            )
            return str(LLMatcher.grammar_from_lark(f"start: {choices}"))
        case "grammar":
            if "::=" in wanted.source:
                raise ValueError("llguidance reads Lark, whose rules have ':' alone")
            return str(LLMatcher.grammar_from_lark(wanted.source))
        case "structural_tag":
            checked = structural.checked(wanted.source, lambda schema: None, marks)
            return str(LLMatcher.grammar_from_lark(lark_of(checked, _JSON_OPTIONS)))


def _of_schema(schema: json_schema.Schema) -> str:
    return str(LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_JSON_OPTIONS))


def _words(matcher: LLMatcher) -> str:
    return " ".join(str(matcher.get_error()).split())[:_WORDS]
