"""Random requests, and what an answer says, whole or put together from its stream."""

from __future__ import annotations

import random
from typing import Any

from llmkit.testing.http import StreamedAnswer
from tests.acceptance.test_tool_calls import TOOLS

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
CASES = ("auto-case", "text-case", "parallel-case", "reasoning-case", "around-case", "cut-case", "open-case")
"""What the script of the tool-call tests knows; anything else it says again."""
WORDS = ("the", "lamp", "Möwe", "港", "🦀", "{", "\n", "tide", "</think>", "<tool_call>", '"a"', "…")
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "n": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
FORMATS: tuple[dict[str, Any], ...] = (
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}},
    {"structured_outputs": {"regex": "(lamp|tide) [0-9]{1,3}"}},
    {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}},
)


def make_request(
    number: int, *, most_tokens: int = 160, scores_prompts: bool = True
) -> tuple[str, dict[str, Any]]:
    """Path and body, the same for the same ``number``; whatever is drawn in them has a seed.

    ``scores_prompts``: an echo may come with logprobs, which asks for those of the prompt.
    """
    draw = random.Random(number)
    chat = draw.random() < 0.75
    body: dict[str, Any] = {"seed": draw.randrange(1000), "max_tokens": draw.randint(1, most_tokens)}
    optional: list[dict[str, Any]] = [
        {"temperature": draw.choice([0.0, 0.7, 1.5])},
        {"n": draw.randint(1, 3)},
        {"top_p": draw.choice([0.5, 0.9])},
        {"stop": draw.sample(["a", "e ", "mp", "Z", "}", "wer\n", "港"], draw.randint(1, 3))},
        {"stop": "t", "include_stop_str_in_output": True},
        {"min_tokens": draw.randint(0, body["max_tokens"])},
        {"ignore_eos": True},
        {"skip_special_tokens": False},
        {"return_token_ids": True},
        {"return_tokens_as_token_ids": True},
        {"logit_bias": {str(draw.randrange(97, 123)): draw.choice([-100, 5])}},
        {"repetition_penalty": 1.3, "presence_penalty": -0.5},
        draw.choice(FORMATS),
    ]
    if chat:
        body["messages"] = [{"role": "user", "content": _text(draw)}]
        optional += [
            {"logprobs": True, "top_logprobs": draw.randint(0, 3)},
            {"include_reasoning": False},
            {"parse_output": False},
        ]
        if draw.random() < 0.5:
            named = {"type": "function", "function": {"name": "get_weather"}}
            choice = draw.choice(["auto", "auto", "required", "none", named])
            body |= {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": draw.random() < 0.7}
    else:
        prompts = [_text(draw) for _ in range(draw.randint(1, 3))]
        body["prompt"] = draw.choice([prompts, prompts[0], [*prompts[0].encode()]])
        optional += [{"logprobs": draw.randint(0, 3)}, {"echo": True}]
    for fields in draw.sample(optional, draw.randint(0, 5)):
        body |= fields
    if not scores_prompts and body.get("logprobs") is not None:
        body.pop("echo", None)
    return (CHAT if chat else PLAIN), body


def _text(draw: random.Random) -> str:
    case = draw.choice(CASES) if draw.random() < 0.5 else ""
    return " ".join([case, *draw.choices(WORDS, k=draw.randint(1, 8))])


def whole_says(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each choice of a whole answer, by index."""
    return [_choice(choice) for choice in sorted(answer["choices"], key=lambda choice: choice["index"])]


def _choice(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice.get("message") or {"content": choice.get("text")}
    logprobs = choice["logprobs"]
    if logprobs is not None:
        plain = "content" not in logprobs
        logprobs = _plain_logprobs(logprobs) if plain else logprobs["content"]
    return {
        "text": message["content"] or "",
        "reasoning": message.get("reasoning_content") or "",
        "calls": [
            (call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        ],
        "logprobs": logprobs or [],
        "finish_reason": choice["finish_reason"],
        "stop_reason": choice.get("stop_reason"),
        "token_ids": choice.get("token_ids") or [],
    }


def stream_says(answer: StreamedAnswer) -> list[dict[str, Any]]:
    """The same of a stream."""
    ids: dict[int, list[int]] = {index: [] for index in answer.choices}
    logprobs: dict[int, list[Any]] = {index: [] for index in answer.choices}
    for chunk in answer.chunks:
        for part in chunk["choices"]:
            ids[part["index"]] += part.get("token_ids") or []
            held = part["logprobs"]
            if held is not None:
                logprobs[part["index"]] += held["content"] if "content" in held else _plain_logprobs(held)
    return [
        {
            "text": choice.text,
            "reasoning": choice.reasoning,
            "calls": [(call.name, call.arguments) for call in choice.calls],
            "logprobs": logprobs[index],
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": ids[index],
        }
        for index, choice in sorted(answer.choices.items())
    ]


def _plain_logprobs(logprobs: dict[str, Any]) -> list[Any]:
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return [*zip(*(logprobs[name] for name in names), strict=True)]
