"""What a request can get wrong: the field, OpenAI's code and the limit, for each kind of fault."""

from __future__ import annotations

import math

import pytest

from llmkit.config import LimitsConfig
from llmkit.errors import ContextLengthExceeded, RequestError
from llmkit.frontend.check import (
    MAX_PLUGIN_ARGS_BYTES,
    check_fits,
    check_params,
    check_priority,
    check_prompt,
    check_salt,
    resolve_max_tokens,
)
from llmkit.frontend.fields import check_text
from llmkit.types import BeamSearch, SamplingParams, StructuredOutput

VOCAB = 100


def _deep(levels):
    value = []
    for _ in range(levels):
        value = {"p": value}
    return value


GOOD = [
    {},
    {"n": 128, "logprobs": 0},
    {"max_tokens": 0},
    {"temperature": 0, "top_p": 1},
    {"temperature": 1e300},
    # vllm-project/vllm#14234: 0, -1 and more than the vocabulary mean all
    {"top_k": -1},
    {"top_k": 1_000_000},
    {"min_p": 1.0, "seed": -(1 << 63)},
    {"seed": (1 << 63) - 1},
    {"presence_penalty": -2, "frequency_penalty": 2.0},
    {"repetition_penalty": 0.5},
    {"logit_bias": {0: 100, 99: -100.0}},
    {"stop": ("a",) * 16, "stop_token_ids": (0, 99)},
    {"n": 2, "best_of": 5, "prompt_logprobs": 20},
    {"n": 4, "beam_search": BeamSearch(4, 0.5, True), "temperature": 0.7, "stop_token_ids": (3,)},
    {"bad_words": ("a", " b c"), "allowed_token_ids": (0, 99)},
    {"truncate_prompt_tokens": -1, "spaces_between_special_tokens": False},
    {"structured": StructuredOutput("json_object")},
    {"plugin_args": {"p": {"deep": [1, "two", None, True, 2.5]}}},
]

