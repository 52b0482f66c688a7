"""Every reasoning format that ships with llmkit, in the compliance suite."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from llmkit.contracts import ParserSpec, ReasoningFormat
from llmkit.events import Content, Reasoning
from llmkit.testing.reasoning_parsers import Example, ReasoningParserContract, parsed
from llmkit_reasoning_parsers.formats import FORMATS


class BuiltIn(ReasoningParserContract):
    name = ""

    def make_format(self) -> ReasoningFormat:
        return FORMATS[self.name]


class ThinkTags(BuiltIn):
    """Those that write ``<think>`` and ``</think>``, and other tags in their place."""

    start, end = "<think>", "</think>"
    thinks_first = False
    generation = "<|im_start|>assistant\n"
    """What the template opens the turn with, thinking left to the model."""
    opener = "<tool_call>"

    def examples(self) -> Sequence[Example]:
        start, end = self.start, self.end
        opened = f"{self.generation}{start}\n"
        closed = f"{self.generation}{start}\n\n{end}\n\n"
        first = Reasoning if self.thinks_first else Content
        call = self.opener + '{"name": "f"}'
        yes = Content("Yes.")
        return [
            Example("no tag", "Hm.\n\nYes.", (first("Hm.\n\nYes."),), self.generation),
            Example("nothing", "", (), self.generation),
            Example("its own tags", f"{start}\nhm\n{end}\n\nYes.", (Reasoning("hm"), yes), self.generation),
            Example("tight", f"{start}hm{end}Yes.", (Reasoning("hm"), yes), self.generation),
            Example("a newline first", f"\n{start}hm{end}\nYes.", (Reasoning("hm"), yes), self.generation),
            Example("empty thought", f"{start}\n\n{end}\n\nYes.", (yes,), self.generation),
            Example("opened by the prompt", f"hm\n{end}\n\nYes.", (Reasoning("hm"), yes), opened),
            Example("opened twice", f"{start}\nhm\n{end}\n\nYes.", (Reasoning("hm"), yes), opened),
            Example("closed at once", f"{end}\n\nYes.", (yes,), opened),
            Example("closed by the prompt", "Yes.\n\nNo.", (Content("Yes.\n\nNo."),), closed),
            Example("cut off in thinking", "so 1 < 2 and", (Reasoning("so 1 < 2 and"),), opened),
            Example("cut off in the end tag", f"hm\n{end[:-1]}", (Reasoning(f"hm\n{end[:-1]}"),), opened),
            Example("cut off before the answer", f"hm{end}\n", (Reasoning("hm"),), opened),
            Example(
                "nearly the end tag",
                f"a\n{end[:3]} {end[:-1]} b{end}c",
                (Reasoning(f"a\n{end[:3]} {end[:-1]} b"), Content("c")),
                opened,
            ),
            Example("unicode", f"ö\U0001f600{end}é\n", (Reasoning("ö\U0001f600"), Content("é\n")), opened),
            Example(
                "a call after thinking",
                f"hm{end}\n{call}",
                (Reasoning("hm"), Content(call)),
                opened,
                openers=(self.opener,),
            ),
            Example(
                "a call in thinking",
                f"hm\n{call}",
                (Reasoning("hm\n"), Content(call)),
                opened,
                openers=(self.opener,),
            ),
            Example(
                "a bracket opens no call in thinking",
                f"a [b] {{c}}{end}d",
                (Reasoning("a [b] {c}"), Content("d")),
                opened,
                openers=("[", "{"),
            ),
            Example("newlines behind the prompt's own", "\n\nb", (Content("\n\nb"),), closed),
            Example("continued in thinking", f"b{end}c", (Reasoning("b"), Content("c")), f"{opened}a "),
            Example("continued in the answer", "\nb", (Content("\nb"),), f"{closed}a"),
            *self.more_examples(),
        ]

    def more_examples(self) -> Sequence[Example]:
        start, end = self.start, self.end
        tags = f"The tags {start} and {end}."
        return [
            Example(
                "tags in the answer are text",
                f"hm{end}{tags}",
                (Reasoning("hm"), Content(tags)),
                f"{start}\n",
            )
        ]


class TestDeepseekR1(ThinkTags):
    name = "deepseek_r1"
    thinks_first = True
    generation = "<｜Assistant｜>"
    opener = "<｜tool▁calls▁begin｜>"

    def more_examples(self) -> Sequence[Example]:
        return [
            *super().more_examples(),
            Example(
                "switched off by the request",
                "Yes.",
                (Content("Yes."),),
                self.generation,
                template_args={"enable_thinking": False},
            ),
        ]


class TestDeepseekV3(ThinkTags):
    name = "deepseek_v3"
    generation = "<｜Assistant｜>"
    opener = "<｜tool▁calls▁begin｜>"


class TestErnie45(ThinkTags):
    name = "ernie45"
    thinks_first = True
    syntax = ThinkTags.syntax + r"|\s{0,2}</?response>\n?"
    longest_marker = len("\n\n</response>")

    def more_examples(self) -> Sequence[Example]:
        return [
            *super().more_examples(),
            Example(
                "a wrapped answer",
                "abc\n</think>\n\n<response>\ndef\n</response>\n",
                (Reasoning("abc"), Content("def\n")),
            ),
        ]


class TestGlm45(ThinkTags):
    name = "glm45"
    generation = "<|assistant|>"


class TestGranite(ThinkTags):
    name = "granite"
    start, end = "Here is my thought process:", "Here is my response:"
    generation = "<|start_of_role|>assistant<|end_of_role|>"
    syntax = r"\s{0,2}(?:Here(?: is|'s) my (?:thought process|response):|</?(?:think|response)>)\n{0,2}"
    longest_marker = len("\n\nHere is my thought process:")

    def more_examples(self) -> Sequence[Example]:
        return [
            *super().more_examples(),
            Example(
                "sentences",
                "Here's my thought process: a: b\nHere's my response: c",
                (Reasoning(" a: b"), Content(" c")),
            ),
            Example(
                "tags of 3.3",
                "<think>a</think><response>b</response>",
                (Reasoning("a"), Content("b")),
            ),
        ]


class TestHunyuanA13b(ThinkTags):
    name = "hunyuan_a13b"
    syntax = ThinkTags.syntax + r"|\s{0,2}</?answer>\n?"

    def more_examples(self) -> Sequence[Example]:
        return [
            *super().more_examples(),
            Example(
                "a wrapped answer",
                "<think>\na\n</think>\n<answer>\nb\n</answer>",
                (Reasoning("a"), Content("b")),
            ),
            Example(
                "a closer that closes nothing",
                "<answer>a</answer>b</answer>",
                (Content("ab</answer>"),),
            ),
            Example(
                "calls after the answer",
                "<think>a</think><answer>b</answer><tool_calls>[]</tool_calls>",
                (Reasoning("a"), Content("b<tool_calls>[]</tool_calls>")),
            ),
        ]


class TestKimiK2(ThinkTags):
    name = "kimi_k2"
    thinks_first = True
    generation = "<|im_assistant|>assistant<|im_middle|>"
    opener = "<|tool_calls_section_begin|>"


class TestMinimaxM2(ThinkTags):
    name = "minimax_m2"
    thinks_first = True
    generation = "]~b]ai\n"
    opener = "<minimax:tool_call>"


class TestNemotronV3(ThinkTags):
    name = "nemotron_v3"
    thinks_first = True


class TestOlmo3(ThinkTags):
    name = "olmo3"
    thinks_first = True
    opener = "<function_calls>"


class TestQwen3(ThinkTags):
    name = "qwen3"


class TestSeedOss(ThinkTags):
    name = "seed_oss"
    start, end = "<seed:think>", "</seed:think>"
    generation = "<seed:bos>assistant\n"
    opener = "<seed:tool_call>"
    syntax = r"\s{0,2}</?seed:think>\n{0,2}"
    longest_marker = len("\n\n</seed:think>")


class TestStep3(ThinkTags):
    name = "step3"
    thinks_first = True


class SpecialTokens(ThinkTags):
    """Tags of their own tokens: thinking may begin again."""

    def more_examples(self) -> Sequence[Example]:
        start, end = self.start, self.end
        return [
            Example(
                "thinking again",
                f"{start}a{end}b\n{start}\nc\n{end}\nd",
                (Reasoning("a"), Content("b\n"), Reasoning("c"), Content("d")),
            ),
            Example("an answer first", f"a{start}b{end}c", (Content("a"), Reasoning("b"), Content("c"))),
        ]


class TestMistral(SpecialTokens):
    name = "mistral"
    start, end = "[THINK]", "[/THINK]"
    generation = "[/INST]"
    opener = "[TOOL_CALLS]"
    syntax = r"\s{0,2}\[/?THINK\]\n{0,2}"


class TestGemma(SpecialTokens):
    name = "gemma"
    start, end = "<|channel>thought", "<channel|>"
    generation = "<|turn>model\n"
    opener = "<|tool_call>"
    syntax = r"\s{0,2}(?:<\|channel>thought|<channel\|>)\n{0,2}"
    longest_marker = len("\n\n<|channel>thought")


class TestCohere(SpecialTokens):
    name = "cohere"
    start, end = "<|START_THINKING|>", "<|END_THINKING|>"
    generation = "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
    opener = "<|START_ACTION|>"
    syntax = r"\s{0,2}<\|(?:START|END)_(?:THINKING|RESPONSE|TEXT)\|>\n{0,2}"
    longest_marker = len("\n\n<|START_RESPONSE|>")

    def more_examples(self) -> Sequence[Example]:
        return [
            *super().more_examples(),
            Example(
                "a wrapped answer",
                "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>",
                (Reasoning("a"), Content("b")),
            ),
            Example("no thinking", "<|START_RESPONSE|>b<|END_RESPONSE|>", (Content("b"),)),
            Example("of Command A", "<|START_TEXT|>b<|END_TEXT|>", (Content("b"),)),
        ]


class TestIdentity(BuiltIn):
    name = "identity"
    longest_marker = 1

    def examples(self) -> Sequence[Example]:
        texts = ("Yes.", "<think>a</think>b", "\n", "", "<tool_call>", "[THINK]", "é\U0001f600", "</think>")
        return [Example(text, text, (Content(text),) if text else (), "<think>\n") for text in texts]


class TestGptOss(BuiltIn):
    name = "gptoss"
    syntax = (
        r"(?s:<\|(?:end|return|call)\|>|(?:<\|(?:start|channel)\|>(?:(?!<\|message\|>).)*)?<\|message\|>)"
    )
    longest_marker = 256

    def examples(self) -> Sequence[Example]:
        start = "<|start|>assistant"
        analysis = "<|channel|>analysis<|message|>"
        final = "<|channel|>final<|message|>"
        call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
        return [
            Example(
                "thinking and an answer",
                f"{analysis}Hm.\n<|end|>{start}{final}Yes.<|return|>",
                (Reasoning("Hm.\n"), Content("Yes.")),
                start,
            ),
            Example("an answer", f"{final}Yes.", (Content("Yes."),), start),
            Example("nothing", "", (), start),
            Example("no prompt", f"{start}{analysis}Hm.", (Reasoning("Hm."),)),
            Example(
                "a preamble", "<|channel|>commentary<|message|>First.<|end|>", (Content("First."),), start
            ),
            Example(
                "a call after thinking",
                f"{analysis}Hm.<|end|>{start}{call}",
                (Reasoning("Hm."), Content(start + call)),
                start,
            ),
            Example(
                "a call with its name before the channel",
                f" to=functions.f{call[:21]} json<|message|>{{}}",
                (Content(f" to=functions.f{call[:21]} json<|message|>{{}}"),),
                start,
            ),
            Example(
                "calls and an answer",
                f"{call}{start}{call}{start}{final}Yes.<|return|>",
                (Content(f"{call}{start}{call}Yes."),),
                start,
            ),
            Example(
                "thinking twice",
                f"{analysis}a<|end|>{start}{analysis}b<|end|>{start}{final}c",
                (Reasoning("ab"), Content("c")),
                start,
            ),
            Example("no end", f"{analysis}a{start}{final}b", (Reasoning("a"), Content("b")), start),
            Example(
                "a header begun again",
                f"{start} to=functions.f{start}{final}Yes.",
                (Content("Yes."),),
            ),
            Example("no harmony", "Yes.", (Content("Yes."),), start),
            Example("cut off in thinking", f"{analysis}a <|en", (Reasoning("a <|en"),), start),
            Example("cut off in a header", "<|channel|>ana", (Content("<|channel|>ana"),), start),
            Example("continued in thinking", "b<|end|>", (Reasoning("b"),), f"{start}{analysis}a"),
            Example(
                "a header that the prompt began", "<|message|>a", (Reasoning("a"),), start + analysis[:-11]
            ),
            Example("continued in the answer", "b", (Content("b"),), f"{start}{final}a"),
            Example("unicode", f"{final}é\U0001f600", (Content("é\U0001f600"),), start),
        ]


def test_every_format_is_in_the_suite() -> None:
    tested = {
        value.name for value in globals().values() if isinstance(value, type) and issubclass(value, BuiltIn)
    }
    assert tested - {""} == set(FORMATS)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "identity"])
def test_what_starts_and_ends_reasoning_does(name: str) -> None:
    made = FORMATS[name]
    events = parsed(made.parser(ParserSpec()), [f"{made.starts[0]}thought{made.ends[0]}answer"])
    assert events == [Reasoning("thought"), Content("answer")]


def test_a_header_that_does_not_end_is_content() -> None:
    text = "<|channel|>" + "analysis" * 100
    assert parsed(FORMATS["gptoss"].parser(ParserSpec()), [text, "<|end|>"]) == [Content(text)]
