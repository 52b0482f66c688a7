"""xgrammar: fast masks for what it honours exactly; everything else it refuses here."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import xgrammar as xgr

from llmkit.contracts import GrammarSpec, MaskRow, StructuredOutput
from llmkit_grammars import json_schema, regexes, structural
from llmkit_grammars.choices import parse_choices
from llmkit_grammars.limits import MAX_WHITESPACE
from llmkit_grammars.marks import NO_TEXT, Marks

_ITS_CODE = re.compile(r"^(?:Check failed: .*? is false: )?(?:Invalid structural tag error: )?")
MAX_COMPILED_BYTES = 64 << 20
"""Of one grammar with its precomputed masks."""


class XgrammarBackend:
    """Its data is the checked source: compiling that again costs about what reading a result would."""

    def __init__(self, spec: GrammarSpec) -> None:
        vocab = [
            b"" if token_id in spec.special_ids else data for token_id, data in enumerate(spec.token_bytes)
        ]
        vocab += [b""] * (spec.vocab_size - len(vocab))
        for token_id in spec.marks.values():
            if token_id not in spec.eos_ids:
                vocab[token_id] = b"\xff%s%d" % (NO_TEXT.encode(), token_id)
        self._marks = Marks(spec)
        info = xgr.TokenizerInfo(vocab, vocab_size=spec.vocab_size, stop_token_ids=list(spec.eos_ids))
        self._compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._possible = _possible(vocab, spec)

    def compile(self, wanted: StructuredOutput) -> bytes:
        checked = _checked(wanted, self._marks)
        size = self._compile(checked).memory_size_bytes
        if size > MAX_COMPILED_BYTES:
            raise ValueError(f"the grammar takes {size} bytes; at most {MAX_COMPILED_BYTES} are given to one")
        return msgspec.msgpack.encode(checked)

    def load(self, data: bytes) -> XgrammarGrammar:
        compiled = self._compile(msgspec.msgpack.decode(data, type=StructuredOutput))
        return XgrammarGrammar(compiled, self._possible)

    def _compile(self, checked: StructuredOutput) -> xgr.CompiledGrammar:
        try:
            return self._compile_kind(checked)
        except RuntimeError as error:  # how the binding tells of a bad grammar
            raise ValueError(_words(error)) from None

    def _compile_kind(self, checked: StructuredOutput) -> xgr.CompiledGrammar:
        match checked.kind:
            case "json" | "json_object":
                return self._compiler.compile_json_schema(
                    checked.source, strict_mode=False, max_whitespace_cnt=MAX_WHITESPACE
                )
            case "regex":
                return self._compiler.compile_regex(checked.source)
            case "structural_tag":
                return self._compiler.compile_structural_tag(checked.source)
            case _:
                return self._compiler.compile_grammar(checked.source)


class XgrammarGrammar:
    """One compiled grammar."""

    def __init__(self, compiled: xgr.CompiledGrammar, possible: MaskRow) -> None:
        self._compiled = compiled
        self._possible = possible

    def matcher(self) -> XgrammarMatcher:
        return XgrammarMatcher(xgr.GrammarMatcher(self._compiled), self._possible)


class XgrammarMatcher:
    """One answer's place."""

    def __init__(self, matcher: xgr.GrammarMatcher, possible: MaskRow) -> None:
        self._matcher = matcher
        self._possible = possible

    def fill_mask(self, mask: MaskRow) -> None:
        self._matcher.fill_next_token_bitmask(mask.reshape(1, -1))
        # Where nearly everything may come it sets the bits of rows without a token, too.
        np.bitwise_and(mask, self._possible, out=mask)

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)


def _possible(vocab: Sequence[bytes], spec: GrammarSpec) -> MaskRow:
    """The tokens that stand for something, and the end tokens, as a mask."""
    bits = np.zeros(-(-spec.vocab_size // 32) * 32, np.uint8)
    bits[: len(vocab)] = [bool(data) for data in vocab]
    bits[list(spec.eos_ids)] = 1
    return np.packbits(bits, bitorder="little").view("<i4")


def _checked(wanted: StructuredOutput, marks: Marks) -> StructuredOutput:
    """The same in a form that xgrammar reads as it is meant.

    :raises ValueError: there is none.
    """
    source = wanted.source
    match wanted.kind:
        case "json":
            schema = json_schema.parse(source)
            _honours_schema(schema)
            source = json.dumps(schema, ensure_ascii=False)
        case "json_object":
            source = '{"type": "object"}'
        case "regex":
            regexes.check(source)
            beyond = regexes.beyond_xgrammar(source)
            if beyond is not None:
                raise ValueError(f"xgrammar reads {beyond} in an expression in its own way")
        case "choice":
            source = "root ::= " + " | ".join(
                json.dumps(choice, ensure_ascii=False) for choice in parse_choices(source)
            )
        case "grammar":
            if "::=" not in source:
                raise ValueError("xgrammar reads EBNF, whose rules have '::='")
        case "structural_tag":
            source = structural.checked(source, _honours_schema, marks)
    return StructuredOutput(wanted.kind, source)


def _honours_schema(schema: dict[str, Any]) -> None:
    beyond = json_schema.beyond_xgrammar(schema)
    if beyond is not None:
        raise ValueError(f"xgrammar does not honour {beyond} in a schema")


def _words(error: RuntimeError) -> str:
    """What it says, less where in its own source it says so."""
    text = str(error).strip().splitlines()[0]
    text = text.split(": ", 1)[1] if text.startswith("[") and ": " in text else text
    return _ITS_CODE.sub("", text)