BAD = [
    ({"n": 0}, "n", "integer_below_min_value"),
    ({"n": 1_000_000}, "n", "integer_above_max_value"),
    ({"n": True}, "n", "invalid_type"),
    ({"n": "2"}, "n", "invalid_type"),
    ({"max_tokens": -1}, "max_tokens", "integer_below_min_value"),
    ({"max_tokens": 1e30}, "max_tokens", "invalid_type"),
    ({"max_tokens": 10**40}, "max_tokens", "integer_above_max_value"),
    ({"max_tokens": 3, "min_tokens": 4}, "min_tokens", "invalid_value"),
    ({"min_tokens": -1}, "min_tokens", "integer_below_min_value"),
    ({"temperature": -0.1}, "temperature", "decimal_below_min_value"),
    ({"temperature": math.nan}, "temperature", "invalid_value"),
    ({"temperature": math.inf}, "temperature", "invalid_value"),
    ({"temperature": 10**400}, "temperature", "invalid_value"),
    ({"temperature": True}, "temperature", "invalid_type"),
    ({"temperature": None}, "temperature", "invalid_type"),
    ({"top_p": 0}, "top_p", "decimal_below_min_value"),
    ({"top_p": 1.01}, "top_p", "decimal_above_max_value"),
    ({"top_p": math.nan}, "top_p", "invalid_value"),
    # vllm-project/vllm#14234
    ({"top_k": -2}, "top_k", "integer_below_min_value"),
    ({"top_k": 1.5}, "top_k", "invalid_type"),
    ({"top_k": 1 << 80}, "top_k", "integer_above_max_value"),
    ({"min_p": -0.1}, "min_p", "decimal_below_min_value"),
    ({"min_p": 1.1}, "min_p", "decimal_above_max_value"),
    ({"presence_penalty": 2.1}, "presence_penalty", "decimal_above_max_value"),
    ({"frequency_penalty": -2.1}, "frequency_penalty", "decimal_below_min_value"),
    ({"frequency_penalty": math.nan}, "frequency_penalty", "invalid_value"),
    ({"repetition_penalty": 0}, "repetition_penalty", "decimal_below_min_value"),
    ({"repetition_penalty": math.inf}, "repetition_penalty", "invalid_value"),
    ({"seed": 1 << 63}, "seed", "integer_above_max_value"),
    ({"seed": False}, "seed", "invalid_type"),
    ({"logprobs": 21}, "logprobs", "integer_above_max_value"),
    ({"logprobs": -1}, "logprobs", "integer_below_min_value"),
    ({"logprobs": True}, "logprobs", "invalid_type"),
    ({"ignore_eos": 1}, "ignore_eos", "invalid_type"),
    ({"skip_special_tokens": None}, "skip_special_tokens", "invalid_type"),
    ({"include_stop_str_in_output": "no"}, "include_stop_str_in_output", "invalid_type"),
    # vllm-project/vllm#16529: ids that no device has seen
    ({"logit_bias": {999_999_999: 5}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {-1: 5}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"abc": 5}}, "logit_bias", "invalid_type"),
    ({"logit_bias": {5: 1000}}, "logit_bias", "decimal_above_max_value"),
    ({"logit_bias": {5: math.nan}}, "logit_bias", "invalid_value"),
    ({"logit_bias": [5]}, "logit_bias", "invalid_type"),
    ({"logit_bias": dict.fromkeys(range(1025), 1)}, "logit_bias", "object_above_max_length"),
    ({"stop": 5}, "stop", "invalid_type"),
    ({"stop": ""}, "stop", "invalid_value"),
    ({"stop": ("a", 5)}, "stop", "invalid_type"),
    ({"stop": ("",)}, "stop", "invalid_value"),
    ({"stop": ("a",) * 17}, "stop", "array_above_max_length"),
    ({"stop": ("a" * 1025,)}, "stop", "string_above_max_length"),
    ({"stop": ("\ud800",)}, "stop", "invalid_value"),
    ({"stop_token_ids": (5, 100)}, "stop_token_ids[1]", "invalid_value"),
    ({"stop_token_ids": (-1,)}, "stop_token_ids[0]", "invalid_value"),
    ({"stop_token_ids": (True,)}, "stop_token_ids[0]", "invalid_type"),
    ({"stop_token_ids": (1,) * 129}, "stop_token_ids", "array_above_max_length"),
    ({"best_of": 0}, "best_of", "integer_below_min_value"),
    ({"best_of": 129}, "best_of", "integer_above_max_value"),
    ({"n": 3, "best_of": 2}, "best_of", "invalid_value"),
    ({"beam_search": {"width": 2}}, "beam_search", "invalid_type"),
    ({"beam_search": BeamSearch(0)}, "beam_search.width", "integer_below_min_value"),
    ({"beam_search": BeamSearch(2, math.nan)}, "beam_search.length_penalty", "invalid_value"),
    ({"beam_search": BeamSearch(2, 1.0, 1)}, "beam_search.early_stopping", "invalid_type"),
    ({"beam_search": BeamSearch(2, 1.0, "ever")}, "beam_search.early_stopping", "invalid_type"),
    ({"beam_search": BeamSearch(2), "n": 3}, "n", "integer_above_max_value"),
    ({"beam_search": BeamSearch(2), "best_of": 2}, "best_of", "unsupported_parameter"),
    ({"beam_search": BeamSearch(2), "stop": ("a",)}, "stop", "unsupported_parameter"),
    ({"beam_search": BeamSearch(2), "logit_bias": {1: 1}}, "logit_bias", "unsupported_parameter"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "integer_above_max_value"),
    ({"prompt_logprobs": -1}, "prompt_logprobs", "integer_below_min_value"),
    ({"bad_words": "abc"}, "bad_words", "invalid_type"),
    ({"bad_words": ("",)}, "bad_words", "invalid_value"),
    ({"bad_words": ("\ud800",)}, "bad_words", "invalid_value"),
    ({"bad_words": ("a",) * 257}, "bad_words", "array_above_max_length"),
    ({"bad_words": ("a" * 257,)}, "bad_words", "string_above_max_length"),
    ({"allowed_token_ids": ()}, "allowed_token_ids", "invalid_value"),
    ({"allowed_token_ids": (100,)}, "allowed_token_ids[0]", "invalid_value"),
    ({"allowed_token_ids": (1,) * 101}, "allowed_token_ids", "array_above_max_length"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "integer_below_min_value"),
    ({"spaces_between_special_tokens": "no"}, "spaces_between_special_tokens", "invalid_type"),
    ({"structured": {"kind": "json"}}, "structured", "invalid_type"),
    ({"structured": StructuredOutput("yaml")}, "structured", "invalid_value"),
    ({"structured": StructuredOutput("regex", 5)}, "structured", "invalid_type"),
    ({"structured": StructuredOutput("regex", "a" * (1 << 19))}, "structured", "string_above_max_length"),
    ({"plugin_args": [1]}, "plugin_args", "invalid_type"),
    ({"plugin_args": {"p": object()}}, "plugin_args", "invalid_value"),
    ({"plugin_args": {"p": 1 << 80}}, "plugin_args", "invalid_value"),
    ({"plugin_args": {"p": "\ud800"}}, "plugin_args", "invalid_value"),
    ({"plugin_args": {"p": "x" * MAX_PLUGIN_ARGS_BYTES}}, "plugin_args", "object_above_max_length"),
    ({"plugin_args": _deep(40)}, "plugin_args", "invalid_value"),
]


