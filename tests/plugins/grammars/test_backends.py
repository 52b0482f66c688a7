"""xgrammar and llguidance hold to the contract, and read regular expressions as Python does."""

from __future__ import annotations

import json
import re

import pytest

from llmkit.contracts import GrammarBackend, StructuredOutput
from llmkit.testing.components import create
from llmkit.testing.grammars import SPEC, GrammarContract, accepts

BACKENDS = ("xgrammar", "llguidance")


class TestXgrammar(GrammarContract):
    backend = "xgrammar"


class TestLlguidance(GrammarContract):
    backend = "llguidance"


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request) -> GrammarBackend:
    return create("grammar", request.param, SPEC)


TEXTS = [
    *("a b ab abc xb axx aa aaaa ababc 1 12 _ - é 😀 ü n . / {a} } ] [ & xy A aab <a : a- ٣ ^ $ a$b".split()),
    *("", " ", "\n", "\r", "a\n", '"x"', "\\", "\u00a0", "\x85", "aa\n"),
]
PATTERNS = (
    r"^abc$ a|bc ^a|b$ ^(a|b)$ [^a] . \d+ \w \s [\w-]+ [a\]b] a{2,3} (ab)*c? (?:ab)+ é|😀 [à-ü] \. \/ a\n"
    r" [^\n] \x41 \u0041 (?P<n>a) a*?b a{0} [.] [\d.]+ \D \W \S [\S] [^\d\s] a{2,} \{a\} "
    r'"x"'
    r" \\ [a-] [-a] \t \- (a|)b ^$ a$b a^b $a (?=a)a \bA (?i)ab [[a]] [a&&b] [a--b] \Aa a++ []a] a\Z (a)\1"
).split()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Python's, of classes that other dialects combine
@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_expression_matches_what_python_matches_or_is_refused(
    backend: GrammarBackend, pattern: str
) -> None:
    try:
        grammar = backend.load(backend.compile(StructuredOutput("regex", pattern)))
    except ValueError:
        return
    expected = re.compile(pattern)
    wrong = [text for text in TEXTS if accepts(grammar, text) and expected.fullmatch(text) is None]
    assert wrong == []


@pytest.mark.parametrize("pattern", [r"[a-c]+\d{2}", r"^(yes|no)$", r"(?:ab)*c?", r"[^\n]", r"é|😀"])
def test_plain_expressions_are_honoured_by_both(backend: GrammarBackend, pattern: str) -> None:
    grammar = backend.load(backend.compile(StructuredOutput("regex", pattern)))
    expected = re.compile(pattern)
    for text in TEXTS:
        assert accepts(grammar, text) == (expected.fullmatch(text) is not None), text


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(a", "'(' is not closed"),
        ("a)", "closes nothing"),
        ("*a", "repeats nothing"),
        ("a**", "repeats nothing, or what is repeated already"),
        ("a{2", "no repeat count"),
        ("a{3,2}", "from 3 to 2"),
        ("a{99999}", "more than 10000 times"),
        ("(?=a)", "look-around"),
        ("(?>a)", "only (?:...) and named groups"),
        (r"\1", "the escape '\\\\1'"),
        (r"\b", "the escape '\\\\b'"),
        ("\\", "the escape"),
        (r"\ud83d", "half a surrogate pair"),
        ("[]", "empty class"),
        ("[a", "is not closed"),
        ("[[a]]", "differs among dialects"),
        ("[a&&b]", "differs among dialects"),
        ("a" * 20_000, "at most 16384"),
    ],
)
def test_a_bad_expression_is_refused_with_the_place(
    backend: GrammarBackend, pattern: str, words: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        backend.compile(StructuredOutput("regex", pattern))


def test_choices_are_texts_and_nothing_else(backend: GrammarBackend) -> None:
    choices = ['a"b', "a\\n", "x\ny", "é😀", "<|im_end|>", "/*", "a b", "[a]", "{", "'"]
    grammar = backend.load(backend.compile(StructuredOutput("choice", json.dumps(choices))))
    for choice in choices:
        assert accepts(grammar, choice), choice
        assert not accepts(grammar, choice + " "), choice
        assert not accepts(grammar, choice[:-1]), choice


@pytest.mark.parametrize("source", ["", "3", '["a", 1]', '["a", ""]', '{"a": 1}', "[" * 9999])
def test_wrong_choices_are_refused(backend: GrammarBackend, source: str) -> None:
    with pytest.raises(ValueError, match="choice"):
        backend.compile(StructuredOutput("choice", source))


def test_ebnf_and_lark_have_a_backend_each() -> None:
    ebnf = StructuredOutput("grammar", 'root ::= "a" root "b" | "c"')
    lark = StructuredOutput("grammar", 'start: "a" start "b" | "c"')
    xgrammar, llguidance = (create("grammar", name, SPEC) for name in BACKENDS)
    for backend, wanted, other in ((xgrammar, ebnf, lark), (llguidance, lark, ebnf)):
        grammar = backend.load(backend.compile(wanted))
        assert [accepts(grammar, text) for text in ("aacbb", "c", "acbb")] == [True, True, False]
        with pytest.raises(ValueError, match="reads"):
            backend.compile(other)
