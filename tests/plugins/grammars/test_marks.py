"""Marks around calls that are tokens of their own: these come, and nothing that spells them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from llmkit import LLM, SamplingParams
from llmkit.contracts import GrammarSpec, StructuredOutput, Tool, ToolFormat
from llmkit.frontend.either import calls_or
from llmkit.llm import Output
from llmkit.testing import bytes_tokenizer
from llmkit_grammars.llguidance_backend import LlguidanceBackend
from llmkit_grammars.xgrammar_backend import XgrammarBackend
from llmkit_tool_parsers import delimited_formats, json_formats, markup_formats

EOS = 256
BACKENDS = {"xgrammar": XgrammarBackend, "llguidance": LlguidanceBackend}
FORMATS: dict[str, ToolFormat] = {
    **json_formats.FORMATS,
    **delimited_formats.FORMATS,
    **markup_formats.FORMATS,
}
TOOLS = [
    Tool("w", parameters={"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}),
    Tool("z"),
]
JSON = '{"name": "w", "arguments": {"a": "x"}}'
HERMES = f"<tool_call>\n{JSON}\n</tool_call>"
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.w:0<|tool_call_argument_begin|>"
    '{"a": "x"}<|tool_call_end|><|tool_calls_section_end|>'
)
GLM = "<tool_call>w\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n</tool_call>"
HARMONY = '<|channel|>commentary to=functions.w <|constrain|>json<|message|>{"a": "x"}'
CALLS = {"hermes": HERMES, "granite": f"<|tool_call|>[{JSON}]", "kimi_k2": KIMI, "glm45": GLM}


def spec_of(format_: ToolFormat, ends: Sequence[str] = ()) -> GrammarSpec:
    """A vocabulary of bytes, and of the format's own tokens, of which ``ends`` end an answer."""
    texts = [text for text in format_.special_tokens if len(text) > 1]
    marks = {text: EOS + 1 + index for index, text in enumerate(dict.fromkeys(texts))}
    eos_ids = (EOS, *(marks[text] for text in ends))
    vocabulary = [*(bytes([byte]) for byte in range(256)), *[b""] * (1 + len(marks))]
    return GrammarSpec(vocabulary, frozenset({EOS, *marks.values()}), eos_ids, len(vocabulary), marks)


def tokens_of(text: str, spec: GrammarSpec) -> list[int]:
    pattern = "|".join(map(re.escape, sorted(spec.marks, key=len, reverse=True)))
    return [
        token
        for piece in re.split(f"({pattern})", text)
        for token in ([spec.marks[piece]] if piece in spec.marks else piece.encode())
    ]


class Answers:
    """What answers a format's constraint allows."""

    def __init__(self, name: str, backend: str, ends: Sequence[str] = ()) -> None:
        self.format = FORMATS[name]
        self.spec = spec_of(self.format, ends)
        self._backend = BACKENDS[backend](self.spec)

    def may_be(self, tokens: Sequence[int], *, required: bool = True, parallel: bool = False) -> bool:
        wanted = self.format.constraint(TOOLS, required=required, parallel=parallel)
        return self._fit(wanted, tokens)

    def are(self, form: StructuredOutput, tokens: Sequence[int]) -> bool:
        """Whether an answer that is to be calls or of this form may be so."""
        calls = self.format.constraint(TOOLS, required=True, parallel=False)
        return self._fit(calls_or(calls, form), tokens)

    def _fit(self, wanted: StructuredOutput, tokens: Sequence[int]) -> bool:
        matcher = self._backend.load(self._backend.compile(wanted)).matcher()
        for token in [*tokens, EOS]:
            mask = np.zeros(-(-self.spec.vocab_size // 32), np.int32)
            matcher.fill_mask(mask)
            if not np.unpackbits(mask.view(np.uint8), bitorder="little")[token]:
                return False
            assert token == EOS or matcher.accept(token)
        return True


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CALLS)
def test_a_mark_is_its_token(name: str, backend: str) -> None:
    answers = Answers(name, backend)
    call = tokens_of(CALLS[name], answers.spec)
    assert answers.may_be(call)
    assert answers.may_be([*b"So <, it is: ", *call], required=False)
    assert answers.may_be(b"No <call>.", required=False)
    for mark, token in answers.spec.marks.items():
        if token in call:
            at = call.index(token)
            spelt = [*call[:at], *mark.encode(), *call[at + 1 :]]
            assert not answers.may_be(spelt), mark
            assert not answers.may_be(spelt, required=False), mark


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("hermes", '<tool_call>{"name": "v", "arguments": {}}'),
        ("granite", '<tool_call>[{"name": "v", "arguments": {}}]'),
        ("kimi_k2", "<|tool_call_begin|>functions.v:0<|tool_call_argument_begin|>{}"),
        ("glm45", "<tool_call> v\n</tool_call>"),
    ],
)
def test_no_call_hides_in_text(name: str, hidden: str, backend: str) -> None:
    """Written in another way than the model is made to write it, but read by its parser."""
    answers = Answers(name, backend)
    assert not answers.may_be(tokens_of(f"So {hidden}", answers.spec), required=False)
    assert not answers.may_be(f"So {hidden}".encode(), required=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mark_is_no_part_of_arguments_but_its_text_is(backend: str) -> None:
    answers = Answers("hermes", backend)
    begin, _, end = HERMES.partition("x")
    around = tokens_of(begin, answers.spec), tokens_of(end, answers.spec)
    assert answers.may_be([*around[0], *b"<tool_call>", *around[1]])
    assert not answers.may_be([*around[0], answers.spec.marks["<tool_call>"], *around[1]])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("required", [True, False])
def test_several_calls(required: bool, backend: str) -> None:
    answers = Answers("hermes", backend)
    two = tokens_of(f"{HERMES}\n{HERMES}", answers.spec)
    assert answers.may_be(two, required=required, parallel=True)
    assert not answers.may_be(two, required=required, parallel=False)


@pytest.mark.parametrize("name", ["harmony"])
def test_a_mark_that_ends_the_answer_comes_as_its_end(name: str) -> None:
    answers = Answers(name, "xgrammar", ends=("<|call|>", "<|return|>"))
    call = tokens_of(HARMONY, answers.spec)
    assert answers.may_be(call)
    assert not answers.may_be([*call, *b"<|call|>"])
    other = tokens_of(
        '<|start|>assistant to=functions.w<|channel|>commentary json<|message|>{"a": "x"}', answers.spec
    )
    assert answers.may_be(other)
    assert answers.may_be([*b"Hm", *call], required=False)
    said = tokens_of("<|channel|>analysis<|message|>Hm<|end|><|start|>assistant", answers.spec)
    assert answers.may_be([*said, *call], required=False)
    assert answers.may_be([*said, *tokens_of("<|channel|>final<|message|>Hm", answers.spec)], required=False)
    unfit = tokens_of(HARMONY.replace("functions.w", "functions.v"), answers.spec)
    for before in ("", "<|channel|>", "<|channel|>analysis"):
        assert not answers.may_be([*tokens_of(before, answers.spec), *unfit], required=False)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["hermes", "granite", "kimi_k2", "glm45"])
