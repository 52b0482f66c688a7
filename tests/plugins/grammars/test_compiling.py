"""The compiling process: what it refuses, what it survives, and that it does each thing once."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from llmkit import EngineError, RequestError, UsageError
from llmkit.assemble.front import build_front
from llmkit.assemble.grammar_main import answer
from llmkit.assemble.grammars import grammar_compiler
from llmkit.config import Config, LimitsConfig, sources
from llmkit.contracts import CompiledGrammar, GrammarBackend, StructuredOutput
from llmkit.frontend.grammars import DEADLINE_S, GrammarCompiler
from llmkit.plugins import load_plugins
from llmkit.testing.components import create
from llmkit.testing.grammars import SPEC, accepts

from .hostile import HOSTILE

YES = StructuredOutput("choice", '["yes", "no"]')
PATTERN = StructuredOutput("json", '{"type": "string", "pattern": "^a.$"}')


def compiler_of(**settings: str) -> GrammarCompiler:
    config: Config = sources.load(settings, {}).config
    return grammar_compiler(config, load_plugins(config.plugins), lambda: SPEC)


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = compiler_of()
    compiler.compile_now(YES)
    yield compiler
    compiler.close()


def refusal(compiler: GrammarCompiler, wanted: StructuredOutput) -> RequestError:
    with pytest.raises(RequestError) as caught:
        compiler.compile_now(wanted)
    assert caught.value.param == "structured"
    return caught.value


def test_the_first_backend_that_honours_it_is_taken(compiler: GrammarCompiler) -> None:
    for wanted, backend in ((YES, "xgrammar"), (PATTERN, "llguidance")):
        compiled = compiler.compile_now(wanted)
        assert compiled.backend == backend
        grammar = create("grammar", backend, SPEC).load(compiled.data)
        assert [accepts(grammar, text) for text in ("yes", '"ab"', "no", "yess", "")] == [
            backend == "xgrammar", backend == "llguidance", backend == "xgrammar", False, False,
        ]  # fmt: skip


def test_a_refusal_has_the_words_of_whoever_refuses(compiler: GrammarCompiler) -> None:
    same = refusal(compiler, StructuredOutput("json", '{"type": "objekt"}'))
    assert str(same).startswith('structured: #/type is "objekt"; it must be one of array')
    assert (same.status, same.code) == (400, "invalid_value")
    both = refusal(compiler, StructuredOutput("grammar", 'root ::= "a" |'))
    assert "xgrammar: " in str(both)
    assert "; llguidance reads Lark" in str(both)


def tag(form: object) -> StructuredOutput:
    return StructuredOutput("structural_tag", json.dumps({"type": "structural_tag", "format": form}))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (tag({"type": "nope"}), 'format.type is "nope"; it may be any_text'),
        (tag({"type": "sequence", "elements": [{"type": "nope"}]}), 'format.elements[0].type is "nope"'),
        (tag({"type": "const_string"}), "format.value is null; it must be a string"),
        (
            tag({"type": "tag", "begin": "a", "content": 5, "end": "b"}),
            "format.content is 5; it must be an object",
        ),
        (tag({"type": "json_schema", "json_schema": {"type": "x"}}), 'format.json_schema: #/type is "x"'),
        (tag({"type": "regex", "pattern": "("}), "format.pattern: a '(' is not closed"),
        (
            tag({"type": "dispatch", "rules": [["a", {"type": "regex", "pattern": "("}]]}),
            "format.rules[0][1].pattern",
        ),
        (
            tag({"type": "sequence", "elements": []}),
            "xgrammar: Sequence format must have at least one element",
        ),
        (
            StructuredOutput("structural_tag", '{"structures": [{}], "triggers": []}'),
            "structures[0].begin is null",
        ),
        (StructuredOutput("choice", '["a", 5]'), "choice 1 is 5; it must be a string"),
        (StructuredOutput("choice", '{"a": 1}'), 'the choices are {"a": 1}; they must be a list'),
        (StructuredOutput("regex", "a" * 99 + "("), "a '(' is not closed, in \"" + "a" * 59 + "..."),
    ],
)
def test_words_of_refusals_are_ours_and_have_the_place(
    compiler: GrammarCompiler, wanted: StructuredOutput, said: str
) -> None:
    words = str(refusal(compiler, wanted))
    assert said in words
    assert "Check failed" not in words


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            {"type": "integer", "minimum": 5, "maximum": 3},
            "minimum is 5 and maximum 3; no integer lies between",
        ),
        (
            {"type": "number", "exclusiveMinimum": 5, "maximum": 5},
            "exclusiveMinimum is 5 and maximum 5; no number",
        ),
        ({"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 6}, "no integer lies between"),
        ({"type": "integer", "minimum": 5.2, "maximum": 5.8}, "minimum is 5.2 and maximum 5.8; no integer"),
        (
            {"type": "string", "minLength": 5, "maxLength": 3},
            "minLength is 5 and maxLength 3; nothing has both",
        ),
        ({"type": "array", "minItems": 5, "maxItems": 3}, "minItems is 5 and maxItems 3; nothing has both"),
    ],
)
def test_contradictory_bounds_have_the_schemas_path(
    compiler: GrammarCompiler, schema: dict[str, object], said: str
) -> None:
    whole = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    words = str(refusal(compiler, StructuredOutput("json", json.dumps(whole))))
    assert words.startswith("structured: #/properties/a: ")
    assert said in words


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "number", "exclusiveMinimum": 5, "exclusiveMaximum": 6}, "5.5"),
        ({"type": "integer", "minimum": 5, "maximum": 5}, "5"),
        ({"type": "integer", "exclusiveMinimum": 4.5, "maximum": 5}, "5"),
        ({"type": ["string", "integer"], "minimum": 5, "maximum": 3}, '"a"'),
    ],
)
def test_bounds_that_leave_something_are_honoured(
    compiler: GrammarCompiler, schema: dict[str, object], text: str
) -> None:
    compiled = compiler.compile_now(StructuredOutput("json", json.dumps(schema)))
    assert accepts(create("grammar", compiled.backend, SPEC).load(compiled.data), text)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_hostile_is_refused_in_time(compiler: GrammarCompiler, name: str) -> None:
    began = time.monotonic()
    assert refusal(compiler, HOSTILE[name]).status == 400
    # A guard against a hang: the deadline is kept by the child itself, whatever else runs.
    assert time.monotonic() - began < DEADLINE_S + 10
    compiler.compile_now(StructuredOutput("choice", f'["after {name}"]'))


def test_a_grammar_that_says_nothing_is_refused(compiler: GrammarCompiler) -> None:
    assert "only the empty text" in str(refusal(compiler, StructuredOutput("regex", "")))
    assert "satisf" in str(
        refusal(compiler, StructuredOutput("json", '{"type": "array", "minItems": 2, "items": false}'))
    )


def test_equal_grammars_are_compiled_once(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    ask = compiler._process.ask

    def counting(question: bytes) -> bytes:
        asked.append(question)
        return ask(question)

    monkeypatch.setattr(compiler._process, "ask", counting)
    wanted = StructuredOutput("choice", '["once"]')
    results: list[CompiledGrammar] = []
    threads = [
        threading.Thread(target=lambda: results.append(compiler.compile_now(wanted))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1
    assert results == [results[0]] * 6
    wrong = StructuredOutput("choice", "[]")
    assert str(refusal(compiler, wrong)) == str(refusal(compiler, wrong))
    assert len(asked) == 2, "a refusal is remembered, too"
    refusal(compiler, wrong).param = "a client's own name"
    refusal(compiler, wrong)  # looks at the param: each has an error of its own


def test_what_was_too_costly_may_be_asked_again(compiler: GrammarCompiler) -> None:
    costly = HOSTILE["repeats-within-repeats"]
    assert "too costly" in str(refusal(compiler, costly))
    assert compiler._known.get(costly) is None


async def test_what_is_no_text_is_refused_wherever_it_comes_from(compiler: GrammarCompiler) -> None:
    wanted = StructuredOutput("json", {"type": "object"})  # type: ignore[arg-type]  # as a plugin may set it
    with pytest.raises(RequestError, match="it must be text"):
        await compiler.compile(wanted)


async def test_waiting_does_not_hold_the_event_loop(compiler: GrammarCompiler) -> None:
    assert await compiler.compile(YES) == compiler.compile_now(YES)
    assert (await compiler.compile(StructuredOutput("choice", '["later"]'))).backend == "xgrammar"


def test_a_killed_process_is_started_again_with_the_backend_asked_for_alone() -> None:
    compiler = compiler_of(grammar_backend="llguidance")
    assert compiler.compile_now(YES).backend == "llguidance"
    process = compiler._process._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    assert compiler.compile_now(PATTERN).backend == "llguidance"
    assert compiler._process._process is not process
    ebnf = refusal(compiler, StructuredOutput("grammar", 'root ::= "a"'))
    assert str(ebnf) == "structured: llguidance reads Lark, whose rules have ':' alone"
    compiler.close()
    compiler.close()
    with pytest.raises(EngineError, match="has been stopped"):
        compiler.compile_now(StructuredOutput("choice", '["new"]'))


def test_a_process_that_is_being_started_can_be_closed() -> None:
    asked = threading.Event()

    def launch() -> bytes:
        process = compiler._process._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)  # it will never be ready
        asked.set()
        return b""

    compiler = GrammarCompiler(launch, LimitsConfig())
    failures: list[BaseException] = []

    def compile_one() -> None:
        try:
            compiler.compile_now(YES)
        except EngineError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, daemon=True) for work in (compile_one, compiler.close)]
    threads[0].start()
    assert asked.wait(30)
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert len(failures) == 1


def test_a_backend_that_nobody_has_ends_the_start() -> None:
    config = sources.load({"grammar_backend": "outlines"}, {}).config
    with pytest.raises(UsageError, match="--grammar-backend: no grammar backend is called 'outlines'"):
        build_front(config, load_plugins(config.plugins))


class Faulty:
    """A backend whose grammars break in use."""

    def compile(self, wanted: StructuredOutput) -> bytes:
        return b""

    def load(self, data: bytes) -> None:
        raise RuntimeError("broken")


def test_a_backend_that_fails_is_a_reason_not_a_crash() -> None:
    backends: list[tuple[str, GrammarBackend]] = [("faulty", Faulty())]  # type: ignore[list-item]
    assert answer(YES, SPEC, backends).refusal == "RuntimeError: broken"
    backends.append(("llguidance", create("grammar", "llguidance", SPEC)))
    found = answer(YES, SPEC, backends).grammar
    assert found is not None
    assert found.backend == "llguidance"