@pytest.mark.parametrize("params", GOOD, ids=str)
def test_good_parameters_pass(params):
    check_params(SamplingParams(**params), VOCAB, LimitsConfig())


@pytest.mark.parametrize(("params", "param", "code"), BAD, ids=lambda value: str(value)[:40])
def test_bad_parameters_are_refused_by_name(params, param, code):
    with pytest.raises(RequestError) as caught:
        check_params(SamplingParams(**params), VOCAB, LimitsConfig())
    assert (caught.value.param, caught.value.code, caught.value.status) == (param, code, 400)
    assert param in str(caught.value)
    assert len(str(caught.value)) < 400
    str(caught.value).encode()


def test_every_field_is_checked():
    """A field of another type than its own is refused, whichever it is."""
    for field in SamplingParams.__struct_fields__:
        with pytest.raises(RequestError) as caught:
            check_params(SamplingParams(**{field: object()}), VOCAB, LimitsConfig())
        assert caught.value.param == field


# vllm-project/vllm#7746, vllm-project/vllm#35231
@pytest.mark.parametrize(
    "prompt",
    [[], [-1], [100], [1, 2.5], [True], ["a"], "text", [[1]], 5, None, [1 << 200]],
    ids=str,
)
def test_prompts_that_no_embedding_has_are_refused(prompt):
    with pytest.raises(RequestError) as caught:
        check_prompt(prompt, VOCAB)
    assert caught.value.param in ("prompt", "prompt[0]", "prompt[1]")


def test_good_prompts_pass():
    check_prompt([0, 99], VOCAB)
    check_prompt((5,), VOCAB)


# sgl-project/sglang#3910
def test_a_prompt_longer_than_the_context_is_refused():
    with pytest.raises(ContextLengthExceeded) as caught:
        resolve_max_tokens(65, None, 64)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    assert "64" in str(caught.value)
    assert "65" in str(caught.value)


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "default", "resolved"),
    [
        pytest.param(10, None, None, 54, id="fills-the-context"),
        pytest.param(63, None, None, 1, id="room-for-one"),
        pytest.param(10, 54, None, 54, id="just-fits"),
        pytest.param(10, 5, 20, 5, id="own-wish-first"),
        pytest.param(10, None, 20, 20, id="the-models-default"),
        pytest.param(60, None, 20, 4, id="a-default-is-cut"),
        pytest.param(64, 0, None, 0, id="nothing-to-generate"),
    ],
)
def test_resolved_max_tokens(num_prompt, max_tokens, default, resolved):
    assert resolve_max_tokens(num_prompt, max_tokens, 64, default) == resolved


@pytest.mark.parametrize("max_tokens", [55, 9223372036854775807])
def test_max_tokens_that_cannot_fit_is_refused(max_tokens):
    with pytest.raises(ContextLengthExceeded, match="max_tokens is too large") as caught:
        resolve_max_tokens(10, max_tokens, 64)
    assert caught.value.param == "max_tokens"


def test_a_full_context_has_no_room_for_an_answer():
    with pytest.raises(ContextLengthExceeded):
        resolve_max_tokens(64, 1, 64)


@pytest.mark.parametrize(
    ("salt", "priority", "param"),
    [
        ("", 0, "cache_salt"),
        ("x" * 1025, 0, "cache_salt"),
        (5, 0, "cache_salt"),
        ("\udc00", 0, "cache_salt"),
        (None, True, "priority"),
        (None, 1.5, "priority"),
        (None, 1 << 63, "priority"),
    ],
)
def test_routing_is_checked(salt, priority, param):
    def check():
        check_salt(salt)
        check_priority(priority, "some-policy")

    with pytest.raises(RequestError) as caught:
        check()
    assert caught.value.param == param


def test_plugin_args_beyond_every_recursion_limit_are_refused():
    with pytest.raises(RequestError) as caught:
        check_params(SamplingParams(plugin_args=_deep(5000)), VOCAB, LimitsConfig())
    assert caught.value.param == "plugin_args"


# vllm-project/vllm: "Got priority ... but Priority scheduling is not enabled."
def test_a_priority_that_nobody_looks_at_is_refused():
    check_priority(0, "fcfs")
    check_priority(-3, "deadline")
    with pytest.raises(RequestError, match="scheduling policy 'fcfs'"):
        check_priority(1, "fcfs")


def test_a_text_too_long_for_any_tokens_is_refused_by_its_bytes():
    check_fits("é" * 200, 4, 100)
    check_fits("x" * 10_000, None, 1)
    with pytest.raises(ContextLengthExceeded, match="402 bytes"):
        check_fits("é" * 201, 4, 100)


def test_text_must_be_unicode():
    check_text("prompt", "ščí 😀")
    with pytest.raises(RequestError, match=r"\\ud83d\) at character 2"):
        check_text("prompt", "ab\ud83d")