def test_calls_or_an_answer_in_json(name: str, backend: str) -> None:
    answers = Answers(name, backend)
    call = tokens_of(CALLS[name], answers.spec)
    answer = StructuredOutput("json", '{"type": "object", "properties": {"b": {"type": "integer"}}}')
    assert answers.are(answer, call)
    assert answers.are(answer, b'{"b": 1}')
    assert not answers.are(answer, b'{"b": "x"}')
    assert not answers.are(answer, b"Text")
    assert not answers.are(answer, [*b'{"b": 1}', *call])


def test_calls_without_a_mark_or_an_answer_in_json() -> None:
    answer = StructuredOutput("json", '{"type": "object", "properties": {"b": {"type": "integer"}}}')
    answers = Answers("llama3_json", "xgrammar")
    assert answers.are(answer, b'{"name": "w", "parameters": {"a": "x"}}')
    assert answers.are(answer, b'{"b": 1}')
    assert not answers.are(answer, b'{"name": "w", "parameters": {"a": 1}}')
    with pytest.raises(ValueError, match="llguidance takes no JSON beside"):
        Answers("llama3_json", "llguidance").are(answer, b'{"b": 1}')


@pytest.fixture(scope="module", params=list(BACKENDS))
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A random model with tokens for calls."""
    model = bytes_tokenizer.write(tmp_path_factory.mktemp("marks"), special=("<tool_call>", "</tool_call>"))
    flags = {"load_format": "dummy", "grammar_backend": request.param, "tool_call_parser": "hermes"}
    with LLM(str(model), max_model_len=512, max_num_seqs=8, **flags) as llm:
        yield llm


def chat(llm: LLM, seeds: Sequence[int], choice: str, **params: Any) -> list[Output]:
    tool = {"type": "function", "function": {"name": "w", "parameters": {"properties": {"a": {"enum": [1]}}}}}
    return llm.chat(
        [[{"role": "user", "content": "hi"}]] * len(seeds),
        [SamplingParams(temperature=1.0, max_tokens=200, seed=seed, **params) for seed in seeds],
        tools=[tool],
        tool_choice=choice,
        parallel_tool_calls=False,
    )


def test_a_model_calls_with_its_own_tokens(llm: LLM) -> None:
    """Whatever a random model would rather say; the parser sees the same text."""
    (output,) = chat(llm, [1], "required")
    begin, end = bytes_tokenizer.VOCAB_SIZE, bytes_tokenizer.VOCAB_SIZE + 1
    assert output.token_ids[0] == begin
    assert b"<" not in bytes(token for token in output.token_ids if token < 256)
    assert end not in output.token_ids[:-1]
    (call,) = output.tool_calls
    assert call.complete
    assert (call.name, output.text) == ("w", "")


def test_a_model_calls_or_answers_in_json(llm: LLM) -> None:
    answer = StructuredOutput(
        "json", '{"type": "object", "properties": {"b": {"enum": [2]}}, "required": ["b"]}'
    )
    outputs = chat(llm, range(16), "auto", structured=answer)
    for output in outputs:
        if output.tool_calls:
            assert (output.tool_calls[0].complete, output.text) == (True, "")
        else:
            assert json.loads(output.text) == {"b": 2}
    assert {bool(output.tool_calls) for output in outputs} == {True, False}
